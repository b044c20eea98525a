"""Ways in which exercise graders have failed their users in public, each tried on this one."""

import json
import re

import pytest
import torch
from torch import nn

from mha_course.exercises import load
from mha_course.exercises.multi_head.styles import Fused
from mha_course.exercises.notebooks import solution_cells
from mha_course.exercises.stubs import PLACEHOLDER, solution
from mha_course.grader.gradebook import grade
from mha_course.notebook import check

RIGHT = solution(solution_cells()["merge_heads"])
WRONG = "def merge_heads(x):\n    return x.reshape(x.size(0), x.size(2), -1)"


def notebook(*cells):
    found = [{"cell_type": "code", "source": cell, "metadata": {"name": "same"}, "outputs": []} for cell in cells]
    return json.dumps({"cells": found, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})


ENDLESS = "import time\ndef merge_heads(x):\n    time.sleep(999)"
CONSTANTS = ["torch.zeros(2, 3, 4)", "x", "x * 0", "False", "[]", "x.transpose(1, 2)"]
EMPTY_BODIES = ["pass", '"""Merge."""', "...", PLACEHOLDER]
RAISED = {
    "KeyboardInterrupt": "failed",
    "SystemExit(0)": "crashed",
    "type('Mine', (BaseException,), {})()": "failed",
}
SWALLOWED = [
    "def merge_heads(x):\n    print('AssertionError: wrong')\n    return x",
    "def merge_heads(x):\n    try:\n        assert False\n    except AssertionError:\n        return x",
]
TRICKS = [
    "class Yes(torch.Tensor):\n    __eq__ = allclose = lambda *_: True\n"
    "    @classmethod\n    def __torch_function__(cls, *_, **__): return True\n"
    "def merge_heads(x): return torch.zeros(1).as_subclass(Yes)",
    "torch.allclose = torch.equal = torch.testing.assert_close = lambda *_, **__: True\ndef merge_heads(x): return x",
    "from IPython.core.interactiveshell import InteractiveShell\n"
    "InteractiveShell.showtraceback = lambda *_, **__: None\ndef merge_heads(x): raise ValueError",
]
EMPTY = ["", " \n\t", "merge_heads = None", "class merge_heads: pass", "def merge_heads(): return 1"]
LEFTOVER = RIGHT.replace("    batch,", f"    {PLACEHOLDER}\n    batch,", 1)
PRINTING = "def merge_heads(x):\n    while True:\n        print('weights' * 9999)"
SUMMED = "def merge_heads(x):\n    return x.sum(dim=1)"

# All of a class's answers to `merge_heads`.
HANDED_IN = [
    RIGHT,
    WRONG,
    ENDLESS,
    notebook("import torch", RIGHT),
    notebook(RIGHT, WRONG),
    notebook(WRONG, RIGHT),
    *(f"import torch\ndef merge_heads(x):\n    return {constant}" for constant in CONSTANTS),
    *(f"def merge_heads(x):\n    {body}" for body in EMPTY_BODIES),
    *(f"def merge_heads(x):\n    raise {raised}" for raised in RAISED),
    *SWALLOWED,
    *(f"import torch\n{trick}" for trick in TRICKS),
    *EMPTY,
    notebook(LEFTOVER),
    PRINTING,
    SUMMED,
]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Grade the class once, and return what an answer got; `again` says how many a second run grades."""
    folder, out = (tmp_path_factory.mktemp(name) for name in ("class", "results"))
    for number, text in enumerate(HANDED_IN):
        (folder / f"{number:03}{'.ipynb' if text.startswith('{') else '.py'}").write_text(text, "utf-8")
    settings = {"only": ["merge_heads"], "jobs": 1, "seconds": 4, "report": lambda line: None}
    records = grade(folder, out, **settings).records

    def result(text):
        return records[f"{HANDED_IN.index(text):03}"]["exercises"]["merge_heads"]

    result.again = lambda: grade(folder, out, **settings).graded
    return result


def test_a_notebook_whose_check_cell_was_deleted_is_graded_all_the_same(graded):
    """https://github.com/jupyter/nbgrader/issues/1682."""
    assert graded(notebook("import torch", RIGHT))["verdict"] == "passed"


@pytest.mark.parametrize(("first", "last", "expected"), [(RIGHT, WRONG, "failed"), (WRONG, RIGHT, "passed")])
def test_of_a_cell_that_was_pasted_twice_the_last_counts_and_that_is_said(graded, first, last, expected):
    """https://github.com/jupyter/nbgrader/issues/1083."""
    found = graded(notebook(first, last))
    assert found["verdict"] == expected
    assert "merge_heads is defined 2 times (cell 1, line 1, cell 2, line 1); the last one counts" in found["message"]


def test_one_that_never_ends_costs_nobody_else_a_mark(graded):
    """https://github.com/ucbds-infra/otter-grader/issues/813."""
    assert [graded(text)["verdict"] for text in (RIGHT, ENDLESS, WRONG)] == ["passed", "timed_out", "failed"]


def test_a_slow_answer_is_stored_as_too_slow_and_not_graded_again_for_ever(graded):
    """https://github.com/jupyter/nbgrader/issues/1033."""
    assert graded(ENDLESS)["verdict"] == "timed_out"
    assert graded.again() == 0


