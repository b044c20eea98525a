"""Learner code runs apart, under protections that are tried out before they are claimed, and nothing of it stays."""

import contextlib
import os
import time
from pathlib import Path

import pytest
import torch

from mha_course.exercises.exercise import Call, Case
from mha_course.grader import isolation
from mha_course.grader.protections import CLAIMS
from mha_course.grader.sandbox import Sandbox, SandboxError
from mha_course.grader.verdicts import Crashed, TimedOut

MEMORY = 2**30
ALL = tuple(claim.format(memory=1) for claim in CLAIMS.values())
WAYS = {name: (name, command, is_private) for name, command, is_private in isolation.ways()}


def program(*sources, name="f", modules=(), course=(), path=""):
    cells = [{"label": f"cell {number}", "source": source} for number, source in enumerate(sources, start=1)]
    return {"name": name, "cells": cells, "path": path, "modules": dict(modules), "course": dict(course)}


def case(*args):
    return Case("", "", (Call(args),)).message()


def ask(sandbox, *sources, seconds=20, args=(), **more):
    with sandbox.open(program(*sources, **more), seconds) as child:
        reply = child.request(case(*args))
        assert reply["error"] is None, reply["error"]
        return reply["results"][0]["output"]


@pytest.fixture(scope="module", params=["bubblewrap", "unshare", "process"])
def sandbox(request, tmp_path_factory):
    if request.param not in WAYS:
        pytest.skip(f"this machine has no {request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mha_course.grader.sandbox.ways", lambda: [WAYS[request.param]])
        with Sandbox([tmp_path_factory.mktemp("hidden")], memory=MEMORY) as started:
            yield started


def test_what_is_claimed_was_tried(sandbox):
    held = {"bubblewrap": ALL, "unshare": ALL, "process": ("own process group", "memory 1 GiB")}[sandbox.way]
    assert set(held) <= set(sandbox.protections) <= set(ALL)


def test_values_go_in_and_come_out(sandbox):
    output = ask(sandbox, "def f(x): return x.T, 'text', None", args=(torch.arange(6).reshape(2, 3),))
    assert output[0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert output[1:] == ("text", None)


def test_a_statement_that_fails_is_noted_and_the_next_one_runs(sandbox):
    cells = ("import nowhere\nx = 2", "1 / 0\nraise SystemExit\ndef f(): return x")
    with sandbox.open(program(*cells), 20) as child:
        found = [(error["type"], error["where"], error["code"]) for error in child.loaded["errors"]]
        assert child.request(case())["results"][0]["output"] == 2
    assert found == [
        ("ModuleNotFoundError", "cell 1, line 1", "import nowhere"),
        ("ZeroDivisionError", "cell 2, line 1", "1 / 0"),
        ("SystemExit", "cell 2, line 2", "raise SystemExit"),
    ]


@pytest.mark.parametrize(
    ("source", "kind"), [("def f(): pass", "function"), ("class f: pass", "class"), ("f = 4", "other")]
)
def test_the_kind_of_what_was_defined_is_told(sandbox, source, kind):
    with sandbox.open(program(source), 20) as child:
        assert child.loaded == {"loaded": True, "kind": kind, "errors": []}


def test_nothing_of_the_name_is_told(sandbox):
    with sandbox.open(program("g = 1"), 20) as child:
        assert not child.loaded["loaded"]


def test_a_future_import_holds_for_the_rest_of_its_cell(sandbox):
    source = "from __future__ import annotations\nimport torch\ndef f(x: nowhere): return f.__annotations__['x']"
    assert ask(sandbox, source, args=(1,)) == "nowhere"


def test_a_future_of_an_earlier_cell_holds_too(sandbox):
    cells = [{"label": "cell 2", "source": "def f(x: nowhere = 3): return x", "futures": ["annotations"]}]
    with sandbox.open({**program(), "cells": cells}, 20) as child:
        assert child.loaded["errors"] == []


def test_files_of_the_submission_are_served_without_lying_there(sandbox):
    tools = {
        "label": "tools.py",
        "source": "import pathlib\nplace = pathlib.Path(__file__).name",
        "path": "/submission/tools.py",
    }
    modules = {"tools": {**tools, "is_package": False}}
    source = "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))\nimport tools\ndef f(): return tools.place, __name__"
    assert ask(sandbox, source, modules=modules, path="/submission/a.py") == ("tools.py", "__graded__")


def test_of_the_course_a_child_gets_what_it_is_given_and_a_check_that_does_nothing(sandbox):
    source = """
from mha_course import check, hint
from mha_course.notebook import check
from mha_course.self_attention import scores
def f():
    check(f)
    try:
        import mha_course.multi_head
    except ImportError as error:
        return scores, str(error)
"""
    course = {"mha_course.self_attention": "scores = 3"}
    expected = (3, "mha_course.multi_head can't be used in this answer: write that part yourself")
    assert ask(sandbox, source, course=course) == expected


def test_a_child_learns_nothing_from_the_environment(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "1234")
    with Sandbox() as fresh:
        names = ask(fresh, "import os\ndef f(): return list(os.environ)")
    assert "SECRET_TOKEN" not in names
    assert len(names) < 20


def test_only_standard_files_and_one_socket_are_open(sandbox):
    source = """
import os
def f():
    found = []
    for number in range(999):
        try:
            os.fstat(number)
            found.append(number)
        except OSError:
            pass
    return found
"""
    assert ask(sandbox, source) == [0, 1, 2, 3]


def test_one_child_leaves_nothing_to_the_next(sandbox):
    source = "import os, pathlib\ndef f(): return [p.name for p in pathlib.Path(os.environ['HOME']).iterdir()]"
    leave = "import os, pathlib\nfor n in 'ab':\n    (pathlib.Path(os.environ['HOME']) / n).mkdir()\n" + source
    assert sorted(ask(sandbox, leave)) == ["a", "b"]
    assert ask(sandbox, source) == []


def test_a_child_has_one_clock_for_all_it_does(sandbox):
    with sandbox.open(program("import time\ndef f(seconds): time.sleep(seconds)"), 20) as child:
        deadline = child._deadline
        child.request(case(0))
        assert child._deadline == deadline
        child._deadline = started = time.monotonic() + 0.2
        with pytest.raises(TimedOut):
            child.request(case(99))
    assert time.monotonic() < started + 10


def test_a_child_that_does_not_read_is_not_waited_for(sandbox):
    source = """
import os, signal, threading
def f(x): threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
"""
    with sandbox.open(program(source), 20) as child:
        child.request(case(0))
        time.sleep(0.5)
        child._deadline = started = time.monotonic() + 0.5
        with pytest.raises(TimedOut):
            child.request(case(torch.zeros(10**7)))  # more than a socket holds
    assert time.monotonic() < started + 10


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\ndef f(): os._exit(3)", "exit code 3"),
        ("import ctypes\ndef f(): ctypes.string_at(0)", r"signal 11 \(segmentation fault\)"),
        ("import os\ndef f(): os.write(3, b'\\xff' * 99)", "not a plain value"),
        ("import os\ndef f(): os.write(3, b'\\0\\0\\0\\x09' + b'\\0\\0\\0\\x05[1,2]')", "not a plain value"),
        ("import os, time\ndef f():\n    os.close(3)\n    time.sleep(9)", "closed its connection"),
        ("import os\ndef f(): os.kill(os.getpid(), 9)", "was killed"),
    ],
)
def test_how_a_child_ended_is_told(sandbox, source, reason):
    with sandbox.open(program(source), 20) as child, pytest.raises(Crashed, match=reason):
        child.request(case())
    assert ask(sandbox, "def f(): return 7") == 7


