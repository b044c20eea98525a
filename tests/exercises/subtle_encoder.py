"""Chapter 7: wrong answers that are right almost everywhere; none may get full marks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mha_course.encoder import Encoder, EncoderLayer, PreNormEncoderLayer, layer_norm
from mha_course.exercises.encoder import hidden_states as states
from mha_course.exercises.encoder.EncoderLayer import Steps
from mha_course.exercises.encoder.examine_layer_norm import ALL_SHAPES, make_test
from mha_course.exercises.encoder.PreNormEncoderLayer import PreSteps
from mha_course.exercises.encoder.TrimmedEncoder import TrimmedEncoder, trimmed


def norm_except(condition, change):
    def answer(x, weight, bias, eps=1e-5):
        right = layer_norm(x, weight, bias, eps)
        return change(right, x, weight, bias) if condition(x) else right

    return answer


def remembered_statistics():
    """Take mean and variance from the first call of each shape."""
    kept = {}

    def answer(x, weight, bias, eps=1e-5):
        if x.shape not in kept:
            kept[x.shape] = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
        mean, variance = kept[x.shape]
        return (x - mean) / (variance + eps).sqrt() * weight + bias

    return answer


def half(x):
    return x.dtype in (torch.float16, torch.bfloat16)


def norm_by_view(x, weight, bias, eps=1e-5):
    rows = x.view(-1, x.size(-1))
    return layer_norm(rows, weight, bias, eps).view(x.shape)


class PlusInput(Steps):
    """The residual is scaled a little."""

    def forward(self, x, mask=None):
        x = self.norm1(1.01 * x + self.drop(self.attend(x, mask)))
        return self.norm2(x + self.drop(self.feed(x)))


def layer_where(base, condition, change):
    class Where(base):
        def forward(self, x, mask=None):
            return change(self, x, mask) if condition(self, x, mask) else super().forward(x, mask)

    return Where


class LeakyLayer(Steps):
    def feed(self, x):
        return self.ffn[2](F.leaky_relu(self.ffn[0](x), 0.01))


class PadLayer(Steps):
    """Padding is given nothing to attend to: its own rows come out otherwise."""

    def attend(self, x, mask):
        found = self.self_attn(x, x, x, mask)
        return found if mask is None or mask.dim() != 4 or mask.size(-2) > 1 else found * mask[:, 0, 0, :, None]


class FirstHeadMask(Steps):
    def attend(self, x, mask):
        return self.self_attn(x, x, x, mask[:, :1] if mask is not None and mask.dim() == 4 else mask)


class DroppedTwice(Steps):
    def drop(self, added):
        return self.dropout(self.dropout(added))


class DroppedByToken(Steps):
    def drop(self, added):
        return added * F.dropout(torch.ones_like(added[..., :1]), self.dropout.p, self.training)


class DroppedUnscaled(Steps):
    def drop(self, added):
        return added * (torch.rand_like(added) >= self.dropout.p) if self.training else added


class ScaledInEvaluation(Steps):
    def drop(self, added):
        p = self.dropout.p
        return added * (torch.rand_like(added) >= p) if self.training else added * (1 - p)


class DroppedHalf(Steps):
    def drop(self, added):
        return F.dropout(added, 0.5 if self.dropout.p else 0.0, self.training)


class DetachedInTraining(Steps):
    def feed(self, x):
        added = self.ffn(x)
        return added.detach() if self.training else added


class OnlyFloat32(EncoderLayer):
    def forward(self, x, mask=None):
        return super().forward(x.float(), mask)


class FrozenNorm(PreNormEncoderLayer):
    def forward(self, x, mask=None):
        normed = F.layer_norm(x, self.norm1.weight.shape, self.norm1.weight.detach(), self.norm1.bias, 1e-5)
        x = x + self.dropout(self.self_attn(normed, normed, normed, mask))
        return x + self.dropout(self.ffn(self.norm2(x)))


class NoAffine(PreNormEncoderLayer):
    def forward(self, x, mask=None):
        normed = F.layer_norm(x, x.shape[-1:])
        x = x + self.dropout(self.self_attn(normed, normed, normed, mask))
        return x + self.dropout(self.ffn(self.norm2(x)))


class KeyAlone(PreSteps):
    def forward(self, x, mask=None):
        normed = self.norm1(x)
        x = x + self.drop(self.self_attn(normed, x, normed, mask))
        return x + self.drop(self.feed(self.norm2(x)))


class InPlaceInEvaluation(PreSteps):
    def forward(self, x, mask=None):
        if self.training or (torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x, mask)
        x += self.drop(self.attend(self.norm1(x), mask))
        return x + self.drop(self.feed(self.norm2(x)))


class LastLayerUnmasked(Encoder):
    def forward(self, x, mask=None):
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        return self.norm(self.layers[-1](x))


class MaskAsKeys(Encoder):
    """Only what the mask says of the keys of the first query is used."""

    def forward(self, x, mask=None):
        return super().forward(x, None if mask is None else mask[..., :1, :])


class ShortOnesCut(Encoder):
    """Cut in evaluation mode, and filled up with zeros."""

    def forward(self, x, mask=None):
        if self.training or mask is None or mask.dim() != 4 or mask.size(-2) != 1:
            return super().forward(x, mask)
        used = int(mask.sum(-1).max())
        return F.pad(super().forward(x[:, :used], mask[..., :used]), (0, 0, 0, x.size(1) - used))


class AtMostTwoLayers(Encoder):
    def forward(self, x, mask=None):
        for layer in self.layers[:2]:
            x = layer(x, mask)
        return self.norm(x)


class NormByLastLayer(Encoder):
    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask)
        return F.layer_norm(x, self.norm.weight.shape, self.norm.weight, None)


class FrozenLayers(Encoder):
    def __init__(self, *args):
        super().__init__(*args)
        self.layers.requires_grad_(False)


class OneDropoutForAll(Encoder):
    """Only the first layer is given the dropout."""

    def __init__(self, d_model, num_heads, d_ff, num_layers, dropout=0.0):
        super().__init__(d_model, num_heads, d_ff, num_layers, 0.0)
        for part in self.layers[0].modules():
            if isinstance(part, nn.Dropout):
                part.p = dropout


class TrimmedByFirstMask(TrimmedEncoder):
    longest = None

    def forward(self, x, mask):
        if self.training:
            return self.encoder(x, mask)
        self.longest = self.longest or int(mask.sum(dim=-1).max())
        output = self.encoder(x[:, : self.longest], mask[..., : self.longest])
        return F.pad(output, (0, 0, 0, x.size(1) - self.longest))


class TrimmedOneMore(TrimmedEncoder):
    def forward(self, x, mask):
        if self.training:
            return self.encoder(x, mask)
        longest = min(int(mask.sum(dim=-1).max()) + 1, x.size(1))
        return F.pad(self.encoder(x[:, :longest], mask[..., :longest]), (0, 0, 0, x.size(1) - longest))


class TrimmedWithBatchOfOne(TrimmedEncoder):
    def forward(self, x, mask):
        return trimmed(self, x, mask) if len(x) == 1 and not self.training else super().forward(x, mask)


def first_copied(x, sublayers):
    """Right values throughout, but the gradient of the first entry is lost."""
    return [x.detach().clone(), *states.hidden_states(x, sublayers)[1:]]


def one_tensor_for_the_last_two(x, sublayers):
    found = states.hidden_states(x, sublayers)
    return found[:-2] + found[-1:] * 2 if len(found) > 3 else found


SUBTLE = {
    "layer_norm": [
        norm_except(lambda x: x.dim() == 1, lambda right, x, weight, bias: right * 1.01),
        norm_except(lambda x: x.dim() > 3, lambda right, x, weight, bias: right * 1.01),
        norm_except(lambda x: x.size(-1) == 1, lambda right, x, weight, bias: right * float("nan")),
        norm_except(lambda x: x.size(-1) > 32, lambda right, x, weight, bias: right * 1.01),
        norm_except(lambda x: x.dtype == torch.float64, lambda right, x, weight, bias: right.float().double()),
        norm_except(half, lambda right, x, weight, bias: right.float()),
        norm_except(lambda x: x.requires_grad, lambda right, x, weight, bias: right.detach() + 0 * x),
        norm_except(lambda x: x.requires_grad, lambda right, x, weight, bias: right - bias + bias.detach()),
        remembered_statistics(),
        norm_by_view,
    ],
    "hidden_states": [first_copied, one_tensor_for_the_last_two],
    "examine_layer_norm": [
        make_test(shapes=ALL_SHAPES[1:]),
        make_test(shapes=(*ALL_SHAPES[:3], *ALL_SHAPES[4:])),
        make_test(spreads=(1.0, 0.003)),
        make_test(tolerance=0.5),
        make_test(tolerance=1e-9),
    ],
    "EncoderLayer": [
        PlusInput,
        LeakyLayer,
        PadLayer,
        FirstHeadMask,
        DroppedTwice,
        DroppedByToken,
        DroppedUnscaled,
        ScaledInEvaluation,
        DroppedHalf,
        DetachedInTraining,
        OnlyFloat32,
        layer_where(Steps, lambda self, x, mask: x.size(1) == 1, lambda self, x, mask: self.norm2(self.norm1(x))),
        layer_where(Steps, lambda self, x, mask: x.size(0) == 1, lambda self, x, mask: Steps.forward(self, x)),
    ],
    "PreNormEncoderLayer": [FrozenNorm, NoAffine, KeyAlone, InPlaceInEvaluation],
    "Encoder": [
        LastLayerUnmasked,
        MaskAsKeys,
        ShortOnesCut,
        AtMostTwoLayers,
        NormByLastLayer,
        FrozenLayers,
        OneDropoutForAll,
    ],
    "TrimmedEncoder": [TrimmedByFirstMask, TrimmedOneMore, TrimmedWithBatchOfOne],
}
