"""Exercise: how much of its weight does each head put on the token just before?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import close, randn
from mha_course.head_roles import previous_token, role_score

SECTION, TOKENS = "pretrained#heads-with-a-role", "pretrained#from-text-to-tokens"


def previous_token_score(weights: Tensor, mask: Tensor) -> Tensor:
    return role_score(weights[None], previous_token(mask.long(), mask))[0]


def cases(rng: Generator) -> Iterator[Case]:
    yield from _designed_cases()
    for label, batch, heads, length in (
        ("one sentence", 1, 3, 5),
        ("two tokens", 1, 2, 2),
        ("several sentences of one length", 3, 5, 7),
        ("as many sentences as heads", 3, 3, 5),
        ("as many heads as tokens", 2, 5, 5),
        ("a single head", 5, 1, 3),
    ):
        mask = torch.ones(batch, length, dtype=torch.bool)
        weights = _drawn(rng, heads, mask)
        yield Case("one length", _text(weights, label), (Call((weights, mask)),))
    for label, heads, mask in (
        ("padding on the right", 3, _right([5, 2], 5)),
        ("padding on the right, lengths far apart", 2, _right([11, 2, 3], 11)),
        ("as many sentences as heads", 3, _right([3, 5, 2], 5)),
    ):
        weights = _drawn(rng, heads, mask)
        yield Case("padding", _text(weights, label), (Call((weights, mask)),))
    mask = _right([7, 3], 7)
    weights = _drawn(rng, 5, mask)
    other = torch.where(mask[:, None, :, None], weights, _drawn(rng, 5, mask))
    yield Case(
        "padding",
        _text(weights, "padding on the right, then with other rows there"),
        (Call((weights, mask)), Call((other, mask))),
        holds=(padding_rows_without_effect,),
    )
    for label, heads, mask in (
        ("padding on the left", 2, _right([5, 3], 5).flip(1)),
        ("padding on the left, three sentences", 5, _right([2, 7, 3], 7).flip(1)),
        ("a sentence of one token among others", 3, _right([5, 1, 3], 5)),
        ("a sentence of one token, padding on the left", 3, _right([5, 1, 3], 5).flip(1)),
        ("padding between real tokens", 2, torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1]]).bool()),
    ):
        weights = _drawn(rng, heads, mask, on_padding=label.endswith("real tokens"))
        yield Case("who is asked", _text(weights, label), (Call((weights, mask)),))
    weights = _drawn(rng, 3, mask).double()
    yield Case("who is asked", _text(weights, "float64"), (Call((weights, mask)),), tolerance=1e-9)


def _designed_cases() -> Iterator[Case]:
    """Maps that are put together by hand, so that the right score can be read off them."""
    mask = torch.ones(1, 5, dtype=torch.bool)
    previous, following = torch.eye(5).roll(-1, dims=1), torch.eye(5).roll(1, dims=1)
    weights = torch.stack([previous, torch.eye(5), following, torch.full((5, 5), 0.2)])[None]
    yield Case(
        "one length",
        "a head that looks at the token before, one at the token itself, one at the next, one at all alike",
        (Call((weights, mask)),),
        holds=(first_head_is_best,),
    )


def _drawn(rng: Generator, heads: int, mask: Tensor, on_padding: bool = False) -> Tensor:
    batch, length = mask.shape
    scores = randn(rng, batch, heads, length, length, scale=2.0)
    return (scores if on_padding else scores.masked_fill(~mask[:, None, None], -torch.inf)).softmax(dim=-1)


def _right(lengths: list[int], length: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def _text(weights: Tensor, label: str) -> str:
    batch, heads, length, _ = weights.shape
    return f"batch {batch}, {heads} head{'s' * (heads > 1)}, length {length}, {label}"


def _best(outputs: Sequence[Any]) -> str | None:
    scores = outputs[0]
    if close(scores[0], torch.ones(())) and scores.argmax() == 0:
        return None
    return f"the heads get {', '.join(f'{score:.3f}' for score in scores.tolist())}"


def _moved(outputs: Sequence[Any]) -> str | None:
    change = (outputs[1] - outputs[0]).abs().max()
    return None if change < 1e-5 else f"when only the rows of padding were changed, a score moved by {change:.2g}"


first_head_is_best = Property("A head with all its weight on the token before gets 1, and others get less.", _best)
padding_rows_without_effect = Property("Padding places are not asked: what they look at has no effect.", _moved)


# --- wrong answers -------------------------------------------------------------------------------------------------


def _asked(mask: Tensor) -> Tensor:
    """True on each query that has a real token just before it: (batch, length - 1), for queries 1 and on."""
    return mask[:, 1:] & mask[:, :-1]


def _hits(weights: Tensor, offset: int = -1) -> Tensor:
    return weights.diagonal(offset, dim1=-2, dim2=-1)


def _scored(
    asked: Callable[[Tensor], Tensor] = _asked,
    count: Callable[[Tensor, Tensor], Tensor | int] = lambda mask, asked: asked.sum(),
    offset: int = -1,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Make an answer out of which queries are asked, what is divided by, and which diagonal is read."""

    def answer(weights: Tensor, mask: Tensor) -> Tensor:
        here = asked(mask)
        return (_hits(weights, offset) * here[:, None]).sum(dim=(0, 2)) / count(mask, here)

    return answer


