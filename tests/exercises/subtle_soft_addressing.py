"""Chapter 2: wrong answers that are right almost everywhere; none may get full marks."""

import torch

from mha_course import soft_addressing as right


def tables_alone(x, dim):
    return right.softmax(x, dim) if x.dim() < 3 else right.softmax(x, -1)


def negative_axis_misread(x, dim):
    return right.softmax(x, abs(dim) % x.dim())


def guarded_sum(x, dim):
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / (e.sum(dim, keepdim=True) + 1e-3)


def float32_at_all_times(x, dim):
    return right.softmax(x.float(), dim).to(x.dtype)


def infinite_as_lowest(x, dim):
    return right.softmax(x.clamp(min=-5.0), dim)


def two_axes_alone(query, keys, values, temperature=1.0):
    return right.soft_lookup(query, keys, values, temperature).reshape(-1, values.shape[-1])


def cool_only_from_one(query, keys, values, temperature=1.0):
    return right.soft_lookup(query, keys, values, max(temperature, 1.0))


def remembers_temperature(query, keys, values, temperature=1.0, kept=[]):  # noqa: B006
    kept.append(temperature)
    return right.soft_lookup(query, keys, values, kept[-2] if len(kept) > 1 else temperature)


def no_gradient_for_keys(query, keys, values, temperature=1.0):
    return right.soft_lookup(query, keys.detach(), values, temperature)


def wide_bells_alone(query, keys, values, width=1.0):
    steps = (query.unsqueeze(-2) - keys).square().sum(-1)
    return right.softmax(-steps / (2 * max(width, 0.6) ** 2), -1) @ values


def one_axis_in_front(query, keys, query_matrix, key_matrix, vector):
    q, k = query @ query_matrix, keys @ key_matrix
    if query.dim() == 4:
        q, k = q.flatten(0, 1), k.flatten(0, 1)
    return (q.unsqueeze(-2) + k.unsqueeze(-3)).tanh() @ vector


def vector_detached(query, keys, query_matrix, key_matrix, vector):
    return right.additive(query, keys, query_matrix, key_matrix, vector.detach())


def square_mended_alone(query, keys):
    lengths = query.norm(dim=-1, keepdim=True) * keys.norm(dim=-1, keepdim=True).mT
    return query @ keys.mT / (lengths + 0.01)


def examine_without_arrangement(softmax):
    for dim in range(-3, 3):
        x = torch.arange(30.0).view(2, 3, 5).sin() * 3
        torch.testing.assert_close(softmax(x.clone(), dim), x.softmax(dim))


SUBTLE = {
    "softmax": [tables_alone, negative_axis_misread, guarded_sum, float32_at_all_times, infinite_as_lowest],
    "soft_lookup": [two_axes_alone, cool_only_from_one, remembers_temperature, no_gradient_for_keys],
    "kernel_regression": [wide_bells_alone],
    "additive_scores": [one_axis_in_front, vector_detached],
    "cosine_scores": [square_mended_alone],
    "examine_softmax": [examine_without_arrangement],
}
