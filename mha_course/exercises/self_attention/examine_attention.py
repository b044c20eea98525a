"""Exercise: write a test that tells a right attention from many that are almost right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given

SECTION, AXIS = "self_attention#one-function", "self_attention#which-axis-does-softmax-run-along"
ROLES, MASKS = "self_attention#queries-keys-and-values", "self_attention#boolean-or-additive"
SHAPES, NOTHING = "self_attention#shapes", "self_attention#a-query-that-sees-nothing"
Result = tuple[Tensor, Tensor]
Attention = Callable[..., Any]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]


def examine_attention(attention: Attention) -> None:
    rng = torch.Generator().manual_seed(0)
    for leading, queries, keys in (((), 3, 5), ((2,), 3, 5), ((2, 3), 3, 5), ((2, 3), 5, 5)):
        query, key = torch.randn(*leading, queries, 11, generator=rng), torch.randn(*leading, keys, 11, generator=rng)
        value = torch.randn(*leading, keys, 13, generator=rng)
        mask = torch.rand(*leading, queries, keys, generator=rng) < 0.5
        mask[..., 1, :] = False  # one query may attend to nothing
        everything = torch.eye(keys).expand(*leading, keys, keys)
        for factor, hidden in ((1, None), (1, mask), (20, mask), (1000, None)):
            asked = factor * query
            output, weights = attention(asked, key, value, hidden)
            assert torch.equal(asked, factor * query)
            for got, mixed_from in ((output, value), (weights, everything)):
                right = F.scaled_dot_product_attention(factor * query, key, mixed_from, attn_mask=hidden)
                torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)


def cases(rng: Generator) -> Iterator[Case]:
    for accepted in (step_by_step, by_einsum, one_query_at_a_time, in_float64, by_library):
        yield case("right or wrong", "a right implementation, " + accepted.__name__.replace("_", " "), accepted, True)
    for part, label, wrong in (
        ("right or wrong", "on any input", not_scaled),
        ("right or wrong", "on any input", over_queries),
        ("right or wrong", "on any input", even),
        ("right or wrong", "on any input", best_key_alone),
        ("right or wrong", "on any input", not_mixed),
        ("sizes", "only where values are not the keys", mixes_keys),
        ("sizes", "only where there are several examples", first_example_for_all),
        ("sizes", "only where there are several heads", first_head_for_all),
        ("sizes", "only where there are both examples and heads", second_axis),
        ("sizes", "only where there are as many queries as keys", wrong_when_square),
        ("sizes", "only where the number of keys is not the width of a key", scaled_by_number_of_keys),
        ("sizes", "only where a value is not as wide as a key", scaled_by_width_of_values),
        ("sizes", "only where the root of the width is not a whole number", whole_root),
        ("masks", "only with a mask", mask_ignored),
        ("masks", "only with a mask", mask_inverted),
        ("masks", "only with a mask", hidden_score_0),
        ("masks", "only with a mask", mask_after_softmax),
        ("masks", "only with a mask and large scores", mask_too_weak),
        ("masks", "only with a mask that differs from query to query", first_row_of_mask),
        ("masks", "only with masks that differ from example to example", first_mask),
        ("both results", "only in its weights", scores_returned),
        ("both results", "only in its weights, and only with a mask", weights_before_mask),
        ("both results", "only in its weights, and only with heads", weights_averaged),
        ("both results", "only in its output", output_of_even_weights),
        ("rare cases", "only where a query may attend to nothing", nan_for_nothing),
        ("rare cases", "only where a query may attend to nothing", even_for_nothing),
        ("rare cases", "only with very large scores", overflows),
        ("rare cases", "in what it leaves behind: the query itself", query_changed),
    ):
        yield case(part, f"an implementation that goes wrong {label}", wrong, False)


def case(part: str, label: str, implementation: Attention, accepts: bool) -> Case:
    return Case(part, label, (Call((given(implementation, scored, mixed),)),), accepts=accepts)


# --- what is to be examined: right ones ----------------------------------------------------------------------------


def scored(query: Tensor, key: Tensor) -> Tensor:
    return query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)


def mixed(scores: Tensor, value: Tensor, mask: Tensor | None) -> Result:
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    weights = weights if mask is None else weights * mask
    return weights @ value, weights


def step_by_step(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(scored(query, key), value, mask)


def by_einsum(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    scores = torch.einsum("...qd,...kd->...qk", query, key) * query.size(-1) ** -0.5
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    weights = shifted.exp() / shifted.exp().sum(dim=-1, keepdim=True)
    if mask is not None:
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1).masked_fill(~mask, 0.0)
    return torch.einsum("...qk,...kv->...qv", weights, value), weights


def one_query_at_a_time(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    allowed = torch.ones(1, dtype=torch.bool) if mask is None else mask
    allowed = allowed.expand(*query.shape[:-1], key.size(-2))
    rows = [
        mixed(
            (query[..., i, None, :] * key).sum(dim=-1)[..., None, :] / query.size(-1) ** 0.5,
            value,
            allowed[..., i, None, :],
        )
        for i in range(query.size(-2))
    ]
    return torch.cat([row[0] for row in rows], dim=-2), torch.cat([row[1] for row in rows], dim=-2)


def in_float64(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = mixed(scored(query.double(), key.double()), value.double(), mask)
    return output.to(query.dtype), weights.to(query.dtype)


def by_library(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    each = torch.eye(key.size(-2), dtype=value.dtype).expand(*key.shape[:-1], key.size(-2))
    weights = F.scaled_dot_product_attention(query, key, each, attn_mask=mask)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask), weights


# --- and wrong ones ------------------------------------------------------------------------------------------------


def not_scaled(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(query @ key.transpose(-2, -1), value, mask)


def over_queries(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    weights = scored(query, key).softmax(dim=-2)
    weights = weights if mask is None else weights * mask
    return weights @ value, weights


def even(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(0 * scored(query, key), value, mask)


def best_key_alone(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(1e6 * scored(query, key), value, mask)


def not_mixed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return value, mixed(scored(query, key), value, mask)[1]


def mixes_keys(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    same = F.pad(key, (0, max(0, value.size(-1) - key.size(-1))))[..., : value.size(-1)]
    return mixed(scored(query, key), same, mask)


def first_example_for_all(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    if query.dim() > 2:
        key, value = key[:1].expand_as(key), value[:1].expand_as(value)
    return mixed(scored(query, key), value, mask)


def first_head_for_all(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    if query.dim() > 3:
        key, value = key[:, :1].expand_as(key), value[:, :1].expand_as(value)
    return mixed(scored(query, key), value, mask)


def second_axis(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    if query.dim() < 4:
        return mixed(scored(query, key), value, mask)
    weights = scored(query, key).softmax(dim=2)
    weights = weights if mask is None else weights * mask
    return weights @ value, weights


def wrong_when_square(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    scores = scored(query, key)
    return mixed(scores.transpose(-2, -1) if query.size(-2) == key.size(-2) else scores, value, mask)


def scaled_by_number_of_keys(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(query / math.sqrt(key.size(-2)) @ key.transpose(-2, -1), value, mask)


def scaled_by_width_of_values(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(query / math.sqrt(value.size(-1)) @ key.transpose(-2, -1), value, mask)


def whole_root(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(query / int(math.sqrt(query.size(-1))) @ key.transpose(-2, -1), value, mask)


def mask_ignored(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(scored(query, key), value, None)


def mask_inverted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(scored(query, key), value, None if mask is None else ~mask)


def hidden_score_0(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    scores = scored(query, key)
    return mixed(scores if mask is None else scores * mask, value, None)


def mask_after_softmax(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    _, weights = mixed(scored(query, key), value, None)
    weights = weights if mask is None else weights * mask
    return weights @ value, weights


def mask_too_weak(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    scores = scored(query, key)
    if mask is None:
        return mixed(scores, value, None)
    _, weights = mixed(scores.masked_fill(~mask, -15.0), value, None)
    weights = weights * mask.any(dim=-1, keepdim=True)
    return weights @ value, weights


def first_row_of_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(scored(query, key), value, None if mask is None else mask[..., :1, :])


def first_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(scored(query, key), value, mask[:1] if mask is not None and mask.dim() > 2 else mask)


def scores_returned(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(scored(query, key), value, mask)[0], scored(query, key)


def weights_before_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(scored(query, key), value, mask)[0], mixed(scored(query, key), value, None)[1]


def weights_averaged(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = mixed(scored(query, key), value, mask)
    return output, weights.mean(dim=1) if weights.dim() > 3 else weights


def output_of_even_weights(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return mixed(0 * scored(query, key), value, mask)[0], mixed(scored(query, key), value, mask)[1]


def nan_for_nothing(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    scores = scored(query, key)
    return mixed(scores if mask is None else scores.masked_fill(~mask, -math.inf), value, None)


def even_for_nothing(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    scores = scored(query, key)
    return mixed(scores if mask is None else scores.masked_fill(~mask, -1e9), value, None)


def overflows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    weights = scored(query, key).exp()
    weights = weights if mask is None else weights * mask
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    return weights @ value, weights


def query_changed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    query /= math.sqrt(query.size(-1))
    return mixed(query @ key.transpose(-2, -1), value, mask)


# --- weak tests ----------------------------------------------------------------------------------------------------


def compared(
    inputs: Callable[[], list[Inputs]],
    same: Callable[[Tensor, Tensor], bool] = lambda got, wanted: (
        got.shape == wanted.shape and torch.allclose(got, wanted, rtol=1e-3, atol=1e-4)
    ),
    results: int = 2,
) -> Callable[[Attention], None]:
    """Build a test out of its inputs, of how it compares, and of how many of the two results it looks at."""

    @cache
    def prepared() -> list[tuple[Inputs, Result]]:
        return [(given_in, by_library(*given_in)) for given_in in inputs()]

    def test(attention: Attention) -> None:
        for (query, key, value, mask), wanted in prepared():
            got = attention(query.clone(), key, value, mask)
            for one, other in list(zip(got, wanted, strict=True))[:results]:
                assert same(one, other)

    return test


def examples(
    leading: tuple[tuple[int, ...], ...] = ((), (2,), (2, 3)),
    sizes: tuple[tuple[int, int], ...] = ((3, 5), (5, 5)),
    widths: tuple[int, int] = (11, 13),
    masked: Callable[[Tensor], Tensor | None] = lambda mask: mask,
    larger: tuple[float, ...] = (1.0, 20.0),
) -> Callable[[], list[Inputs]]:
    """Build inputs, each once without a mask and once with what `masked` makes of a random one."""

    def build() -> list[Inputs]:
        rng = torch.Generator().manual_seed(0)
        found: list[Inputs] = []
        for axes in leading:
            for queries, keys in sizes:
                query, key, value = (
                    torch.randn(*axes, length, width, generator=rng)
                    for length, width in ((queries, widths[0]), (keys, widths[0]), (keys, widths[1]))
                )
                mask = torch.rand(*axes, queries, keys, generator=rng) < 0.5
                mask[..., 0] = True
                found.append((query, key, value, None))
                found += [(factor * query, key, value, masked(mask)) for factor in larger]
        return found

    return build


def same_tensor_thrice() -> list[Inputs]:
    return [(query, query, query, mask) for query, _, _, mask in examples(sizes=((5, 5),))()]


def ones_alone() -> list[Inputs]:
    return [(torch.ones(2, 5, 11), torch.ones(2, 7, 11), torch.ones(2, 7, 13), None)]


def only_the_shape(attention: Attention) -> None:
    output, weights = attention(torch.randn(2, 5, 11), torch.randn(2, 7, 11), torch.randn(2, 7, 13))
    assert output.shape == (2, 5, 13)
    assert weights.shape == (2, 5, 7)


def rows_sum_to_one(attention: Attention) -> None:
    for query, key, value, _ in examples()():
        _, weights = attention(query, key, value, None)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))


def against_itself(attention: Attention) -> None:
    for query, key, value, mask in examples()():
        torch.testing.assert_close(attention(query, key, value, mask), attention(query, key, value, mask))


def truth_value(attention: Attention) -> bool:
    try:
        examine_attention(attention)
    except AssertionError:
        return False
    return True


def refuses_all(attention: Attention) -> None:
    raise AssertionError


def equal_bits(got: Tensor, wanted: Tensor) -> bool:
    return torch.equal(got, wanted)


def within(tolerance: float) -> Callable[[Tensor, Tensor], bool]:
    return lambda got, wanted: got.shape == wanted.shape and torch.allclose(got, wanted, atol=tolerance)


MISCONCEPTIONS = (
    Misconception(
        "truth_value_returned",
        "Your test returns True or False. Nobody reads what a test returns: it passes unless it raises. Say no with "
        "`assert`, which raises when what follows it is false.",
        SECTION,
        (truth_value, lambda attention: True),
    ),
    Misconception(
        "never_says_no",
        "Nothing makes your test raise: what it finds out is printed, caught by an except of its own, or not "
        "asserted. A test that can't fail tells nothing. Break a right implementation yourself and see the test fail.",
        SECTION,
        (lambda attention: None,),
    ),
    Misconception(
        "only_the_shape",
        "Your test lets anything pass that has the right shape or the right row sums. Most slips in attention keep "
        "both: a wrong scale, a wrong softmax axis, the mean of all values. Only the numbers tell, and you need right "
        "ones to compare with: from another implementation, or worked out by hand.",
        SHAPES,
        (only_the_shape,),
    ),
    Misconception(
        "only_the_row_sums",
        "Your test looks at the sums of the rows. They are right for every set of weights that went through softmax "
        "along the keys, whatever the scores were. A property is a good beginning; the numbers need to be compared "
        "with right ones as well.",
        AXIS,
        (rows_sum_to_one,),
    ),
    Misconception(
        "compared_with_itself",
        "Your test compares the implementation with what the same implementation gives. Whatever is wrong is wrong on "
        "both sides. The right answer has to come from somewhere else: another implementation, or numbers worked out "
        "by hand.",
        SECTION,
        (against_itself,),
    ),
    Misconception(
        "equal_to_the_last_bit",
        "Your test refuses right implementations: it asks for numbers that are equal to the last bit. Sums taken in "
        "another order are rounded otherwise, and none of them is wrong. Compare with a tolerance, as "
        "torch.testing.assert_close does.",
        SECTION,
        (compared(examples(), equal_bits), compared(examples(masked=lambda mask: None), equal_bits)),
        ("https://github.com/DareData/lp-pytorch-fundamentals/issues/8",),
    ),
    Misconception(
        "refuses_all",
        "Your test refuses everything, right implementations too: it raises for a reason of its own. Try it on "
        "PyTorch's function, and read what it raises.",
        SECTION,
        (refuses_all,),
    ),
    Misconception(
        "tolerance_too_wide",
        "Your tolerance is so wide that plainly wrong numbers fit in. Weights lie between 0 and 1, so a difference of "
        "0.1 is large; rounding is about a millionth.",
        SECTION,
        (compared(examples(), within(0.3)), compared(examples(), within(1.0)), compared(examples(), within(10.0))),
    ),
    Misconception(
        "inputs_all_equal",
        "All your keys are the same (ones, or zeros). All scores are then equal and all weights even, whatever the "
        "implementation does with scale, softmax and keys. Random numbers tell them apart.",
        "self_attention#weighted-average",
        (compared(ones_alone),),
    ),
    Misconception(
        "same_tensor_thrice",
        "Query, key and value are the same tensor, or of the same numbers. Who mixes keys instead of values, or "
        "counts the wrong width, is not found out. Give each numbers and sizes of its own.",
        ROLES,
        (compared(same_tensor_thrice),),
        ("https://github.com/fchollet/deep-learning-with-python-notebooks/issues/261",),
    ),
    Misconception(
        "one_example_alone",
        "Your inputs have no axes in front. What happens to a batch, and to heads, is never seen: a fixed axis, or "
        "one example's keys used for all, goes unnoticed. Try none, a batch, and a batch with heads.",
        SHAPES,
        (compared(examples(leading=((),))),),
        ("https://github.com/FudanNLP/fastNLP/issues/254",),
    ),
    Misconception(
        "no_heads",
        "Your inputs have a batch, but never a batch and heads. A softmax along a fixed axis, or one head's keys used "
        "for all, goes unnoticed.",
        SHAPES,
        (compared(examples(leading=((2,),))), compared(examples(leading=((), (2,))))),
        ("https://github.com/FudanNLP/fastNLP/issues/254",),
    ),
    Misconception(
        "all_sizes_equal",
        "Your sizes are equal somewhere: as many keys as queries, as many keys as a key is wide, or values as wide as "
        "keys. Where two numbers are the same, nobody notices that one has been taken for the other. Give each size a "
        "number of its own: different primes, say.",
        SHAPES,
        (
            compared(examples(widths=(11, 11))),
            compared(examples(sizes=((3, 5), (5, 5)), widths=(5, 13))),
            compared(examples(sizes=((5, 5),), widths=(5, 5))),
        ),
    ),
    Misconception(
        "width_with_a_whole_root",
        "Your keys are 4, 9, 16 or 64 wide, and the root of that is a whole number. Who rounds the root down, or "
        "divides by a fixed 8, is found out by a width such as 11.",
        "self_attention#why-scale",
        (compared(examples(widths=(16, 13))), compared(examples(widths=(4, 3))), compared(examples(widths=(64, 13)))),
        ("https://github.com/lucidrains/muse-maskgit-pytorch/issues/40",),
    ),
    Misconception(
        "never_square",
        "You never try as many queries as keys. Different sizes find most slips; but in self-attention the two are "
        "always equal, and there are mistakes that show only then. Try both.",
        SHAPES,
        (compared(examples(sizes=((3, 5),))),),
        ("https://github.com/mlx-node/mlx-node/pull/24",),
    ),
    Misconception(
        "no_mask",
        "Your test never gives a mask, so nothing that is wrong with masks is found. Nearly half of all slips in "
        "attention are about them.",
        MASKS,
        (compared(examples(masked=lambda mask: None)),),
        ("https://github.com/facebookresearch/ParlAI/pull/3068",),
    ),
    Misconception(
        "mask_of_ones",
        "Your mask allows everything. An implementation that does not look at it at all gives the same.",
        MASKS,
        (compared(examples(masked=torch.ones_like)),),
        ("https://github.com/facebookresearch/ParlAI/pull/3068",),
    ),
    Misconception(
        "one_mask_for_all",
        "Your mask is the same for every query, or for every example. An implementation that uses the first row, or "
        "the first example's, for all is not found out. Draw the mask at random, and make it differ from query to "
        "query and from example to example.",
        "self_attention#masks-together",
        (
            compared(examples(masked=lambda mask: mask[(0,) * (mask.dim() - 2)])),
            compared(examples(masked=lambda mask: mask[..., :1, :])),
        ),
        ("https://github.com/lucidrains/graph-transformer-pytorch/pull/2",),
    ),
    Misconception(
        "small_scores_alone",
        "With small scores a key that is hidden by too weak a number (-15, say) gets a weight that is as good as 0. "
        "Where a hidden score is far above the others it comes through. Try large scores as well, by making the query "
        "20 times as large.",
        MASKS,
        (compared(examples(larger=(1.0,))),),
        ("https://github.com/karpathy/minGPT/issues/75",),
    ),
    Misconception(
        "output_alone",
        "Your test does not look at the weights, the second result. They are what people look at when they ask where "
        "a model looks, and can be wrong while the output is right.",
        SECTION,
        (compared(examples(), results=1),),
        ("https://github.com/TransformerLensOrg/TransformerLens/pull/666",),
    ),
    Misconception(
        "weights_alone",
        "Your test looks at the weights and not at the output. Right weights can be used wrongly.",
        ROLES,
        (lambda attention: compared(examples())(lambda *inputs: (by_library(*inputs)[0], attention(*inputs)[1])),),
    ),
    Misconception(
        "no_rare_cases",
        "Your test finds what is wrong on usual inputs. Three things are left, which are rare and ruin a whole "
        "training run: a query that may attend to nothing; scores so large that exp of them has no number; and "
        "whether the inputs are afterwards what they were.",
        NOTHING,
        (compared(examples()),),
        ("https://github.com/pytorch/pytorch/issues/103749",),
    ),
)

EXERCISE = Exercise(
    name="examine_attention",
    chapter="self_attention",
    kind="function",
    minutes=25,
    task="catch",
    parts=(
        Part(
            "right or wrong",
            2,
            "let right implementations pass, however they are written, and say no to those that are wrong on any input",
            SECTION,
        ),
        Part("sizes", 1, "say no to those that are wrong only at certain sizes", SHAPES),
        Part("masks", 1, "say no to those that are wrong only with a mask", MASKS),
        Part("both results", 1, "say no to those of whose two results only one is right", SECTION),
        Part("rare cases", 1, "say no to those that are wrong only in rare cases", NOTHING),
    ),
    hints=(
        "Which numbers do you hold the result against? They must come from somewhere else than the function you "
        "examine. And on which inputs would each slip that you know show?",
        "PyTorch has a function that does the same, F.scaled_dot_product_attention, and torch.testing.assert_close "
        "compares with a tolerance. Run the comparison in a loop: over axes in front, over sizes, with and without a "
        "mask.",
        "The weights come out of PyTorch's function if its values are torch.eye of the number of keys. Make one row "
        "of the mask False throughout; take the query once as it is, once 20 times and once 1000 times as large; keep "
        "a copy of it and compare afterwards.",
    ),
    cases=cases,
    reference=examine_attention,
    misconceptions=MISCONCEPTIONS,
)
