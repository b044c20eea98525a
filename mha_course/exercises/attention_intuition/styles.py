"""Chapter 1: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch.nn import functional as F


def average_in_one_product(weights, values):
    total = weights.sum(-1, keepdim=True)
    shares = weights / total.masked_fill(total == 0, 1.0)
    return (shares[..., None, :] @ values)[..., 0, :]


def average_divided_at_the_end(weights, values):
    total = weights.sum(dim=-1, keepdim=True)
    mixture = torch.einsum("...p,...pw->...w", weights, values)
    return mixture / (total + (total == 0))


def average_by_loop(weights, values):
    flat_weights = weights.reshape(-1, weights.shape[-1])
    flat_values = values.reshape(-1, *values.shape[-2:])
    averages = []
    for w, v in zip(flat_weights, flat_values, strict=True):
        total = w.sum()
        if total == 0:
            averages.append(0 * (w[:, None] * v).sum(dim=0))
        else:
            averages.append(sum(w[place] / total * v[place] for place in range(len(w))))
    return torch.stack(averages).reshape(*values.shape[:-2], values.shape[-1])


def average_chosen_safely(weights, values):
    total = weights.sum(dim=-1, keepdim=True)
    safe = torch.where(total > 0, total, torch.ones_like(total))
    return torch.where(total > 0, (weights.unsqueeze(-1) * values).sum(dim=-2) / safe, torch.zeros_like(safe))


def look_over_axis_minus_two(patches, scorer):
    scores = patches @ scorer
    weights = F.softmax(scores, dim=-2)
    return (weights * patches).sum(dim=1)


def look_without_the_last_axis(patches, scorer):
    weights = (patches @ scorer).squeeze(-1).softmax(dim=-1)
    return torch.bmm(weights.unsqueeze(1), patches).squeeze(1)


def look_by_einsum(patches, scorer):
    weights = torch.einsum("bpx,xo->bp", patches, scorer).softmax(-1)
    return torch.einsum("bp,bpx->bx", weights, patches)


def look_by_loop(patches, scorer):
    glimpses = []
    for picture in patches:
        weights = torch.softmax((picture @ scorer)[:, 0], dim=0)
        glimpses.append(sum(w * patch for w, patch in zip(weights, picture, strict=True)))
    return torch.stack(glimpses)


def glimpse_by_einops(scores, patches):
    weights = rearrange(scores, "b r c -> b (r c)").softmax(dim=-1)
    weights = rearrange(weights, "b (r c) -> b r c", r=scores.shape[1])
    return torch.einsum("brc,brchw->bhw", weights, patches), weights


def glimpse_written_out(scores, patches):
    raised = torch.exp(scores - scores.amax(dim=(1, 2), keepdim=True))
    weights = raised / raised.sum(dim=(1, 2), keepdim=True)
    return (weights[:, :, :, None, None] * patches).sum(2).sum(1), weights


def glimpse_by_loop(scores, patches):
    glimpses, maps = [], []
    for picture_scores, picture in zip(scores, patches, strict=True):
        weights = picture_scores.reshape(-1).softmax(0).reshape(picture_scores.shape)
        rows, columns = weights.shape
        glimpses.append(sum(weights[r, c] * picture[r, c] for r in range(rows) for c in range(columns)))
        maps.append(weights)
    return torch.stack(glimpses), torch.stack(maps)


def glimpse_by_logarithms(scores, patches):
    total = torch.logsumexp(scores, dim=(1, 2), keepdim=True)
    weights = (scores - total).exp()
    return torch.tensordot(weights.flatten(1), patches.flatten(1, 2), dims=([1], [1])).diagonal().movedim(
        -1, 0
    ), weights


def examine_by_numbers(average):
    def near(found, wanted):
        wanted = torch.tensor(wanted)
        assert found.shape == wanted.shape
        assert torch.allclose(found, wanted, atol=1e-5)

    values = torch.tensor([[4.0, 0.0], [0.0, 8.0], [1.0, 1.0]])
    near(average(torch.tensor([3.0, 1.0, 0.0]), values), [3.0, 2.0])
    near(average(torch.tensor([0.03, 0.01, 0.0]), values), [3.0, 2.0])
    near(average(torch.tensor([0.0, 1.0, 1.0]), values), [0.5, 4.5])
    weights = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 5.0, 5.0]])
    kept, batch = weights.clone(), values.expand(3, 3, 2).clone()
    near(average(weights, batch), [[3.0, 2.0], [0.0, 0.0], [0.5, 4.5]])
    assert torch.equal(weights, kept)
    assert torch.equal(batch, values.expand(3, 3, 2))
    near(average(weights[None, :1], batch[None, :1]), [[[3.0, 2.0]]])
    two = torch.stack([weights[:2], weights[1:]])
    near(
        average(two, batch[:2].expand(2, 2, 3, 2).clone()),
        [[[3.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [0.5, 4.5]]],
    )


def examine_by_loops(average):
    for shape in ((5, 3), (1, 2), (4, 5, 3), (1, 5, 3), (2, 3, 4, 5)):
        for largest in (0.1, 1.0, 30.0):
            weights, values = largest * torch.rand(shape[:-1]), torch.randn(shape)
            kept = weights.tolist(), values.tolist()
            found = average(weights, values)
            if (weights.tolist(), values.tolist()) != kept:
                raise ValueError("it changes its inputs")
            if found.shape != values[..., 0, :].shape:
                raise ValueError("the shape is wrong")
            pairs = zip(weights.reshape(-1, shape[-2]).tolist(), values.reshape(-1, *shape[-2:]).tolist(), strict=True)
            for (w, v), numbers in zip(pairs, found.reshape(-1, shape[-1]).tolist(), strict=True):
                for feature, number in enumerate(numbers):
                    wanted = sum(a * row[feature] for a, row in zip(w, v, strict=True)) / sum(w)
                    if not math.isclose(number, wanted, rel_tol=1e-3, abs_tol=1e-4):
                        raise ValueError("a number is wrong")
    if average(torch.zeros(2, 3), torch.ones(2, 3, 4)).tolist() != [[0.0] * 4] * 2:
        raise ValueError("nothing to mix should give zeros")


STYLES = {
    "weighted_average": (
        average_in_one_product,
        average_divided_at_the_end,
        average_by_loop,
        average_chosen_safely,
    ),
    "look": (look_over_axis_minus_two, look_without_the_last_axis, look_by_einsum, look_by_loop),
    "glimpse": (glimpse_by_einops, glimpse_written_out, glimpse_by_loop, glimpse_by_logarithms),
    "examine_weighted_average": (examine_by_numbers, examine_by_loops),
}
