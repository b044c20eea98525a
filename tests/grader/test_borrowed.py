"""What an answer in a notebook takes from other cells."""

import linecache

import pytest

from mha_course.grader.borrowed import borrowed


@pytest.fixture
def notebook():
    """Run cells as a notebook does, each compiled under a name of its own, and return what they define."""
    namespace = {"__name__": "__main__"}

    def run(*cells):
        for number, source in enumerate(cells):
            name = f"<cell {number} of {id(namespace)}>"
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            exec(compile(source, name, "exec"), namespace)
        return namespace

    return run


@pytest.mark.parametrize(
    "answer",
    [
        "def f(x): return x * scale",
        "def f(x): return [y * scale for y in x]",
        "def f(x):\n    def inner(): return scale\n    return inner()",
        "class f:\n    def forward(self, x): return x * scale",
        "class f:\n    @property\n    def size(self): return scale",
        "class f:\n    @staticmethod\n    def size(): return scale",
    ],
)
def test_a_value_of_another_cell_is_named_wherever_it_is_used(notebook, answer):
    assert borrowed(notebook("import torch\nscale = 3", answer)["f"]) == ("scale",)


def test_a_value_that_a_helper_of_another_cell_uses_is_named_too(notebook):
    cells = notebook("width = 4", "def helper(x): return x * width", "def f(x): return helper(x)")
    assert borrowed(cells["f"]) == ("width",)


@pytest.mark.parametrize(
    "cells",
    [
        ("scale = 3\ndef f(x): return x * scale",),
        ("SCALE = 3", "def f(x): return x * SCALE"),
        ("import torch", "def f(x): return torch.abs(x)"),
        ("def helper(x): return x", "def f(x): return helper(x)"),
        ("scale = 3", "def f(x, scale=2): return x * scale"),
        ("scale = 3", "def f(x): return x * missing"),
        ("scale = 3", "def f(x): return f(x - 1) if x else len(str(x))"),
    ],
)
def test_what_is_set_beside_it_or_is_no_plain_value_is_not_named(notebook, cells):
    assert borrowed(notebook(*cells)["f"]) == ()


def test_what_has_no_code_of_python_borrows_nothing():
    assert borrowed(print) == ()
    assert borrowed(int) == ()
