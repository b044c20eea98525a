import copy
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from mha_course.cache import KVCache
from mha_course.multi_head import (
    MultiHeadAttention,
    grouped_query_attention,
    merge_heads,
    multi_head_attention_loop,
    recorded_weights,
    share_groups,
    split_heads,
)

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=15, deadline=None, derandomize=True)

MASKS = [None, (5, 7), (2, 1, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7), (1, 1, 5, 7)]


def drawn(d_model=33, queries=5, keys=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, length, d_model, generator=generator, dtype=dtype) for length in (queries, keys, keys))


def layer(d_model=33, num_heads=3, dropout=0.0, **options):
    torch.manual_seed(2)
    attention = MultiHeadAttention(d_model, num_heads, dropout, **options)
    for parameter in attention.parameters():  # larger than the default, so that the weights are far from even
        nn.init.normal_(parameter, std=0.3)
    return attention


def mask_of(shape):
    if shape is None:
        return None
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[..., 3] = True
    return mask


def pytorchs(attention: MultiHeadAttention, d_model=33) -> nn.MultiheadAttention:
    """Return PyTorch's own layer with the same parameters."""
    theirs = nn.MultiheadAttention(d_model, attention.num_heads, dropout=attention.dropout.p, batch_first=True)
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(attention.out_proj.state_dict())
    return theirs


def test_heads_are_slices_of_neighbouring_features():
    x = torch.randn(2, 5, 33, generator=torch.Generator().manual_seed(1))
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 11)
    for head in range(3):
        assert torch.equal(heads[:, head], x[:, :, head * 11 : (head + 1) * 11])


@pytest.mark.parametrize("transposed", [False, True])
def test_merging_undoes_splitting_however_the_tensor_lies_in_memory(transposed):
    x = torch.randn(5, 2, 33, generator=torch.Generator().manual_seed(1)).transpose(0, 1)
    x = x if transposed else x.contiguous()
    assert torch.equal(merge_heads(split_heads(x, 3)), x)
    assert torch.equal(merge_heads(split_heads(x, 3).contiguous()), x)


@pytest.mark.parametrize("num_heads", [0, 5, 66])
def test_a_width_that_the_heads_cannot_share_is_refused(num_heads):
    with pytest.raises(ValueError, match=rf"33 features cannot be shared out equally among {num_heads} heads"):
        split_heads(torch.ones(2, 5, 33), num_heads)
    with pytest.raises(ValueError, match="choose a divisor of 33"):
        MultiHeadAttention(33, num_heads)


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("training", [True, False])
def test_output_weights_and_gradients_agree_with_pytorchs_layer(shape, training):
    attention = layer().train(training).double()
    theirs = pytorchs(attention).train(training).double()
    mask = mask_of(shape)
    blocked = None if mask is None else ~mask.expand(2, 3, 5, 7).reshape(6, 5, 7)
    ours_in, theirs_in = ([x.requires_grad_() for x in drawn(dtype=torch.float64)] for _ in range(2))
    output, weights = attention.with_weights(*ours_in, mask)
    right, right_weights = theirs(*theirs_in, attn_mask=blocked, average_attn_weights=False)
    assert_close(output, right)
    assert_close(weights, right_weights)
    output.square().sum().backward()
    right.square().sum().backward()
    for mine, its in zip(ours_in, theirs_in, strict=True):
        assert_close(mine.grad, its.grad)
    assert_close(attention.out_proj.weight.grad, theirs.out_proj.weight.grad)
    gradients = torch.cat([part.weight.grad for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
    assert_close(gradients, theirs.in_proj_weight.grad)


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("num_heads", [1, 3, 11])
def test_the_loop_the_steps_and_the_fused_kernel_agree(shape, num_heads):
    attention = layer(num_heads=num_heads)
    mask = mask_of(shape)
    if mask is not None and mask.dim() == 4 and mask.size(1) not in (1, num_heads):
        mask = mask[:, :1]
    fast = attention(*drawn(), mask)
    assert_close(attention.with_weights(*drawn(), mask)[0], fast)
    if mask is None or mask.dim() == 2 or mask.size(1) == 1:
        assert_close(multi_head_attention_loop(attention, *drawn(), mask), fast)


def test_a_query_that_may_attend_to_nothing_gets_the_bias_alone_and_finite_gradients():
    attention = layer()
    inputs = [x.requires_grad_() for x in drawn()]
    mask = mask_of((2, 1, 5, 7))
    mask[:, :, 2] = False
    for output in (attention(*inputs, mask), attention.with_weights(*inputs, mask)[0]):
        assert_close(output[:, 2], attention.out_proj.bias.expand(2, 33))
        gradients = torch.autograd.grad(output.square().sum(), inputs)
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_head_zero_sees_every_feature_and_reaches_every_feature():
    attention = layer().double()
    x, _, _ = drawn(dtype=torch.float64)
    query = split_heads(attention.q_proj(x.requires_grad_()), 3)[:, 0]
    assert (torch.autograd.grad(query.sum(), x)[0] != 0).all()
    before = attention(x, x, x)
    with torch.no_grad():
        attention.v_proj.weight[:11] += 1.0
    assert ((attention(x, x, x) - before).abs() > 1e-9).all()


def test_dropout_acts_on_the_weights_in_training_only():
    attention = layer(dropout=0.5)
    q, k, v = drawn()
    assert not torch.equal(attention(q, k, v), attention(q, k, v))
    attention.eval()
    assert torch.equal(attention(q, k, v), attention(q, k, v))
    attention.train()
    _, weights = attention.with_weights(q, k, v)
    assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5))