def test_a_child_that_uses_up_its_processor_time_has_timed_out(sandbox):
    with sandbox.open(program("def f():\n    while True: pass"), 1) as child:
        child._deadline += 60
        with pytest.raises(TimedOut):
            child.request(case())


def test_a_sandbox_whose_zygote_was_killed_starts_another(sandbox):
    assert ask(sandbox, "def f(): return 7") == 7
    sandbox._process.kill()
    sandbox._process.wait()
    assert ask(sandbox, "def f(): return 7") == 7


@pytest.mark.parametrize(
    "attack",
    [
        *(
            f"import resource\nresource.prlimit(os.getppid(), resource.RLIMIT_{kind}, ({limit}, {limit}))"
            for kind, limit in (("AS", 2**28), ("STACK", 2**16), ("NOFILE", 3))
        ),
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "os.sched_setaffinity(os.getppid(), [max(os.sched_getaffinity(0))])",
    ],
)
def test_a_child_changes_no_limits_of_the_next(sandbox, attack):
    state = """
import os, resource
def f():
    kinds = sorted({v for k, v in vars(resource).items() if k.startswith("RLIMIT_") and k != "RLIMIT_AS"})
    limits = [resource.getrlimit(kind) for kind in kinds]
    return repr((limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)))
"""
    before = ask(sandbox, state)
    with contextlib.suppress(Crashed, AssertionError):
        ask(sandbox, f"import os\n{attack}\ndef f(): pass")
    assert ask(sandbox, state) == before


def test_a_zygote_that_is_killed_under_a_child_is_the_child_s_doing(sandbox):
    with sandbox.open(program("import time\ndef f(): time.sleep(9)"), 20) as child:
        sandbox._process.kill()
        with pytest.raises(Crashed, match="ended the process that watches over it"):
            child.request(case())
    assert ask(sandbox, "def f(): return 7") == 7


def test_nothing_is_left_when_a_sandbox_is_closed():
    with Sandbox() as started:
        child = started.open(
            program("import ctypes, time\nctypes.CDLL(None).prctl(15, b'mha-left')\ndef f(): time.sleep(99)"), 99
        )
        assert named("mha-left") == 1
    child.close()
    deadline = time.monotonic() + 5
    while named("mha-left") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert named("mha-left") == 0


def named(name):
    found = 0
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            found += path.read_text().strip() == name
    return found


def test_where_the_stronger_ways_fail_the_weaker_ones_are_taken(monkeypatch):
    broken = ("bubblewrap", lambda command, scratch: ["false"], True)
    monkeypatch.setattr("mha_course.grader.sandbox.ways", lambda: [broken, WAYS["process"]])
    with Sandbox() as started:
        assert ask(started, "def f(): return 7") == 7
        assert started.way == "process"
        assert "read-only disk" not in started.protections or os.geteuid() != 0


def test_where_no_way_is_left_the_last_words_are_told(monkeypatch):
    broken = ("process", lambda command, scratch: ["sh", "-c", "echo no such thing >&2; exit 1"], True)
    monkeypatch.setattr("mha_course.grader.sandbox.ways", lambda: [broken])
    with Sandbox() as started, pytest.raises(SandboxError, match="no such thing"):
        started.open(program("f = 1"), 20)


def test_ways_are_those_that_the_path_holds(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert [name for name, _, _ in isolation.ways()] == ["process"]
