"""Exercise: the vector of each sentence's first real token, wherever the padding stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part
from mha_course.exercises.properties import randn, sequence_first, unchanged

TOKENS, VECTORS = "pretrained#from-text-to-tokens", "pretrained#vectors-for-sentences"


def first_token(x: Tensor, mask: Tensor) -> Tensor:
    place = mask.long().argmax(dim=1)
    return x[torch.arange(len(x)), place]


def cases(rng: Generator) -> Iterator[Case]:
    yield from _right_cases(rng)
    yield from _left_cases(rng)
    for label, mask in (("right", _masks([5, 2, 3], 5)), ("left", _masks([5, 2, 3], 5).flip(1))):
        x = randn(rng, 3, 5, 7)
        part = "right" if label == "right" else "left"
        yield Case(part, _text(x, f"padding on the {label}, with gradients"), (Call((x, mask), backward=True),))


def _right_cases(rng: Generator) -> Iterator[Case]:
    for label, shape, lengths in (
        ("no padding", (2, 3, 5), [3, 3]),
        ("padding on the right", (3, 5, 2), [5, 2, 3]),
        ("a sentence of one real token", (2, 7, 3), [7, 1]),
        ("one token each", (5, 1, 3), [1] * 5),
        ("one sentence", (1, 7, 5), [4]),
        ("as many sentences as tokens and features", (3, 3, 3), [3, 1, 2]),
    ):
        x = randn(rng, *shape)
        yield Case("right", _text(x, label), (Call((x, _masks(lengths, shape[1]))),))
    x = randn(rng, 2, 5, 3, dtype=torch.float64)
    yield Case("right", _text(x, "the type float64"), (Call((x, _masks([5, 3], 5))),), tolerance=1e-12)
    x = sequence_first(randn(rng, 2, 5, 3))
    yield Case("right", _text(x, "stored sequence first"), (Call((x, _masks([5, 3], 5))),))


def _left_cases(rng: Generator) -> Iterator[Case]:
    for label, shape, mask in (
        ("padding on the left", (2, 3, 5), _masks([3, 1], 3).flip(1)),
        ("padding on the left, three sentences", (3, 7, 2), _masks([2, 7, 5], 7).flip(1)),
        ("padding on both sides", (3, 7, 5), _masks([3, 5, 1], 7).roll(1, dims=1)),
        ("real tokens with padding between them", (2, 5, 3), torch.tensor([[0, 1, 0, 1, 1], [0, 0, 1, 0, 1]]).bool()),
        ("as many sentences as features", (5, 3, 5), _masks([3, 1, 2, 3, 1], 3).flip(1)),
        ("as many sentences as tokens and features", (3, 3, 3), _masks([1, 3, 2], 3).flip(1)),
        ("one sentence", (1, 5, 2), _masks([2], 5).flip(1)),
    ):
        x = randn(rng, *shape)
        yield Case("left", _text(x, label), (Call((x, mask)),))
    x, mask = randn(rng, 3, 5, 2), _masks([2, 5, 3], 5).flip(1)
    other = torch.where(mask[:, :, None], x, randn(rng, 3, 5, 2))
    yield Case(
        "left",
        _text(x, "padding on the left, then with other vectors there"),
        (Call((x, mask)), Call((other, mask))),
        holds=(
            unchanged(
                "What stands at padding places has no effect.",
                "when only vectors at padding places were changed, the result moved by {change}",
            ),
        ),
    )


def _masks(lengths: list[int], length: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def _text(x: Tensor, label: str) -> str:
    batch, length, d_model = x.shape
    return f"batch {batch}, length {length}, d_model {d_model}, {label}"


# --- wrong answers -------------------------------------------------------------------------------------------------


def _at(place: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Make an answer out of how it finds the place in each row of the mask."""
    return lambda x, mask: x[torch.arange(len(x)), place(mask)]


def _count(mask: Tensor) -> Tensor:
    return mask.sum(dim=1)


def place_0(x: Tensor, mask: Tensor) -> Tensor:
    return x[:, 0]


def one_place_for_all(x: Tensor, mask: Tensor) -> Tensor:
    return x[:, int(mask[0].long().argmax())]


def first_of_the_batch(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask][0].expand(x.size(0), -1)


def every_pair(x: Tensor, mask: Tensor) -> Tensor:
    return x[:, mask.long().argmax(dim=1)]


def axis_kept(x: Tensor, mask: Tensor) -> Tensor:
    return first_token(x, mask)[:, None]


def axis_squeezed(x: Tensor, mask: Tensor) -> Tensor:
    return first_token(x, mask).squeeze()


def first_sentence(x: Tensor, mask: Tensor) -> Tensor:
    return x[0]


def first_feature(x: Tensor, mask: Tensor) -> Tensor:
    return x[..., 0]


def gathered_one_feature(x: Tensor, mask: Tensor) -> Tensor:
    return x.gather(1, mask.long().argmax(dim=1)[:, None, None])[:, 0]


def mean_of_all(x: Tensor, mask: Tensor) -> Tensor:
    keep = mask[:, :, None].to(x.dtype)
    return (x * keep).sum(dim=1) / keep.sum(dim=1)


def multiplied_then_0(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[:, :, None].to(x.dtype))[:, 0]


