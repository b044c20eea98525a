import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.self_attention import (
    RecurrentNetwork,
    SelfAttention,
    attention_weights,
    causal_mask,
    decoder_mask,
    padding_mask,
    scaled_dot_product_attention,
    sliding_window_mask,
)

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=20, deadline=None, derandomize=True)


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


@properties
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_hidden_key_gets_no_weight_however_much_more_alike_it_is(dtype):
    query, key = torch.ones(2, 1, dtype=dtype), torch.tensor([[-30_000.0], [-30_000.0], [30_000.0]], dtype=dtype)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weights = attention_weights(query, key, mask)
    assert weights.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]


@properties
@given(seed=st.integers(0, 999))
def test_the_order_of_keys_does_not_matter_and_that_of_queries_is_kept(seed):
    q, k, v = drawn(2, dtype=torch.float64)
    mask = torch.rand(2, 5, 7, generator=torch.Generator().manual_seed(seed)) < 0.6
    output, weights = scaled_dot_product_attention(q, k, v, mask)
    of_keys, of_queries = (torch.randperm(n, generator=torch.Generator().manual_seed(seed)) for n in (7, 5))
    moved = mask[:, of_queries][:, :, of_keys]
    output2, weights2 = scaled_dot_product_attention(q[:, of_queries], k[:, of_keys], v[:, of_keys], moved)
    assert_close(output2, output[:, of_queries])
    assert_close(weights2, weights[:, of_queries][:, :, of_keys])


@properties
@given(seed=st.integers(0, 999), extra=st.integers(1, 5))
def test_a_key_that_is_hidden_might_as_well_not_be_there(seed, extra):
    q, k, v = drawn(2, keys=7 + extra, dtype=torch.float64)
    place = torch.randperm(7 + extra, generator=torch.Generator().manual_seed(seed))
    seen = place[:7].sort().values
    mask = torch.zeros(7 + extra, dtype=torch.bool).index_fill(0, seen, value=True)
    assert_close(
        scaled_dot_product_attention(q, k, v, mask[None])[0],
        scaled_dot_product_attention(q, k[:, seen], v[:, seen])[0],
    )


def test_examples_of_a_batch_do_not_affect_one_another():
    q, k, v = drawn(3)
    together = scaled_dot_product_attention(q, k, v)[0]
    for i in range(3):
        assert_close(together[i], scaled_dot_product_attention(q[i], k[i], v[i])[0])


def test_a_bias_is_added_to_the_scaled_scores():
    # d_head 4, so the scores 0 and 2 * ln 3 become 0 and ln 3; with a bias of ln 3 and 0 they are equal
    query = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
    key = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0986123, 0.0, 0.0, 0.0]])
    bias = torch.tensor([[1.0986123, 0.0]])
    assert_close(attention_weights(query, key, bias=bias), torch.tensor([[0.5, 0.5]]))
    assert_close(attention_weights(query, key, bias=-bias), torch.tensor([[0.1, 0.9]]))


