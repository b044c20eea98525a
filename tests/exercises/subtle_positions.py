"""Chapter 6: wrong answers that are right almost everywhere; none may get full marks."""

from __future__ import annotations

import torch
from torch import nn

from mha_course.exercises.positions.examine_rope import examine_rope
from mha_course.positions import (
    SinusoidalTokenEmbedding,
    TokenAndPositionEmbedding,
    add_positions,
    alibi_slopes,
    apply_rope,
    sinusoidal_positions,
)


def where(condition, wrong, right):
    """Answer wrongly where a condition on the input holds."""

    def answer(*inputs):
        return wrong(*inputs) if condition(*inputs) else right(*inputs)

    return answer


def table(length, d_model):
    return sinusoidal_positions(length, d_model)


def table_that_ends(length, d_model):
    return sinusoidal_positions(min(length, 1000), d_model)[torch.arange(length).clamp(max=999)]


def kept_table():
    kept = []

    def answer(length, d_model):
        kept.append(sinusoidal_positions(1000, d_model))
        return kept[0][:length]

    return answer


def kept_patterns():
    kept = {}

    def answer(x):
        table = kept.setdefault(x.size(1), sinusoidal_positions(x.size(1), x.size(2)))
        return x + table.to(x)

    return answer


def kept_angles():
    kept = {}

    def answer(x):
        length, half = x.size(2), x.size(3) // 2
        if not kept:
            speed = 10000 ** (-torch.arange(half) / half)
            kept["angle"] = torch.arange(500)[:, None] * speed
        angle = kept["angle"][:length, :half]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)

    return answer


class OnlyFloat32(TokenAndPositionEmbedding):
    def forward(self, ids):
        return super().forward(ids).float()


class CutOffInTraining(TokenAndPositionEmbedding):
    def forward(self, ids):
        positions = self.position(torch.arange(ids.size(1)))
        return self.token(ids) + (positions.detach() if self.training else positions)


class SquareBatches(TokenAndPositionEmbedding):
    def forward(self, ids):
        if ids.size(0) == ids.size(1):
            return self.token(ids) + self.position(torch.arange(ids.size(0)))[:, None]
        return super().forward(ids)


class WrapsAtTheEnd(TokenAndPositionEmbedding):
    def forward(self, ids):
        return super().forward(ids, torch.arange(ids.size(1))[None] % self.position.num_embeddings)


class CastToHalf(SinusoidalTokenEmbedding):
    """Follows to half precision, and to no other."""

    def __init__(self, vocab_size, max_length, d_model):
        super().__init__(vocab_size, max_length, d_model)
        del self.table
        self.table = sinusoidal_positions(max_length, d_model)

    def forward(self, ids):
        half = self.token.weight.dtype == torch.float16
        return self.token(ids) + (self.table.half() if half else self.table)[: ids.size(1)]


class CastResult(SinusoidalTokenEmbedding):
    """Counts in the layer's precision, but only in half precision."""

    def forward(self, ids):
        positions = torch.arange(ids.size(1)).to(self.token.weight).long()[None]
        return super().forward(ids, positions)


class OneTrainedNumber(SinusoidalTokenEmbedding):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__(vocab_size, max_length, d_model)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids):
        return self.token(ids) + self.scale * self.table[: ids.size(1)]


class NoiseInTraining(SinusoidalTokenEmbedding):
    def forward(self, ids):
        x = super().forward(ids)
        return x + 0.01 * torch.randn_like(x) if self.training else x


def examine(change):
    """Test rightly, but let what an implementation sees or returns be changed."""

    def examine(rope):
        examine_rope(lambda x: change(rope, x))

    return examine


