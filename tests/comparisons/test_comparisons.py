import importlib.util
from pathlib import Path

import pytest
import torch

from . import contestants, page
from .contest import FACTOR

ROOT = Path(__file__).parents[2]
EACH = [
    pytest.param(comparison, dtype, id=f"{comparison}, {page.name_of(dtype)}")
    for comparison in contestants.ALL
    for dtype in comparison.dtypes
]


@pytest.mark.parametrize(("comparison", "dtype"), EACH)
def test_results_and_gradients_agree_with_the_other_library(comparison, dtype):
    worst = {}
    for case in comparison.cases(dtype):
        ours, theirs = comparison.play(case)
        for name in ours:
            assert ours[name] <= comparison.tolerance[dtype], f"ours: {name} is off by {ours[name]:.1e} for {case}"
            assert theirs[name] <= comparison.tolerance[dtype], (
                f"theirs: {name} is off by {theirs[name]:.1e} for {case}"
            )
            seen = worst.get(name, (0.0, torch.finfo(dtype).eps))
            worst[name] = max(seen[0], ours[name]), max(seen[1], theirs[name])
    if comparison.has_right and dtype != torch.float64:
        for name, (ours, theirs) in worst.items():
            assert ours <= FACTOR * theirs, f"{name} is off by {ours:.1e}, that of the other library by {theirs:.1e}"


SLIPS = {  # what is put in place of what, and the object whose comparison sees it
    "scores over d_head, not its root": (
        "mha_course.self_attention.scaled_dot",
        lambda query, key: query @ key.mT / query.size(-1),
        "self_attention.scaled_dot_product_attention",
    ),
    "softmax along the queries": (
        "mha_course.self_attention.softmax",
        lambda scores, dim: torch.softmax(scores, dim=-2),
        "multi_head.MultiHeadAttention.with_weights",
    ),
    "no gradient through the weights": (
        "mha_course.self_attention.softmax",
        lambda scores, dim: torch.softmax(scores, dim=dim).detach(),
        "multi_head.multi_head_attention_loop",
    ),
    "interleaved heads": (
        "mha_course.multi_head.split_heads",
        lambda x, num_heads: x.unflatten(-1, (-1, num_heads)).movedim(-1, 1),
        "multi_head.MultiHeadAttention",
    ),
    "interleaved groups": (
        "mha_course.multi_head.share_groups",
        lambda x, num_heads: x.repeat(1, num_heads // x.size(1), 1, 1),
        "multi_head.MultiHeadAttention with num_groups",
    ),
    "True hides": (
        "mha_course.masks.to_attn_mask",
        lambda mask, batch, heads, queries: mask.expand(batch, heads, queries, -1).reshape(batch * heads, queries, -1),
        "masks.from_attn_mask, to_attn_mask",
    ),
    "a mask that shows the next token": (
        "mha_course.transformer.causal_mask",
        lambda length, total, device: torch.ones(length, total, dtype=torch.bool).tril(1),
        "transformer.LanguageModel",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_seen(slip, monkeypatch):
    place, wrong, seen_by = SLIPS[slip]
    comparison = next(one for one in contestants.ALL if one.ours == seen_by)
    monkeypatch.setattr(place, wrong)
    with pytest.raises(AssertionError, match=r"ours: .* is off by"):
        test_results_and_gradients_agree_with_the_other_library(comparison, torch.float64)


def test_the_page_of_the_book_says_what_the_tests_run():
    path = ROOT / "tools" / "comparisons.py"
    spec = importlib.util.spec_from_file_location("write_comparisons", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.TARGET.read_text("utf-8") == page.page(), "write it again: .venv/bin/python tools/comparisons.py"