def test_dropout_leaves_the_mean_where_it_was():
    attention = layer(dropout=0.3)
    q, k, v = (x[:1].expand(4001, -1, -1) for x in drawn())
    mean = attention(q, k, v).mean(dim=0)
    assert_close(mean, attention.eval()(q, k, v)[0], rtol=0.0, atol=0.1)


def test_examples_of_a_batch_do_not_affect_one_another():
    attention = layer()
    q, k, v = drawn()
    alone = attention(q[:1], k[:1], v[:1])
    assert_close(attention(q, k, v)[:1], alone)


def test_gradcheck_passes():
    attention = layer(d_model=6, num_heads=2).double()
    inputs = [x.requires_grad_() for x in drawn(d_model=6, queries=2, keys=3, dtype=torch.float64)]
    assert torch.autograd.gradcheck(attention, inputs)


def by_the_book(attention, query, key, value, mask, num_heads, num_groups, d_head):
    """Return the weights and the output, one sequence, one head and one query at a time, as the paper defines them."""
    weights = torch.zeros(query.size(0), num_heads, query.size(1), key.size(1), dtype=query.dtype)
    output = torch.zeros(query.size(0), query.size(1), num_heads * d_head, dtype=query.dtype)
    mask = torch.ones(weights.shape, dtype=torch.bool) if mask is None else mask.broadcast_to(weights.shape)
    for b in range(query.size(0)):
        for head in range(num_heads):
            own = slice(head * d_head, (head + 1) * d_head)
            group = head // (num_heads // num_groups)
            shared = slice(group * d_head, (group + 1) * d_head)
            keys = key[b] @ attention.k_proj.weight[shared].T + attention.k_proj.bias[shared]
            values = value[b] @ attention.v_proj.weight[shared].T + attention.v_proj.bias[shared]
            for i in range(query.size(1)):
                seen = mask[b, head, i].nonzero().flatten()
                asked = attention.q_proj.weight[own] @ query[b, i] + attention.q_proj.bias[own]
                shares = (keys[seen] @ asked / d_head**0.5).softmax(dim=0)
                weights[b, head, i, seen] = shares
                output[b, i, own] = shares @ values[seen]
    return output @ attention.out_proj.weight.T + attention.out_proj.bias, weights


