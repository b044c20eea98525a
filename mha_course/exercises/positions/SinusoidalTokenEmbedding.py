"""Exercise: a learned vector for each token plus the fixed pattern of its position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given
from mha_course.exercises.positions.sinusoidal_positions import Table, built_on_wrong_tables
from mha_course.exercises.positions.sinusoidal_positions_in import ROUNDED_TABLES
from mha_course.exercises.positions.TokenAndPositionEmbedding import (
    describe,
    draw,
    tells_places_apart,
    tells_tokens_apart,
)
from mha_course.exercises.properties import randn, unchanged
from mha_course.positions import sinusoidal_positions

SECTION, BUFFER = "positions#sinusoids", "positions#a-table-is-a-buffer"
FORGETS, PRECISION = "positions#a-layer-that-forgets-its-positions", "positions#low-precision"
SIZES, ADDED = "positions#how-large-is-each-part", "positions#added-not-concatenated"
SLACK = {torch.float64: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def trained_besides_tokens(layer: Any) -> Callable[[], int]:
    """Count the numbers that training would change, without the table of tokens."""

    def count() -> int:
        trained = {id(parameter): parameter for parameter in layer.parameters() if parameter.requires_grad}
        trained.pop(id(layer.token.weight), None)
        return sum(parameter.numel() for parameter in trained.values())

    return count


def cases(rng: Generator) -> Iterator[Case]:
    for vocab, longest, d_model, batch, length in (
        (11, 5, 4, 1, 2),
        (11, 5, 4, 1, 1),
        (13, 7, 6, 3, 5),
        (13, 7, 6, 2, 7),
        (7, 13, 10, 5, 2),
        (17, 11, 8, 3, 3),
        (5, 29, 5, 2, 23),
    ):
        ids = draw(rng, vocab, batch, length)
        yield _case(rng, "sum", (vocab, longest, d_model), describe(ids, d_model), Call((ids,)))
    for ids, label, holds in (
        (torch.tensor([[4, 4]]), "one token at two places, ids [[4, 4]]", tells_places_apart),
        (torch.tensor([[4, 2]]), "two tokens, ids [[4, 2]], then two others", tells_tokens_apart),
    ):
        yield _case(rng, "sum", (11, 5, 4), label, Call((ids,)), Call((ids + 3,)), holds=(holds,))
    ids = torch.tensor([[3, 0, 2, 0, 1]])
    yield _case(rng, "sum", (5, 7, 4), "ids [[3, 0, 2, 0, 1]]", Call((ids,)))
    ids = draw(rng, 13, 3, 5)
    other = torch.cat([ids[:1], draw(rng, 13, 2, 5)])
    alone = unchanged(
        "The examples of a batch do not affect one another.",
        "when only the other examples were changed, the first one's result moved by {change}",
        where=0,
    )
    label = describe(ids, 4) + ", all examples but the first changed"
    yield _case(rng, "sum", (13, 7, 4), label, Call((ids,)), Call((other,)), holds=(alone,))
    calls = tuple(Call((draw(rng, 13, *shape),)) for shape in ((2, 3), (2, 7), (1, 1), (2, 3)))
    yield _case(rng, "sum", (13, 7, 4), "one layer called four times, with other lengths and batches", *calls)
    for training in (True, False):
        ids = draw(rng, 13, 2, 3)
        ids[0, 0] = 0
        label = f"{describe(ids, 4)}, {'training' if training else 'evaluation'} mode, with gradients"
        yield _case(rng, "sum", (13, 7, 4), label, Call((ids,), backward=True), train=training)
    for build in ((11, 5, 4), (3, 7, 6)):
        label = (
            f"vocab_size {build[0]}, max_length {build[1]}, d_model {build[2]}, numbers to be trained besides token's"
        )
        yield _case(rng, "fixed", build, label, Call(()), through=given(trained_besides_tokens))
    for dtype, longest, length in (
        (torch.float16, 5, 3),
        (torch.bfloat16, 7, 5),
        (torch.float64, 7, 5),
        (torch.bfloat16, 523, 521),
    ):
        ids = draw(rng, 11, 1, length)
        label = f"{describe(ids, 4)}, the layer moved to {str(dtype).removeprefix('torch.')}"
        yield _case(rng, "follows", (11, longest, 4), label, Call((ids,)), dtype=dtype, tolerance=SLACK[dtype])


def _case(
    rng: Generator,
    part: str,
    build: tuple[int, int, int],
    label: str,
    *calls: Call,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Case:
    state = {"token.weight": randn(rng, build[0], build[2], dtype=dtype)}
    return Case(part, label, calls, Call(build), state, **more)


# --- wrong answers -------------------------------------------------------------------------------------------------


class Steps(nn.Module):
    """The layer in steps that are right, for wrong answers to replace one of."""

    table: Tensor

    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.keep(self.make(max_length, d_model))

    def make(self, max_length: int, d_model: int) -> Tensor:
        return sinusoidal_positions(max_length, d_model)

    def keep(self, table: Tensor) -> None:
        self.register_buffer("table", table, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.join(self.token(ids), self.rows(ids))

    def rows(self, ids: Tensor) -> Tensor:
        return self.table[: ids.size(1)]

    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens + places


def with_table(table: Table) -> type[Steps]:
    """Build the layer on another table."""

    class OnWrongTable(Steps):
        def make(self, max_length: int, d_model: int) -> Tensor:
            return table(max_length, d_model)

    return OnWrongTable


class NotAssigned(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        tokens + places
        return tokens


class PatternAlone(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return places.expand_as(tokens)


class PatternWithoutBatch(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return places


class PlainAttribute(Steps):
    def keep(self, table: Tensor) -> None:
        self.table = table


class ComputedInFloat32(Steps):
    def keep(self, table: Tensor) -> None:
        pass

    def rows(self, ids: Tensor) -> Tensor:
        return sinusoidal_positions(ids.size(1), self.token.embedding_dim)


class AllInFloat32(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens.float() + places.float()


class Trained(Steps):
    def keep(self, table: Tensor) -> None:
        self.table = nn.Parameter(table)


class TrainedEmbedding(Steps):
    def keep(self, table: Tensor) -> None:
        self.position = nn.Embedding.from_pretrained(table, freeze=False)

    def rows(self, ids: Tensor) -> Tensor:
        return self.position(torch.arange(ids.size(1)))


class LearnedInstead(Steps):
    def keep(self, table: Tensor) -> None:
        self.position = nn.Embedding(*table.shape)

    def rows(self, ids: Tensor) -> Tensor:
        return self.position(torch.arange(ids.size(1)))


class TokensFrozen(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(vocab_size, max_length, d_model)
        self.token.weight.requires_grad_(False)


class TokensDetached(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens.detach() + places


class PositionOfTheExample(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[torch.arange(ids.size(0))][:, None]


class RowsForTheBatch(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[: ids.size(0)]


class SequenceFirst(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[:, None][: ids.size(0)]


class PatternOfTheId(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[ids]


class PatternOfTheIdInTheTable(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[ids % len(self.table)]


class WholeTable(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table


class OneForAll(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[ids.size(1) - 1]


class FirstForAll(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[0]


class LastRows(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[-ids.size(1) :]


class Reversed(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return super().rows(ids).flip(0)


class FromOne(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[torch.arange(1, ids.size(1) + 1)]


class OneRowTooFar(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[1 : ids.size(1) + 1]


class TooShort(Steps):
    def make(self, max_length: int, d_model: int) -> Tensor:
        return super().make(max_length - 1, d_model)


class AddedToTheTable(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[None, : ids.size(1)]

    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        places += tokens
        return places


class Scaled(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens * tokens.size(-1) ** 0.5 + places


class Halved(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return (tokens + places) / 2


class Concatenated(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return torch.cat([tokens, places.expand_as(tokens)], dim=-1)


class Multiplied(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens * places


class Normalised(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens + places, tokens.shape[-1:])


class Dropped(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return nn.functional.dropout(tokens + places, 0.1, self.training)


class AlwaysDropped(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return nn.functional.dropout(tokens + places, 0.1)


class PositionsInTheType(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        position = torch.arange(ids.size(1)).to(self.table)[:, None]
        speed = 10000 ** (-torch.arange(0, self.table.size(1), 2) / self.table.size(1))
        angle = position.float() * speed
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, : self.table.size(1)].to(self.table)


def computing(table: Callable[[int, int, torch.dtype], Tensor]) -> type[Steps]:
    """Build the layer so that it computes its table in each call, in its own type."""

    class ComputedInTheType(Steps):
        def rows(self, ids: Tensor) -> Tensor:
            return table(ids.size(1), self.token.embedding_dim, self.token.weight.dtype)

    return ComputedInTheType


class SpeedsAreTheBuffer(Steps):
    def make(self, max_length: int, d_model: int) -> Tensor:
        return 10000 ** (-torch.arange(0, d_model, 2) / d_model)

    def rows(self, ids: Tensor) -> Tensor:
        angle = torch.arange(ids.size(1))[:, None] * self.table
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, : self.token.embedding_dim]


class NothingForIdZero(Steps):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * (ids != 0)[..., None]


class IdZeroNotTrained(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(vocab_size, max_length, d_model)
        self.token = nn.Embedding(vocab_size, d_model, padding_idx=0)


class CountedWithoutIdZero(Steps):
    def rows(self, ids: Tensor) -> Tensor:
        return self.table[((ids != 0).cumsum(dim=1) - 1).clamp(min=0)]


class TokensOfAnotherShape(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(max_length, vocab_size, d_model)


MISCONCEPTIONS = (
    Misconception(
        "pe_not_assigned",
        "The result holds the tokens alone. x + table is a new tensor: where nobody gives it a name or returns it, it is "
        "thrown away, and x stays as it was. All shapes are right and a loss will fall, but the model is blind to the order.",
        FORGETS,
        (NotAssigned,),
        (
            "https://github.com/Lightning-AI/pytorch-lightning/issues/19138",
            "https://github.com/msalhab96/Conformer/issues/2",
            "https://github.com/ml-explore/mlx-examples/issues/359",
        ),
    ),
    Misconception(
        "positions_alone",
        "The result holds the patterns alone, without the tokens: every sentence of one length looks the same.",
        ADDED,
        (PatternAlone, PatternWithoutBatch),
        ("https://github.com/jiwidi/Behavior-Sequence-Transformer-Pytorch/issues/4",),
    ),
    Misconception(
        "pe_plain_attribute",
        "The layer was moved to another precision, and the table of positions stayed behind in float32. Half precision plus "
        "float32 is float32, so the result has that type again, in silence (on a GPU it is an error, as the table is still "
        "on the CPU). PyTorch moves what it knows of, parameters and buffers; a tensor in a plain attribute, self.x = …, or "
        "one that forward makes without asking for a type, is neither.",
        BUFFER,
        (PlainAttribute, ComputedInFloat32, AllInFloat32),
        (
            "https://github.com/lyuwenyu/RT-DETR/issues/677",
            "https://github.com/facebookresearch/fairseq/pull/5213",
            "https://github.com/kornia/kornia/pull/4319",
        ),
    ),
    Misconception(
        "pe_is_trained",
        "The table of positions is a parameter, so the optimizer changes it: after training it is a learned table that "
        "merely started as sinusoids. It ends where it ends, and the rule of distances no longer holds. What is moved with "
        "the layer but not trained is called a buffer in PyTorch.",
        BUFFER,
        (Trained, TrainedEmbedding),
        (
            "https://github.com/weihaosky/mogents/issues/11",
            "https://github.com/huggingface/transformers/issues/25989",
            "https://github.com/henry9zhr/QANet-pytorch/issues/3",
        ),
    ),
    Misconception(
        "learned_positions",
        "The positions are a learned table that starts with random numbers. This layer computes them: sinusoids, which "
        "stay as they are.",
        SECTION,
        (LearnedInstead,),
    ),
    Misconception(
        "tokens_not_trained",
        "The result is right, but the table of tokens gets no gradient: it is frozen, or its rows have been cut off (.data, "
        ".detach(), torch.no_grad()). Only the positions are fixed; the tokens are to be learned.",
        BUFFER,
        (TokensDetached, TokensFrozen),
        ("https://github.com/d2l-ai/d2l-en/pull/2121",),
    ),
    Misconception(
        "positions_along_the_batch",
        "The positions run along the batch: as many rows are taken as there are examples, not as many as there are tokens. "
        "Either all tokens of an example get the same pattern, or the shapes don't fit. Code for tensors that are stored "
        "sequence first does so rightly; here ids is (batch, length).",
        SECTION,
        (PositionOfTheExample, RowsForTheBatch, SequenceFirst),
        (
            "https://github.com/KasperGroesLudvigsen/influenza_transformer/issues/9",
            "https://github.com/AkiRusProd/numpy-transformer/issues/1",
            "https://github.com/tanjimin/C.Origami/issues/42",
            "https://github.com/pytorch/tutorials/issues/1547",
        ),
    ),
    Misconception(
        "positions_from_ids",
        "The table of positions is asked for the ids. An id says which token it is, a position where it stands; row p of "
        "the table belongs to the token at place p, whichever it is.",
        "positions#tokens-become-vectors",
        (PatternOfTheId, PatternOfTheIdInTheTable),
    ),
    Misconception(
        "whole_table_added",
        "The whole table is added, max_length rows. That fits only a text of just this length; a shorter one needs as many "
        "rows as it has tokens, from the first on.",
        SECTION,
        (WholeTable,),
    ),
    Misconception(
        "one_position_for_all",
        "All tokens get the pattern of one and the same position. That moves every token by the same vector and says "
        "nothing about their order.",
        "positions#order-is-lost",
        (OneForAll, FirstForAll),
    ),
    Misconception(
        "positions_from_the_end",
        "The first token doesn't get row 0: the rows are taken from the end of the table, or in reverse order.",
        SECTION,
        (LastRows, Reversed),
    ),
    Misconception(
        "rows_from_one",
        "The rows are taken from row 1 on, or positions counted up to max_length. The first token stands at position 0 and "
        "gets the first row of the table; a text of full length then ends on the last one.",
        SECTION,
        (FromOne, OneRowTooFar),
        ("https://github.com/rasbt/LLMs-from-scratch/issues/49",),
    ),
    Misconception(
        "table_too_short",
        "The table has one row too few: max_length positions are 0 to max_length - 1.",
        SECTION,
        (TooShort,),
    ),
    Misconception(
        "table_changed_in_place",
        "A call changes the table itself (+= on a slice of it writes into it), so that the next call finds other "
        "positions.",
        BUFFER,
        (AddedToTheTable,),
        ("https://github.com/thuanz123/enhancing-transformers/issues/11",),
    ),
    Misconception(
        "parts_weighted",
        "Token and pattern aren't simply added: the tokens are multiplied by the root of d_model, or the sum is divided. "
        "The paper multiplies because its tokens start with very small numbers; nn.Embedding starts with a spread of 1, and "
        "multiplied on top of that they drown the positions.",
        SIZES,
        (Scaled, Halved),
        ("https://github.com/SamLynnEvans/Transformer/issues/10",),
    ),
    Misconception(
        "concatenated",
        "Token and pattern are put side by side instead of added, which doubles the width. It ends in a sum anyway, as soon "
        "as a matrix multiplies both.",
        ADDED,
        (Concatenated,),
    ),
    Misconception(
        "multiplied",
        "Token and pattern are multiplied. At position 0 every sine is 0, and what it multiplies is lost.",
        ADDED,
        (Multiplied,),
    ),
    Misconception(
        "more_than_a_sum",
        "Something is done to the sum: a layer norm, or dropout. Models do that too, but here the sum is asked for; what "
        "comes after it is for others to decide.",
        ADDED,
        (Normalised, Dropped, AlwaysDropped),
    ),
    Misconception(
        "pe_low_precision",
        "The table is computed in the layer's own small type: positions, speeds or angles are rounded. In bfloat16 there is "
        "no 257, so that neighbours far into the text get the same pattern. What the layer keeps, and what is moved with "
        "it, should be the finished table, computed in a wide type before.",
        PRECISION,
        (PositionsInTheType, SpeedsAreTheBuffer, *map(computing, ROUNDED_TABLES)),
        (
            "https://github.com/EleutherAI/gpt-neox/issues/1003",
            "https://github.com/huggingface/transformers/issues/25681",
            "https://github.com/NVIDIA/Megatron-LM/issues/744",
        ),
    ),
    Misconception(
        "id_zero_is_padding",
        "Id 0 is treated as padding: it isn't counted, gets zeros, or (with padding_idx=0) is never trained. Here it is a "
        "token like any other; what is padding, a mask says where it matters, in attention.",
        "positions#counting-from-the-first-real-token",
        (CountedWithoutIdZero, NothingForIdZero, IdZeroNotTrained),
        ("https://github.com/huggingface/transformers/issues/9116",),
    ),
    Misconception(
        "table_of_another_shape",
        "The table of tokens has another shape than it should. nn.Embedding takes the number of rows, one for each token of "
        "the vocabulary, and then the width.",
        "positions#tokens-become-vectors",
        (TokensOfAnotherShape,),
    ),
    *built_on_wrong_tables(
        with_table,
        "It isn't the layer, the table itself is wrong; see whether sinusoidal_positions is right, or else the formula that "
        "stands here.",
    ),
)

EXERCISE = Exercise(
    name="SinusoidalTokenEmbedding",
    chapter="positions",
    kind="class",
    minutes=15,
    parts=(
        Part("sum", 2, "add the pattern of its position to the row of each token", SECTION),
        Part("fixed", 1, "keep the table of positions out of training", BUFFER),
        Part("follows", 2, "give results in the precision to which the layer has been moved", BUFFER),
    ),
    hints=(
        "Three things can be kept on a module: a parameter, a buffer, a plain attribute. Which of them are moved with it, "
        "and which are trained?",
        "Compute the table once, in __init__. register_buffer keeps it under a name of your choice, by which forward finds "
        "it as an attribute. How many of its rows does a text of n tokens need?",
        'In __init__: nn.Embedding for the tokens, and self.register_buffer("table", …) with what sinusoidal_positions '
        "gives. In forward: look the ids up, take the first ids.size(1) rows of the table, and return the sum.",
    ),
    cases=cases,
    reference=positions.SinusoidalTokenEmbedding,
    misconceptions=MISCONCEPTIONS,
)
