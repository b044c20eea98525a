import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from layers import drawn, recorder, spread
from mha_course.cache import ModelCache
from mha_course.encoder import Encoder, EncoderLayer, PreNormEncoderLayer, feed_forward, layer_norm
from mha_course.self_attention import causal_mask, padding_mask

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=15, deadline=None, derandomize=True)

KINDS = [EncoderLayer, PreNormEncoderLayer]
# Of a layer of width 15 and 37 between the dense layers: four projections, two dense layers, two norms.
PARAMETERS = 4 * (15 * 15 + 15) + (15 * 37 + 37) + (37 * 15 + 15) + 2 * 30


def silence(linear):
    """Let a sublayer, of which this is the last part, add nothing."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)


def pytorchs(layer: EncoderLayer, norm_first: bool) -> nn.TransformerEncoderLayer:
    """Return PyTorch's own layer with the same parameters."""
    attention = layer.self_attn
    theirs = nn.TransformerEncoderLayer(
        15, attention.num_heads, 37, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    for its, ours in (
        (theirs.self_attn.out_proj, attention.out_proj),
        (theirs.linear1, layer.ffn[0]),
        (theirs.linear2, layer.ffn[2]),
        (theirs.norm1, layer.norm1),
        (theirs.norm2, layer.norm2),
    ):
        its.load_state_dict(ours.state_dict())
    return theirs


@pytest.mark.parametrize(("kind", "norm_first"), [(EncoderLayer, False), (PreNormEncoderLayer, True)])
def test_a_layer_agrees_with_pytorchs(kind, norm_first):
    torch.manual_seed(1)
    layer = kind(15, 3, 37)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.4)
    x, mask = torch.randn(2, 7, 15), padding_mask(torch.tensor([7, 4]), 7)
    right = pytorchs(layer, norm_first)(x, src_key_padding_mask=~mask[:, 0, 0])
    assert_close(layer(x, mask), right)


@pytest.mark.parametrize("norm_first", [True, False])
def test_padding_does_not_change_the_real_tokens(norm_first):
    torch.manual_seed(1)
    encoder = Encoder(15, 3, 37, num_layers=2, norm_first=norm_first)
    x = torch.randn(2, 5, 15)
    padded = torch.cat([x, torch.full((2, 2, 15), 9.0)], dim=1)
    assert_close(encoder(padded, padding_mask(torch.tensor([5, 5]), 7))[:, :5], encoder(x))


def test_without_positions_the_encoder_does_not_see_the_order():
    torch.manual_seed(1)
    encoder, x, order = Encoder(15, 3, 37, num_layers=2), torch.randn(2, 7, 15), torch.randperm(7)
    assert_close(encoder(x[:, order]), encoder(x)[:, order])


def test_pre_norm_ends_on_a_norm_and_post_norm_on_its_last_layer():
    pre, post = Encoder(15, 3, 37, 2), Encoder(15, 3, 37, 2, norm_first=False)
    assert isinstance(pre.norm, nn.LayerNorm)
    assert not list(post.norm.parameters())


def test_every_layer_has_parameters_of_its_own():
    torch.manual_seed(1)
    encoder = Encoder(15, 3, 37, num_layers=3)
    encoder(torch.randn(2, 7, 15)).square().sum().backward()
    assert len({id(parameter) for parameter in encoder.parameters()}) == 3 * 16 + 2
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 100.0])
def test_layer_norm_agrees_with_pytorch_for_vectors_that_hardly_vary_too(scale):
    x, weight, bias = (
        drawn(2, 3, 5, dtype=torch.float64) * scale + 1,
        drawn(5, dtype=torch.float64),
        drawn(5, seed=2).double(),
    )
    for eps in (1e-5, 1e-3):
        assert_close(layer_norm(x, weight, bias, eps), F.layer_norm(x, (5,), weight, bias, eps))
    assert_close(layer_norm(x, weight, bias), F.layer_norm(x, (5,), weight, bias))


def test_layer_norm_worked_out_by_hand():
    # The mean is 4, the squared distances from it are 9, 1, 4 and 4, and the variance is 18 / 4, not 18 / 3.
    x = torch.tensor([1.0, 3.0, 6.0, 6.0])
    right = torch.tensor([-3.0, -1.0, 2.0, 2.0]) / 4.5**0.5
    assert_close(layer_norm(x, torch.ones(4), torch.zeros(4), eps=0.0), right)
    assert_close(layer_norm(x, torch.full((4,), 2.0), torch.full((4,), 5.0), eps=0.0), 2 * right + 5)
    assert_close(layer_norm(torch.full((4,), 7.0), torch.ones(4), torch.ones(4)), torch.ones(4))


