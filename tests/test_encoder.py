import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mha_course.encoder import Encoder, EncoderLayer, PreNormEncoderLayer
from mha_course.self_attention import padding_mask


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