def test_no_frozen_numbers_are_compared_so_other_precision_and_other_seeds_pass():
    """https://github.com/DareData/lp-pytorch-fundamentals/issues/8."""

    def scaled_dot_product_attention(query, key, value, mask=None):
        q, k, v = (x.double() for x in (query, key, value))
        output, weights = load("scaled_dot_product_attention").reference(q, k, v, mask)
        return output.to(query.dtype), weights.to(query.dtype)

    for seed in (0, 1, 12345, -7):
        assert check(scaled_dot_product_attention, seed=seed).verdict.verdict == "passed"


def test_a_layer_may_make_its_parts_in_another_order_or_as_views_of_one():
    """https://github.com/neetcode-gh/leetcode/issues/5140."""

    class MultiHeadAttention(load("MultiHeadAttention").reference):
        def __init__(self, d_model, num_heads, dropout=0.0):
            torch.manual_seed(99)
            super().__init__(d_model, num_heads, dropout)
            for name in ("v_proj", "out_proj", "k_proj", "q_proj"):
                setattr(self, name, nn.Linear(d_model, d_model))

    assert check(MultiHeadAttention).verdict.verdict == "passed"
    Fused.__name__ = "MultiHeadAttention"
    assert check(Fused).verdict.verdict == "passed"


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_or_the_input_is_no_answer(graded, constant):
    """https://github.com/kaist-cp/cs420/issues/213."""
    found = graded(f"import torch\ndef merge_heads(x):\n    return {constant}")
    assert (found["verdict"], found["points"]) == ("failed", 0)


@pytest.mark.parametrize("body", EMPTY_BODIES)
def test_an_empty_body_is_no_answer(graded, body):
    """https://github.com/learnpack/learnpack/issues/207."""
    found = graded(f"def merge_heads(x):\n    {body}")
    assert (found["verdict"], found["points"]) == ("not_attempted", 0)


@pytest.mark.parametrize(("raised", "verdict"), RAISED.items())
def test_whatever_is_raised_is_no_pass(graded, raised, verdict):
    """https://github.com/PremierLangage/premierlangage/issues/44."""
    found = graded(f"def merge_heads(x):\n    raise {raised}")
    assert (found["verdict"], found["points"]) == (verdict, 0)


def test_an_answer_that_fails_in_every_part_gets_exactly_nothing(graded):
    """https://github.com/jupyter/nbgrader/issues/1339."""
    found = graded("import torch\ndef merge_heads(x):\n    return x")
    assert found["points"] == 0
    assert type(found["points"]) in (int, float)


def test_a_leftover_above_the_answer_is_named_by_its_line(graded):
    """https://github.com/jupyter/nbgrader/issues/1154."""
    line = LEFTOVER.splitlines().index(f"    {PLACEHOLDER}") + 1
    found = graded(notebook(LEFTOVER))
    assert found["verdict"] == "not_attempted" or found["points"] == 0
    assert f"cell 1, line {line}: `raise NotImplementedError` stands above code" in found["message"]


@pytest.mark.parametrize("wrong", SWALLOWED)
def test_errors_that_are_printed_or_swallowed_make_no_pass(graded, wrong):
    """https://github.com/jupyter/nbgrader/issues/1418."""
    assert graded(wrong)["verdict"] == "failed"


@pytest.mark.parametrize("trick", TRICKS)
def test_objects_that_equal_everything_and_patched_comparisons_make_no_pass(graded, trick):
    """https://github.com/genchang1234/How-to-cheat-in-computer-science-101/issues/8."""
    assert graded(f"import torch\n{trick}")["verdict"] == "failed"


def test_endless_printing_ends_and_the_message_says_what_to_remove(graded):
    """https://github.com/ipython/ipython/issues/6516."""
    found = graded(PRINTING)
    assert found["verdict"] == "failed"
    assert "remove its prints" in found["message"]


def test_heads_that_were_summed_and_not_kept_are_seen(graded):
    """https://github.com/TransformerLensOrg/TransformerLens/pull/666."""
    found = graded(SUMMED)
    assert found["verdict"] == "failed"
    assert re.search(r"the shape should be \(\d+, \d+, \d+\), but is", found["message"])


@pytest.mark.parametrize("empty", EMPTY)
def test_an_empty_or_misshapen_answer_gets_a_verdict_and_not_an_error(graded, empty):
    """https://github.com/rstudio/gradethis/issues/262."""
    found = graded(empty)
    assert found["verdict"] in ("failed", "not_attempted", "not_gradable")
    assert "Traceback" not in found["message"]


@pytest.mark.parametrize("number", [".5", "0.50", "5e-1", "1 / 2", "torch.tensor(0.5)", "torch.tensor(0.5).item()"])
def test_a_number_is_right_however_it_is_written(number):
    """https://github.com/RunestoneInteractive/httlads/issues/10; the course asks for no typed-in numbers."""
    from mha_course.grader.outcomes import same_values

    assert same_values(eval(number, {"torch": torch}), 0.5, 1e-6)


def test_a_right_answer_passes_every_time_also_one_that_draws_random_numbers():
    """https://github.com/fastai/fastai2/pull/379."""

    class MultiHeadAttention(load("MultiHeadAttention").reference):
        def forward(self, *inputs, **more):
            torch.manual_seed(int(torch.randint(1000, ()).item()))
            return super().forward(*inputs, **more)

    for seed in range(20):
        assert check(MultiHeadAttention, seed=seed).verdict.verdict == "passed"


def test_a_failed_check_shows_neither_the_right_result_nor_our_code(graded):
    """https://github.com/ucbds-infra/otter-grader/issues/495."""
    message = graded(WRONG)["message"]
    assert "tensor(" not in message
    assert "mha_course" not in message
    assert "transpose(1, 2)" not in message