@pytest.mark.parametrize("num_groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [None, (5, 7), (6, 1, 1, 7), (6, 1, 5, 7), (1, 6, 5, 7), (6, 6, 5, 7)])
def test_every_weight_and_output_is_that_of_the_definition(shape, num_groups):
    # As many sequences as heads, and keys as wide as there are keys: what mixes these up has the right shape.
    attention = layer(42, 6, num_groups=num_groups, key_width=11, value_width=13).double()
    generator = torch.Generator().manual_seed(4)
    q, k, v = (
        torch.randn(6, length, width, generator=generator, dtype=torch.float64)
        for length, width in ((5, 42), (7, 11), (7, 13))
    )
    mask = None if shape is None else torch.rand(*shape, generator=generator) < 0.6
    with torch.no_grad():
        right, right_weights = by_the_book(attention, q, k, v, mask, 6, num_groups, d_head=7)
        output, weights = attention.with_weights(q, k, v, mask)
        assert_close(weights, right_weights)
        assert_close(output, right)
        assert_close(attention(q, k, v, mask), right)
        if mask is None or mask.dim() == 2 or mask.size(1) == 1:
            assert_close(multi_head_attention_loop(attention, q, k, v, mask), right)


def test_neighbouring_heads_share_a_group():
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    shared = share_groups(x, 6)
    assert shared.shape == (2, 6, 5, 7)
    for head, group in enumerate((0, 0, 1, 1, 2, 2)):
        assert torch.equal(shared[:, head], x[:, group])
    assert torch.equal(share_groups(x, 3), x)


@pytest.mark.parametrize("num_groups", [0, 4, 12])
def test_heads_that_the_groups_cannot_share_are_refused(num_groups):
    with pytest.raises(ValueError, match=f"6 heads cannot be shared out equally among {num_groups} groups; .* of 6"):
        MultiHeadAttention(42, 6, num_groups=num_groups)
    with pytest.raises(ValueError, match="num_groups must divide num_heads"):
        share_groups(torch.ones(2, num_groups, 5, 7), 6)


def test_grouped_queries_are_attention_with_keys_and_values_that_repeat():
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, *shape, generator=generator) for shape in ((6, 5, 7), (3, 11, 7), (3, 11, 13)))
    mask = torch.rand(2, 1, 5, 11, generator=generator) < 0.6
    mask[..., 3] = True
    output, weights = grouped_query_attention(q, k, v, mask)
    assert output.shape == (2, 6, 5, 13)
    for head, group in enumerate((0, 0, 1, 1, 2, 2)):
        scores = (q[:, head] @ k[:, group].mT / 7**0.5).masked_fill(~mask[:, 0], -torch.inf)
        assert_close(weights[:, head], scores.softmax(dim=-1))
        assert_close(output[:, head], scores.softmax(dim=-1) @ v[:, group])


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({}, 4 * (42 * 42 + 42)),
        ({"num_groups": 2}, 2 * (42 * 42 + 42) + 2 * (42 * 14 + 14)),  # 2 groups of 42 / 6 = 7 features
        ({"num_groups": 1}, 2 * (42 * 42 + 42) + 2 * (42 * 7 + 7)),
        ({"key_width": 11, "value_width": 13}, 2 * (42 * 42 + 42) + (11 * 42 + 42) + (13 * 42 + 42)),
    ],
)
def test_there_are_as_many_parameters_as_by_hand_and_all_get_a_gradient(options, right):
    attention = layer(42, 6, **options)
    assert sum(parameter.numel() for parameter in attention.parameters()) == right
    k, v = (torch.randn(2, 7, options.get(name, 42)) for name in ("key_width", "value_width"))
    for way in (attention, lambda *x: attention.with_weights(*x)[0]):
        attention.zero_grad()
        way(torch.randn(2, 5, 42), k, v).square().sum().backward()
        # A shift of all keys adds the same to all scores of a query, which changes no weight.
        moved = {name for name, p in attention.named_parameters() if p.grad is not None and p.grad.abs().max() > 1e-3}
        assert moved >= {name for name, _ in attention.named_parameters()} - {"k_proj.bias"}


