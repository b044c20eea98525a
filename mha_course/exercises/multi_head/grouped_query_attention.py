"""Exercise: attend with fewer keys and values than queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import multi_head
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import REFUSALS, first, ragged_mask, randn, unchanged
from mha_course.exercises.self_attention.scaled_dot_product_attention import (
    attend,
    blind_query_gets_nothing,
    hidden_keys_get_nothing,
    hide_allowed,
    infinity,
    infinity_added,
    product,
    rows_sum_to_one,
    untouched,
)
from mha_course.self_attention import padding_mask

SECTION, GROUPS = "multi_head#the-layer", "multi_head#grouped-queries"
MASKS, SCALE = "multi_head#masks-and-heads", "multi_head#scale"
GRADIENTS = "self_attention#gradients"
CLEARER = (
    "One thing could be better: 5 heads for 3 groups are refused by an error that does not say so. "
    "A ValueError that names both numbers tells at once."
)
Result = tuple[Tensor, Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    for label, batch, heads, groups, queries, keys in (
        ("", 1, 4, 2, 1, 3),
        ("", 2, 6, 2, 3, 5),
        ("", 2, 6, 3, 3, 5),
        ("one group for all heads", 3, 5, 1, 2, 7),
        ("one group for each head", 2, 3, 3, 5, 7),
        ("as many examples as groups", 2, 4, 2, 3, 3),
        ("as many keys as groups", 2, 6, 3, 5, 3),
        ("a single head", 2, 1, 1, 3, 5),
        ("one key", 2, 4, 2, 3, 1),
        ("many heads", 1, 12, 4, 2, 3),
    ):
        given = inputs(rng, batch, heads, groups, queries, keys)
        text = describe(*given) + f", {label}" * bool(label)
        yield Case("sharing", text, (Call(given),), holds=(rows_sum_to_one,))
    query, key, value = inputs(rng, 2, 6, 2, 3, 5)
    yield Case(
        "sharing",
        f"{describe(query, key, value)}, then with other values in group 1",
        (Call((query, key, value)), Call((query, key, torch.cat([value[:, :1], randn(rng, 2, 1, 5, 7)], dim=1)))),
        holds=(
            unchanged(
                "Neighbouring heads share a group: here heads 0, 1 and 2 read group 0.",
                "when only the values of group 1 were changed, heads 0 to 2 moved by {change}",
                where=(slice(None), slice(3)),
            ),
        ),
    )
    query = query[:, :1].expand(2, 6, 3, 5)
    yield Case(
        "sharing",
        f"{describe(query, key, value)}, all heads with the same queries",
        (Call((query, key, value)),),
        holds=(alike_within_a_group(2),),
    )
    double = tuple(x.double() for x in inputs(rng, 2, 4, 2, 3, 5))
    yield Case("sharing", describe(*double) + ", float64", (Call(double),), tolerance=1e-9)
    stored = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(rng, 2, 4, 2, 3, 5))
    yield Case("sharing", describe(*stored) + ", stored length before head", (Call(stored),))
    yield from _mask_cases(rng)
    for label, mask in (("no mask", None), ("a mask (batch, 1, query, key)", ragged_mask(rng, 2, 1, 3, 5))):
        given = inputs(rng, 2, 6, 2, 3, 5)
        call = Call(given if mask is None else (*given, mask), backward=True)
        yield Case("gradients", f"{describe(*given)}, {label}, with gradients", (call,))
    mask = ragged_mask(rng, 3, 5)
    mask[1] = False
    given = inputs(rng, 2, 6, 3, 3, 5)
    label = f"{describe(*given)}, query 1 may attend to nothing, with gradients"
    yield Case("gradients", label, (Call((*given, mask), backward=True),))
    for heads, groups in ((5, 3), (3, 2), (4, 3)):
        given = inputs(rng, 2, heads, groups, 3, 5)
        yield Case("whole groups", describe(*given), (Call(given),), expects_error=REFUSALS)
    given = inputs(rng, 2, 5, 3, 3, 5)
    yield Case("whole groups", describe(*given), (Call(given),), expects_error=("ValueError",), advice=CLEARER)


def _mask_cases(rng: Generator) -> Iterator[Case]:
    for label, batch, heads, groups, mask in (
        ("a mask (query, key)", 3, 4, 2, ragged_mask(rng, 3, 5)),
        ("a mask (batch, 1, 1, key) for the padding", 3, 4, 2, padding_mask(torch.tensor([5, 3, 2]), 5)),
        ("a mask (batch, 1, query, key)", 3, 4, 2, ragged_mask(rng, 3, 1, 3, 5)),
        ("a mask (batch, 1, query, key), as many examples as groups", 2, 6, 2, ragged_mask(rng, 2, 1, 3, 5)),
        ("a mask (batch, head, query, key)", 2, 6, 3, ragged_mask(rng, 2, 6, 3, 5)),
        ("a mask (batch, head, query, key), one group", 2, 3, 1, ragged_mask(rng, 2, 3, 3, 5)),
        ("a mask (1, head, 1, key)", 2, 4, 2, ragged_mask(rng, 1, 4, 1, 5)),
    ):
        given = inputs(rng, batch, heads, groups, 3, 5)
        text = f"{describe(*given)}, {label}"
        holds = (hidden_keys_get_nothing(mask), rows_sum_to_one)
        yield Case("mask", text, (Call((*given, mask)),), holds=holds)
    mask = ragged_mask(rng, 2, 1, 3, 5)
    mask[:, :, 1] = False
    given = inputs(rng, 2, 4, 2, 3, 5)
    label = f"{describe(*given)}, query 1 may attend to nothing"
    yield Case("mask", label, (Call((*given, mask)),), holds=(blind_query_gets_nothing,))


def inputs(
    rng: Generator, batch: int, heads: int, groups: int, queries: int, keys: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries and keys of width 5, and values of width 7."""
    return (
        randn(rng, batch, heads, queries, 5, scale=1.5),
        randn(rng, batch, groups, keys, 5, scale=1.5),
        randn(rng, batch, groups, keys, 7),
    )