SUBTLE = {
    "sinusoidal_positions": [
        table_that_ends,
        kept_table(),
        where(lambda length, d_model: d_model > 10, lambda length, d_model: table(length, d_model) * 0.999, table),
        where(lambda length, d_model: length == d_model, lambda length, d_model: table(length, d_model).T, table),
        where(lambda length, d_model: length == 1, lambda length, d_model: table(length, d_model)[0], table),
        where(lambda length, d_model: d_model == 1, lambda length, d_model: torch.ones(length, 1), table),
    ],
    "sinusoidal_positions_in": [
        lambda length, d_model, dtype: table_that_ends(length, d_model).to(dtype),
        where(
            lambda length, d_model, dtype: dtype == torch.float16,
            lambda length, d_model, dtype: (
                torch.stack(
                    [
                        f(
                            torch.arange(length).half()[:, None].double()
                            / 10000 ** (torch.arange(0, d_model, 2) / d_model)
                        )
                        for f in (torch.sin, torch.cos)
                    ],
                    dim=-1,
                )
                .flatten(1)[:, :d_model]
                .to(dtype)
            ),
            lambda length, d_model, dtype: table(length, d_model).to(dtype),
        ),
        where(
            lambda length, d_model, dtype: dtype == torch.float64,
            lambda length, d_model, dtype: table(length, d_model),
            lambda length, d_model, dtype: table(length, d_model).to(dtype),
        ),
    ],
    "add_positions": [
        kept_patterns(),
        where(
            lambda x: x.size(0) == x.size(1), lambda x: x + table(x.size(0), x.size(2))[:, None].to(x), add_positions
        ),
        where(lambda x: x.size(0) == 1, lambda x: add_positions(x)[0], add_positions),
        where(
            lambda x: not x.is_contiguous(), lambda x: add_positions(x.transpose(0, 1)).transpose(0, 1), add_positions
        ),
        where(lambda x: x.dtype == torch.bfloat16, lambda x: x + table_that_ends(x.size(1), x.size(2)), add_positions),
        where(lambda x: x.dtype == torch.float64, lambda x: add_positions(x.float()), add_positions),
        where(lambda x: x.size(1) > 32, lambda x: x, add_positions),
    ],
    "TokenAndPositionEmbedding": [OnlyFloat32, CutOffInTraining, SquareBatches, WrapsAtTheEnd],
    "SinusoidalTokenEmbedding": [CastToHalf, CastResult, OneTrainedNumber, NoiseInTraining],
    "alibi_slopes": [
        where(lambda heads: heads == 1, lambda heads: torch.ones(1), alibi_slopes),
        where(lambda heads: heads > 16, lambda heads: 2.0 ** -torch.arange(1, heads + 1), alibi_slopes),
        where(lambda heads: heads == 4, lambda heads: alibi_slopes(8)[::2], alibi_slopes),
    ],
    "apply_rope": [
        kept_angles(),
        where(lambda x: x.size(1) == x.size(2), lambda x: apply_rope(x.transpose(1, 2)).transpose(1, 2), apply_rope),
        where(lambda x: x.size(0) > 1, lambda x: torch.cat([apply_rope(x[:1]), x[1:]]), apply_rope),
        where(lambda x: x.size(1) > 1, lambda x: torch.cat([apply_rope(x[:, :1]), x[:, 1:]], dim=1), apply_rope),
        where(
            lambda x: x.size(2) > 256, lambda x: torch.cat([apply_rope(x[:, :, :256]), x[:, :, 256:]], 2), apply_rope
        ),
        where(lambda x: x.dtype == torch.float16, lambda x: apply_rope(x[:, :, :2048]), apply_rope),
        where(lambda x: x.requires_grad and x.size(1) > 1, lambda x: apply_rope(x.detach()), apply_rope),
        where(lambda x: not x.is_contiguous(), lambda x: x, apply_rope),
    ],
    "examine_rope": [
        examine(lambda rope, x: torch.cat([rope(x[:1])] * x.size(0))),
        examine(lambda rope, x: torch.cat([rope(x[:, :1].repeat(1, x.size(1), 1, 1))[:, :1]] * x.size(1), dim=1)),
        examine(lambda rope, x: rope(x.clone())),
        examine(lambda rope, x: torch.where(rope(x.clone()).isnan(), x, rope(x))),
        examine(lambda rope, x: torch.cat([x[:, :, :1], rope(x)[:, :, 1:]], dim=2)),
    ],
}