def detached(x: Tensor, mask: Tensor) -> Tensor:
    return first_token(x, mask).detach()


MISCONCEPTIONS = (
    Misconception(
        "first_place",
        "This takes what stands at place 0, whatever it is. It's right as long as the padding stands on the right, and so in "
        "every test with BERT's own tokenizer. With padding on the left, place 0 of a short sentence is padding: the "
        "vector has nothing to do with the sentence, and nothing raises an error.",
        TOKENS,
        (place_0, multiplied_then_0),
        (
            "https://github.com/huggingface/sentence-transformers/issues/3208",
            "https://github.com/huggingface/sentence-transformers/pull/3767",
            "https://github.com/StarlightSearch/EmbedAnything/issues/213",
        ),
    ),
    Misconception(
        "length_minus_count",
        "The place is computed as the length minus the number of real tokens. That counts the padding and takes for granted "
        "that all of it stands on the left. The side is the tokenizer's choice, and both occur; look where the first True is.",
        TOKENS,
        (_at(lambda mask: (mask.size(1) - _count(mask)).clamp(max=mask.size(1) - 1)),),
    ),
    Misconception(
        "last_token",
        "This takes the last real token. That's where models that write from left to right keep what they know of a text; "
        "asked for here is the first.",
        VECTORS,
        (
            _at(lambda mask: _count(mask) - 1),
            _at(lambda mask: mask.size(1) - 1 - mask.flip(1).long().argmax(dim=1)),
            _at(lambda mask: torch.full((len(mask),), -1)),
        ),
        ("https://github.com/huggingface/peft/pull/3629",),
    ),
    Misconception(
        "second_token",
        "This is one place too far: the token behind the first real one, the first word, perhaps, after [CLS]. A sentence may "
        "have only one real token.",
        TOKENS,
        (
            _at(lambda mask: (mask.long().argmax(dim=1) + 1).clamp(max=mask.size(1) - 1)),
            _at(lambda mask: torch.full((len(mask),), min(1, mask.size(1) - 1))),
        ),
    ),
    Misconception(
        "padding_found",
        "The place found is that of the first *padding*: the smallest value of the mask was looked for, or the mask was turned "
        "round first. True stands on real tokens.",
        TOKENS,
        (_at(lambda mask: (~mask).long().argmax(dim=1)),),
    ),
    Misconception(
        "one_place_for_all",
        "The place was found in one row of the mask and used for all of them. In a batch padded on the left, each sentence "
        "begins somewhere else.",
        TOKENS,
        (one_place_for_all,),
    ),
    Misconception(
        "batch_mixed",
        "x[mask] puts the real tokens of all sentences into one list, so its first entry is the first token of the first "
        "sentence, and the other sentences are lost.",
        VECTORS,
        (first_of_the_batch,),
    ),
    Misconception(
        "every_pair",
        "x[:, places] takes *all* the places from *every* sentence: (batch, batch, d_model). To take one place from each, the "
        "batch needs an index of its own beside it: 0, 1, 2 and so on.",
        VECTORS,
        (every_pair,),
    ),
    Misconception(
        "wrong_axis",
        "The first entry was taken along the wrong axis. x is (batch, length, d_model), and the tokens lie along the length.",
        VECTORS,
        (first_sentence, first_feature),
    ),
    Misconception(
        "one_feature_only",
        "gather takes exactly as many numbers as its index has. An index (batch, 1, 1) takes one feature of the token; it has "
        "to be as wide as the vectors.",
        VECTORS,
        (gathered_one_feature,),
    ),
    Misconception(
        "length_axis_kept",
        "The result still has an axis for the length, of size 1. One vector a sentence has two axes: (batch, d_model).",
        VECTORS,
        (axis_kept,),
    ),
    Misconception(
        "axis_squeezed_away",
        "squeeze() without a number removes *every* axis of size 1, and so the batch too when there is a single sentence. Name "
        "the axis that is meant.",
        VECTORS,
        (axis_squeezed,),
    ),
    Misconception(
        "mean_in_place_of_first",
        "This is the mean of all real tokens. It makes a good sentence vector in this model, but asked for is the first "
        "token alone, as models that were trained with [CLS] need it.",
        VECTORS,
        (mean_of_all,),
    ),
    Misconception(
        "gradient_cut",
        "The result is right, but no gradient comes back to x. Choosing a place needs no gradient; the vector that stands "
        "there does.",
        "self_attention#gradients",
        (detached,),
    ),
)

EXERCISE = Exercise(
    name="first_token",
    chapter="pretrained",
    kind="function",
    minutes=10,
    parts=(
        Part("right", 1, "return the vector of each sentence's first real token", TOKENS),
        Part("left", 1, "find the first real token wherever the padding stands", TOKENS),
    ),
    hints=(
        "A short sentence is padded on the left. At which place of its row does it begin, and how can that be read off the "
        "mask?",
        "argmax gives the place of the largest value, and of several equal ones the first. It wants numbers, though.",
        "You have one place for each sentence. Index x with two lists of equal length: the numbers of the sentences, and "
        "the places.",
    ),
    cases=cases,
    reference=first_token,
    misconceptions=MISCONCEPTIONS,
)
