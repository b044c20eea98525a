"""Exercise: let new tokens attend to themselves and to all that came before, whose keys and values were kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import generation
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn, sequence_first, unchanged

SECTION, CAUSAL = "transformer#the-key-value-cache", "self_attention#causal-mask"
FUNCTION, SCALE = "self_attention#one-function", "self_attention#why-scale"
Result = tuple[Tensor, Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    for leading, queries, keys in (
        ((), 1, 3),
        ((), 3, 3),
        ((), 1, 1),
        ((2,), 1, 7),
        ((2, 3), 5, 5),
        ((3, 2), 1, 11),
        ((2,), 7, 7),
    ):
        yield case(rng, "one token, or all", leading, queries, keys)
    yield case(rng, "one token, or all", (2,), 1, 5, dtype=torch.float64)
    for leading, queries, keys in (
        ((), 2, 3),
        ((), 2, 5),
        ((2,), 3, 5),
        ((2, 3), 2, 7),
        ((3, 2), 5, 7),
        ((2, 3), 7, 11),
        ((), 3, 13),
    ):
        yield case(rng, "several tokens", leading, queries, keys)
    yield case(rng, "several tokens", (2,), 3, 5, dtype=torch.float64)
    yield case(rng, "several tokens", (3,), 3, 5, scale=3.0)
    q, k, v = (sequence_first(x) for x in inputs(rng, (2,), 3, 5))
    yield Case("several tokens", f"{describe(q, k)}, stored sequence first", (Call((q, k, v)),))
    q, k, v = inputs(rng, (2,), 3, 5)
    later_k, later_v = (torch.cat([x[:, :-1], randn(rng, 2, 1, x.size(-1))], dim=1) for x in (k, v))
    yield Case(
        "several tokens",
        f"{describe(q, k)}, the last token changed",
        (Call((q, k, v)), Call((q, later_k, later_v))),
        holds=(
            unchanged(
                "No token sees a later one.",
                "when only the last token was changed, the results of the two before it moved by {change}",
                where=(slice(None), slice(2)),
            ),
        ),
    )
    for queries, keys in ((3, 3), (3, 5), (1, 5)):
        q, k, v = inputs(rng, (2,), queries, keys)
        yield Case("several tokens", f"{describe(q, k)}, with gradients", (Call((q, k, v), backward=True),))


def case(
    rng: Generator,
    part: str,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.5,
) -> Case:
    q, k, v = inputs(rng, leading, queries, keys, dtype, scale)
    note = ", float64" if dtype == torch.float64 else ", large scores" if scale > 2 else ""
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    return Case(part, describe(q, k) + note, (Call((q, k, v)),), holds=(sees_the_past,), tolerance=tolerance)


def inputs(
    rng: Generator,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.5,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        randn(rng, *leading, queries, 7, scale=scale, dtype=dtype),
        randn(rng, *leading, keys, 7, scale=scale, dtype=dtype),
        randn(rng, *leading, keys, 2, dtype=dtype),
    )


def describe(query: Tensor, key: Tensor) -> str:
    new, total = query.size(-2), key.size(-2)
    which = (
        "a single token"
        if total == 1
        else "the whole text"
        if new == total
        else f"the last {new}"
        if new > 1
        else "the last one"
    )
    return f"query {tuple(query.shape)}, key {tuple(key.shape)}: {which}" + f" of {total} tokens" * (total > 1)


def _look(outputs: Sequence[Any]) -> str | None:
    weights = outputs[0][1]
    new, total = weights.shape[-2:]
    rows = weights.reshape(-1, new, total)
    for i in range(new):
        place = total - new + i
        who = f"query {i}, which is token {place} of the text (counted from 0),"
        ahead, seen = rows[:, i, place + 1 :], rows[:, i, : place + 1]
        if ahead.numel() and ahead.max() > 1e-6:
            return f"{who} gives token {place + 1 + int(ahead.amax(0).argmax())}, which comes later, a weight of {ahead.max():.3g}"
        if seen.min() <= 0:
            return f"{who} gives token {int(seen.amin(0).argmin())} no weight, though it is not a later one"
        if (rows[:, i].sum(dim=-1) - 1).abs().max() > 1e-3:
            return f"the weights of {who} sum to {rows[:, i].sum(dim=-1).min():.3g}"
    return None


sees_the_past = Property("Each new token sees itself and every earlier token, and no later one.", _look)


# --- wrong answers -------------------------------------------------------------------------------------------------


def attend(
    mask: Callable[[int, int], Tensor | None],
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
    weigh: Callable[[Tensor, Tensor | None], Tensor] | None = None,
) -> Callable[..., Result]:
    """Build an attention out of what it hides, its scores and its weights; the latter two are right unless given."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Result:
        scores = (score or scaled)(query, key)
        weights = (weigh or softmax)(scores, mask(query.size(-2), key.size(-2)))
        return weights @ value, weights

    return attention


def scaled(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1) * mask