def test_a_bias_agrees_with_pytorch_and_never_shows_what_a_mask_hides():
    q, k, v = drawn(2, 3)
    bias = torch.randn(1, 3, 5, 7, generator=torch.Generator().manual_seed(3)) * 5
    assert_close(attention_weights(q, k, bias=bias) @ v, F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
    mask = mask_of(2, 1, 1, 7)
    both = bias.masked_fill(~mask, -torch.inf)
    assert_close(attention_weights(q, k, mask, bias) @ v, F.scaled_dot_product_attention(q, k, v, attn_mask=both))
    assert (attention_weights(q, k, mask, bias + 1e9 * ~mask)[~mask.expand(2, 3, 5, 7)] == 0).all()


def test_nothing_changes_its_input():
    given = (*drawn(2), mask_of(2, 5, 7), torch.ones(5, 7))
    before = [x.clone() for x in given]
    attention_weights(given[0], given[1], given[3], given[4])
    scaled_dot_product_attention(*given[:4])
    assert all(map(torch.equal, before, given))


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


@properties
@given(length=st.integers(1, 9), earlier=st.integers(0, 5))
def test_a_causal_mask_lets_query_i_see_the_keys_up_to_its_own(length, earlier):
    mask = causal_mask(length, length + earlier)
    assert mask.tolist() == [[j <= i + earlier for j in range(length + earlier)] for i in range(length)]
    assert torch.equal(mask, causal_mask(length + earlier)[earlier:])


@pytest.mark.parametrize("total", [3, 4])
def test_queries_that_are_not_among_the_keys_are_refused_a_causal_mask(total):
    with pytest.raises(ValueError, match=rf"the 5 positions that ask .* only {total}; total counts .* the 5 new ones"):
        causal_mask(5, total)


@properties
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4), window=st.integers(1, 9))
def test_masks_hide_padding_the_future_and_the_distant_past(lengths, window):
    padding, both = padding_mask(torch.tensor(lengths), 7), decoder_mask(torch.tensor(lengths), 7)
    batch = range(len(lengths))
    assert padding.tolist() == [[[[j < lengths[b] for j in range(7)]]] for b in batch]
    assert both.tolist() == [[[[j <= i and j < lengths[b] for j in range(7)] for i in range(7)]] for b in batch]
    assert sliding_window_mask(7, window).tolist() == [[i - window < j <= i for j in range(7)] for i in range(7)]


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_that_does_not_hold_the_position_itself_is_refused(window):
    with pytest.raises(ValueError, match=f"the window counts the position itself, .* but it is {window}"):
        sliding_window_mask(5, window)


def test_masks_are_made_where_their_lengths_are():
    lengths = torch.ones(2, dtype=torch.long, device="meta")  # any device that is not the default one
    windowed = sliding_window_mask(5, 2, device="meta")
    for mask in (padding_mask(lengths, 5), decoder_mask(lengths, 5), causal_mask(3, 5, device="meta"), windowed):
        assert mask.device.type == "meta"
        assert mask.dtype == torch.bool


def test_one_head_is_attention_between_three_projections_of_the_same_tokens():
    torch.manual_seed(1)
    attention, x, mask = SelfAttention(11, 3, 5), torch.randn(2, 7, 11), mask_of(2, 7, 7)
    w_q, w_k, w_v = (part.weight.T for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    assert [tuple(w.shape) for w in (w_q, w_k, w_v)] == [(11, 3), (11, 3), (11, 5)]
    assert_close(attention(x), F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v))
    output, weights = attention.with_weights(x, mask)
    assert_close(output, F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, attn_mask=mask))
    assert_close(attention(x, mask), output)
    assert_close(weights @ (x @ w_v), output)
    assert_close(weights.sum(dim=-1), torch.ones(2, 7))


def test_one_head_has_three_matrices_and_nothing_else():
    attention = SelfAttention(11, 3)
    assert sum(parameter.numel() for parameter in attention.parameters()) == 3 * 11 * 3
    attention(torch.randn(2, 7, 11)).square().sum().backward()
    assert all((parameter.grad != 0).any() for parameter in attention.parameters())


def test_the_recurrent_network_is_pytorchs():
    torch.manual_seed(1)
    ours, theirs = RecurrentNetwork(5), nn.RNN(5, 5, batch_first=True)
    for its, mine in (("ih", ours.from_token), ("hh", ours.from_state)):
        getattr(theirs, f"weight_{its}_l0").data.copy_(mine.weight)
        getattr(theirs, f"bias_{its}_l0").data.copy_(mine.bias)
    x = torch.randn(2, 7, 5)
    assert_close(ours(x), theirs(x)[0])


def test_the_recurrent_network_reads_a_sentence_of_one_token():
    torch.manual_seed(1)
    network, x = RecurrentNetwork(5), torch.randn(2, 1, 5)
    assert_close(network(x)[:, 0], torch.tanh(network.from_token(x[:, 0]) + network.from_state.bias))