def main_diagonal(weights: Tensor, mask: Tensor) -> Tensor:
    return (_hits(weights, 0) * mask[:, None]).sum(dim=(0, 2)) / mask.sum()


def plain_mean(weights: Tensor, mask: Tensor) -> Tensor:
    return _hits(weights).mean(dim=(0, 2))


def mean_of_means(weights: Tensor, mask: Tensor) -> Tensor:
    asked = _asked(mask)
    each = (_hits(weights) * asked[:, None]).sum(dim=2) / asked.sum(dim=1).clamp(min=1)[:, None]
    return each[asked.any(dim=1)].mean(dim=0)


def mean_of_means_nan(weights: Tensor, mask: Tensor) -> Tensor:
    asked = _asked(mask)
    return ((_hits(weights) * asked[:, None]).sum(dim=2) / asked.sum(dim=1)[:, None]).mean(dim=0)


def share_of_largest(weights: Tensor, mask: Tensor) -> Tensor:
    place = torch.arange(1, weights.size(-1))
    hit = weights[:, :, 1:].argmax(dim=-1) == place - 1
    asked = _asked(mask)
    return (hit & asked[:, None]).sum(dim=(0, 2)) / asked.sum()


def a_score_a_sentence(weights: Tensor, mask: Tensor) -> Tensor:
    asked = _asked(mask)
    return (_hits(weights) * asked[:, None]).sum(dim=2) / asked.sum(dim=1).clamp(min=1)[:, None]


def one_number(weights: Tensor, mask: Tensor) -> Tensor:
    return previous_token_score(weights, mask).mean()


def over_the_heads(weights: Tensor, mask: Tensor) -> Tensor:
    asked = _asked(mask)
    return (_hits(weights) * asked[:, None]).sum(dim=(1, 2)) / asked.sum(dim=1).clamp(min=1) / weights.size(1)


def softmax_again(weights: Tensor, mask: Tensor) -> Tensor:
    return previous_token_score(weights.softmax(dim=-1), mask)


def everything_before(weights: Tensor, mask: Tensor) -> Tensor:
    below = weights.tril(-1).sum(dim=-1)[:, :, 1:]
    asked = _asked(mask)
    return (below * asked[:, None]).sum(dim=(0, 2)) / asked.sum()


def wrapped_round(weights: Tensor, mask: Tensor) -> Tensor:
    before = torch.arange(weights.size(-1)) - 1  # -1 reads the last place
    hits = weights[:, :, torch.arange(weights.size(-1)), before]
    return (hits * mask[:, None]).sum(dim=(0, 2)) / mask.sum()


