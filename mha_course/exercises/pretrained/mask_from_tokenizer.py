"""Exercise: bring the mask that a tokenizer gives into the form that attention takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part
from mha_course.masks import from_tokenizer

FORM, TOKENS = "pretrained#the-mask-on-its-way", "pretrained#from-text-to-tokens"
BOOLEAN = "self_attention#boolean-or-additive"
CLEARER = (
    "One thing could be better: what is no mask is refused, but not by a ValueError that says what is wrong with it."
)


def mask_from_tokenizer(attention_mask: Tensor) -> Tensor:
    return from_tokenizer(attention_mask.long())


def cases(rng: Generator) -> Iterator[Case]:
    for label, mask in (
        ("two sentences, the first with a place of padding", torch.tensor([[1, 1, 0], [1, 1, 1]])),
        ("two sentences, padding on the left", torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]])),
        ("one sentence with padding", torch.tensor([[1, 1, 1, 0, 0]])),
        ("one sentence of one token", torch.ones(1, 1, dtype=torch.long)),
        ("three sentences of three places", torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]])),
        ("seven sentences, holes in the middle", _drawn(rng, 7, 11)),
        ("a sentence that is all padding", torch.tensor([[0, 0], [1, 1]])),
        ("stored sequence first", _drawn(rng, 13, 5).T),
    ):
        yield Case("form", label, (Call((mask,)),))
    mask = _drawn(rng, 3, 7)
    for dtype in (torch.int32, torch.uint8, torch.bool):
        yield Case("types", f"three sentences, numbers of the type {dtype}", (Call((mask.to(dtype),)),))
    ids = torch.tensor([[101, 4937, 102], [101, 102, 0]])
    for label, numbers in (
        ("token ids in place of the mask", ids),
        ("a mask of 1 and 2", torch.tensor([[1, 2, 1]])),
        ("a mask of 1 and -1", torch.tensor([[1, 1, -1]])),
        ("0 and -10,000, which is a mask to be added", torch.tensor([[0, 0, -10_000]])),
    ):
        yield Case("refusal", label, (Call((numbers,)),), expects_error=("ValueError", "AssertionError"))
    yield Case("refusal", "token ids", (Call((ids,)),), expects_error=("ValueError",), advice=CLEARER)


def _drawn(rng: Generator, *shape: int) -> Tensor:
    mask = torch.randint(2, shape, generator=rng)
    mask[:, 0], mask[0, -1] = 1, 0
    return mask


# --- wrong answers -------------------------------------------------------------------------------------------------


def _checked(attention_mask: Tensor) -> Tensor:
    if not ((attention_mask == 0) | (attention_mask == 1)).all():
        raise ValueError("not a mask of 0 and 1")
    return attention_mask == 1


def _made(*steps: Callable[[Tensor], Tensor]) -> tuple[Callable[[Tensor], Tensor], ...]:
    """Make an answer out of what is done with a right boolean mask (batch, length)."""

    def answer(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda attention_mask: step(_checked(attention_mask))

    return tuple(map(answer, steps))


def _added(mask: Tensor, lowest: float) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, lowest)[:, None, None, :]


def all_bits_turned(attention_mask: Tensor) -> Tensor:
    _checked(attention_mask)
    return (~attention_mask).bool()[:, None, None, :]


def first_places(attention_mask: Tensor) -> Tensor:
    count = _checked(attention_mask).sum(dim=1, keepdim=True)
    return (torch.arange(attention_mask.size(1)) < count)[:, None, None, :]


def whatever_is_not_zero(attention_mask: Tensor) -> Tensor:
    return attention_mask.bool()[:, None, None, :]


def equal_to_one(attention_mask: Tensor) -> Tensor:
    return (attention_mask == 1)[:, None, None, :]


def at_least_one(attention_mask: Tensor) -> Tensor:
    return (attention_mask > 0)[:, None, None, :]


MISCONCEPTIONS = (
    Misconception(
        "mask_not_boolean",
        "The axes are right, but the values are still numbers. A mask of ones and zeros that is handed on like this is "
        "sooner or later added to the scores, by code that takes every mask of numbers for an additive one: then real "
        "tokens get 1 more than padding, a nudge in place of a ban, and nothing raises an error. What a boolean mask "
        "means can't be mistaken for a number.",
        FORM,
        _made(
            lambda mask: mask.long()[:, None, None, :],
            lambda mask: mask.float()[:, None, None, :],
            lambda mask: mask.int()[:, None, None, :],
        ),
        ("https://github.com/timeseriesAI/tsai/issues/171",),
    ),
    Misconception(
        "mask_additive",
        "These are numbers to be added to the scores: 0 where a query may look, very low elsewhere. That is the form in "
        "which BERT's own code takes its mask. Here it stays boolean, and the attention itself fills in the lowest "
        "number that its type has.",
        FORM,
        _made(
            lambda mask: _added(mask, -10_000.0),
            lambda mask: _added(mask, -torch.inf),
            lambda mask: _added(mask, torch.finfo(torch.float32).min),
            lambda mask: _added(mask, -1e9),
        ),
    ),
    Misconception(
        "mask_inverted",
        "True stands on padding, where it should stand on real tokens. Both readings are in use: for the tokenizer 1 means "
        '"real", for nn.MultiheadAttention True means "hide". Here True means "may attend". Turned round, every '
        "token looks at padding alone.",
        BOOLEAN,
        _made(lambda mask: ~mask[:, None, None, :]),
        ("https://github.com/facebookresearch/detr/issues/96",),
    ),
    Misconception(
        "bits_turned",
        "~ turns truth values round, but here it was given whole numbers, of which it turns every bit: ~1 is -2 and ~0 is "
        "-1. Neither is 0, so both become True, and the mask hides nothing (of unsigned bytes likewise: ~1 is 254). Compare "
        "first, then turn, if at all.",
        BOOLEAN,
        (all_bits_turned,),
    ),
    Misconception(
        "mask_without_axes",
        "The mask still has the shape (batch, length). Broadcasting lines axes up from the end: against scores of (batch, "
        "head, query, key) its batch would fall on the queries. Axes of size 1 have to say that it is the same for "
        "all heads and all queries.",
        FORM,
        _made(lambda mask: mask),
    ),
    Misconception(
        "mask_missing_head_axis",
        "One axis was put in where two are missing. Broadcasting lines axes up from the end, so the batch axis of a mask "
        "(batch, 1, length) falls on the heads: an error for most sizes, and where there are as many sentences as heads, "
        "silently the mask of sentence b on head b.",
        "multi_head#masks-and-heads",
        _made(lambda mask: mask[:, None, :]),
        (
            "https://github.com/lucidrains/graph-transformer-pytorch/pull/2",
            "https://github.com/lucidrains/vit-pytorch/issues/71",
        ),
    ),
    Misconception(
        "mask_on_queries",
        "The length stands on the axis of the queries. Such a mask says which tokens may *ask*; then a padding place sees "
        "nothing, and every real token sees all the padding. It's the keys that have to be hidden, the last axis.",
        FORM,
        _made(lambda mask: mask[:, None, :, None], lambda mask: mask[:, :, None, None]),
        (
            "https://github.com/hyunwoongko/transformer/pull/40",
            "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/16",
        ),
    ),
    Misconception(
        "batch_axis_moved",
        "The batch is no longer the first axis. A mask (1, 1, batch, length) says which keys query b may look at, the same "
        "in every sentence; what is asked for is one row of keys for each sentence.",
        FORM,
        _made(lambda mask: mask[None, None], lambda mask: mask[None, :, None]),
    ),
    Misconception(
        "mask_of_pairs",
        "This is a square, (batch, 1, length, length), with a row for each query. All its rows say the same, so one is enough: "
        "an axis of size 1 says so, and needs no memory. And if the rows of padding are hidden in it as well, that makes "
        "queries that may look at nothing, the one thing that softmax can't do. A padding place may ask: nobody reads "
        "what it gets.",
        FORM,
        _made(
            lambda mask: (mask[:, :, None] & mask[:, None, :])[:, None],
            lambda mask: mask[:, None, None, :].expand(-1, 1, mask.size(1), -1),
        ),
        ("https://github.com/google-research/bert/issues/478",),
    ),
    Misconception(
        "padding_taken_to_be_last",
        "The ones are counted, and as many places from the left are taken as real. That holds as long as padding stands "
        "on the right. Some tokenizers put it on the left (those of models that go on writing, for one), and then the mask "
        "hides the words. The tokenizer says *where* the real tokens are; use that.",
        TOKENS,
        (first_places,),
        ("https://github.com/huggingface/peft/pull/3629",),
    ),
    Misconception(
        "any_number_taken",
        "Whatever comes is turned into truth values. Hand over the ids in place of the mask, an easy slip as both have the "
        "same shape and type, and every id but 0 becomes True (or none but 1 does): a mask that hides hardly anything, "
        "or nearly everything. What holds other numbers than 0 and 1 is no mask and should be refused.",
        FORM,
        (whatever_is_not_zero, equal_to_one, at_least_one),
    ),
)

EXERCISE = Exercise(
    name="mask_from_tokenizer",
    chapter="pretrained",
    kind="function",
    minutes=5,
    parts=(
        Part("form", 1, "give a boolean mask (batch, 1, 1, length) that is True on real tokens", FORM),
        Part("types", 0.5, "read zeros and ones of any whole type, and truth values", FORM),
        Part("refusal", 0.5, "refuse numbers other than 0 and 1 with a ValueError", FORM),
    ),
    hints=(
        "Scores have the axes (batch, head, query, key). Which of them does a tokenizer's mask have, and for which is it "
        "the same everywhere?",
        "None in an index puts in an axis of size 1; so does unsqueeze. And what kind of tensor does a comparison give?",
        "Compare with 1 for the values; put in two axes between the two that are there; and before all that, look whether "
        "every number is 0 or 1.",
    ),
    cases=cases,
    reference=mask_from_tokenizer,
    misconceptions=MISCONCEPTIONS,
    imports=("attention_intuition", "soft_addressing", "self_attention"),  # all before the one that holds the answer
)