def test_layer_norm_passes_gradcheck_and_leaves_its_input():
    x, weight, bias = (x.requires_grad_() for x in (drawn(2, 5).double(), drawn(5).double(), drawn(5, seed=2).double()))
    before = x.clone()
    assert torch.autograd.gradcheck(layer_norm, (x, weight, bias))
    assert torch.equal(x, before)


def test_the_feed_forward_part_pushes_features_up_and_down_and_has_its_activation_between():
    x = drawn(2, 7, 15)
    for activation, f in ((nn.ReLU, torch.relu), (nn.GELU, F.gelu)):
        ffn = feed_forward(15, 37, activation)
        right = f(x @ ffn[0].weight.T + ffn[0].bias) @ ffn[2].weight.T + ffn[2].bias
        assert_close(ffn(x), right)
        assert (right < 0).any()
    assert isinstance(feed_forward(15, 37)[1], nn.ReLU)


def test_a_layer_whose_sublayers_add_nothing_returns_its_input_if_pre_norm_and_its_norm_if_post_norm():
    x = drawn(2, 7, 15) * 9 + 4
    for kind in KINDS:
        layer = spread(kind(15, 3, 37))
        silence(layer.self_attn.out_proj)
        silence(layer.ffn[2])
        once = F.layer_norm(x, (15,), layer.norm1.weight, layer.norm1.bias)
        twice = F.layer_norm(once, (15,), layer.norm2.weight, layer.norm2.bias)
        assert_close(layer(x), x if kind is PreNormEncoderLayer else twice)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["weights", "attention", "feed-forward"])
def test_dropout_acts_at_each_place_in_training_and_nowhere_in_evaluation(kind, place):
    layer, x = spread(kind(15, 3, 37, dropout=0.5)), drawn(2, 7, 15)
    if place == "feed-forward":
        silence(layer.self_attn.out_proj)
    else:
        silence(layer.ffn[2])
        # One of the two dropouts on the attention's way is taken out, so that the other is seen alone.
        if place == "weights":
            layer.dropout = nn.Identity()
        else:
            layer.self_attn.dropout.p = 0.0
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    layer.dropout = nn.Identity()
    assert torch.equal(layer.train()(x), layer(x)) == (place != "weights")