MISCONCEPTIONS = (
    Misconception(
        "next_token",
        "This is the score for the *next* token: the diagonal above the main one. Rows are queries and columns are keys, so row "
        "i looks at the token before it in column i - 1, which lies to the left of the main diagonal, below it.",
        SECTION,
        (
            _scored(offset=1),
            _scored(asked=lambda mask: mask[:, :-1] & mask[:, 1:], count=lambda mask, asked: mask.sum(), offset=1),
            _scored(asked=lambda mask: mask[:, :-1], offset=1),
        ),
    ),
    Misconception(
        "own_token",
        "This is the main diagonal: how much a token looks at itself.",
        SECTION,
        (main_diagonal,),
    ),
    Misconception(
        "everything_before",
        "All the weight on *earlier* tokens was added up. Asked for is the one token just before, a single place in each row.",
        SECTION,
        (everything_before,),
    ),
    Misconception(
        "first_token_counted",
        "What is divided by counts the first token of each sentence too. It has no token before it and can't score, so it isn't "
        "asked: with it in the count even a head that does nothing else stays below 1, and the more so the shorter the "
        "sentences are.",
        SECTION,
        (
            _scored(count=lambda mask, asked: mask.sum()),
            _scored(asked=lambda mask: mask[:, 1:], count=lambda mask, asked: mask.sum()),
            _scored(count=lambda mask, asked: mask.numel()),
            wrapped_round,
        ),
    ),
    Misconception(
        "padding_asked",
        "Padding places are asked as well. They have rows of weights like all others, and these mean nothing; with them in "
        "the mean a score depends on how long the longest sentence in the batch is.",
        TOKENS,
        (
            plain_mean,
            _scored(asked=lambda mask: torch.ones_like(mask[:, 1:]), count=lambda mask, asked: _asked(mask).sum()),
        ),
    ),
    Misconception(
        "padding_in_the_count",
        "The rows of padding are left out of the sum, but not out of the count: the score gets lower with every place of "
        "padding.",
        SECTION,
        (_scored(count=lambda mask, asked: asked.numel()),),
    ),
    Misconception(
        "last_token_left_out",
        "Which rows are asked was taken from the wrong end of the mask, so that in a padded sentence one place too many or too "
        "few is asked. Query i and key i - 1 both have to be real: write for one small mask which rows that are.",
        SECTION,
        (
            _scored(asked=lambda mask: mask[:, :-1]),
            _scored(asked=lambda mask: mask[:, 1:] & mask[:, :-1] & torch.roll(mask, -1, dims=1)[:, 1:]),
        ),
    ),
    Misconception(
        "padding_before_counts",
        "A real token that has *padding* before it is asked as well. With padding on the left that is the first token of each "
        "sentence: it has no token before it, and can't score.",
        TOKENS,
        (_scored(asked=lambda mask: mask[:, 1:]),),
    ),
    Misconception(
        "mean_of_means",
        "First the mean of each sentence was taken, then the mean of those. A token of a short sentence then counts for more "
        "than one of a long sentence. Asked for is the mean over all queries that are asked.",
        SECTION,
        (mean_of_means, mean_of_means_nan),
        ("https://github.com/huggingface/transformers/pull/34191",),
    ),
    Misconception(
        "share_of_largest",
        "This counts how often the previous token gets the *largest* weight. A head that gives it 0.9 and one that gives it 0.3 "
        "and everything else less are the same then. Asked for is the share of the weight itself.",
        SECTION,
        (share_of_largest,),
    ),
    Misconception(
        "softmax_again",
        "softmax was applied once more. The weights have been through it: each row sums to 1 already.",
        SECTION,
        (softmax_again,),
    ),
    Misconception(
        "wrong_axes",
        "The mean runs over the wrong axes. Of (batch, head, query, key) only the heads are to be left: one score a head.",
        SECTION,
        (a_score_a_sentence, one_number, over_the_heads),
    ),
)

EXERCISE = Exercise(
    name="previous_token_score",
    chapter="pretrained",
    kind="function",
    minutes=15,
    parts=(
        Part(
            "one length",
            2,
            "return for each head the mean weight on the token just before, over all tokens that have one",
            SECTION,
        ),
        Part("padding", 1, "leave the rows of padding out of the sum and of the count", SECTION),
        Part("who is asked", 1, "ask exactly those real tokens that stand just behind a real token", TOKENS),
    ),
    hints=(
        "Draw a map of four tokens, queries down the side and keys along the top, and cross the places where a token looks at "
        "the one before it. How many crosses are there?",
        "The crosses lie on a diagonal; diagonal() takes an offset and two axes. Which of them belong to a real token that has "
        "a real token before it?",
        "The diagonal one below the main one has one entry for each query from 1 on: (batch, head, length - 1). Multiply by a "
        "mask made of two slices of the mask, one for the queries and one for the keys; sum; divide by that mask's sum.",
    ),
    cases=cases,
    reference=previous_token_score,
    misconceptions=MISCONCEPTIONS,
)