def describe(query: Tensor, key: Tensor, value: Tensor) -> str:
    (batch, heads, queries, _), groups, keys = query.shape, key.size(1), key.size(2)
    return (
        f"batch {batch}, {heads} head{'s' * (heads > 1)}, {groups} group{'s' * (groups > 1)}, "
        f"{queries} {'query' if queries == 1 else 'queries'}, {keys} key{'s' * (keys > 1)}"
    )


def alike_within_a_group(groups: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        heads = first(outputs[0]).unflatten(1, (groups, -1))
        spread = (heads - heads[:, :, :1]).abs().max()
        return None if spread < 1e-4 else f"within a group, two of your heads differ by {spread:.3g}"

    return Property("Heads that ask the same and share a group get the same.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


def grouped(
    share: Callable[[Tensor, int], Tensor] | None = None,
    share_values: Callable[[Tensor, int], Tensor] | None = None,
    attention: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Build a grouped attention out of its steps; each is right unless another is given."""

    def grouped_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        heads = query.size(1)
        require_whole_groups(heads, key.size(1))
        key = (share or neighbours)(key, heads)
        value = (share_values or share or neighbours)(value, heads)
        return (attention or attend())(query, key, value, mask)

    return grouped_query_attention


def require_whole_groups(heads: int, groups: int) -> None:
    if heads % groups:
        raise ValueError("the groups must be equally large")


def neighbours(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.size(1), dim=1)


def in_turn(x: Tensor, heads: int) -> Tensor:
    return x.repeat(1, heads // x.size(1), 1, 1)


def head_over_number_of_groups(x: Tensor, heads: int) -> Tensor:
    return x[:, torch.arange(heads) // x.size(1)]


def backwards(x: Tensor, heads: int) -> Tensor:
    return neighbours(x.flip(1), heads)


def along_the_length(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.size(1), dim=2)


def first_group(x: Tensor, heads: int) -> Tensor:
    return x[:, :1].expand(-1, heads, -1, -1)


def mean_of_groups(x: Tensor, heads: int) -> Tensor:
    return x.mean(dim=1, keepdim=True).expand(-1, heads, -1, -1)


def not_shared(x: Tensor, heads: int) -> Tensor:
    return x


def repeated_and_reshaped(x: Tensor, heads: int) -> Tensor:
    return along_the_length(x, heads).reshape(x.size(0), heads, x.size(2), -1)


def heads_grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
    """Give the heads of a group an axis of their own, (batch, group, member, query, d_head)."""
    require_whole_groups(query.size(1), key.size(1))
    members = query.unflatten(1, (key.size(1), -1))
    return attend()(members, key.unsqueeze(2), value.unsqueeze(2), mask)


def mask_without_group_axis(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = heads_grouped(query, key, value, mask)
    return output.flatten(1, 2), weights.flatten(1, 2)


def mask_expanded_without_group_axis(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    """Do the same, and expand the mask to the scores' shape first, which refuses more sizes than broadcasting does."""
    if mask is not None:
        groups = key.size(1)
        mask = mask.expand(query.size(0), groups, query.size(1) // groups, query.size(2), key.size(2))
    return mask_without_group_axis(query, key, value, mask)


def groups_left_apart(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    if mask is not None and mask.dim() == 4:
        mask = mask.expand(-1, query.size(1), -1, -1).unflatten(1, (key.size(1), -1))
    output, weights = heads_grouped(query, key, value, mask)
    return output, weights


def mask_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return grouped()(query, key, value, mask if mask is None or mask.dim() < 4 else mask[:, :1])


def mask_of_the_groups_first_head(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    if mask is not None and mask.dim() == 4 and mask.size(1) > 1:
        mask = neighbours(mask[:, :: query.size(1) // key.size(1)], query.size(1))
    return grouped()(query, key, value, mask)


def heads_in_another_order(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = groups_left_apart(query, key, value, mask)
    return output.transpose(1, 2).flatten(1, 2), weights.transpose(1, 2).flatten(1, 2)


def queries_averaged(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    require_whole_groups(query.size(1), key.size(1))
    return attend()(query.unflatten(1, (key.size(1), -1)).mean(dim=2), key, value, mask)


def heads_left_over(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    used = query.size(1) // key.size(1) * key.size(1)
    return grouped()(query[:, :used], key, value, mask)


def last_group_smaller(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    heads, groups = query.size(1), key.size(1)
    every = -(-heads // groups)
    key, value = (x.repeat_interleave(every, dim=1)[:, :heads] for x in (key, value))
    return attend()(query, key, value, mask)


def last_group_larger(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    heads, groups = query.size(1), key.size(1)
    group = (torch.arange(heads) // (heads // groups)).clamp(max=groups - 1)
    return attend()(query, key[:, group], value[:, group], mask)


def keys_as_values(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return grouped()(query, key, key, mask)


def output_alone(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    return grouped()(query, key, value, mask)[0]


def results_swapped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = grouped()(query, key, value, mask)
    return weights, output


def multiplied(scores: Tensor, mask: Tensor) -> Tensor:
    return scores * mask


def scaled_by(divisor: Callable[[Tensor, Tensor], float]) -> Callable[..., Any]:
    return grouped(attention=attend(score=lambda query, key: product(query, key) / divisor(query, key)))


MISCONCEPTIONS = (
    Misconception(
        "groups_in_turn",
        "The groups are dealt out in turn: head 0 reads group 0, head 1 reads group 1, and so on, then group 0 again. In "
        "PyTorch repeat lays whole copies one behind the other, while repeat_interleave repeats each entry on the spot. "
        "Here neighbours share. Both would train, but pretrained weights fit one of them only.",
        GROUPS,
        (grouped(in_turn),),
        (
            "https://github.com/onnx/onnx/pull/7274",
            "https://github.com/ekzhang/jax-js/pull/180",
        ),
    ),
    Misconception(
        "keys_and_values_shared_unlike",
        "The keys are shared out in one way and the values in another, so that a head compares with one group and fetches "
        "from another.",
        GROUPS,
        (grouped(neighbours, in_turn), grouped(in_turn, neighbours)),
    ),
    Misconception(
        "head_over_number_of_groups",
        "The group of a head is found by dividing the head's number by the number of groups. It has to be divided by the "
        "number of heads in a group. The two agree only where they are the same number; otherwise some groups are never "
        "read, or there is no group of that number.",
        GROUPS,
        (grouped(head_over_number_of_groups),),
        ("https://github.com/PSAL-POSTECH/ONNXim/issues/33",),
    ),
    Misconception(
        "groups_backwards",
        "The groups are handed out from the last to the first. Head 0 reads group 0.",
        GROUPS,
        (grouped(backwards),),
    ),
    Misconception(
        "first_group_for_all",
        "All heads read the first group; the others are never looked at.",
        GROUPS,
        (grouped(first_group), grouped(neighbours, first_group), grouped(first_group, neighbours)),
    ),
    Misconception(
        "groups_averaged",
        "The groups are averaged into one that all heads read. Each group keeps keys and values of its own, and only the "
        "heads of that group read them.",
        GROUPS,
        (grouped(mean_of_groups),),
    ),
    Misconception(
        "not_shared",
        "The keys and values are used as they came, one set a group. Broadcasting stretches an axis of size 1 and no "
        "other: with a single group this happens to work, with two groups for six heads it is an error.",
        GROUPS,
        (grouped(not_shared),),
        ("https://github.com/huggingface/optimum-nvidia/pull/48",),
    ),
    Misconception(
        "repeated_along_the_length",
        "The keys are repeated along the wrong axis: there are more keys, and as few groups as before. It is the head "
        "axis that has to grow.",
        GROUPS,
        (grouped(along_the_length),),
        ("https://github.com/ByteDance-Seed/VeOmni/pull/162",),
    ),
    Misconception(
        "repeated_and_reshaped",
        "The keys are repeated along one axis and then reshaped as if it had been another. The shape is right, but a "
        "reshape keeps the order in memory. Where the copies don't lie as the new shape would have them, a head gets keys "
        "of several groups.",
        "multi_head#why-view-then-transpose",
        (grouped(repeated_and_reshaped),),
    ),
    Misconception(
        "queries_averaged",
        "The queries of a group are averaged. Only keys and values are shared: every head keeps its own queries, and so "
        "its own weights.",
        GROUPS,
        (queries_averaged,),
    ),
    Misconception(
        "groups_left_apart",
        "Group and member still have an axis each. The result is to have one axis of heads again.",
        GROUPS,
        (groups_left_apart,),
    ),
    Misconception(
        "heads_in_another_order",
        "Group and member have been joined in the wrong order, so that the heads come out mixed up. Head 1 of the result "
        "belongs to the queries of head 1.",
        "multi_head#split-and-merge",
        (heads_in_another_order,),
    ),
    Misconception(
        "mask_without_group_axis",
        "The heads have been given two axes, group and member, and the mask has not. Broadcasting lines axes up from the "
        "end, so its batch axis falls on the groups, or its heads on the members: an error for most sizes, and silently "
        "wrong where they are equal.",
        MASKS,
        (mask_without_group_axis, mask_expanded_without_group_axis),
    ),
    Misconception(
        "one_mask_for_several_heads",
        "All heads, or all heads of a group, get the mask of the first of them. Heads share keys and values, but a mask may "
        "be another for each head.",
        MASKS,
        (mask_of_the_first_head, mask_of_the_groups_first_head),
    ),
    Misconception(
        "mask_ignored",
        "The mask has no effect: it is not passed on, or masked_fill is called and its result thrown away.",
        MASKS,
        (grouped(attention=attend(hide=lambda scores, mask: scores, finish=untouched)),),
        ("https://github.com/facebookresearch/ParlAI/pull/3068",),
    ),
    Misconception(
        "mask_inverted",
        'The mask is read the wrong way round. True means "may attend" here; in nn.MultiheadAttention it means the '
        "opposite.",
        MASKS,
        (
            grouped(attention=attend(hide=hide_allowed, finish=untouched)),
            grouped(attention=attend(hide=hide_allowed)),
            grouped(attention=attend(hide=lambda scores, mask: infinity(scores, ~mask), finish=untouched)),
        ),
        ("https://github.com/facebookresearch/detr/issues/96",),
    ),
    Misconception(
        "mask_multiplied",
        "Hidden keys get a score of about 0 (multiplied by the mask, or filled with 0). But 0 is an ordinary score: "
        "exp(0) = 1, and those keys keep a sizeable weight. What is hidden needs the lowest score there is.",
        MASKS,
        (grouped(attention=attend(hide=multiplied, finish=untouched)),),
        ("https://github.com/georg-wolflein/good-features/pull/1",),
    ),
    Misconception(
        "mask_after_softmax",
        "The weights are multiplied by the mask after softmax, which had already shared out the 1 among all keys. What the "
        "hidden keys got is lost, and the rows sum to less than 1. The mask belongs before softmax.",
        MASKS,
        (grouped(attention=attend(hide=lambda scores, mask: scores)),),
        ("https://github.com/abisee/pointer-generator/issues/88",),
    ),
    Misconception(
        "fully_masked_nan",
        "A query that may attend to nothing gets NaN: 0 divided by 0, in softmax of a row of minus infinities. One such "
        "row turns the whole loss into NaN.",
        MASKS,
        (grouped(attention=attend(hide=infinity, finish=untouched)),),
        ("https://github.com/pytorch/pytorch/issues/103749",),
    ),
    Misconception(
        "fully_masked_nan_grad",
        "The output is right and finite, but the gradients are NaN: minus infinity gave NaN in softmax, which was replaced "
        "afterwards. On the way back softmax still multiplies by it. The NaN must never arise.",
        MASKS,
        (grouped(attention=attend(hide=infinity_added, finish=lambda weights, mask: weights.nan_to_num(0.0))),),
        ("https://github.com/pytorch/pytorch/issues/41508",),
    ),
    Misconception(
        "fully_masked_uniform",
        "A query that may attend to nothing gets the mean of everything it must not see, since all its scores are equally "
        "low. Its weights have to be set to zero.",
        MASKS,
        (grouped(attention=attend(finish=untouched)),),
    ),
    Misconception(
        "no_scale",
        "The scores are not divided by the root of the head's width. Attention comes out too sharp.",
        SCALE,
        (grouped(attention=attend(score=product)),),
    ),
    Misconception(
        "scale_by_another_width",
        "The scores are divided by the root of another number than the width of one head: all heads or all groups "
        "together, or the width of the values. A dot product has as many terms as one query is wide.",
        SCALE,
        (
            scaled_by(lambda query, key: math.sqrt(query.size(-1) * query.size(1))),
            scaled_by(lambda query, key: math.sqrt(query.size(-1) / query.size(1))),
            scaled_by(lambda query, key: query.size(-1)),
        ),
        ("https://github.com/lucidrains/vit-pytorch/issues/65",),
    ),
    Misconception(
        "softmax_over_another_axis",
        "softmax runs over the queries, or over the heads. Each query should share itself out among the keys, the last "
        "axis.",
        "self_attention#which-axis-does-softmax-run-along",
        (
            grouped(attention=attend(normalise=lambda scores: scores.softmax(dim=-2))),
            grouped(attention=attend(normalise=lambda scores: scores.softmax(dim=1))),
        ),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "keys_as_values",
        "The weights mix the keys instead of the values.",
        SECTION,
        (keys_as_values,),
        ("https://github.com/fchollet/deep-learning-with-python-notebooks/issues/261",),
    ),
    Misconception(
        "weights_not_returned",
        "Only the output is returned. The weights are wanted too, so that one can look at them.",
        SECTION,
        (output_alone,),
    ),
    Misconception(
        "results_swapped",
        "The two results are returned in the wrong order: the output comes first, then the weights.",
        SECTION,
        (results_swapped,),
    ),
    Misconception(
        "weights_detached",
        "The output is right, but queries and keys get no gradient: the weights have been rebuilt from raw data (.data, "
        ".detach(), torch.tensor(...)). Such a layer never learns where to look.",
        GRADIENTS,
        (
            grouped(
                attention=attend(finish=lambda weights, mask: (weights if mask is None else weights * mask).detach())
            ),
        ),
        ("https://github.com/paiml/aprender/pull/2203",),
    ),
    Misconception(
        "copies_detached",
        "The output is right, but keys and values get no gradient, or only that of one head: the shared copies have been "
        "cut off from where they came from. What several heads read learns from all of them.",
        GROUPS,
        (grouped(lambda x, heads: neighbours(x.detach(), heads)),),
    ),
    Misconception(
        "heads_left_over",
        "Where the heads can't be shared out equally among the groups, the last ones are dropped without a word. An error "
        "that names both numbers tells at once.",
        GROUPS,
        (heads_left_over,),
        ("https://github.com/fla-org/flash-linear-attention/issues/1029",),
    ),
    Misconception(
        "unequal_groups",
        "Where the heads can't be shared out equally among the groups, some groups get more heads than others. That is no "
        "agreed way, and nobody is told: refuse it, by an error that names both numbers.",
        GROUPS,
        (last_group_smaller, last_group_larger),
        ("https://github.com/fla-org/flash-linear-attention/issues/1029",),
    ),
)

EXERCISE = Exercise(
    name="grouped_query_attention",
    chapter="multi_head",
    kind="function",
    minutes=25,
    parts=(
        Part("sharing", 3, "let neighbouring heads attend to the keys and values of their common group", GROUPS),
        Part("mask", 1, "keep what the mask hides out of the result, whatever shape the mask broadcasts from", MASKS),
        Part("gradients", 1, "pass right and finite gradients to query, key and value", GRADIENTS),
        Part("whole groups", 1, "refuse heads that the groups cannot share out equally", GROUPS),
    ),
    results=("output", "weights"),
    hints=(
        "With six heads and two groups, which heads read group 0? Write the group beside each head's number. By what do "
        "you divide the number of a head to get that of its group?",
        "If every head had keys and values of its own, it would be the attention that you know. So give each head a copy "
        "of its group's: which of PyTorch's two ways to repeat puts equal copies next to each other?",
        "heads // groups copies of each group, by repeat_interleave along the head axis, for keys and values alike. Then "
        "scale, product, mask, softmax, weighted sum, as in chapter 3. First of all, what if heads % groups is not 0?",
    ),
    cases=cases,
    reference=multi_head.grouped_query_attention,
    misconceptions=MISCONCEPTIONS,
)
