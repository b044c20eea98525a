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
from mha_course.decoder import Decoder, DecoderLayer, PreNormDecoderLayer
from mha_course.positions import RotaryAttention
from mha_course.self_attention import causal_mask, padding_mask

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=15, deadline=None, derandomize=True)

KINDS = [DecoderLayer, PreNormDecoderLayer]
# Of a layer of width 15 and 37 between the dense layers: twice four projections, two dense layers, three norms.
PARAMETERS = 2 * 4 * (15 * 15 + 15) + (15 * 37 + 37) + (37 * 15 + 15) + 3 * 30


def silence(*sublayers):
    """Let sublayers, of which these are the last parts, add nothing."""
    for linear in sublayers:
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)


def normed(x, norm):
    return F.layer_norm(x, (15,), norm.weight, norm.bias)


def masks():
    return causal_mask(5), padding_mask(torch.tensor([7, 4]), 7)


def test_a_post_norm_layer_adds_and_normalises_after_each_of_its_three_parts():
    layer, x, memory, (own, source) = spread(DecoderLayer(15, 3, 37)), drawn(2, 5, 15), drawn(2, 7, 15), masks()
    a = normed(x + layer.self_attn(x, x, x, own), layer.norm1)
    b = normed(a + layer.cross_attn(a, memory, memory, source), layer.norm2)
    assert_close(layer(x, memory, own, source), normed(b + layer.ffn(b), layer.norm3))


def test_a_pre_norm_layer_normalises_what_goes_into_each_part_and_not_the_memory():
    layer, x, memory, (own, source) = spread(PreNormDecoderLayer(15, 3, 37)), drawn(2, 5, 15), drawn(2, 7, 15), masks()
    before = normed(x, layer.norm1)
    a = x + layer.self_attn(before, before, before, own)
    b = a + layer.cross_attn(normed(a, layer.norm2), memory, memory, source)
    assert_close(layer(x, memory, own, source), b + layer.ffn(normed(b, layer.norm3)))


def test_a_layer_whose_sublayers_add_nothing_returns_its_input_if_pre_norm_and_its_norm_if_post_norm():
    x, memory = drawn(2, 5, 15) * 9 + 4, drawn(2, 7, 15, seed=2)
    for kind in KINDS:
        layer = spread(kind(15, 3, 37))
        silence(layer.self_attn.out_proj, layer.cross_attn.out_proj, layer.ffn[2])
        thrice = normed(normed(normed(x, layer.norm1), layer.norm2), layer.norm3)
        assert_close(layer(x, memory), x if kind is PreNormDecoderLayer else thrice)


@pytest.mark.parametrize(
    "kind", [*KINDS, partial(Decoder, num_layers=2), partial(Decoder, num_layers=2, norm_first=False)]
)
def test_every_source_token_that_is_not_hidden_matters_and_no_other(kind):
    decoder, x, memory = spread(kind(15, 3, 37)), drawn(2, 5, 15), drawn(2, 7, 15).requires_grad_()
    own, source = masks()
    gradient = torch.autograd.grad(decoder(x, memory, own, source)[:, 0].square().sum(), memory)[0]
    assert torch.equal((gradient != 0).any(dim=-1), source[:, 0, 0])


