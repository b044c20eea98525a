import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from mha_course.soft_addressing import (
    additive,
    bilinear,
    cosine,
    dot,
    gaussian_kernel,
    hard_lookup,
    scaled_dot,
    soft_lookup,
    softmax,
)

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=20, deadline=None, derandomize=True)


def drawn(*shapes, seed=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_softmax_agrees_with_pytorch(dim, dtype):
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1)).to(dtype) * 5
    half = dtype in (torch.bfloat16, torch.float16)
    assert_close(softmax(x, dim), x.softmax(dim), **({"rtol": 2e-2, "atol": 1e-2} if half else {}))


def test_softmax_of_scores_beyond_the_range_of_exp_is_finite():
    assert_close(softmax(torch.tensor([1e4, 1e4, -1e4]), dim=0), torch.tensor([0.5, 0.5, 0.0]))
    assert_close(
        softmax(torch.tensor([-1e4, -1e4 - math.log(3)]), dim=0), torch.tensor([0.75, 0.25]), rtol=1e-3, atol=0.0
    )


def test_softmax_passes_gradcheck():
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softmax(x, dim=-1), x)


@properties
@given(shift=st.floats(-50, 50), rows=st.integers(1, 5), columns=st.integers(1, 7), dim=st.sampled_from([0, 1]))
def test_softmax_sums_to_one_and_does_not_see_what_is_added_to_all_scores(shift, rows, columns, dim):
    (x,) = drawn((rows, columns), dtype=torch.float64)
    weights = softmax(x * 9, dim)
    assert (weights > 0).all()
    assert_close(weights.sum(dim), torch.ones(columns if dim == 0 else rows, dtype=torch.float64))
    assert_close(softmax(x * 9 + shift, dim), weights)


def plain_dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def plain_cosine(a, b):
    return plain_dot(a, b) / math.sqrt(plain_dot(a, a) * plain_dot(b, b))


def plain_gaussian(a, b):
    return -sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / (2 * 0.7**2)


def plain_scaled_dot(a, b):
    return plain_dot(a, b) / math.sqrt(len(a))


@pytest.mark.parametrize(
    ("similarity", "formula"),
    [
        (dot, plain_dot),
        (scaled_dot, plain_scaled_dot),
        (cosine, plain_cosine),
        (partial(gaussian_kernel, width=0.7), plain_gaussian),
    ],
)
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_each_score_is_that_of_the_formula_for_its_query_and_key(similarity, formula, leading):
    query, keys = drawn((*leading, 5, 11), (*leading, 7, 11), dtype=torch.float64)
    scores = similarity(query, keys)
    assert scores.shape == (*leading, 5, 7)
    for at in torch.cartesian_prod(*(torch.arange(size) for size in scores.shape)):
        *batch, i, j = at.tolist()
        right = formula(query[(*batch, i)].tolist(), keys[(*batch, j)].tolist())
        assert scores[(*batch, i, j)].item() == pytest.approx(right)


def test_the_learned_scores_are_those_of_the_papers_formulas():
    query, keys, matrix, to_hidden, from_key, vector = drawn(
        (2, 5, 3), (2, 7, 11), (3, 11), (3, 13), (11, 13), (13,), dtype=torch.float64
    )
    general = bilinear(query, keys, matrix)
    network = additive(query, keys, to_hidden, from_key, vector)
    assert general.shape == network.shape == (2, 5, 7)
    for batch in range(2):
        for i in range(5):
            for j in range(7):
                q, k = query[batch, i], keys[batch, j]
                right = sum(q[a] * matrix[a, b] * k[b] for a in range(3) for b in range(11))
                assert_close(general[batch, i, j], right)
                hidden = [math.tanh(plain_dot(q, to_hidden[:, h]) + plain_dot(k, from_key[:, h])) for h in range(13)]
                assert network[batch, i, j].item() == pytest.approx(plain_dot(vector.tolist(), hidden))


def test_a_bilinear_score_of_square_matrices_tells_the_query_from_the_key():
    matrix = torch.tensor([[0.0, 1.0], [0.0, 0.0]])  # the query's first feature meets the key's second
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert bilinear(first, second, matrix).item() == 1.0
    assert bilinear(second, first, matrix).item() == 0.0


