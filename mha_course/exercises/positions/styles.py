"""Chapter 6: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


def table_by_loop(length, d_model):
    table = torch.zeros(length, d_model)
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** ((column - column % 2) / d_model)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def table_by_logarithm(length, d_model):
    position = torch.arange(length).unsqueeze(1).float()
    speed = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
    table = torch.zeros(length, d_model)
    table[:, 0::2] = torch.sin(position * speed)
    table[:, 1::2] = torch.cos(position * speed[: d_model // 2])
    return table


def table_by_stacking(length, d_model):
    pair = torch.arange((d_model + 1) // 2)
    angle = torch.outer(torch.arange(length), 10000.0 ** (-2 * pair / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]


def table_by_shifted_sines(length, d_model):
    column = torch.arange(d_model)
    angle = torch.arange(length)[:, None] / 10000.0 ** (column // 2 * 2 / d_model)
    return torch.sin(angle + column % 2 * math.pi / 2)  # a cosine is a sine, a quarter of a turn ahead


def table_by_complex_numbers(length, d_model):
    speed = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angle = torch.arange(length)[:, None] * speed
    hands = torch.polar(torch.ones_like(angle), angle)  # cosine + i sine
    return torch.view_as_real(hands).flip(-1).flatten(1)[:, :d_model]


def table_in_type_by_logarithm(length, d_model, dtype):
    return table_by_logarithm(length, d_model).to(dtype)


def table_in_type_from_float64(length, d_model, dtype):
    position = torch.arange(length, dtype=torch.float64)[:, None]
    angle = position / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    table = torch.empty(length, d_model, dtype=dtype)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]
    return table


def table_in_type_by_loop(length, d_model, dtype):
    rows = [[0.0] * d_model for _ in range(length)]
    for position, row in enumerate(rows):
        for column in range(d_model):
            angle = position * math.exp(-math.log(10000) * (column - column % 2) / d_model)
            row[column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return torch.tensor(rows, dtype=dtype)


def add_by_broadcasting(x):
    _, length, d_model = x.shape
    return x + table_by_logarithm(length, d_model)[None].type_as(x)


def add_by_loop(x):
    table = table_by_stacking(x.size(1), x.size(2)).to(x)
    return torch.stack([sentence + table for sentence in x])


def add_on_a_copy(x):
    result = x.clone()
    result += table_by_stacking(x.size(1), x.size(2))
    return result


class LearnedByWeights(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)

    def forward(self, ids):
        return self.token.weight[ids] + self.position.weight[: ids.size(1)]


class LearnedWithBufferOfPositions(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.register_buffer("places", torch.arange(max_length)[None])

    def forward(self, ids):
        tokens = self.token(ids)
        positions = self.position(self.places[:, : ids.shape[1]]).expand_as(tokens)
        return tokens + positions


class LearnedByOneHot(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)

    def forward(self, ids):
        if ids.size(1) > self.position.num_embeddings:
            raise ValueError("the text is longer than the table of positions")
        which = F.one_hot(ids, self.token.num_embeddings).to(self.token.weight)
        where = torch.eye(ids.size(1), self.position.num_embeddings).to(self.position.weight)
        return which @ self.token.weight + where @ self.position.weight


class SinusoidsInFrozenEmbedding(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding.from_pretrained(table_by_logarithm(max_length, d_model), freeze=True)

    def forward(self, ids):
        return self.token(ids) + self.position(torch.arange(ids.size(1), device=ids.device))


class SinusoidsWithBatchAxis(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.register_buffer("pe", table_by_stacking(max_length, d_model).unsqueeze(0), persistent=False)

    def forward(self, ids):
        x = self.token(ids)
        x = x + self.pe[:, : x.size(1)]
        return x


class SinusoidsAsParameterWithoutGradient(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.table = nn.Parameter(table_by_logarithm(max_length, d_model), requires_grad=False)

    def forward(self, ids):
        return self.token(ids) + self.table[: ids.size(1)]


class SinusoidsComputedInEachCall(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)

    def forward(self, ids):
        x = self.token(ids)
        return x + table_by_logarithm(x.size(1), x.size(2)).to(x)


def slopes_by_list(num_heads):
    return torch.tensor([2 ** (-8 * head / num_heads) for head in range(1, num_heads + 1)])


def slopes_by_ratio(num_heads):
    start = 2.0 ** (-(2.0 ** -(math.log2(num_heads) - 3)))
    return torch.tensor([start * start**head for head in range(num_heads)])


def slopes_by_logspace(num_heads):
    return torch.logspace(-8 / num_heads, -8, num_heads, base=2.0)


def slopes_by_products(num_heads):
    return torch.full((num_heads,), 2.0 ** (-8 / num_heads)).cumprod(dim=0)


def rope_by_rotated_half(x):
    d_head = x.shape[-1]
    speed = 1.0 / 10000 ** (torch.arange(0, d_head, 2).float() / d_head)
    angle = torch.outer(torch.arange(x.shape[-2]).float(), speed)
    angle = torch.cat([angle, angle], dim=-1)
    x1, x2 = x.chunk(2, dim=-1)
    return x * angle.cos().to(x.dtype) + torch.cat([-x2, x1], dim=-1) * angle.sin().to(x.dtype)


def rope_by_complex_numbers(x):
    half = x.size(-1) // 2
    wide = x.double()
    speed = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.size(2), dtype=torch.float64)[:, None] * speed
    turned = torch.complex(wide[..., :half], wide[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def rope_by_loop(x):
    half = x.size(-1) // 2
    rows = []
    for position in range(x.size(2)):
        row, first, second = x[:, :, position], [], []
        for pair in range(half):
            angle = position / 10000 ** (2 * pair / x.size(-1))
            a, b = row[..., pair], row[..., pair + half]
            first.append(a * math.cos(angle) - b * math.sin(angle))
            second.append(b * math.cos(angle) + a * math.sin(angle))
        rows.append(torch.stack(first + second, dim=-1))
    return torch.stack(rows, dim=2)


def rope_by_matrices(x):
    half = x.size(-1) // 2
    speed = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.size(2), dtype=torch.float64)[:, None] * speed
    cos, sin = torch.diag_embed(angle.cos()), torch.diag_embed(angle.sin())
    matrices = torch.cat([torch.cat([cos, sin], dim=-1), torch.cat([-sin, cos], dim=-1)], dim=-2)
    return torch.einsum("bhld,lde->bhle", x, matrices.to(x.dtype))


def rope_in_float32(x):
    half = x.size(-1) // 2
    speed = torch.exp(-math.log(10000.0) * torch.arange(half) / half)
    angle = torch.arange(x.size(2))[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def examine_with_one_vector(rope):
    generator = torch.Generator().manual_seed(0)
    for length in (1, 2, 5, 17, 300):
        x = torch.randn(2, 3, 1, 6, generator=generator).expand(2, 3, length, 6).contiguous()
        copy = x.clone()
        y = rope(x)
        assert y.shape == x.shape, y.shape
        assert (x == copy).all()
        assert (y[:, :, 0] - x[:, :, 0]).abs().max() < 1e-3
        scores = torch.einsum("bhqd,bhkd->bhqk", y, y)
        for distance in range(0, length, 7):
            diagonal = scores.diagonal(distance, dim1=-2, dim2=-1)
            assert (diagonal - diagonal[..., :1]).abs().max() < 1e-2
        if length > 1:
            assert ((y[:, :, 1] - y[:, :, 0]).abs().amax(dim=-1) > 1e-3).all()


def examine_with_exceptions(rope):
    def demand(holds, rule):
        if not holds:
            raise ValueError(rule)

    for length in (7, 600):
        q, k = (torch.randn(2, 2, 1, 4).repeat(1, 1, length, 1) for _ in range(2))
        kept = q.clone()
        rq, rk = rope(q), rope(k)
        demand(torch.equal(q, kept), "the input stays as it was")
        demand(rq.shape == q.shape, "the shape stays")
        demand(torch.allclose(rq[:, :, 0], q[:, :, 0], atol=1e-3), "position 0 stays")
        demand(torch.allclose(rq.norm(dim=-1), q.norm(dim=-1), atol=1e-2), "lengths stay")
        demand(not torch.isclose(rq[:, :, 1], rq[:, :, 0], atol=1e-3).all(dim=-1).any(), "positions differ")
        for distance in range(4):
            scores = (rq[:, :, distance:] * rk[:, :, : length - distance]).sum(dim=-1)
            demand(torch.allclose(scores, scores[..., :1], atol=1e-2), "scores depend on the distance alone")


STYLES = {
    "sinusoidal_positions": (
        table_by_loop,
        table_by_logarithm,
        table_by_stacking,
        table_by_shifted_sines,
        table_by_complex_numbers,
    ),
    "sinusoidal_positions_in": (table_in_type_by_logarithm, table_in_type_from_float64, table_in_type_by_loop),
    "add_positions": (add_by_broadcasting, add_by_loop, add_on_a_copy),
    "TokenAndPositionEmbedding": (LearnedByWeights, LearnedWithBufferOfPositions, LearnedByOneHot),
    "SinusoidalTokenEmbedding": (
        SinusoidsInFrozenEmbedding,
        SinusoidsWithBatchAxis,
        SinusoidsAsParameterWithoutGradient,
        SinusoidsComputedInEachCall,
    ),
    "alibi_slopes": (slopes_by_list, slopes_by_ratio, slopes_by_logspace, slopes_by_products),
    "apply_rope": (rope_by_rotated_half, rope_by_complex_numbers, rope_by_loop, rope_by_matrices, rope_in_float32),
    "examine_rope": (examine_with_one_vector, examine_with_exceptions),
}
