import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.self_attention import attention_weights, causal_mask, padding_mask, scaled_dot_product_attention


def drawn(*leading, queries=5, keys=7, d_head=11, d_value=13, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    shapes = ((queries, d_head), (keys, d_head), (keys, d_value))
    return tuple((torch.randn(*leading, *shape, generator=generator) * scale).to(dtype) for shape in shapes)


def mask_of(*shape):
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(2)) < 0.6
    mask[..., 3] = True
    return mask


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 3, 2)])
def test_the_output_agrees_with_pytorch(leading, dtype):
    q, k, v = drawn(*leading, dtype=dtype)
    tolerance = {} if dtype in (torch.float32, torch.float64) else {"rtol": 3e-2, "atol": 3e-2}
    assert_close(scaled_dot_product_attention(q, k, v)[0], F.scaled_dot_product_attention(q, k, v), **tolerance)


@pytest.mark.parametrize(
    ("leading", "shape"),
    [
        ((), (5, 7)),
        ((2,), (5, 7)),
        ((2, 3), (5, 7)),
        ((2, 3), (2, 1, 5, 7)),
        ((2, 3), (2, 3, 5, 7)),
        ((2, 3), (1, 3, 5, 7)),
    ],
)
def test_output_and_gradients_under_a_mask_agree_with_pytorch(leading, shape):
    mask = mask_of(*shape)
    ours, theirs = ([x.clone().requires_grad_() for x in drawn(*leading)] for _ in range(2))
    output = scaled_dot_product_attention(*ours, mask)[0]
    right = F.scaled_dot_product_attention(*theirs, attn_mask=mask)
    assert_close(output, right)
    output.square().sum().backward()
    right.square().sum().backward()
    for mine, its in zip(ours, theirs, strict=True):
        assert_close(mine.grad, its.grad)


def test_a_case_worked_out_by_hand():
    # d_head 4, so the scores 0 and 2 * ln 3 become 0 and ln 3, and the weights 1/4 and 3/4
    query = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
    key = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0986123, 0.0, 0.0, 0.0]])
    output, weights = scaled_dot_product_attention(query, key, torch.tensor([[4.0], [8.0]]))
    assert_close(weights, torch.tensor([[0.25, 0.75]]))
    assert_close(output, torch.tensor([[7.0]]))


def test_a_query_that_may_attend_to_nothing_gets_zeros_and_finite_gradients():
    q, k, v = (x.requires_grad_() for x in drawn(2, 3))
    mask = mask_of(2, 1, 5, 7)
    mask[:, :, 2] = False
    output, weights = scaled_dot_product_attention(q, k, v, mask)
    assert (output[:, :, 2] == 0).all()
    assert (weights[:, :, 2] == 0).all()
    output.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert (q.grad[:, :, 2] == 0).all()


def test_half_precision_survives_scores_beyond_its_largest_number():
    q = k = torch.full((3, 64), 60.0, dtype=torch.float16)
    assert ((q @ k.T) == torch.inf).all()
    output, _ = scaled_dot_product_attention(q, k, torch.eye(3, dtype=torch.float16))
    assert_close(output, torch.full((3, 3), 1 / 3, dtype=torch.float16))


@settings(max_examples=25, deadline=None)
@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    d_head=st.integers(1, 9),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_weights_are_positive_and_each_row_sums_to_one(queries, keys, d_head, scale):
    q, k, v = drawn(2, queries=queries, keys=keys, d_head=d_head, scale=scale)
    _, weights = scaled_dot_product_attention(q, k, v)
    assert (weights >= 0).all()
    assert_close(weights.sum(dim=-1), torch.ones(2, queries))


def test_the_order_of_keys_does_not_matter():
    q, k, v = drawn(2)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    assert_close(scaled_dot_product_attention(q, k, v)[0], scaled_dot_product_attention(q, k[:, order], v[:, order])[0])


def test_gradcheck_passes_with_and_without_a_mask():
    inputs = [x.requires_grad_() for x in drawn(2, queries=2, keys=3, d_head=5, d_value=2, dtype=torch.float64)]
    mask = torch.tensor([[True, False, True], [False, False, False]])
    for chosen in (None, mask):
        assert torch.autograd.gradcheck(lambda q, k, v, m=chosen: scaled_dot_product_attention(q, k, v, m), inputs)


def test_a_mask_that_is_not_boolean_is_refused():
    q, k, _ = drawn()
    unchecked = inspect.unwrap(attention_weights)  # as users have it, without the tests' check of types
    with pytest.raises(ValueError, match=r"the mask must be boolean, .* mask.bool\(\)"):
        unchecked(q, k, torch.ones(5, 7))


def test_a_causal_mask_lets_nothing_of_the_future_through():
    q, k, v = drawn(2, queries=7)
    before = scaled_dot_product_attention(q, k, v, causal_mask(7))[0]
    for now in range(7):
        k2, v2 = k.clone(), v.clone()
        k2[:, now + 1 :], v2[:, now + 1 :] = 9.0, 9.0
        assert_close(scaled_dot_product_attention(q, k2, v2, causal_mask(7))[0][:, now], before[:, now])


def test_a_causal_mask_is_the_one_that_pytorch_means():
    q, k, v = drawn(2, queries=7)
    assert_close(
        scaled_dot_product_attention(q, k, v, causal_mask(7))[0],
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
    )


def test_a_padding_mask_shows_the_first_tokens_of_each_sequence():
    mask = padding_mask(torch.tensor([3, 0, 5]), 5)
    assert mask.shape == (3, 1, 1, 5)
    assert mask[:, 0, 0].int().tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
