"""Chapter 7: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate

import torch
from torch import nn
from torch.nn import functional as F

from mha_course.multi_head import MultiHeadAttention, merge_heads, split_heads


def norm_by_var_mean(x, weight, bias, eps=1e-5):
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + eps) * weight + bias


def norm_by_loop(x, weight, bias, eps=1e-5):
    rows = []
    for row in x.reshape(-1, x.size(-1)):
        mean = row.sum() / len(row)
        variance = ((row - mean) ** 2).sum() / len(row)
        rows.append(weight * (row - mean) / torch.sqrt(variance + eps) + bias)
    return torch.stack(rows).view(x.shape)


def norm_by_library(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def norm_in_float64(x, weight, bias, eps=1e-5):
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    root = (centred.pow(2).mean(-1, keepdim=True) + eps) ** 0.5
    return torch.addcmul(bias, weight, (centred / root).type_as(x))


def states_from_the_last(x, sublayers):
    states = [x]
    for sublayer in sublayers:
        states.append(states[-1] + sublayer(states[-1]))
    return states


def states_accumulated(x, sublayers):
    return list(accumulate(sublayers, lambda state, sublayer: state + sublayer(state), initial=x))


def examine_by_cases(layer_norm):
    def expected(x, weight, bias, eps=1e-5):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias

    def gradient(norm, x):
        x = x.clone().requires_grad_()
        norm(x, weight, bias).pow(3).sum().backward()
        return x.grad

    ordinary = [(7,), (1, 1), (4, 3), (6, 6), (2, 5, 3), (3, 2, 2), (2, 7, 7), (2, 3, 4, 5), (2, 2, 128)]
    inputs = [torch.randn(shape) * 3 + 1 for shape in ordinary]
    inputs += [0.001 * torch.randn(3, 5), torch.zeros(2, 3), torch.full((1, 4, 6), 2.0)]
    inputs += [x.double() for x in inputs]
    for x in inputs:
        weight, bias = torch.randn(2, x.size(-1), dtype=x.dtype)
        for more in ({}, {"eps": 0.01}):
            copy = x.clone()
            output = layer_norm(copy, weight, bias, **more)
            assert output.dtype == x.dtype
            assert output.shape == x.shape
            assert torch.allclose(output, expected(x, weight, bias, **more), atol=1e-3)
            assert copy.equal(x)
    weight, bias = torch.randn(2, 7)
    assert torch.allclose(gradient(layer_norm, inputs[0]), gradient(expected, inputs[0]), atol=1e-2)


def slow_norm(token, weight, bias, eps):
    mean = sum(token) / len(token)
    variance = sum((feature - mean) ** 2 for feature in token) / len(token)
    root = (variance + eps) ** 0.5
    return torch.stack([w * (feature - mean) / root + b for feature, w, b in zip(token, weight, bias, strict=True)])


def examine_with_a_slow_one(layer_norm):
    for shape in [(7,), (4, 3), (6, 6), (2, 5, 3), (3, 1, 4, 5)]:
        for size in (1.0, 0.001, 0.0):
            for eps in (1e-5, 0.01):
                x = size * torch.randn(shape).double() + size
                weight, bias = torch.randn(2, shape[-1]).double()
                before = x.clone()
                output = layer_norm(x, weight, bias) if eps == 1e-5 else layer_norm(x, weight, bias, eps)
                tokens = before.reshape(-1, shape[-1])
                expected = torch.stack([slow_norm(token, weight, bias, eps) for token in tokens]).view(shape)
                torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
                assert torch.equal(x, before)
    # gradcheck compares the gradient with what very small steps in every direction give.
    x = torch.randn(2, 3).double().requires_grad_()
    torch.autograd.gradcheck(lambda x: layer_norm(x, weight[:3], bias[:3]), x)


class OwnNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) + self.bias


class OwnAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout):
        super().__init__()
        self.num_heads, self.p = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask):
        q, k, v = (split_heads(proj(x), self.num_heads) for proj in (self.q_proj, self.k_proj, self.v_proj))
        p = self.p if self.training else 0.0
        return self.out_proj(merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)))


class LayerByHand(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.norm2, self.norm1 = OwnNorm(d_model), OwnNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(inplace=True), nn.Linear(d_ff, d_model))
        self.self_attn = OwnAttention(d_model, num_heads, dropout)
        self.p = dropout

    def forward(self, x, mask=None):
        found = F.dropout(self.self_attn(x, mask), self.p, self.training)
        middle = self.norm1(torch.add(x, found))
        made = F.dropout(self.ffn(middle), self.p, training=self.training)
        return self.norm2(middle + made)


class LayerWithResidual(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout=dropout)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm([d_model])
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x, mask=None):
        residual = x
        x = self.self_attn(x, x, x, mask=mask)
        x = self.dropout1(x)
        x += residual
        x = self.norm1(x)
        residual = x
        x = self.ffn(x)
        x = self.dropout2(x)
        x = x + residual
        return self.norm2(x)


class PreNormByFunction(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def around(self, x, norm, sublayer):
        return x + self.dropout(sublayer(norm(x)))

    def forward(self, x, mask=None):
        x = self.around(x, self.norm1, lambda normed: self.self_attn(normed, normed, normed, mask))
        return self.around(x, self.norm2, self.ffn)


class PreNormByHand(LayerByHand):
    def forward(self, x, mask=None):
        residual = x
        x = self.norm1(x)
        x = self.self_attn(x, mask)
        x = residual + F.dropout(x, self.p, self.training)
        residual = x
        x = self.ffn(self.norm2(x))
        return residual + F.dropout(x, self.p, self.training)


class EncoderByAppending(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, num_layers, dropout=0.0):
        super().__init__()
        self.norm = OwnNorm(d_model)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            self.layers.append(PreNormByHand(d_model, num_heads, d_ff, dropout))

    def forward(self, x, mask=None):
        for i in range(len(self.layers)):
            x = self.layers[i](x, mask)
        x = self.norm(x)
        return x


class EncoderByReduce(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, num_layers, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(*(PreNormByFunction(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        return self.norm(reduce(lambda tokens, layer: layer(tokens, mask), self.layers, x))


class TrimmedByCat(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, mask):
        if self.training:
            return self.encoder(x, mask)
        longest = int(mask.sum(dim=-1).max())
        output = self.encoder(x[:, :longest], mask[..., :longest])
        batch, length, d_model = x.shape
        return torch.cat([output, output.new_zeros(batch, length - longest, d_model)], dim=1)


class TrimmedByAssignment(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, mask):
        if self.training:
            return self.encoder(x, mask)
        real = mask.flatten(0, -2).any(dim=0)
        output = torch.zeros_like(x)
        output[:, real] = self.encoder(x[:, real], mask[..., real])
        return output


STYLES = {
    "layer_norm": (norm_by_var_mean, norm_by_loop, norm_by_library, norm_in_float64),
    "hidden_states": (states_from_the_last, states_accumulated),
    "examine_layer_norm": (examine_by_cases, examine_with_a_slow_one),
    "EncoderLayer": (LayerByHand, LayerWithResidual),
    "PreNormEncoderLayer": (PreNormByFunction, PreNormByHand),
    "Encoder": (EncoderByAppending, EncoderByReduce),
    "TrimmedEncoder": (TrimmedByCat, TrimmedByAssignment),
}
