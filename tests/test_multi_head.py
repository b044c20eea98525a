import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mha_course.multi_head import MultiHeadAttention, merge_heads, multi_head_attention_loop, split_heads

MASKS = [None, (5, 7), (2, 1, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7), (1, 1, 5, 7)]


def drawn(d_model=33, queries=5, keys=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, length, d_model, generator=generator, dtype=dtype) for length in (queries, keys, keys))


def layer(d_model=33, num_heads=3, dropout=0.0):
    torch.manual_seed(2)
    attention = MultiHeadAttention(d_model, num_heads, dropout)
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
