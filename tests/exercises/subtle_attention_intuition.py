"""Chapter 1: wrong answers that are right almost everywhere; none may get full marks."""

from __future__ import annotations

import torch

from mha_course.attention_intuition import glimpse, weighted_average
from mha_course.exercises.attention_intuition.look import look
from mha_course.exercises.attention_intuition.styles import examine_by_loops


def where(condition, wrong, right):
    """Answer wrongly where a condition on the input holds."""

    def answer(*inputs):
        return wrong(*inputs) if condition(*inputs) else right(*inputs)

    return answer


def zeros(*inputs):
    return torch.zeros_like(inputs[-1][..., 0, :])


def nothing(scores, patches):
    seen, weights = glimpse(scores, patches)
    return 0 * seen, 0 * weights


def first_weights_for_all(scores, patches):
    return glimpse(scores[:1].expand_as(scores), patches)


def detached_in_batches(weights, values):
    return weighted_average(weights.detach() if weights.dim() > 1 else weights, values)


def clamped_scores(scores, patches):
    return glimpse(scores.clamp(-80, 80), patches)


def only_when_called_alone(average):
    examine_by_loops(
        lambda weights, values: average(weights, values) if weights.dim() == 1 else weighted_average(weights, values)
    )


def never_without_weight(average):
    examine_by_loops(
        lambda weights, values: average(weights, values) if weights.any() else weighted_average(weights, values)
    )


SUBTLE = {
    "weighted_average": [
        where(lambda weights, values: weights.dim() > 2, zeros, weighted_average),
        where(lambda weights, values: weights.dim() == 2 and len(weights) == 1, zeros, weighted_average),
        where(lambda weights, values: values.size(-1) == 1, zeros, weighted_average),
        where(lambda weights, values: weights.dtype == torch.float64, zeros, weighted_average),
        where(lambda weights, values: bool((weights.sum(dim=-1) < 1e-4).any()), zeros, weighted_average),
        where(lambda weights, values: not weights.is_contiguous(), zeros, weighted_average),
        detached_in_batches,
    ],
    "look": [
        where(lambda patches, scorer: len(patches) == 1, lambda patches, scorer: patches.mean(dim=1), look),
        where(lambda patches, scorer: patches.size(1) == 1, zeros, look),
        where(lambda patches, scorer: patches.size(2) == 1, lambda patches, scorer: patches.mean(dim=1), look),
        lambda patches, scorer: look(patches, scorer.detach()),
        lambda patches, scorer: look(patches, scorer.clamp(-9, 9)),
    ],
    "glimpse": [
        where(lambda scores, patches: scores.size(1) != scores.size(2), nothing, glimpse),
        where(lambda scores, patches: scores.size(1) == scores.size(2), nothing, glimpse),
        where(lambda scores, patches: not patches.is_contiguous(), nothing, glimpse),
        where(lambda scores, patches: scores.dtype == torch.float64, nothing, glimpse),
        first_weights_for_all,
        clamped_scores,
        lambda scores, patches: glimpse(scores, patches.detach()),
    ],
    "examine_weighted_average": [only_when_called_alone, never_without_weight],
}