@pytest.mark.parametrize(
    "kind", [*KINDS, partial(Decoder, num_layers=2), partial(Decoder, num_layers=2, norm_first=False)]
)
def test_the_targets_mask_is_used_as_given_and_without_one_nothing_is_hidden(kind):
    decoder, x, memory = spread(kind(15, 3, 37)), drawn(2, 5, 15).requires_grad_(), drawn(2, 7, 15)
    for mask, right in ((causal_mask(5), causal_mask(5)), (None, torch.ones(5, 5, dtype=torch.bool))):
        for i in range(5):
            gradient = torch.autograd.grad(decoder(x, memory, mask)[:, i].square().sum(), x)[0]
            assert torch.equal((gradient != 0).any(dim=-1), right[i].expand(2, 5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["own weights", "own", "memory's weights", "memory", "feed-forward"])
def test_dropout_acts_at_each_place_in_training_and_nowhere_in_evaluation(kind, place):
    layer, x, memory = spread(kind(15, 3, 37, dropout=0.5)), drawn(2, 5, 15), drawn(2, 7, 15, seed=2)
    ends = {"own": layer.self_attn.out_proj, "memory": layer.cross_attn.out_proj, "feed-forward": layer.ffn[2]}
    part = place.removesuffix("'s weights").removesuffix(" weights")
    silence(*(end for name, end in ends.items() if name != part))
    if place.endswith("weights"):
        layer.dropout = nn.Identity()
    else:
        layer.self_attn.dropout.p = layer.cross_attn.dropout.p = 0.0
    assert not torch.equal(layer(x, memory), layer(x, memory))
    layer.eval()
    assert torch.equal(layer(x, memory), layer(x, memory))


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_options_reach_every_layer(norm_first):
    make, made = recorder()
    decoder = Decoder(15, 3, 37, 2, 0.25, norm_first=norm_first, activation=nn.GELU, norm_eps=0.125, attention=make)
    assert made == [(15, 3, 0.25)] * 4
    norms = [part for part in decoder.modules() if isinstance(part, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [0.125] * (7 if norm_first else 6)
    assert [part.p for part in decoder.modules() if isinstance(part, nn.Dropout)] == [0.25] * 6
    for layer in decoder.layers:
        assert isinstance(layer.ffn[1], nn.GELU)
        assert isinstance(layer, PreNormDecoderLayer) == norm_first


@pytest.mark.parametrize("kind", [*KINDS, partial(Decoder, num_layers=1)])
def test_the_memory_may_be_attended_to_in_another_way_than_the_target(kind):
    make, made = recorder()
    decoder = kind(16, 2, 37, dropout=0.25, attention=RotaryAttention, cross_attention=make)
    assert made == [(16, 2, 0.25)]
    layer = decoder.layers[0] if isinstance(decoder, Decoder) else decoder
    assert isinstance(layer.self_attn, RotaryAttention)
    assert not isinstance(layer.cross_attn, RotaryAttention)
    assert decoder(drawn(2, 5, 16), drawn(2, 7, 16), *masks()).shape == (2, 5, 16)


@pytest.mark.parametrize("kind", [*KINDS, partial(Decoder, num_layers=1)])
def test_norms_and_activation_are_those_of_the_paper_unless_chosen(kind):
    assert {part.eps for part in kind(15, 3, 37).modules() if isinstance(part, nn.LayerNorm)} == {1e-5}
    assert isinstance(next(part for part in kind(15, 3, 37).modules() if isinstance(part, nn.Sequential))[1], nn.ReLU)


def test_an_attention_that_knows_of_no_cache_serves_a_decoder():
    class Mean(nn.Module):
        def __init__(self, d_model, num_heads, dropout):
            super().__init__()

        def forward(self, query, key, value, mask):
            return value.mean(dim=1, keepdim=True).expand_as(query)

    for norm_first in (True, False):
        decoder = Decoder(15, 3, 37, 2, norm_first=norm_first, attention=Mean)
        assert decoder(drawn(2, 5, 15), drawn(2, 7, 15), *masks()).shape == (2, 5, 15)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_stack_is_its_layers_one_after_the_other_all_under_both_masks(norm_first):
    decoder = spread(Decoder(15, 3, 37, num_layers=3, norm_first=norm_first))
    x, memory = drawn(2, 5, 15), drawn(2, 7, 15, seed=2)
    right = x
    for layer in decoder.layers:
        right = layer(right, memory, *masks())
    assert_close(decoder(x, memory, *masks()), normed(right, decoder.norm) if norm_first else right)


@properties
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), norm_first=st.booleans())
def test_chunks_of_any_size_give_what_the_whole_text_gives(sizes, norm_first):
    decoder = spread(Decoder(15, 3, 37, num_layers=2, norm_first=norm_first)).double()
    x, memory = drawn(2, sum(sizes), 15).double(), drawn(2, 7, 15, seed=2).double()
    source, cache, outputs = masks()[1], ModelCache(2), []
    for piece in x.split(sizes, dim=1):
        mask = causal_mask(piece.size(1), cache.length + piece.size(1))
        outputs.append(decoder(piece, memory, mask, source, cache))
    assert_close(torch.cat(outputs, dim=1), decoder(x, memory, causal_mask(sum(sizes)), source))
    assert [part.length for part in cache.own] == [sum(sizes)] * 2
    assert [part.length for part in cache.memory] == [7, 7]


@pytest.mark.parametrize("norm_first", [True, False])
def test_examples_of_a_batch_do_not_affect_one_another(norm_first):
    decoder = spread(Decoder(15, 3, 37, num_layers=2, norm_first=norm_first))
    x, memory, (own, source) = drawn(2, 5, 15), drawn(2, 7, 15, seed=2), masks()
    output = decoder(x, memory, own, source)
    for i in range(2):
        one = slice(i, i + 1)
        assert_close(decoder(x[one], memory[one], own, source[one]), output[one])


@pytest.mark.parametrize(("norm_first", "last"), [(True, 2 * 15), (False, 0)])
def test_there_are_as_many_parameters_as_by_hand_and_each_gets_a_gradient(norm_first, last):
    assert isinstance(Decoder(15, 3, 37, 3).norm, nn.LayerNorm)
    assert sum(p.numel() for p in DecoderLayer(15, 3, 37).parameters()) == PARAMETERS
    decoder = spread(Decoder(15, 3, 37, 3, norm_first=norm_first))
    assert sum(p.numel() for p in decoder.parameters()) == 3 * PARAMETERS + last
    decoder(drawn(2, 5, 15), drawn(2, 7, 15), *masks()).pow(3).sum().backward()
    # A shift of all keys adds the same to all scores of a query, which changes no weight.
    assert all((p.grad != 0).any() for name, p in decoder.named_parameters() if not name.endswith("k_proj.bias"))


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_copy_and_a_stack_that_loads_the_parameters_give_the_same_and_go_on_apart(norm_first):
    decoder, x, memory = spread(Decoder(15, 3, 37, 2, norm_first=norm_first)), drawn(2, 5, 15), drawn(2, 7, 15)
    right = decoder(x, memory)
    loaded = Decoder(15, 3, 37, 2, norm_first=norm_first)
    loaded.load_state_dict(decoder.state_dict())
    twin = copy.deepcopy(decoder)
    spread(decoder, seed=2)
    assert torch.equal(twin(x, memory), right)
    assert torch.equal(loaded(x, memory), right)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_passes_gradcheck_and_leaves_its_input(kind):
    layer = spread(kind(6, 2, 5, activation=nn.Tanh)).double()
    inputs = [drawn(2, length, 6, seed=length).double().requires_grad_() for length in (3, 2)]
    before = [x.clone() for x in inputs]
    assert torch.autograd.gradcheck(lambda x, memory: layer(x, memory, causal_mask(3)), inputs)
    assert all(map(torch.equal, before, inputs))