def test_a_cosine_sees_no_lengths_and_a_vector_of_zeros_scores_zero():
    query, keys = drawn((3, 5), (7, 5))
    lengths = torch.arange(1.0, 8.0)[:, None]
    assert_close(cosine(query * 9, keys * lengths), cosine(query, keys))
    assert_close(cosine(keys, -keys).diagonal(), -torch.ones(7))
    assert (cosine(query, torch.zeros(7, 5)) == 0).all()


def test_a_scaled_score_survives_half_precision_where_the_product_does_not():
    x = torch.full((1, 64), 60.0, dtype=torch.float16)
    assert dot(x, x).item() == math.inf
    assert scaled_dot(x, x).item() == 60 * 60 * 8


def test_similarities_pass_gradcheck():
    inputs = [x.requires_grad_() for x in drawn((2, 3), (5, 3), dtype=torch.float64)]
    rest = [x.requires_grad_() for x in drawn((3, 2), (3, 2), (2,), dtype=torch.float64)]
    for similarity in (dot, scaled_dot, cosine, gaussian_kernel):
        assert torch.autograd.gradcheck(similarity, inputs)
    assert torch.autograd.gradcheck(additive, (*inputs, *rest))
    assert torch.autograd.gradcheck(bilinear, (*inputs, rest[0] @ rest[1].T))


def test_a_lookup_worked_out_by_hand():
    # scores 0 and ln 3, so the weights are 1/4 and 3/4
    keys = torch.tensor([[0.0], [1.0986123]])
    values = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    assert_close(soft_lookup(torch.tensor([1.0]), keys, values), torch.tensor([1.0, 6.0]))


def test_a_lookup_goes_by_the_plain_dot_product_unless_told_otherwise():
    # products 0 and ln 3 of vectors of width 4: not divided by the root of the width, and not by the lengths
    query, keys = torch.tensor([2.0, 0.0, 0.0, 0.0]), torch.tensor([[0.0, 9.0, 0.0, 0.0], [0.5493061, 0.0, 0.0, 0.0]])
    values = torch.tensor([[4.0], [8.0]])
    assert_close(soft_lookup(query, keys, values), torch.tensor([7.0]))
    assert hard_lookup(torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 0.0], [2.0, 2.0]]), values).item() == 8.0


def test_scores_are_divided_by_the_temperature():
    # scores 0 and ln 3: at half the temperature 0 and ln 9, so the weights are 1/10 and 9/10
    keys = torch.tensor([[0.0], [1.0986123]])
    values = torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    assert_close(soft_lookup(torch.tensor([1.0]), keys, values, 0.5), torch.tensor([1.0, 9.0]))


def test_many_queries_are_looked_up_each_on_its_own():
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = (torch.randn(*shape, generator=generator) for shape in ((2, 3, 5), (7, 5), (7, 11)))
    together = soft_lookup(queries, keys, values)
    for i in range(2):
        for j in range(3):
            assert_close(together[i, j], soft_lookup(queries[i, j], keys, values))


@pytest.mark.parametrize("lookup", [soft_lookup, hard_lookup])
def test_each_query_may_have_a_memory_of_its_own(lookup):
    queries, keys, values = drawn((3, 5), (3, 7, 5), (3, 7, 11))
    together = lookup(queries, keys, values)
    for i in range(3):
        assert_close(together[i], lookup(queries[i], keys[i], values[i]))


@pytest.mark.parametrize("lookup", [soft_lookup, hard_lookup])
def test_a_lookup_asks_its_similarity_about_the_query_first_and_the_keys_second(lookup):
    query, keys, values, matrix = drawn((3,), (7, 11), (7, 2), (3, 11))
    scores = torch.stack([query @ matrix @ key for key in keys])
    right = scores.softmax(dim=0) @ values if lookup is soft_lookup else values[scores.argmax()]
    assert_close(lookup(query, keys, values, similarity=partial(bilinear, matrix=matrix)), right)