def nan_where_blind(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores.softmax(dim=-1) if mask is None else scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def ones(new: int, total: int) -> Tensor:
    return torch.ones(new, total, dtype=torch.bool)


def right(new: int, total: int) -> Tensor:
    return ones(new, total).tril(total - new)


def only_if_square(new: int, total: int) -> Tensor | None:
    return right(new, total) if new == total else None


def lined_up_at_the_beginning(new: int, total: int) -> Tensor:
    return ones(new, total).tril()


def lined_up_at_the_beginning_unless_one(new: int, total: int) -> Tensor | None:
    return None if new == 1 else lined_up_at_the_beginning(new, total)


def not_itself(new: int, total: int) -> Tensor:
    return ones(new, total).tril(total - new - 1)


def one_ahead(new: int, total: int) -> Tensor:
    return ones(new, total).tril(total - new + 1)


def moved_the_wrong_way(new: int, total: int) -> Tensor:
    return ones(new, total).tril(new - total)


def transposed(new: int, total: int) -> Tensor:
    return ones(new, total).triu(total - new)


def inverted(new: int, total: int) -> Tensor:
    return ~right(new, total)


def past_hidden(new: int, total: int) -> Tensor:
    return torch.cat([torch.zeros(new, total - new, dtype=torch.bool), ones(new, new).tril()], dim=1)


def past_on_the_right(new: int, total: int) -> Tensor:
    return torch.cat([ones(new, new).tril(), ones(new, total - new)], dim=1)


def all_new_alike(new: int, total: int) -> Tensor:
    return torch.cat([ones(new, total - new), torch.eye(new, dtype=torch.bool)], dim=1)


def output_alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(right)(query, key, value)[0]


def results_swapped(query: Tensor, key: Tensor, value: Tensor) -> Result:
    return attend(right)(query, key, value)[::-1]


def zero_is_a_score(scores: Tensor, mask: Tensor | None) -> Tensor:
    return (scores if mask is None else scores * mask).softmax(dim=-1)


def mask_added(scores: Tensor, mask: Tensor | None) -> Tensor:
    return (scores if mask is None else scores + mask).softmax(dim=-1)


def hidden_after_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    weights = scores.softmax(dim=-1)
    return weights if mask is None else weights * mask


def over_queries(scores: Tensor, mask: Tensor | None) -> Tensor:
    return softmax(scores.transpose(-2, -1), None if mask is None else mask.transpose(-2, -1)).transpose(-2, -1)


def detached(scores: Tensor, mask: Tensor | None) -> Tensor:
    return softmax(scores, mask).detach()


MISCONCEPTIONS = (
    Misconception(
        "kv_chunk_not_causal",
        "There is a causal mask only where there are as many queries as keys. That covers the two usual cases: a whole "
        "text, which needs the mask, and a single new token, which may see everything and needs none. Between the two, "
        "several new tokens after a cache, as when a prompt is read in pieces, are not hidden from one another: each sees "
        "those that come after it in its own piece.",
        SECTION,
        (attend(only_if_square),),
        ("https://github.com/mlx-node/mlx-node/pull/24",),
    ),
    Misconception(
        "mask_lined_up_at_the_beginning",
        "The triangle starts at the first key: query 0 sees key 0, query 1 sees keys 0 and 1. That is right for a whole "
        "text. But the new tokens are the *last* ones: query 0 is not token 0, it comes after everything that was kept. A "
        "single new token would see the first token of the text and nothing else, itself neither. PyTorch's "
        "is_causal=True lines the mask up in this way too.",
        SECTION,
        (
            attend(lined_up_at_the_beginning),
            attend(lined_up_at_the_beginning_unless_one),
        ),
        (
            "https://github.com/pytorch/pytorch/issues/144858",
            "https://github.com/gittensor-ai-lab/sparkinfer/issues/3",
            "https://github.com/pytorch/executorch/pull/21749",
            "https://github.com/onnx/onnx/pull/8068",
        ),
    ),
    Misconception(
        "no_mask",
        "Nothing is hidden. For a single new token that is right, as nothing comes after it. Where several tokens come at "
        "once, the first of them must not see the others.",
        CAUSAL,
        (attend(lambda new, total: None),),
    ),
    Misconception(
        "diagonal_moved_the_wrong_way",
        "The triangle is moved to the left where it should move to the right, so that the new tokens see less the more has "
        "been kept, down to nothing. (A positive diagonal lets torch.tril keep more.)",
        SECTION,
        (attend(moved_the_wrong_way), attend(moved_the_wrong_way, weigh=nan_where_blind)),
    ),
    Misconception(
        "sees_one_ahead",
        "Each token sees one token too far: its own successor. That is just the token which it is to predict.",
        CAUSAL,
        (attend(one_ahead),),
    ),
    Misconception(
        "does_not_see_itself",
        "Each token sees only what came before it, and not itself. The first token of a text then sees nothing at all. A "
        "token predicts what comes *after* it, so it may, and must, know itself.",
        CAUSAL,
        (attend(not_itself), attend(not_itself, weigh=nan_where_blind)),
        ("https://github.com/pbloem/former/issues/10",),
    ),
    Misconception(
        "mask_transposed",
        "The triangle is the wrong way round: each token sees itself and what comes later. Rows are queries, columns are "
        "keys, and a query sees the keys with smaller numbers.",
        CAUSAL,
        (attend(transposed),),
        ("https://github.com/marin-community/levanter/pull/102",),
    ),
    Misconception(
        "mask_inverted",
        "The mask hides what should be seen and shows what should be hidden. In this book True means “may attend”; "
        "masked_fill fills where its own mask is True, so it takes the opposite.",
        "self_attention#boolean-or-additive",
        (attend(inverted), attend(inverted, weigh=nan_where_blind)),
    ),
    Misconception(
        "past_hidden",
        "The new tokens see only one another, and nothing of what was kept. The mask must have a column for every key, and "
        "those of the earlier tokens are all True: they came before any of the new ones.",
        SECTION,
        (attend(past_hidden),),
        ("https://github.com/huggingface/candle/pull/3743",),
    ),
    Misconception(
        "past_on_the_right",
        "The columns that are all True, for the tokens that were kept, stand on the right of the triangle. The keys are in "
        "the order of the text: first those that were kept, then the new ones.",
        SECTION,
        (attend(past_on_the_right),),
    ),
    Misconception(
        "new_tokens_apart",
        "Each new token sees what was kept, and itself, but not the new tokens before it. Coming in one piece makes no "
        "difference: a new token sees the earlier ones of its own piece as well.",
        SECTION,
        (attend(all_new_alike),),
    ),
    Misconception(
        "no_scale",
        "The scores are not divided by the root of the width of a head. A dot product of many terms is large, and softmax "
        "of large scores is nearly 0 or 1.",
        SCALE,
        (attend(right, score=lambda query, key: query @ key.transpose(-2, -1)),),
    ),
    Misconception(
        "scale_by_length",
        "The scores are divided by the root of the number of tokens. What makes a dot product large is the number of its "
        "terms, which is the width of query and key. With a cache this slip shows as weights that grow evener with every "
        "token.",
        SCALE,
        (attend(right, score=lambda query, key: query @ key.transpose(-2, -1) / math.sqrt(key.size(-2))),),
    ),
    Misconception(
        "hidden_with_zero",
        "Hidden keys get a score of 0. But 0 is an ordinary score: exp(0) = 1, and a later token keeps a sizeable weight.",
        CAUSAL,
        (attend(right, weigh=zero_is_a_score),),
    ),
    Misconception(
        "mask_added",
        "The boolean mask is added to the scores. True counts as 1 then, so that what may be seen gains a little, and what "
        "should be hidden stays in. A mask to be added has 0 where a key may be seen and -inf where not.",
        "self_attention#boolean-or-additive",
        (attend(right, weigh=mask_added),),
    ),
    Misconception(
        "hidden_after_softmax",
        "Later keys lose their weight only after softmax has shared it out among all. What is left no longer sums to 1, "
        "and how much is missing depends on the later tokens, which should have no effect.",
        CAUSAL,
        (attend(right, weigh=hidden_after_softmax),),
    ),
    Misconception(
        "softmax_over_queries",
        "softmax runs along the queries. Each query shares itself out among the keys: its row has to sum to 1. With a "
        "single new token this gives every key the weight 1.",
        "self_attention#which-axis-does-softmax-run-along",
        (attend(right, weigh=over_queries),),
    ),
    Misconception(
        "output_alone",
        "Only one of the two results is returned. Return the mixed values and the weights, in this order.",
        FUNCTION,
        (output_alone,),
    ),
    Misconception(
        "results_swapped",
        "The two results have changed places: first come the mixed values, then the weights.",
        FUNCTION,
        (results_swapped,),
    ),
    Misconception(
        "weights_detached",
        "The result is right, but no gradient reaches query and key: the weights have been cut off from what they were "
        "made of (.data, .detach(), torch.tensor(...)).",
        "self_attention#gradients",
        (attend(right, weigh=detached),),
        ("https://github.com/paiml/aprender/pull/2203",),
    ),
)

EXERCISE = Exercise(
    name="cached_causal_attention",
    chapter="generation",
    kind="function",
    minutes=15,
    parts=(
        Part("one token, or all", 1, "let a single new token see all, and hide later tokens in a whole text", SECTION),
        Part(
            "several tokens", 2, "let each of several new tokens see what was kept, itself and no later token", SECTION
        ),
    ),
    hints=(
        "Five tokens, of which the last two are new. Draw the mask: two rows, five columns. Which columns are True in the "
        "first row?",
        "The triangle of the causal mask is lined up at the lower right corner, as the last query is the last key. torch.tril "
        "takes a second argument, diagonal, that moves its edge; by how much?",
        "ones(new, total) as booleans, tril with diagonal = total - new. With as many queries as keys that is the ordinary "
        "mask, with a single query it's all True: no case has to be treated apart.",
    ),
    cases=cases,
    reference=generation.cached_causal_attention,
    misconceptions=MISCONCEPTIONS,
    results=("output", "weights"),
)