@pytest.mark.parametrize("kind", KINDS)
def test_what_dropout_drops_of_a_sublayer_is_not_added(kind):
    # Half of the features of what is added become 0 and half twice as much.
    layer, x = spread(kind(15, 3, 37, dropout=0.5)), drawn(2, 7, 15)
    silence(layer.self_attn.out_proj)
    layer.norm1 = layer.norm2 = nn.Identity()
    added, right = layer(x) - x, layer.ffn(x)
    kept = added.abs() > 1e-6
    assert_close(added, 2 * right * kept, rtol=1e-4, atol=1e-4)
    assert 0.3 < kept.float().mean() < 0.7


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_options_reach_every_layer(norm_first):
    make, made = recorder()
    encoder = Encoder(15, 3, 37, 2, 0.25, norm_first=norm_first, activation=nn.GELU, norm_eps=0.125, attention=make)
    assert made == [(15, 3, 0.25)] * 2
    norms = [part for part in encoder.modules() if isinstance(part, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [0.125] * (5 if norm_first else 4)
    assert [part.p for part in encoder.modules() if isinstance(part, nn.Dropout)] == [0.25] * 4
    for layer in encoder.layers:
        assert isinstance(layer.ffn[1], nn.GELU)
        assert isinstance(layer, PreNormEncoderLayer) == norm_first


@pytest.mark.parametrize("kind", [*KINDS, partial(Encoder, num_layers=1)])
def test_the_epsilon_of_the_norms_is_pytorchs_unless_chosen(kind):
    assert {part.eps for part in kind(15, 3, 37).modules() if isinstance(part, nn.LayerNorm)} == {1e-5}
    assert isinstance(next(part for part in kind(15, 3, 37).modules() if isinstance(part, nn.Sequential))[1], nn.ReLU)


def test_an_attention_that_knows_of_no_cache_serves_an_encoder():
    class Mean(nn.Module):
        def __init__(self, d_model, num_heads, dropout):
            super().__init__()

        def forward(self, query, key, value, mask):
            return value.mean(dim=1, keepdim=True).expand_as(query)

    encoder, x = Encoder(15, 3, 37, 2, attention=Mean), drawn(2, 7, 15)
    assert encoder(x, padding_mask(torch.tensor([7, 4]), 7)).shape == (2, 7, 15)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_stack_is_its_layers_one_after_the_other_all_under_the_mask(norm_first):
    encoder = spread(Encoder(15, 3, 37, num_layers=3, norm_first=norm_first))
    x, mask = drawn(2, 7, 15), padding_mask(torch.tensor([7, 4]), 7)
    right = x
    for layer in encoder.layers:
        right = layer(right, mask)
    if norm_first:
        right = F.layer_norm(right, (15,), encoder.norm.weight, encoder.norm.bias)
    assert_close(encoder(x, mask), right)


def test_a_pre_norm_stack_ends_on_vectors_of_mean_zero_and_variance_one():
    x = Encoder(15, 3, 37, num_layers=3)(drawn(2, 7, 15) * 9)
    assert_close(x.mean(dim=-1), torch.zeros(2, 7), rtol=0.0, atol=1e-5)
    assert_close(x.var(dim=-1, correction=0), torch.ones(2, 7), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_columns_that_are_padding_in_every_row_stay_in_place(norm_first, training):
    encoder = Encoder(15, 3, 37, num_layers=2, norm_first=norm_first).train(training)
    x, mask = drawn(2, 7, 15), padding_mask(torch.tensor([5, 3]), 7)
    output = encoder(x, mask)
    assert output.shape == x.shape
    assert_close(output[:, :5], encoder(x[:, :5], mask[..., :5]))


@pytest.mark.parametrize("norm_first", [True, False])
def test_examples_of_a_batch_do_not_affect_one_another(norm_first):
    encoder, x = spread(Encoder(15, 3, 37, num_layers=2, norm_first=norm_first)), drawn(3, 7, 15)
    output = encoder(x, causal_mask(7))
    for i in range(3):
        assert_close(encoder(x[i : i + 1], causal_mask(7))[0], output[i])


@properties
@given(at=st.integers(0, 6), norm_first=st.booleans())
def test_what_is_said_later_changes_nothing_under_a_causal_mask(at, norm_first):
    encoder, x = spread(Encoder(15, 3, 37, num_layers=2, norm_first=norm_first)), drawn(2, 7, 15)
    other = x.clone()
    other[:, at] += drawn(15, seed=3)
    changed = (encoder(other, causal_mask(7)) - encoder(x, causal_mask(7))).abs().amax(dim=(0, 2)) > 1e-4
    assert changed.tolist() == [i >= at for i in range(7)]


@properties
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), norm_first=st.booleans())
def test_chunks_of_any_size_give_what_the_whole_text_gives(sizes, norm_first):
    encoder = spread(Encoder(15, 3, 37, num_layers=2, norm_first=norm_first)).double()
    x, cache, outputs = drawn(2, sum(sizes), 15).double(), ModelCache(2), []
    for piece in x.split(sizes, dim=1):
        mask = causal_mask(piece.size(1), cache.length + piece.size(1))
        outputs.append(encoder(piece, mask, cache.own))
    assert_close(torch.cat(outputs, dim=1), encoder(x, causal_mask(sum(sizes))))
    assert [part.length for part in cache.own] == [sum(sizes)] * 2


@pytest.mark.parametrize(("norm_first", "last"), [(True, 2 * 15), (False, 0)])
def test_there_are_as_many_parameters_as_by_hand(norm_first, last):
    assert sum(p.numel() for p in EncoderLayer(15, 3, 37).parameters()) == PARAMETERS
    assert sum(p.numel() for p in Encoder(15, 3, 37, 3, norm_first=norm_first).parameters()) == 3 * PARAMETERS + last


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_copy_and_a_stack_that_loads_the_parameters_give_the_same_and_go_on_apart(norm_first):
    encoder, x = spread(Encoder(15, 3, 37, 2, norm_first=norm_first)), drawn(2, 7, 15)
    right = encoder(x)
    loaded = Encoder(15, 3, 37, 2, norm_first=norm_first)
    loaded.load_state_dict(encoder.state_dict())
    twin = copy.deepcopy(encoder)
    spread(encoder, seed=2)
    assert torch.equal(twin(x), right)
    assert torch.equal(loaded(x), right)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_passes_gradcheck_and_leaves_its_input(kind):
    layer, x = spread(kind(6, 2, 5, activation=nn.Tanh)).double(), drawn(2, 3, 6).double().requires_grad_()
    before = x.clone()
    assert torch.autograd.gradcheck(lambda x: layer(x, causal_mask(3)), x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_stack_in_another_precision_computes_in_it(dtype):
    encoder, x = Encoder(15, 3, 37, 2), drawn(2, 7, 15)
    right = encoder(x)
    output = encoder.to(dtype)(x.to(dtype))
    assert output.dtype == dtype
    assert_close(output.float(), right, rtol=0.05, atol=0.05)