def test_a_lookup_by_nearness_is_kernel_regression():
    # Nadaraya and Watson: the mean of the values, each weighed by the bell curve at its distance
    x, y, at = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([2.0, 5.0, 11.0]), 0.5
    bells = torch.tensor([math.exp(-((at - entry) ** 2) / (2 * 0.8**2)) for entry in x.tolist()])
    found = soft_lookup(torch.tensor([at]), x[:, None], y[:, None], similarity=partial(gaussian_kernel, width=0.8))
    assert_close(found, ((bells * y).sum() / bells.sum())[None])


@properties
@given(seed=st.integers(0, 999), entries=st.integers(1, 7), temperature=st.floats(0.1, 9))
def test_a_lookup_stays_among_the_values_and_does_not_see_the_order_of_the_entries(seed, entries, temperature):
    queries, keys, values = drawn((3, 5), (entries, 5), (entries, 2), seed=seed, dtype=torch.float64)
    found = soft_lookup(queries, keys, values, temperature)
    assert (found >= values.amin(dim=0) - 1e-9).all()
    assert (found <= values.amax(dim=0) + 1e-9).all()
    order = torch.randperm(entries, generator=torch.Generator().manual_seed(seed))
    assert_close(soft_lookup(queries, keys[order], values[order], temperature), found)


def test_temperature_goes_from_the_best_entry_to_the_mean_of_all():
    generator = torch.Generator().manual_seed(1)
    query, keys, values = (torch.randn(*shape, generator=generator) for shape in ((5,), (7, 5), (7, 11)))
    assert_close(soft_lookup(query, keys, values, temperature=1e-4), values[(keys @ query).argmax()])
    assert_close(soft_lookup(query, keys, values, temperature=1e6), values.mean(dim=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature):
    with pytest.raises(ValueError, match="the temperature must be above 0"):
        soft_lookup(torch.ones(2), torch.ones(3, 2), torch.ones(3, 2), temperature)


def test_a_lookup_passes_gradcheck():
    inputs = [x.requires_grad_() for x in drawn((2, 3), (5, 3), (5, 2), dtype=torch.float64)]
    assert torch.autograd.gradcheck(partial(soft_lookup, temperature=0.7), inputs)


def test_a_hard_lookup_fetches_the_value_of_the_best_key_alone():
    queries, keys, values = drawn((2, 3, 5), (7, 5), (7, 11))
    assert_close(hard_lookup(queries, keys, values), values[(queries @ keys.T).argmax(dim=-1)])
    nearest = torch.cdist(queries, keys).argmin(dim=-1)
    assert not torch.equal(nearest, (queries @ keys.T).argmax(dim=-1))
    assert_close(hard_lookup(queries, keys, values, gaussian_kernel), values[nearest])


def test_keys_that_are_equally_good_share_a_hard_lookup():
    keys, values = torch.tensor([[1.0], [1.0], [0.0]]), torch.tensor([[10.0], [20.0], [90.0]])
    assert hard_lookup(torch.tensor([2.0]), keys, values).item() == 15.0


def test_no_gradient_of_a_hard_lookup_reaches_the_query_or_the_keys():
    query, keys, values = (x.requires_grad_() for x in drawn((5,), (7, 5), (7, 11)))
    hard_lookup(query, keys, values).sum().backward()
    assert query.grad is None
    assert keys.grad is None
    assert values.grad.sum().item() == 11.0


def test_nothing_changes_its_input():
    query, keys, values = drawn((2, 5), (7, 5), (7, 3))
    before = [x.clone() for x in (query, keys, values)]
    for similarity in (dot, scaled_dot, cosine, gaussian_kernel):
        soft_lookup(query, keys, values, 0.5, similarity)
        hard_lookup(query, keys, values, similarity)
    softmax(keys, dim=0)
    assert all(map(torch.equal, before, (query, keys, values)))


def test_a_small_temperature_picks_the_best_entry_in_half_precision_too():
    query = torch.full((4,), 30.0, dtype=torch.float16)
    found = soft_lookup(query, torch.stack([query, query / 2]), torch.eye(2, dtype=torch.float16), 0.01)
    assert found.tolist() == [1.0, 0.0]
