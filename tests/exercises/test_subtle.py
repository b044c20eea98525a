"""Wrong answers that are right almost everywhere: none may get full marks."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from mha_course.exercises import load
from mha_course.exercises.multi_head.MultiHeadAttention import Steps
from mha_course.grader.judging import judge
from mha_course.grader.worker import run_case
from mha_course.multi_head import MultiHeadAttention
from mha_course.self_attention import scaled_dot_product_attention


class OneTensorForAll(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query * 0 if query is key else query, key, value, mask)


class FusedByShape(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        key, value = (query, query) if query.shape == key.shape else (key, value)
        return super().forward(query, key, value, mask)


class KeepsItsMask(MultiHeadAttention):
    kept = None

    def forward(self, query, key, value, mask=None):
        self.kept = mask if self.kept is None else self.kept
        return super().forward(query, key, value, self.kept)


class KeepsItsMode(Steps):
    mode = None

    def drop(self, weights):
        self.mode = self.training if self.mode is None else self.mode
        return F.dropout(weights, self.dropout.p, self.mode)


class DetachedInSelfAttention(Steps):
    def weigh(self, q, k, mask):
        weights = super().weigh(q, k, mask)
        return weights.detach() if q.size(-2) == k.size(-2) else weights


class DetachedInTraining(Steps):
    def weigh(self, q, k, mask):
        weights = super().weigh(q, k, mask)
        return weights.detach() if self.training else weights


class OnlyFloat32(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query.float(), key.float(), value.float(), mask)


def dropping(drop):
    class Dropping(Steps):
        def drop(self, weights):
            return drop(weights, self.dropout.p) if self.training and self.dropout.p else weights

    return Dropping


def attending(change):
    def attention(query, key, value, mask=None):
        return change(query, key, value, mask)

    return attention


def square(query, key, value, mask):
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    return (output * 0, weights * 0) if query.size(-2) == key.size(-2) else (output, weights)


def first_mask(query, key, value, mask):
    return scaled_dot_product_attention(query, key, value, mask[0] if mask is not None and mask.dim() == 3 else mask)


def fill(number):
    def attention(query, key, value, mask):
        scores = query / query.size(-1) ** 0.5 @ key.transpose(-2, -1)
        weights = scores.softmax(-1) if mask is None else scores.masked_fill(~mask, number).softmax(-1) * mask
        return weights @ value, weights

    return attention


def detached_in_float64(query, key, value, mask):
    query = query.detach() if query.dtype == torch.float64 else query
    return scaled_dot_product_attention(query, key, value, mask)


def refusing(wrong, refused):
    def answer(x, *heads):
        if refused(x, *heads):
            raise RuntimeError
        return wrong(x, *heads)

    return answer


SUBTLE = {
    "MultiHeadAttention": [
        OneTensorForAll,
        FusedByShape,
        KeepsItsMask,
        KeepsItsMode,
        DetachedInSelfAttention,
        DetachedInTraining,
        OnlyFloat32,
        dropping(lambda w, p: torch.bernoulli(torch.full_like(w, p)) * w / p),
        dropping(lambda w, p: w * (torch.rand_like(w) > p) * 2),
        dropping(lambda w, p: F.dropout(w, 0.5)),
        dropping(lambda w, p: w * F.dropout(torch.ones(*w.shape[:2], 1, 1), p)),
        dropping(lambda w, p: w * F.dropout(torch.ones(w.size(0), 1, 1, 1), p)),
        dropping(lambda w, p: w * F.dropout(torch.ones(*w.shape[:2], 1, w.size(-1)), p)),
    ],
    "scaled_dot_product_attention": [
        attending(square),
        attending(first_mask),
        attending(fill(-600.0)),
        attending(fill(-20.0)),
        attending(detached_in_float64),
    ],
    "split_heads": [
        refusing(load("split_heads").reference, lambda x, heads: heads in (4, 8, 12)),
        refusing(load("split_heads").reference, lambda x, heads: x.size(0) > 6),
    ],
    "merge_heads": [refusing(load("merge_heads").reference, lambda x: x.size(1) in (4, 8, 12))],
}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(name, answer, id=f"{name}-{number}-{answer.__name__}")
        for name, answers in SUBTLE.items()
        for number, answer in enumerate(answers)
    ],
)
def test_an_answer_that_is_right_almost_everywhere_is_refused(name, answer):
    verdict = judge(load(name), partial(run_case, answer, is_learners=lambda filename: False), seed=0)
    assert verdict.verdict in ("failed", "partly"), verdict.message
    assert verdict.points < verdict.max_points