@properties
@given(head=st.integers(0, 5), seed=st.integers(0, 999), part=st.sampled_from(["q_proj", "k_proj", "v_proj"]))
def test_what_changes_in_one_head_changes_no_other(head, seed, part):
    attention, x = layer(42, 6), torch.randn(2, 5, 42, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        attention.out_proj.weight.copy_(torch.eye(42))  # so that the heads' results stay side by side
        before, before_weights = attention.with_weights(x, x, x)
        getattr(attention, part).weight[head * 7 : (head + 1) * 7] += 1.0
        after, after_weights = attention.with_weights(x, x, x)
        changed = (after - before).abs().amax(dim=(0, 1)).view(6, 7).amax(dim=1) > 1e-4
        assert changed.nonzero().flatten().tolist() == [head]
        changed = (after_weights - before_weights).abs().amax(dim=(0, 2, 3)) > 1e-4
        assert changed.nonzero().flatten().tolist() == ([] if part == "v_proj" else [head])


@properties
@given(seed=st.integers(0, 999))
def test_tokens_in_another_order_give_the_same_in_that_order(seed):
    attention, (x, _, _) = layer().double(), drawn(queries=7, dtype=torch.float64)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    moved = x[:, order]
    output, weights = attention.with_weights(x, x, x)
    assert_close(attention(moved, moved, moved), output[:, order])
    assert_close(attention.with_weights(moved, moved, moved)[1], weights[:, :, order][..., order])


def test_no_gradient_crosses_from_one_example_to_another():
    attention, (q, k, v) = layer(), (x.requires_grad_() for x in drawn())
    for output in (attention(q, k, v), attention.with_weights(q, k, v)[0]):
        gradients = torch.autograd.grad(output[0].square().sum(), (q, k, v))
        assert all((g[0] != 0).any() and (g[1] == 0).all() for g in gradients)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_drops_whole_weights_and_only_in_training(training):
    # With a single key, a head has one weight, 1: dropped, the head gives zeros; kept, its value over 1 - 0.4.
    attention = layer(dropout=0.4).train(training)
    with torch.no_grad():
        attention.out_proj.weight.copy_(torch.eye(33))
        attention.out_proj.bias.zero_()
        q, k, v = (x[:, :1].expand(2, 37, 33) if x.size(1) == 5 else x[:, :1] for x in drawn())
        value = attention.v_proj(v).unflatten(-1, (3, 11)) / (0.6 if training else 1.0)
        for output in (attention(q, k, v), attention.with_weights(q, k, v)[0]):
            heads = output.unflatten(-1, (3, 11))
            kept = (heads != 0).all(dim=-1)
            assert kept.any()
            assert kept.all() != training
            assert_close(heads, value.expand_as(heads) * kept[..., None])


def test_attention_takes_sequences_that_lie_in_memory_position_first():
    attention, (q, k, v) = layer(), drawn()
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    assert not turned[0].is_contiguous()
    assert_close(attention(*turned), attention(q, k, v))
    assert_close(attention.with_weights(*turned)[0], attention(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_layer_in_another_precision_computes_in_it(dtype):
    attention, (q, k, v), mask = layer(), drawn(), mask_of((2, 1, 5, 7))
    right = attention(q, k, v, mask)
    attention = attention.to(dtype)
    for output in (
        attention(*(x.to(dtype) for x in (q, k, v)), mask),
        attention.with_weights(*(x.to(dtype) for x in (q, k, v)), mask)[0],
    ):
        assert output.dtype == dtype
        assert_close(output.float(), right, rtol=0.05, atol=0.1)


def test_half_precision_survives_scores_beyond_its_largest_number():
    attention = MultiHeadAttention(128, 2).half()
    for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
        nn.init.eye_(part.weight)
        nn.init.zeros_(part.bias)
    x = torch.full((2, 5, 128), 60.0, dtype=torch.float16)  # 60 * 60 * 64 is more than 65504
    assert_close(attention(x, x, x), x)
    assert_close(attention.with_weights(x, x, x, mask_of((5, 5)))[0], x)


def test_a_copy_and_a_layer_that_loads_the_parameters_give_the_same_and_go_on_apart():
    attention, inputs = layer(num_groups=1), drawn()
    right = attention(*inputs)
    loaded = MultiHeadAttention(33, 3, num_groups=1)
    loaded.load_state_dict(attention.state_dict())
    twin = copy.deepcopy(attention)
    nn.init.zeros_(attention.out_proj.weight)
    assert torch.equal(twin(*inputs), right)
    assert torch.equal(loaded(*inputs), right)


def test_nothing_changes_its_input():
    attention, given, mask = layer(), drawn(), mask_of((2, 1, 5, 7))
    before = [x.clone() for x in (*given, mask)]
    attention(*given, mask)
    attention.with_weights(*given, mask)
    multi_head_attention_loop(attention, *given, mask)
    assert all(map(torch.equal, before, (*given, mask)))


class TwoLayers(nn.Module):
    """Cross-attention after self-attention, the second called by keywords."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"own": layer(), "cross": layer(num_heads=11)})

    def forward(self, x, memory, mask, cache=None):
        x = self.inner["own"](x, x, x, mask, cache)
        return self.inner["cross"](query=x, key=memory, value=memory)


def test_the_weights_of_every_layer_are_recorded_while_the_model_runs():
    model, (x, memory, _), mask = TwoLayers(), drawn(), mask_of((2, 1, 5, 5))
    plain = model(x, memory, mask)
    with recorded_weights(model) as weights:
        assert torch.equal(model(x, memory, mask), plain)
    assert list(weights) == ["inner.own", "inner.cross"]
    own, cross = model.inner["own"], model.inner["cross"]
    assert_close(weights["inner.own"], own.with_weights(x, x, x, mask)[1])
    middle = own(x, x, x, mask)
    assert_close(weights["inner.cross"], cross.with_weights(middle, memory, memory)[1])
    assert not any(w.requires_grad for w in weights.values())
    model(x * 9, memory, mask)
    assert_close(weights["inner.own"], own.with_weights(x, x, x, mask)[1])


def test_the_last_call_is_the_one_that_stays_recorded():
    attention, (x, memory, _) = layer(), drawn()
    with recorded_weights(attention) as weights:
        attention(x, memory, memory)
        attention(memory, x, x)
    assert weights[""].shape == (2, 3, 7, 5)


def test_recording_ends_with_its_block_even_if_that_fails():
    model, (x, memory, _), mask = TwoLayers(), drawn(), mask_of((2, 1, 5, 5))
    with pytest.raises(RuntimeError, match="by intent"), recorded_weights(model) as weights:
        raise RuntimeError("by intent")
    model(x, memory, mask)
    assert weights == {}


def test_weights_are_not_recorded_while_a_cache_is_filled():
    model, (x, memory, _), mask = TwoLayers(), drawn(), mask_of((2, 1, 5, 5))
    with (
        recorded_weights(model),
        pytest.raises(ValueError, match="weights are recorded without a cache; run the model"),
    ):
        model(x, memory, mask, KVCache())
    attention = layer()
    with recorded_weights(attention), pytest.raises(ValueError, match="run the model on the whole text at once"):
        attention(x, x, x, cache=KVCache())


@pytest.mark.parametrize(
    "way",
    [MultiHeadAttention.forward, MultiHeadAttention.with_weights, multi_head_attention_loop],
    ids=lambda way: way.__name__,
)
def test_a_mask_of_numbers_or_of_three_axes_is_refused(way):
    attention, x = layer(), drawn()[0]
    unchecked = inspect.unwrap(way)  # without the tests' own check of types, as users call it
    with pytest.raises(ValueError, match="the mask must be boolean"):
        unchecked(attention, x, x, x, torch.ones(5, 5))
    with pytest.raises(ValueError, match=r"its shape is \(2, 5, 5\); mask\[:, None\] is the same for all heads"):
        unchecked(attention, x, x, x, torch.ones(2, 5, 5, dtype=torch.bool))


def test_recording_weights_in_training_draws_no_random_numbers():
    attention, x = layer(dropout=0.5), drawn()[0]
    torch.manual_seed(5)
    right = [attention(x, x, x) for _ in range(2)]
    torch.manual_seed(5)
    with recorded_weights(nn.ModuleList([attention])):
        assert all(torch.equal(attention(x, x, x), output) for output in right)


def test_keys_without_a_value_are_refused_before_the_kernel_reads_beyond_memory():
    layer = MultiHeadAttention(6, 2)
    queries, keys, values = (torch.zeros(1, 2, length, 3) for length in (5, 7, 3))
    with pytest.raises(ValueError, match="7 keys and 3 values don't match"):
        layer._fused(queries, keys, values, None)
