"""Exercise: the decoder's input, made of what it shall write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import training
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import sequence_first

SECTION, TWICE = "transformer#shifted-targets", "transformer#not-at-all-or-twice"


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, begin in ((1, 3, 1), (1, 5, 0), (2, 3, 1), (3, 5, 2), (5, 2, 97), (3, 3, 1), (7, 11, 4)):
        tokens = _tokens(rng, batch, length)
        yield Case(
            "shift", _describe(tokens, begin), (Call((tokens, begin)),), holds=(reads_what_came_before(tokens, begin),)
        )
    tokens = torch.tensor([[11, 12, 13, 2, 0, 0], [21, 22, 23, 24, 25, 2], [31, 2, 0, 0, 0, 0]])
    label = "3 sentences filled up with 0 after the end mark 2, begin 1"
    yield Case("any batch", label, (Call((tokens, 1)),))
    label = "3 sentences filled up with -100 in front of the words, begin 1"
    yield Case("any batch", label, (Call((tokens.masked_fill(tokens == 0, -100).flip(1), 1)),))
    tokens = torch.tensor([[7, 7, 7, 5], [1, 1, 9, 1]])
    yield Case("any batch", "2 sentences in which words recur, begin 1", (Call((tokens, 1)),))
    for batch in (1, 3):
        tokens = _tokens(rng, batch, 1)
        yield Case("any batch", _describe(tokens, 1), (Call((tokens, 1)),))
    tokens = sequence_first(_tokens(rng, 2, 3))
    yield Case("any batch", f"{_describe(tokens, 1)}, stored sequence first", (Call((tokens, 1)),))
    tokens = _tokens(rng, 2, 3)
    label = f"{_describe(tokens, 1)}, then another batch"
    yield Case("any batch", label, (Call((tokens, 1)), Call((_tokens(rng, 3, 5), 2))))


def _tokens(rng: Generator, batch: int, length: int) -> Tensor:
    """Give every token a number of its own: sentence 0 has 10, 11, ..., sentence 1 has 30, 31, ..."""
    return torch.arange(10, 10 + 20 * batch, 20)[:, None] + torch.arange(length)


def _describe(tokens: Tensor, begin: int) -> str:
    batch, length = tokens.shape
    sentences = "1 sentence" if batch == 1 else f"{batch} sentences"
    return f"{sentences} of {length} token{'s' * (length > 1)}, begin {begin}"


def reads_what_came_before(tokens: Tensor, begin: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        for reads, says in zip(outputs[0].tolist(), tokens.tolist(), strict=True):
            for place, read in enumerate(reads):
                wanted = says[place - 1] if place else begin
                if read != wanted:
                    before = (
                        f"token {wanted} came before" if place else f"nothing came before, so it reads begin, {begin}"
                    )
                    return f"where the decoder shall say {says[place]}, {before}, but it reads {read}"
        return None

    return Property("At each place the decoder reads the token that came before the one it shall say.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


def _begins(tokens: Tensor, begin: int, number: int = 1) -> Tensor:
    return torch.full((tokens.size(0), number), begin, dtype=tokens.dtype)


def not_shifted(tokens: Tensor, begin: int) -> Tensor:
    return tokens.clone()


def first_replaced(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([_begins(tokens, begin), tokens[:, 1:]], dim=1)


def last_kept(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([_begins(tokens, begin), tokens], dim=1)


def shifted_left(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([tokens[:, 1:], _begins(tokens, begin)], dim=1)


def labels_cut(tokens: Tensor, begin: int) -> Tensor:
    return tokens[:, 1:]


def last_cut(tokens: Tensor, begin: int) -> Tensor:
    return tokens[:, :-1]


def rolled(tokens: Tensor, begin: int) -> Tensor:
    return tokens.roll(1, dims=1)


def rolled_left(tokens: Tensor, begin: int) -> Tensor:
    return tokens.roll(-1, dims=1)


def rolled_all(tokens: Tensor, begin: int) -> Tensor:
    return tokens.roll(1)


def across_sentences(tokens: Tensor, begin: int) -> Tensor:
    row = tokens.reshape(-1)
    return torch.cat([row.new_tensor([begin]), row[:-1]]).reshape(tokens.shape)


def along_the_batch(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([torch.full_like(tokens[:1], begin), tokens[:-1]], dim=0)


def shifted_twice(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([_begins(tokens, begin, 2), tokens], dim=1)[:, : tokens.size(1)]


def zeros_in_front(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)


def one_in_front(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([torch.ones_like(tokens[:, :1]), tokens[:, :-1]], dim=1)


def decimal(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([torch.full((tokens.size(0), 1), float(begin)), tokens[:, :-1]], dim=1)


def both(tokens: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    return training.shift_targets(tokens, begin), tokens.clone()


def in_place(tokens: Tensor, begin: int) -> Tensor:
    tokens[:, 1:] = tokens[:, :-1].clone()
    tokens[:, 0] = begin
    return tokens


def first_overwritten(tokens: Tensor, begin: int) -> Tensor:
    tokens[:, 0] = begin
    return tokens


def end_mark_removed(tokens: Tensor, begin: int) -> Tensor:
    kept = tokens.masked_fill(tokens == 2, 0)
    return torch.cat([_begins(tokens, begin), kept[:, :-1]], dim=1)


def one_sentence(tokens: Tensor, begin: int) -> Tensor:
    return torch.cat([tokens.new_tensor([[begin]]), tokens[:, :-1]], dim=1)


def overlapping(tokens: Tensor, begin: int) -> Tensor:
    shifted = tokens.clone()
    for place in range(1, tokens.size(1)):
        shifted[:, place] = shifted[:, place - 1]
    shifted[:, 0] = begin
    return shifted


MISCONCEPTIONS = (
    Misconception(
        "not_shifted",
        "The decoder reads what it shall say. It then has to learn nothing but to repeat: the loss falls to almost 0, and in "
        "writing, where the answer doesn't stand in the input, it says the same word for ever.",
        TWICE,
        (not_shifted,),
        (
            "https://github.com/huggingface/transformers/pull/404",
            "https://github.com/KempnerInstitute/KempnerForge/pull/155",
        ),
    ),
    Misconception(
        "first_token_replaced",
        "begin takes the place of the first token, and nothing has moved: at every other place the decoder reads what it "
        "shall say, and the first word is lost. begin comes in *before* the first token.",
        SECTION,
        (first_replaced,),
    ),
    Misconception(
        "shifted_left",
        "The shift goes to the left: the decoder reads the word *after* the one it shall say. Input to the right or labels to "
        "the left is the same thing seen from two sides; here the labels stay, so the input moves to the right.",
        SECTION,
        (shifted_left, labels_cut, rolled_left),
    ),
    Misconception(
        "last_token_kept",
        "begin was put in front, and the last token is still there: the input is longer than the labels by one. The last "
        "token has nothing to predict; it's only said, never read.",
        SECTION,
        (last_kept,),
    ),
    Misconception(
        "begin_forgotten",
        "The last token is cut off, and nothing is put in front. Then the input is too short, and at the first place the "
        "decoder reads the very word it shall say. Before the first word it needs something to start from: begin.",
        SECTION,
        (last_cut,),
    ),
    Misconception(
        "wraps_round",
        "roll puts the last token in front of the first: the sentence's own end (or padding) serves as its beginning, which is "
        "another one for each sentence. Nothing that comes later may stand there; begin does.",
        SECTION,
        (rolled, rolled_all),
        ("https://github.com/huggingface/transformers/issues/7961",),
    ),
    Misconception(
        "shifted_across_sentences",
        "The whole batch is shifted as one row: every sentence but the first begins with the last token of the one before. "
        "With one sentence it's invisible.",
        SECTION,
        (across_sentences,),
    ),
    Misconception(
        "shifted_along_the_batch",
        "It is the sentences that have moved, not the tokens in them: axis 0 is the batch, the tokens stand along axis 1.",
        "multi_head#batch-first",
        (along_the_batch,),
    ),
    Misconception(
        "shifted_twice",
        "Everything has moved by two places: a model trained so learns to say the word after the next, and leaves words out "
        "when it writes.",
        TWICE,
        (shifted_twice,),
        ("https://github.com/huggingface/transformers/issues/46901",),
    ),
    Misconception(
        "begin_fixed",
        "In front stands a fixed number, not begin. Which number the mark has depends on the vocabulary; 0 is usually padding.",
        SECTION,
        (zeros_in_front, one_in_front),
    ),
    Misconception(
        "one_begin_for_the_batch",
        "begin is made once, as a tensor for one sentence. Each sentence of the batch needs its own in front.",
        SECTION,
        (one_sentence,),
    ),
    Misconception(
        "decimal_tokens",
        "The result has become a tensor of decimal numbers, since the begin marks are. An embedding looks up whole numbers; "
        "make the marks of the tokens' own type.",
        SECTION,
        (decimal,),
    ),
    Misconception(
        "labels_returned_too",
        "The labels are returned as well. They are the tokens as they came, which the caller has already.",
        SECTION,
        (both,),
    ),
    Misconception(
        "tokens_overwritten",
        "The tokens are shifted in place. But they are the labels too: after the call, labels and input are the same tensor, "
        "and the model is asked to say what it reads.",
        SECTION,
        (in_place, first_overwritten),
    ),
    Misconception(
        "smeared_in_a_loop",
        "The loop copies each token to the next place from the tensor that it's just changing, from the front: the first token "
        "ends up everywhere. Read from the original.",
        SECTION,
        (overlapping,),
    ),
    Misconception(
        "end_mark_removed",
        "The end mark is turned into padding. What stands behind a sentence's end is left out by the loss, so nothing has to "
        "be removed here; and which number marks the end this function isn't told.",
        SECTION,
        (end_mark_removed,),
        (
            "https://github.com/huggingface/transformers/issues/18249",
            "https://github.com/huggingface/transformers/issues/18689",
        ),
    ),
)

EXERCISE = Exercise(
    name="shift_targets",
    chapter="transformer",
    kind="function",
    minutes=5,
    parts=(
        Part("shift", 1, "give, for each token to be said, the one that came before it", SECTION),
        Part(
            "any batch",
            1,
            "treat every token alike: padding, words that recur, and sentences of a single token",
            SECTION,
        ),
    ),
    hints=(
        "The decoder shall say 7, 8, 9. What has been said before 9, before 8, before 7? Write the two rows one above the "
        "other.",
        "One column comes in at one end, one goes at the other, so that the shape stays. The tokens themselves are needed "
        "as labels afterwards.",
        "Join a column of begin marks, (batch, 1) and of the tokens' type, with all columns but the last. torch.cat along "
        "axis 1 does it, or F.pad.",
    ),
    cases=cases,
    reference=training.shift_targets,
    misconceptions=MISCONCEPTIONS,
)
