"""Exercise: a learned vector for each token plus a learned one for each position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.positions.sinusoidal_positions import describe as describe_table
from mha_course.exercises.properties import REFUSALS, randn, unchanged

SECTION, PAST = "positions#learned-positions", "positions#past-the-trained-length"
TOKENS, FORGETS = "positions#tokens-become-vectors", "positions#a-layer-that-forgets-its-positions"
ADDED, SIZES = "positions#added-not-concatenated", "positions#how-large-is-each-part"
TOO_LONG = (*REFUSALS, "IndexError")


def cases(rng: Generator) -> Iterator[Case]:
    for vocab, longest, d_model, batch, length in (
        (11, 5, 3, 1, 2),
        (5, 7, 2, 1, 5),
        (11, 5, 3, 1, 1),
        (13, 7, 5, 3, 5),
        (13, 7, 5, 2, 7),  # every row of the table is used
        (7, 13, 6, 5, 2),
        (17, 11, 4, 3, 3),
        (3, 29, 2, 2, 23),
    ):
        ids = draw(rng, vocab, batch, length)
        yield _case(rng, "sum", (vocab, longest, d_model), describe(ids, d_model), Call((ids,)))
    for ids, label, holds in (
        (torch.tensor([[4, 4]]), "one token at two places, ids [[4, 4]]", tells_places_apart),
        (torch.tensor([[4, 2]]), "two tokens, ids [[4, 2]], then two others", tells_tokens_apart),
    ):
        yield _case(rng, "sum", (11, 5, 3), label, Call((ids,)), Call((ids + 3,)), holds=(holds,))
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
    shapes = ((2, 3), (2, 7), (1, 1), (3, 5))
    calls = tuple(Call((draw(rng, 13, *shape),)) for shape in shapes)
    yield _case(rng, "sum", (13, 7, 4), "one layer called four times, with other lengths and batches", *calls)
    for training in (True, False):
        ids = draw(rng, 13, 2, 3)
        label = f"{describe(ids, 4)}, {'training' if training else 'evaluation'} mode"
        yield _case(rng, "sum", (13, 7, 4), label, Call((ids,)), train=training)
    for dtype in (torch.float64, torch.float16):
        ids = draw(rng, 13, 2, 3)
        label = f"{describe(ids, 4)}, {str(dtype).removeprefix('torch.')}"
        yield _case(rng, "sum", (13, 7, 4), label, Call((ids,)), dtype=dtype)
    for batch, length in ((1, 2), (3, 5)):
        ids = draw(rng, 5, batch, length)
        ids[0, 0] = 0
        yield _case(
            rng, "gradients", (5, 7, 3), describe(ids, 3) + ", with gradients", Call((ids,), backward=True), train=True
        )
    for longest, length in ((5, 6), (3, 11), (7, 13)):
        ids = draw(rng, 11, 2, length)
        label = f"{length} tokens, max_length {longest}"
        yield _case(rng, "end", (11, longest, 4), label, Call((ids,)), expects_error=TOO_LONG)


def draw(rng: Generator, vocab_size: int, batch: int, length: int) -> Tensor:
    return torch.randint(vocab_size, (batch, length), generator=rng)


def describe(ids: Tensor, d_model: int) -> str:
    return f"batch {ids.size(0)}, {describe_table(ids.size(1), d_model)}"


def _case(
    rng: Generator,
    part: str,
    build: tuple[int, int, int],
    label: str,
    *calls: Call,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Case:
    vocab_size, max_length, d_model = build
    state = {
        "token.weight": randn(rng, vocab_size, d_model, dtype=dtype),
        "position.weight": randn(rng, max_length, d_model, dtype=dtype),
    }
    tolerance = 2e-3 if dtype == torch.float16 else 1e-4
    return Case(part, label, calls, Call(build), state, tolerance=tolerance, **more)


def _places_alike(outputs: Sequence[Any]) -> str | None:
    one, other = outputs[0][0, :2]
    if (one - other).abs().max() > 1e-3:
        return None
    return "token 4 stands at the places 0 and 1, and both got the same vector"


def _tokens_alike(outputs: Sequence[Any]) -> str | None:
    if (outputs[0] - outputs[1]).abs().max() > 1e-3:
        return None
    return "with other tokens the result is the same"


tells_places_apart = Property("A token gets another vector where it stands at another place.", _places_alike)
tells_tokens_apart = Property("The result says which tokens there are.", _tokens_alike)


# --- wrong answers -------------------------------------------------------------------------------------------------


class Steps(nn.Module):
    """The layer in steps that are right, for wrong answers to replace one of."""

    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)

    def forward(self, ids: Tensor) -> Tensor:
        return self.join(self.look_up(ids), self.position(self.places(ids)))

    def look_up(self, ids: Tensor) -> Tensor:
        return self.token(ids)

    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.size(1))

    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens + places


class TokensAlone(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens


class PositionsAlone(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return places.expand_as(tokens)


class PositionsWithoutBatch(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return places


class PlaceOfTheExample(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.size(0))[:, None]


class RowsForTheBatch(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.size(0))


class PlacesOfTheIds(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return ids


class PlacesOfTheIdsInTheTable(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return ids % self.position.num_embeddings


class TokensOfThePlaces(Steps):
    def look_up(self, ids: Tensor) -> Tensor:
        return self.token(torch.arange(ids.size(1)) % self.token.num_embeddings).expand(*ids.shape, -1)


class FromOne(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(1, ids.size(1) + 1)


class FromOneWithinTheTable(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(1, ids.size(1) + 1).clamp(max=self.position.num_embeddings - 1)


class CountedOn(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.numel()).view_as(ids)


class FromTheEnd(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.size(1)).flip(0)


class LastPlaces(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(self.position.num_embeddings)[-ids.size(1) :]


class FirstPlaceForAll(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.zeros_like(ids)


class LengthForAll(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.tensor(ids.size(1) - 1)


class WholeTable(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(self.position.num_embeddings)


class KeptFromTheFirstCall(Steps):
    kept: Tensor | None = None

    def places(self, ids: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = super().places(ids)
        return self.kept


class Wrapped(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.size(1)) % self.position.num_embeddings


class Clamped(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.size(1)).clamp(max=self.position.num_embeddings - 1)


class Cut(Steps):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids[:, : self.position.num_embeddings])


class Concatenated(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return torch.cat([tokens, places.expand_as(tokens)], dim=-1)


class Multiplied(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens * places


class Halved(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return (tokens + places) / 2


class Scaled(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens * tokens.size(-1) ** 0.5 + places


class BothScaled(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return (tokens + places) * tokens.size(-1) ** 0.5


class Normalised(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens + places, tokens.shape[-1:])


class Dropped(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return nn.functional.dropout(tokens + places, 0.1, self.training)


class AlwaysDropped(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return nn.functional.dropout(tokens + places, 0.1)


class SummedOverTheText(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return (tokens + places).sum(dim=1)


class WithSinusoids(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return positions.add_positions(tokens)


class PositionsDetached(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens + places.detach()


class TokensDetached(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return tokens.detach() + places


class BothDetached(Steps):
    def join(self, tokens: Tensor, places: Tensor) -> Tensor:
        return (tokens + places).detach()


class PadsAreNotTrained(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(vocab_size, max_length, d_model)
        self.token = nn.Embedding(vocab_size, d_model, padding_idx=0)


class FirstPositionIsNotTrained(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(vocab_size, max_length, d_model)
        self.position = nn.Embedding(max_length, d_model, padding_idx=0)


class CountedWithoutIdZero(Steps):
    def places(self, ids: Tensor) -> Tensor:
        return ((ids != 0).cumsum(dim=1) - 1).clamp(min=0)


class NothingForIdZero(Steps):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * (ids != 0)[..., None]


class SizesExchanged(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(max_length, vocab_size, d_model)


class PositionsOfTheVocabulary(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(vocab_size, vocab_size, d_model)


class WidthFirst(Steps):
    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        super().__init__(vocab_size, max_length, d_model)
        self.token, self.position = nn.Embedding(d_model, vocab_size), nn.Embedding(d_model, max_length)


MISCONCEPTIONS = (
    Misconception(
        "forgets_positions",
        "The result holds the tokens alone. Their positions may be looked up, but they don't reach what is returned: the "
        "sum is missing, or it is computed and not given a name. All shapes are right and a loss will fall, but the model "
        "is blind to the order.",
        FORGETS,
        (TokensAlone,),
        (
            "https://github.com/Lightning-AI/pytorch-lightning/issues/19138",
            "https://github.com/msalhab96/Conformer/issues/2",
            "https://github.com/ml-explore/mlx-examples/issues/359",
        ),
    ),
    Misconception(
        "positions_alone",
        "The result holds the positions alone, without the tokens: every sentence of one length looks the same.",
        SECTION,
        (PositionsAlone, PositionsWithoutBatch),
        ("https://github.com/jiwidi/Behavior-Sequence-Transformer-Pytorch/issues/4",),
    ),
    Misconception(
        "positions_along_the_batch",
        "The positions are counted along the batch: there are as many as examples, not as many as tokens. All tokens of an "
        "example then get the same position, or the shapes don't fit, unless the two numbers happen to be equal. ids is "
        "(batch, length).",
        SECTION,
        (PlaceOfTheExample, RowsForTheBatch),
        (
            "https://github.com/KasperGroesLudvigsen/influenza_transformer/issues/9",
            "https://github.com/AkiRusProd/numpy-transformer/issues/1",
            "https://github.com/songyangco/GETNext/issues/2",
        ),
    ),
    Misconception(
        "positions_from_ids",
        "Both tables are asked for the same numbers. An id says which token it is, a position where it stands: the table "
        "of tokens is to be asked for the ids, the table of positions for 0, 1, 2, ….",
        TOKENS,
        (PlacesOfTheIds, PlacesOfTheIdsInTheTable, TokensOfThePlaces),
    ),
    Misconception(
        "positions_from_one",
        "The positions are counted from 1. Row 0 of the table is then never used, and a text of full length needs a row "
        "that doesn't exist. (RoBERTa's table does begin later, and is two rows longer for it.)",
        SECTION,
        (FromOne, FromOneWithinTheTable),
        (
            "https://github.com/huggingface/transformers/issues/11242",
            "https://github.com/huggingface/transformers/issues/10736",
            "https://github.com/rasbt/LLMs-from-scratch/issues/49",
        ),
    ),
    Misconception(
        "positions_counted_on",
        "The count goes on from one example to the next. Each example is a text of its own and starts at position 0.",
        SECTION,
        (CountedOn,),
    ),
    Misconception(
        "positions_from_the_end",
        "The positions are counted from the other end: the first token doesn't get row 0. A text that grows then moves "
        "every token to another position.",
        SECTION,
        (FromTheEnd, LastPlaces),
    ),
    Misconception(
        "one_position_for_all",
        "All tokens get the same position. That moves every token by the same vector and says nothing about their order.",
        "positions#order-is-lost",
        (FirstPlaceForAll, LengthForAll),
    ),
    Misconception(
        "whole_table_added",
        "The whole table of positions is added, max_length rows. That fits only a text of just this length; a shorter one "
        "needs as many rows as it has tokens, from the first on.",
        SECTION,
        (WholeTable,),
        ("https://github.com/jiwidi/Behavior-Sequence-Transformer-Pytorch/issues/4",),
    ),
    Misconception(
        "positions_kept_from_the_first_call",
        "The positions are made in the first call and kept. The next text has another length; what depends on the input "
        "has to be made anew for each.",
        SECTION,
        (KeptFromTheFirstCall,),
    ),
    Misconception(
        "past_the_end_in_silence",
        "A text that is longer than the table of positions gets something without a word: positions that come round again, "
        "the last one over and over, or a text that has been cut. The model never learned such a thing, and nobody will "
        "notice. An error is good news here.",
        PAST,
        (Wrapped, Clamped, Cut),
        ("https://github.com/huggingface/transformers/pull/33903",),
    ),
    Misconception(
        "concatenated",
        "Token and position are put side by side instead of added, which doubles the width. It ends in a sum anyway, as "
        "soon as a matrix multiplies both.",
        ADDED,
        (Concatenated,),
    ),
    Misconception(
        "multiplied",
        "Token and position are multiplied, where they should be added.",
        ADDED,
        (Multiplied,),
    ),
    Misconception(
        "parts_weighted",
        "The two rows aren't simply added: the tokens, or both, are multiplied by a number first. The root of d_model "
        "belongs to tables that start with very small numbers; here both are learned tables with the same start.",
        SIZES,
        (Scaled, BothScaled, Halved),
        ("https://github.com/SamLynnEvans/Transformer/issues/10",),
    ),
    Misconception(
        "more_than_a_sum",
        "Something is done to the sum: a layer norm, or dropout. BERT does both, but here the sum is asked for; what comes "
        "after it is for others to decide.",
        ADDED,
        (Normalised, Dropped, AlwaysDropped),
    ),
    Misconception(
        "summed_over_the_text",
        "The vectors of a text have been added to one. The result keeps a vector for each token; only token and position "
        "are added.",
        ADDED,
        (SummedOverTheText,),
        ("https://github.com/huggingface/pytorch-openai-transformer-lm/issues/44",),
    ),
    Misconception(
        "sinusoids_for_learned_positions",
        "Computed sinusoids are added. This layer has a second table, which is learned like that of the tokens.",
        SECTION,
        (WithSinusoids,),
    ),
    Misconception(
        "gradient_cut",
        "The result is right, but no gradient reaches one of the tables, or both: the rows have been cut off (.data, "
        ".detach(), torch.no_grad()). A table without a gradient stays as random as it began.",
        FORGETS,
        (PositionsDetached, TokensDetached, BothDetached),
        ("https://github.com/d2l-ai/d2l-en/pull/2121",),
    ),
    Misconception(
        "row_zero_not_trained",
        "padding_idx=0 keeps row 0 of a table from being trained. In the table of tokens that may be wanted where id 0 "
        "stands for padding, but nobody said so here; in the table of positions, row 0 is the first place of every text.",
        TOKENS,
        (PadsAreNotTrained, FirstPositionIsNotTrained),
        ("https://github.com/huggingface/transformers/issues/19265",),
    ),
    Misconception(
        "id_zero_is_padding",
        "Id 0 is treated as padding: it isn't counted, or gets zeros. Here it is a token like any other; what is padding, "
        "a mask says where it matters, in attention.",
        "positions#counting-from-the-first-real-token",
        (CountedWithoutIdZero, NothingForIdZero),
        ("https://github.com/huggingface/transformers/issues/9116",),
    ),
    Misconception(
        "table_of_another_shape",
        "One of the tables has another shape than it should. nn.Embedding takes the number of rows and then the width: "
        "there is a row for each token of the vocabulary in one, a row for each position in the other, and both are d_model "
        "wide.",
        TOKENS,
        (SizesExchanged, PositionsOfTheVocabulary, WidthFirst),
    ),
)

EXERCISE = Exercise(
    name="TokenAndPositionEmbedding",
    chapter="positions",
    kind="class",
    minutes=15,
    parts=(
        Part("sum", 2, "add the row of each token and the row of its position", SECTION),
        Part("gradients", 1, "let the right gradients reach both tables", TOKENS),
        Part("end", 1, "raise an error for a text that is longer than the table of positions", PAST),
    ),
    hints=(
        "For ids [[7, 3, 7]]: which rows of which table do you need, and how often does row 7 occur?",
        "Two nn.Embedding, one asked for the ids and the other for 0, 1, 2, …. How many positions are there, and which "
        "axis of ids tells? The second result has no batch axis; does it need one?",
        "torch.arange makes the positions, as many as ids.size(1). Look both up and return the sum; the table of positions "
        "raises an error by itself when it is asked for a row that it hasn't.",
    ),
    cases=cases,
    reference=positions.TokenAndPositionEmbedding,
    misconceptions=MISCONCEPTIONS,
)
