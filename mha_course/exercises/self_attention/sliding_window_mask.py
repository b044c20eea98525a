"""Exercise: let each token see itself and only the few that stand just before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from mha_course import self_attention
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part
from mha_course.exercises.self_attention.causal_mask import (
    ADDITIVE_MASK,
    AS_ADDED,
    AS_NUMBERS,
    BOOLEAN,
    INVERTED,
    MASK_OF_NUMBERS,
    MASKS,
    who_may_see_whom,
)

SECTION, CAUSAL = "self_attention#sliding-window", "self_attention#causal-mask"


def cases(rng: Generator) -> Iterator[Case]:
    for length, window in ((5, 2), (4, 3), (7, 3), (7, 5), (13, 4), (31, 11)):
        yield case("window", length, window)
    for length, window in ((3, 1), (3, 3), (3, 5), (1, 1), (1, 7), (7, 100)):
        yield case("edges", length, window)


def case(part: str, length: int, window: int) -> Case:
    holds = who_may_see_whom(self_attention.sliding_window_mask(length, window), RULE)
    label = f"{length} token{'s' * (length > 1)}, a window of {window}"
    return Case(part, label, (Call((length, window)),), holds=(holds,))


RULE = "A query sees as many keys as the window is wide, the last of which is itself; fewer only where the sentence begins."

# --- wrong answers -------------------------------------------------------------------------------------------------


def banded(allowed: Callable[[Tensor, int], Tensor]) -> Callable[[int, int], Tensor]:
    """Build a mask out of how far each query (row) stands behind each key (column)."""

    def mask(length: int, window: int) -> Tensor:
        place = torch.arange(length)
        return allowed(place[:, None] - place[None], window)

    return mask


def altered(change: Callable[[Tensor], Tensor]) -> Callable[[int, int], Tensor]:
    return lambda length, window: change(self_attention.sliding_window_mask(length, window))


def filled_by_slices(length: int, window: int) -> Tensor:
    mask = torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        mask[query, query - window + 1 : query + 1] = True
    return mask


def blocks(length: int, window: int) -> Tensor:
    block = torch.arange(length) // window
    return self_attention.causal_mask(length) & (block[:, None] == block[None])


def first_keys(length: int, window: int) -> Tensor:
    return self_attention.causal_mask(length) & (torch.arange(length) < window)


def between(low: int, high: int) -> Callable[[Tensor, int], Tensor]:
    """Allow distances from `low` up to the window plus `high`."""
    return lambda behind, window: (behind >= low) & (behind < window + high)


MISCONCEPTIONS = (
    Misconception(
        "sliding_window_off_by_one",
        "Each token sees one key too many: the window is used as the distance that one may look back, and the token "
        "itself comes on top. Both readings are found in libraries (as a distance, a window of 8 means 9 keys), and "
        "models go wrong where the two meet. Here the window counts keys, the token itself included.",
        SECTION,
        (banded(between(0, 1)),),
        (
            "https://github.com/huggingface/transformers/issues/39408",
            "https://github.com/ml-explore/mlx-lm/pull/390",
            "https://github.com/zml/zml/pull/763",
            "https://github.com/microsoft/onnxruntime/pull/25927",
        ),
    ),
    Misconception(
        "sliding_window_too_narrow",
        "Each token sees one key too few. A window of 1 is the token itself; every larger number adds one key before "
        "it.",
        SECTION,
        (banded(between(0, -1)),),
        ("https://github.com/lightseekorg/tokenspeed/pull/578",),
    ),
    Misconception(
        "sliding_window_excludes_self",
        "The token itself is left out: the window ends just before it. The first token then sees nothing at all. The "
        "window counts the token itself.",
        SECTION,
        (banded(between(1, 1)), banded(between(1, 0))),
    ),
    Misconception(
        "sliding_window_both_sides",
        "The window reaches ahead as well as back: the distance is taken without its sign, or the mask of the future "
        "is missing. An encoder may use such a window; here no token may see a later one.",
        SECTION,
        (
            banded(lambda behind, window: behind.abs() < window),
            banded(lambda behind, window: behind.abs() <= window),
            banded(lambda behind, window: behind.abs() <= window // 2),
            banded(lambda behind, window: behind.abs() < window / 2),
        ),
        ("https://github.com/huggingface/transformers/issues/39408",),
    ),
    Misconception(
        "sliding_window_future_open",
        "The past is limited, the future is open: whoever comes later has a negative distance, which is smaller than "
        "any window. One comparison says how far back one may look; it takes a second one to say that nobody looks "
        "ahead.",
        SECTION,
        (
            banded(lambda behind, window: behind < window),
            banded(lambda behind, window: behind <= window),
        ),
    ),
    Misconception(
        "sliding_window_ahead",
        "The window looks the wrong way: from each token forward. Row and column are mixed up. A row is a query, a "
        "column a key, and what comes before has the smaller number.",
        CAUSAL,
        (altered(torch.t), banded(lambda behind, window: (behind <= 0) & (-behind <= window))),
        ("https://github.com/marin-community/levanter/pull/102",),
    ),
    Misconception(
        "sliding_window_ignored",
        "The window has no effect: this is the causal mask, and each token sees all that came before. That's what "
        "comes out when the second limit is wrong in sign (triu of a triangle, with the diagonal counted upwards "
        "instead of downwards, does something else), or when it is or-ed to the first.",
        SECTION,
        (banded(lambda behind, window: behind >= 0),),
        ("https://github.com/huggingface/transformers/issues/29777",),
    ),
    Misconception(
        "sliding_window_joined_by_or",
        "Everything is allowed. Two conditions, each of which allows a part, were joined by “or”: whoever is not in "
        "the future, or near enough. A key has to meet both.",
        SECTION,
        (banded(lambda behind, window: (behind >= 0) | (behind < window)),),
        ("https://github.com/lucidrains/local-attention/issues/5",),
    ),
    Misconception(
        "sliding_window_sign",
        "The band lies on the wrong side: what was kept is the part that is FARTHER away than the window, or nothing "
        "at all. triu and tril count their diagonals upwards from the main one; to reach back, below it, the number "
        "is negative.",
        SECTION,
        (
            banded(lambda behind, window: behind >= window),
            banded(lambda behind, window: behind > window),
            banded(lambda behind, window: behind >= window - 1),
            lambda length, window: self_attention.causal_mask(length).triu(window - 1),
            lambda length, window: self_attention.causal_mask(length).triu(window),
        ),
        ("https://github.com/huggingface/transformers/pull/41228",),
    ),
    Misconception(
        "sliding_window_negative_index",
        "The rows are filled by a slice that starts at query - window + 1. For the first queries that is below 0, and "
        "Python counts a negative index from the END: the slice is then empty, and the first tokens see nothing at "
        "all. The start must not be less than 0.",
        SECTION,
        (filled_by_slices,),
    ),
    Misconception(
        "sliding_window_blocks",
        "The sentence is cut into blocks, and each token sees its own block alone. The first token of a block then "
        "sees only itself, and its neighbour just before it is out of reach. A sliding window moves on with every "
        "token.",
        SECTION,
        (blocks,),
    ),
    Misconception(
        "sliding_window_first_keys",
        "The window lies at the beginning of the sentence and stays there: every token sees the first few. It has to "
        "move with the query: what counts is how far a key stands behind it, not where it stands.",
        SECTION,
        (first_keys,),
    ),
    Misconception(
        "sliding_window_not_clipped",
        "The number of diagonals is right only while the window is shorter than the sentence. Where it is wider, all "
        "that came before may be seen, as with the causal mask.",
        SECTION,
        (
            banded(lambda behind, window: (behind >= 0) & (behind < window) & (window <= len(behind))),
            lambda length, window: (
                self_attention.sliding_window_mask(window, window)
                if window > length
                else self_attention.sliding_window_mask(length, window)
            ),
        ),
    ),
    Misconception(
        "mask_inverted",
        INVERTED,
        MASKS,
        (altered(torch.logical_not),),
        ("https://github.com/rasbt/LLMs-from-scratch/issues/1061",),
    ),
    Misconception("mask_of_numbers", MASK_OF_NUMBERS, BOOLEAN, tuple(altered(change) for change in AS_NUMBERS)),
    Misconception("additive_mask", ADDITIVE_MASK, BOOLEAN, tuple(altered(change) for change in AS_ADDED)),
    Misconception(
        "mask_extra_axes",
        "There are axes of size 1 in front. Broadcasting adds such axes by itself; put in by hand they reach the "
        "result.",
        "self_attention#masks-together",
        (altered(lambda mask: mask[None]), altered(lambda mask: mask[None, None])),
    ),
)

EXERCISE = Exercise(
    name="sliding_window_mask",
    chapter="self_attention",
    kind="function",
    minutes=10,
    parts=(
        Part("window", 1, "let each query attend to itself and to the window - 1 keys before it", SECTION),
        Part("edges", 1, "hold for a window of 1, and for one that is as wide as the sentence, or wider", SECTION),
    ),
    hints=(
        "Five tokens and a window of 2. How many keys does token 4 see, and which? And token 0?",
        "Give every query and every key its number. How far a key stands behind its query is a difference: between "
        "which two numbers must it lie?",
        "The distance query - key has to be at least 0 (not in the future) and at most … think of a window of 1, "
        "which is the token itself: distance 0 alone.",
    ),
    cases=cases,
    reference=self_attention.sliding_window_mask,
    misconceptions=MISCONCEPTIONS,
)
