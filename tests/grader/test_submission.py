"""What a learner hands in is read without being run, and of it only what one answer needs is chosen to run."""

import json
import os

import pytest

from mha_course.grader.names import is_stub, uses
from mha_course.grader.plan import plan
from mha_course.grader.source import parse
from mha_course.grader.submission import CODE_LIMIT, FILE_LIMIT, read

HEADS = "def split_heads(x, num_heads):\n    return x\n"


def notebook(*cells):
    found = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
    return json.dumps({"cells": found, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def hand_in(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def labels(submission, name="split_heads"):
    return [cell.label for cell in plan(submission, name).cells]


@pytest.fixture
def book(tmp_path):
    def make(*cells):
        (tmp_path / "my.ipynb").write_text(notebook(*cells))
        return read(tmp_path / "my.ipynb")

    return make


def test_code_cells_are_counted_as_jupyter_counts_them(tmp_path):
    cells = json.loads(notebook("import torch", "", HEADS))
    cells["cells"].insert(0, {"cell_type": "markdown", "source": ["# Heads"]})
    (tmp_path / "my.ipynb").write_text(json.dumps(cells))
    assert labels(read(tmp_path / "my.ipynb")) == ["cell 3"]


def test_a_source_in_lines_is_put_together(tmp_path):
    (tmp_path / "my.ipynb").write_text(notebook(["import torch\n", HEADS]))
    assert labels(read(tmp_path / "my.ipynb")) == ["cell 1"]


def test_only_cells_that_the_answer_needs_are_chosen(book):
    submission = book(
        "import torch\nfrom torch import nn",
        "import matplotlib.pyplot as plt",
        "x = train(1000)\nplt.imshow(x)",
        "def helper(x): return torch.relu(x) * SCALE",
        "SCALE = 2",
        "def split_heads(x, num_heads): return helper(x)",
        "check(split_heads)",
    )
    assert labels(submission) == ["cell 1", "cell 4", "cell 5", "cell 6"]


def test_a_local_variable_does_not_bring_in_a_cell_that_happens_to_use_its_name(book):
    submission = book("x = train()", "def split_heads(x, num_heads):\n    y = x\n    return y", "y = train()")
    assert labels(submission) == ["cell 2"]


def test_what_changes_the_answer_afterwards_runs_too(book):
    submission = book("def forward(self, x): return x", "class split_heads: pass", "split_heads.forward = forward")
    assert labels(submission) == ["cell 1", "cell 2", "cell 3"]


def test_a_star_import_runs_because_nobody_knows_what_it_binds(book):
    assert labels(book("from torch import *", "x = 1", HEADS)) == ["cell 1", "cell 3"]


def test_definitions_inside_if_and_try_and_by_assignment_are_found(book):
    submission = book(
        "if True:\n    def one(): pass", "try:\n    two = lambda: 2\nexcept Exception:\n    pass", "a = three = len"
    )
    assert [labels(submission, name) for name in ("one", "two", "three")] == [["cell 1"], ["cell 2"], ["cell 3"]]


def test_the_last_definition_wins_and_a_note_says_so(book):
    found = plan(book(HEADS, HEADS + "# again"), "split_heads")
    assert [cell.label for cell in found.cells] == ["cell 2"]
    assert found.notes == ("split_heads is defined 2 times (cell 1, line 1, cell 2, line 1); the last one counts",)


def test_a_name_that_is_defined_nowhere_has_no_plan(book):
    assert plan(book("split_heads.cache = 1\nfor merge_heads in []: pass"), "split_heads") is None


def test_a_cell_that_is_no_python_spoils_no_other(book):
    submission = book("def merge_heads(x:\n    return x", HEADS)
    assert submission.problems == ("cell 1 can't be read: line 1: '(' was never closed: def merge_heads(x:",)
    assert labels(submission) == ["cell 2"]
    assert plan(submission, "merge_heads").unreadable == submission.problems[0]


def test_of_a_good_and_a_broken_definition_the_good_one_counts(book):
    found = plan(book(HEADS, "def split_heads(x:"), "split_heads")
    assert not found.unreadable
    assert found.notes == ("cell 2 seems to define split_heads too, but can't be read",)


COMMANDS = """%matplotlib inline
files = !ls "it's
def f():
    '''
%not a command
    '''
    %timeit (
    return (5
% 3)
!pip install \\
    torch
f?
?f
last = 1"""


def test_commands_are_taken_out_of_a_notebook_and_lines_keep_their_numbers():
    source, tree, error = parse(COMMANDS, magics=True)
    assert error == ""
    assert [statement.lineno for statement in tree.body] == [1, 2, 3, 10, 12, 13, 14]
    assert "%not a command" in source
    assert "% 3)" in source


@pytest.mark.parametrize("cell", ["%%bash\nls | (", "%%html\n<b>bold</b>", "\n%%writefile x.py\n!"])
def test_a_cell_in_another_language_is_no_code(cell):
    assert parse(cell, magics=True)[0].strip() == ""


def test_the_rest_of_a_timed_cell_is_code():
    assert parse("%%time\nx = 1", magics=True)[0] == "\nx = 1"


def test_commands_in_a_python_file_are_an_error():
    assert parse("%matplotlib inline", magics=False)[2].startswith("line 1: invalid syntax")


def test_modules_of_a_folder_are_served_and_are_no_answers(tmp_path):
    hand_in(
        tmp_path,
        {
            "bug.py": "import reference as ref\ndef split_heads(x, n): return ref.split_heads(x, n)",
            "reference.py": HEADS + "from pkg.tools import y",
            "pkg/tools.py": "from .more import z\ny = 1",
            "pkg/more.py": "z = 1",
        },
    )
    submission = read(tmp_path)
    found = plan(submission, "split_heads")
    assert [cell.label for cell in found.cells] == ["bug.py"]
    assert set(found.modules) == {"reference", "pkg", "pkg.tools", "pkg.more"}
    assert found.modules["pkg"].is_package
    assert submission.notes == ()


def test_an_answer_that_is_imported_within_a_folder_is_found(tmp_path):
    submission = read(hand_in(tmp_path, {"main.py": "import answer\nanswer.split_heads", "answer.py": HEADS}))
    found = plan(submission, "split_heads")
    assert [cell.label for cell in found.cells] == ["answer.py"]
    assert found.notes == ("split_heads is taken from answer.py, which another file imports",)


def test_files_beside_a_single_file_are_served_where_it_imports_them_and_a_note_says_so(tmp_path):
    hand_in(
        tmp_path,
        {
            "bug.py": "import reference\n" + HEADS,
            "reference.py": "import deeper",
            "deeper.py": "",
            "random.py": "",
            "other.py": "def merge_heads(x): return x",
        },
    )
    submission = read(tmp_path / "bug.py")
    assert set(plan(submission, "split_heads").modules) == {"reference"}
    assert submission.notes == (
        "bug.py imports reference.py, which lies beside it",
        "reference.py imports deeper.py, which lies beside it",
    )
    assert plan(submission, "merge_heads") is None


def test_no_file_takes_the_place_of_an_installed_module(tmp_path):
    hand_in(tmp_path, {"bug.py": "import torch, random\n" + HEADS, "torch.py": "", "random.py": ""})
    assert read(tmp_path / "bug.py").modules == {}


def test_a_sibling_that_a_file_imports_counts_in_its_digest(tmp_path):
    hand_in(tmp_path, {"bug.py": "import reference\n" + HEADS, "reference.py": "x = 1", "other.py": ""})
    before = read(tmp_path / "bug.py").digest
    (tmp_path / "other.py").write_text("changed")
    assert read(tmp_path / "bug.py").digest == before
    (tmp_path / "reference.py").write_text("x = 2")
    assert read(tmp_path / "bug.py").digest != before


def test_files_of_a_folder_do_not_share_their_names(tmp_path):
    submission = read(
        hand_in(tmp_path, {"a.ipynb": notebook("HEADS = 8"), "b.ipynb": notebook("split_heads = lambda: HEADS")})
    )
    assert labels(submission) == ["b.ipynb cell 1"]


def test_what_tools_leave_behind_is_passed_over(tmp_path):
    hand_in(
        tmp_path,
        {
            "a.py": HEADS,
            ".ipynb_checkpoints/a.py": "",
            "__pycache__/b.py": "",
            ".hidden.py": "",
            "env/pyvenv.cfg": "",
            "env/lib/c.py": "",
            "notes.txt": "",
            "deep/" * 7 + "d.py": "",
        },
    )
    assert [cell.label for cell in read(tmp_path).cells] == ["a.py"]


def test_a_link_that_leads_elsewhere_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    hand_in(outside, {"secret.py": HEADS})
    hand_in(inside, {"a.py": "import secret\n" + HEADS})
    (inside / "secret.py").symlink_to(outside / "secret.py")
    (inside / "folder").symlink_to(outside)
    submission = read(inside)
    assert submission.modules == {}
    assert submission.problems == (
        "folder is a link to a folder; hand in the folder itself",
        "secret.py is a link that leads elsewhere; hand in the file itself",
    )
    assert not submission.is_complete


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    assert read(tmp_path / "pipe.py").problems == ("pipe.py is not an ordinary file",)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.py", b" " * (FILE_LIMIT + 1), "a.py is larger than 20 MB"),
        ("a.py", b"x" * (CODE_LIMIT + 1), "a.py holds more than 500,000 characters of code"),
        ("a.ipynb", b"\xff", "a.ipynb is not valid UTF-8 (byte 0)"),
        (
            "a.ipynb",
            b'{"cells": [{"cell_type": "code", "source": [1]}]}',
            "has a cell (number 1) whose source is not text",
        ),
        ("a.ipynb", b'{"cells": [7, {"cell_type": "code"}]}', "a.ipynb holds no code"),
        ("a.ipynb", b'{"worksheets": []}', "no list of cells"),
        ("a.txt", b"x = 1", "a.txt is neither a notebook (.ipynb) nor a Python file (.py)"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem_in_one_sentence(tmp_path, name, data, problem):
    (tmp_path / name).write_bytes(data)
    (found,) = read(tmp_path / name).problems
    assert problem in found


def test_an_empty_folder_is_a_problem(tmp_path):
    assert read(tmp_path).problems == ("there is no code in it: hand in a notebook (.ipynb) or a Python file (.py)",)


def test_a_file_may_declare_its_encoding(tmp_path):
    (tmp_path / "a.py").write_bytes("# coding: latin-1\nname = 'é'".encode("latin-1"))
    assert "é" in read(tmp_path / "a.py").cells[0].source


STUBS = [
    "def f(x): pass",
    "def f(x): ...",
    "def f(x):\n    '''Words.'''",
    "def f(x):\n    '''Words.'''\n    raise NotImplementedError",
    "def f(x):\n    width = x.size(1)\n    raise NotImplementedError('yours')",
    "f = None",
    "class f(nn.Module):\n    '''Words.'''",
    "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n        raise NotImplementedError\n    def forward(self, x):\n        raise NotImplementedError",
]
ANSWERS = [
    "def f(x): return None",
    "def f(x):\n    if x is None:\n        return 1\n    raise NotImplementedError",
    "def f(x):\n    raise NotImplementedError\n    return x",
    "def f(x): raise ValueError",
    "f = 4",
    "class f(Base): pass",
    "class f(ref.Module): pass",
    "class f(Base):\n    def __init__(self):\n        super().__init__(8, heads=2)",
    "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n    forward = given",
    "class f(nn.Module, metaclass=Filled): pass",
    "@filled\nclass f: pass",
    "@filled\ndef f(x): ...",
    "class f(nn.Module):\n    def __init__(self):\n        self.x = 1\n    def forward(self, x):\n        raise NotImplementedError",
]


@pytest.mark.parametrize(("code", "expected"), [*((c, True) for c in STUBS), *((c, False) for c in ANSWERS)])
def test_an_empty_task_is_told_from_an_answer(code, expected):
    assert is_stub(parse(code, magics=False)[1].body[0]) is expected


def test_a_refusal_left_above_code_is_noted_with_its_line(book):
    found = plan(
        book("class split_heads:\n    def f(self):\n        raise NotImplementedError()\n        return 1"),
        "split_heads",
    )
    assert found.notes == ("cell 1, line 3: `raise NotImplementedError` stands above code and keeps it from running",)


def test_imports_of_the_course_count_only_where_the_answer_needs_them(book):
    submission = book(
        "from mha_course.multi_head import split_heads as theirs, merge_heads\nimport mha_course.encoder",
        "from mha_course.notebook import check",
        HEADS,
        "check(split_heads, theirs)",
        "def merge(x): return merge_heads(x)",
        "def inner(x):\n    from mha_course import encoder\n    return encoder",
    )
    assert plan(submission, "split_heads").course_imports == ()
    (found,) = plan(submission, "merge").course_imports
    assert (found.module, found.name, found.where) == ("mha_course.multi_head", "merge_heads", "cell 1, line 1")
    (found,) = plan(submission, "inner").course_imports
    assert (found.module, found.name, found.where) == ("mha_course", "encoder", "cell 6, line 2")


def test_a_module_of_the_learner_s_that_imports_the_course_is_seen(tmp_path):
    hand_in(tmp_path, {"a.py": "import mine\n" + HEADS, "mine.py": "from mha_course import multi_head", "idle.py": ""})
    (found,) = plan(read(tmp_path), "split_heads").course_imports
    assert found.where == "mine.py, line 1"


def test_globals_are_told_from_locals():
    code = "@d\ndef f(a=b, *c):\n    global g\n    e = [h for h in a]\n    def i(): return j, e\n    return k"
    assert uses(parse(code, magics=False)[1].body[0]) == {"d", "b", "g", "j", "k"}


def test_an_empty_task_after_a_finished_one_does_not_win_and_does_not_run(book, tmp_path):
    found = plan(
        book("y = split_heads\n" + HEADS, "z = y\ndef split_heads(x, num_heads):\n    pass\ny = 2"), "split_heads"
    )
    assert [cell.label for cell in found.cells] == ["cell 1"]
    assert not found.is_stub
    assert found.notes[0].endswith("the last one that is not empty counts")
    found = plan(book(HEADS + "def split_heads(x, n): ...  # yours\ny = 2"), "split_heads")
    assert found.cells[0].source.split("\n")[2:] == ["pass", "y = 2"]
    hand_in(tmp_path / "ann", {"hw.py": HEADS, "hw_original.py": "def split_heads(x, num_heads): pass"})
    found = plan(read(tmp_path / "ann"), "split_heads")
    assert ([cell.label for cell in found.cells], found.is_stub) == (["hw.py"], False)


def test_a_finished_and_an_empty_definition_in_one_statement_are_no_error(book):
    found = plan(book("if x:\n    def split_heads(): return 1\nelse:\n    def split_heads(): pass"), "split_heads")
    assert not found.is_stub


@pytest.mark.parametrize(
    "change",
    [
        "@add_to_class(split_heads)\ndef forward(self, x): return x",
        "@patch\ndef forward(self: split_heads, x): return x",
        "@patch()\ndef forward(self: 'split_heads', x): return x",
        "def forward(self, x): return x\nsetattr(split_heads, 'forward', forward)",
        "for f in (len,):\n    setattr(split_heads, f.__name__, f)",
    ],
)
def test_a_class_that_other_cells_fill_is_no_empty_task_and_they_run(book, change):
    found = plan(book("from torch import nn\nclass split_heads(nn.Module):\n    pass", change, "x = 1"), "split_heads")
    assert not found.is_stub
    assert [cell.label for cell in found.cells] == ["cell 1", "cell 2"]


def test_a_notebook_keeps_what_one_cell_took_from_the_future(book):
    found = plan(book("from __future__ import annotations", HEADS, "from __future__ import division"), "split_heads")
    assert found.program({})["cells"] == [{"label": "cell 2", "source": HEADS, "futures": ["annotations"]}]


def test_a_folder_named_like_the_course_is_passed_over(tmp_path):
    submission = read(hand_in(tmp_path, {"hw.py": "x = 1", "a/mha_course/multi_head.py": HEADS}))
    assert plan(submission, "split_heads") is None
    assert submission.notes == ("a/mha_course is passed over: it is named like the course itself",)


@pytest.mark.parametrize(
    "source",
    [
        "from ann2 import split_heads",
        "from ann2 import split_heads as s\nsplit_heads = s",
        "import ann2\nsplit_heads = ann2.split_heads",
    ],
)
def test_what_a_file_beside_the_submission_defines_is_no_answer(tmp_path, source):
    hand_in(tmp_path, {"ann.py": source, "ann2.py": HEADS})
    found = plan(read(tmp_path / "ann.py"), "split_heads")
    assert found.unreadable == "ann.py takes split_heads from a file beside it, which is no part of what was handed in"


def test_a_class_built_on_one_from_a_file_beside_it_is_an_answer(tmp_path):
    source = "import ref\nclass split_heads(ref.split_heads):\n    def __init__(self): super().__init__()"
    hand_in(tmp_path, {"ann.py": source, "ref.py": "class split_heads: pass"})
    found = plan(read(tmp_path / "ann.py"), "split_heads")
    assert (found.unreadable, found.is_stub, set(found.modules)) == ("", False, {"ref"})


def test_a_class_attribute_may_take_the_name_of_what_it_is_made_of(book):
    found = book("def helper(x): return x", "class split_heads:\n    helper = staticmethod(helper)")
    assert labels(found) == ["cell 1", "cell 2"]


def test_a_loop_that_borrows_the_answer_s_name_does_not_run(book):
    assert labels(book(HEADS, "for split_heads in (split_heads, None):\n    print(split_heads)")) == ["cell 1"]


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        (["def split_heads(x, num_heads): return x * scale"], "cell 1 uses `scale`, which no cell sets"),
        (
            ["def helper(x): return x * scale", "def split_heads(x, num_heads): return helper(x)"],
            "cell 1 uses `scale`, which no cell sets",
        ),
        (
            ["def split_heads(x, num_heads): return x * scale", "scale = 3"],
            "cell 1 uses `scale`, which only cell 2, below it, sets",
        ),
    ],
)
def test_what_a_fresh_run_would_not_find_is_said(book, cells, note):
    assert any(note in found for found in plan(book(*cells), "split_heads").notes)


@pytest.mark.parametrize(
    "cells",
    [
        ["scale = 3", "def split_heads(x, num_heads): return x * scale"],
        ["def split_heads(x, num_heads): return len(x) and display(__name__)"],
        ["from torch import *", "def split_heads(x, num_heads): return relu(x)"],
        ["def split_heads(x, num_heads):\n    inner = 1\n    return [inner for y in x]"],
        ["class split_heads:\n    size = 3\n    def __init__(self): self.x = __class__"],
        [
            "def split_heads(x, num_heads):\n    try:\n        return x\n    except ValueError as error:\n        raise error"
        ],
    ],
)
def test_what_a_fresh_run_finds_is_not_said(book, cells):
    assert plan(book(*cells), "split_heads").notes == ()
