"""A folder is graded once, resumes where it was killed, and no error of anybody's is ever a zero."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import mha_course
from mha_course.cli import main
from mha_course.grader import results
from mha_course.grader.gradebook import UsageError, grade
from mha_course.grader.sandbox import Sandbox
from mha_course.grader.verdicts import Verdict
from mha_course.grader.wire import encode

RIGHT = "def split_heads(x, num_heads):\n    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)\n"
WRONG = "def split_heads(x, num_heads):\n    return x\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox([Path(__file__).parent]) as started:
        yield started


@pytest.fixture(autouse=True)
def _one_sandbox_for_all(request, sandbox, monkeypatch):
    """Importing PyTorch takes longer than most of these tests."""
    if "own_sandboxes" not in request.fixturenames:
        monkeypatch.setattr("mha_course.grader.gradebook.Sandbox", lambda hidden: contextlib.nullcontext(sandbox))


@pytest.fixture
def own_sandboxes():
    """For a test that needs them fresh."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "submissions").mkdir()
    return tmp_path / "submissions"


@pytest.fixture
def run(folder, tmp_path):
    def call(where=folder, **more):
        lines = []
        settings = {"only": ["split_heads"], "jobs": 1, "report": lines.append, **more}
        summary = grade(where, tmp_path / "results", **settings)
        return summary, lines

    return call


def rows(tmp_path):
    with (tmp_path / "results" / "grades.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def verdicts(summary):
    return {name: record["exercises"]["split_heads"]["verdict"] for name, record in summary.records.items()}


def test_a_result_file_and_the_table_say_the_same(folder, run, tmp_path):
    (folder / "ann.py").write_text(RIGHT)
    summary, lines = run(judge=lambda exercise, run, seed: Verdict(exercise.name, "passed", 3.0, 3.0, "Right."))
    record = json.loads((tmp_path / "results" / "ann.json").read_text())
    assert record == summary.records["ann"]
    assert set(record) == {"submission", "seed", "protections", "key", "notes", "exercises"}
    assert set(record["exercises"]["split_heads"]) == {"verdict", "points", "max_points", "misconception", "message"}
    assert rows(tmp_path) == [{"submission": "ann", "split_heads": "3", "total": "3", "problems": ""}]
    assert lines == ["[1/1] ann: split_heads passed"]


def test_every_exercise_of_the_course_is_graded(folder, run):
    (folder / "ann.py").write_text(RIGHT)
    summary, _ = run(only=None)
    found = {name: entry["verdict"] for name, entry in summary.records["ann"]["exercises"].items()}
    assert found.pop("split_heads") == "passed"
    assert set(found.values()) == {"not_attempted"}
    assert len(found) >= 3


def test_an_answer_may_import_the_chapters_before_its_own(folder, run):
    source = "from mha_course.self_attention import scaled_dot_product_attention as attend\n"
    (folder / "ann.py").write_text(source + RIGHT.replace("return", "attend(x, x, x)\n    return"))
    summary, _ = run()
    assert verdicts(summary) == {"ann": "passed"}


def test_an_error_of_the_grader_is_no_zero_and_is_tried_again(folder, run, tmp_path):
    (folder / "ann.py").write_text(RIGHT)
    (folder / "bob.py").write_text(WRONG)

    def broken(exercise, run, seed):
        raise LookupError("a mistake of ours")

    summary, _ = run(judge=broken)
    entry = summary.records["ann"]["exercises"]["split_heads"]
    assert (entry["verdict"], entry["points"], summary.errors) == ("grader_error", None, 2)
    assert "LookupError: a mistake of ours" in entry["message"]
    assert "test_gradebook.py" in entry["message"]
    assert rows(tmp_path)[0] == {
        "submission": "ann",
        "split_heads": "",
        "total": "",
        "problems": "split_heads: grader error",
    }
    summary, _ = run()
    assert verdicts(summary) == {"ann": "passed", "bob": "failed"}


GOOD = {"output": 1, "changed": [], "gradients": {}}
ERROR = {"stage": "call", "type": "E", "message": "", "where": "", "code": ""}


@pytest.mark.parametrize(
    "forged",
    [
        {"results": [GOOD], "error": None, "printed": float("inf"), "kept": []},
        {"results": [GOOD], "error": None, "printed": True, "kept": []},
        {"results": [GOOD | {"changed": ["99"]}], "error": None, "printed": 0, "kept": []},
        {"results": [GOOD | {"changed": ["²"]}], "error": None, "printed": 0, "kept": []},
        {"results": [GOOD | {"changed": torch.zeros(2)}], "error": None, "printed": 0, "kept": []},
        {"results": [GOOD | {"gradients": {"0": 1}}], "error": None, "printed": 0, "kept": []},
        {"results": [GOOD | {"more": 1}], "error": None, "printed": 0, "kept": []},
        {"results": [torch.zeros(3)], "error": None, "printed": 0, "kept": []},
        {"results": torch.zeros(1), "error": None, "printed": 0, "kept": []},
        {"results": [], "error": torch.zeros(1), "printed": 0, "kept": []},
        {"results": [], "error": ERROR | {"type": torch.zeros(1)}, "printed": 0, "kept": []},
        {"results": [], "error": {"type": "E"}, "printed": 0, "kept": []},
        {"results": [GOOD], "error": None, "printed": 0, "kept": [1]},
        {"results": [GOOD], "error": None, "printed": 0, "kept": "self.x"},
        {"results": [GOOD], "error": None, "printed": 0},
        {"results": [GOOD] * 9, "error": ERROR, "printed": 0, "kept": []},
        {},
    ],
    ids=lambda forged: str(forged)[:60],
)
def test_a_forged_result_is_the_answer_s_fault(folder, run, forged):
    (folder / "ann.py").write_text(WRONG.replace("return x", f"import os; os.write(3, {framed(forged)!r})"))
    entry = run()[0].records["ann"]["exercises"]["split_heads"]
    assert entry["verdict"] == "crashed"
    assert "sent back something that is not a result" in entry["message"]


@pytest.mark.parametrize(
    "changed", [{"errors": torch.zeros(1)}, {"errors": [torch.zeros(1)]}, {"loaded": torch.zeros(2)}]
)
def test_a_forged_report_of_loading_is_too(folder, run, changed):
    forged = framed({"loaded": True, "kind": "function", "errors": []} | changed)
    (folder / "ann.py").write_text(f"import os; os.write(3, {forged!r})\n" + WRONG)
    entry = run()[0].records["ann"]["exercises"]["split_heads"]
    assert entry["verdict"] == "crashed"
    assert "sent back something that is not a result" in entry["message"]


def framed(value):
    data = encode(value)
    return struct.pack(">I", len(data)) + data


def test_what_an_answer_says_of_its_errors_is_kept_short(folder, run):
    error = dict.fromkeys(("type", "message", "where", "code"), "x" * 10_000)
    report = framed({"loaded": True, "kind": "function", "errors": [error]})
    result = framed({"results": [], "error": {"stage": "call", **error}, "printed": 0, "kept": []})
    body = WRONG.replace("return x", f"os.write(3, {result!r})")
    (folder / "ann.py").write_text(f"import os; os.write(3, {report!r})\n" + body)
    entry = run()[0].records["ann"]["exercises"]["split_heads"]
    assert 1000 < len(entry["message"]) < 10_000


def test_what_is_finished_is_not_graded_again(folder, run):
    (folder / "ann.py").write_text(RIGHT)
    (folder / "bob.py").write_text(RIGHT)
    run()
    (folder / "bob.py").write_text(WRONG)
    summary, lines = run()
    assert lines == ["[1/1] bob: split_heads failed"]
    assert summary.graded == 1
    assert verdicts(summary) == {"ann": "passed", "bob": "failed"}
    assert run()[1] == []
    assert len(run(seed=5)[1]) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "k"}', '{"key": "k", "exercises": []}', b"\xff"])
def test_a_damaged_result_counts_for_nothing(tmp_path, text):
    results.save(tmp_path, "ann", {"key": "k", "exercises": {}})
    assert results.finished(tmp_path, "ann", "k") is not None
    (tmp_path / "ann.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert results.finished(tmp_path, "ann", "k") is None


def test_a_run_that_was_killed_goes_on_where_it_was(folder, tmp_path):
    for name in "abc":
        (folder / f"{name}.py").write_text(RIGHT)
    (folder / "b.py").write_text("import time\ntime.sleep(60)\n" + RIGHT)
    program = textwrap.dedent(f"""
        from pathlib import Path
        from mha_course.grader.gradebook import grade
        grade(Path({str(folder)!r}), Path({str(tmp_path / "results")!r}), seconds=90, only=["split_heads"], jobs=1)
    """)
    path = os.pathsep.join((str(Path(mha_course.__file__).parents[1]), *sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr.readline() == "[1/3] a: split_heads passed\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    first = (tmp_path / "results" / "a.json").stat()
    assert not (tmp_path / "results" / "b.json").exists()
    (folder / "b.py").write_text(RIGHT)
    lines = []
    summary = grade(folder, tmp_path / "results", seconds=90, only=["split_heads"], jobs=1, report=lines.append)
    assert verdicts(summary) == dict.fromkeys("abc", "passed")
    assert len(lines) == 2
    assert (tmp_path / "results" / "a.json").stat().st_mtime_ns == first.st_mtime_ns


def test_what_a_killed_run_left_half_written_is_cleared_away(folder, run, tmp_path):
    (folder / "ann.py").write_text(RIGHT)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / ".x.tmp").write_text("{")
    run()
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["ann.json", "grades.csv"]


def test_two_sandboxes_share_the_work_and_agree_with_one(folder, run, own_sandboxes, monkeypatch):
    monkeypatch.setattr("mha_course.grader.gradebook.PAYS_AT", 2)
    for number in range(8):
        (folder / f"s{number}.py").write_text(WRONG if number % 3 else RIGHT)
    summary, lines = run(jobs=2)
    assert verdicts(summary) == {f"s{number}": "failed" if number % 3 else "passed" for number in range(8)}
    assert sorted(int(re.match(r"\[(\d)/8\]", line)[1]) for line in lines) == list(range(1, 9))


def test_a_file_alone_is_one_submission(folder, run):
    (folder / "ann.py").write_text(RIGHT)
    (folder / "bob.py").write_text(RIGHT)
    assert verdicts(run(folder / "ann.py")[0]) == {"ann": "passed"}


def test_a_folder_of_a_folder_is_one_submission_and_results_are_none(folder, run, tmp_path):
    (folder / "ann").mkdir()
    (folder / "ann" / "answer.py").write_text(RIGHT)
    (folder / "roster.csv").write_text("ann")
    (folder / "old").mkdir()
    (folder / "old" / "grades.csv").write_text("")
    (folder / ".git").mkdir()
    summary, _ = run()
    assert verdicts(summary) == {"ann": "passed"}
    assert summary.passed_over == ("old", "roster.csv")


def test_a_learner_s_own_table_hides_no_submission(folder, run):
    (folder / "ann").mkdir()
    (folder / "ann" / "answer.py").write_text(RIGHT)
    (folder / "ann" / "grades.csv").write_text("")
    assert verdicts(run()[0]) == {"ann": "passed"}


def test_a_result_that_can_not_be_written_costs_no_other_its_mark(folder, run, tmp_path):
    long = "b" * 252
    for name in ("ann", long, "zoe"):
        (folder / f"{name}.py").write_text(RIGHT)
    (tmp_path / "results" / "ann.json").mkdir(parents=True)
    _, lines = run()
    assert [row["split_heads"] for row in rows(tmp_path)] == ["3"] * 3
    assert ["be written" in row["problems"] for row in rows(tmp_path)] == [True, True, False]
    assert "ann: its result file could not be written: Is a directory" in lines
    assert f"{long}: its result file could not be written: File name too long" in lines
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["ann.json", "grades.csv", "zoe.json"]


def test_a_table_that_can_not_be_written_is_told(folder, run, tmp_path):
    (tmp_path / "results" / "grades.csv").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"grades.csv can't be written: Is a directory"):
        run(filled(folder))


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--seed", str(2**64), "is not a whole number of at most 64 bits"),
        ("--seed", "abc", "abc is not a whole number of at most 64 bits"),
        ("--seconds", "1e9", "1e9 is not a number above 0 and at most 86400"),
        ("--seconds", "nan", "nan is not a number above 0 and at most 86400"),
        ("--jobs", "abc", "abc is not a whole number above 0"),
        ("--jobs", "0", "0 is not a whole number above 0"),
        ("--out", "", "an empty text names no file or folder"),
    ],
)
def test_an_option_out_of_bounds_is_wrong_usage(folder, tmp_path, capsys, option, value, rule):
    with pytest.raises(SystemExit) as caught:
        main(["grade", str(filled(folder)), "--out", str(tmp_path / "results"), option, value])
    assert caught.value.code == 2
    assert rule in capsys.readouterr().err


def test_results_inside_the_submissions_are_not_graded(folder):
    (folder / "ann.py").write_text(RIGHT)
    for _ in range(2):
        summary = grade(folder, folder / "out", only=["split_heads"], jobs=1, report=lambda _: None)
        assert verdicts(summary) == {"ann": "passed"}


def test_submissions_of_one_name_keep_apart(tmp_path):
    paths = [tmp_path / name for name in ("a.py", "a.ipynb", "b.py", "B.ipynb", "c.py", "c")]
    (tmp_path / "c").mkdir()
    assert list(results.names(paths)) == ["B.ipynb", "a.ipynb", "a.py", "b.py", "c", "c.py"]


def test_a_name_that_a_spreadsheet_would_run_is_disarmed():
    entry = {"verdict": "passed", "points": 1.5}
    record = {"exercises": {"f": entry}, "notes": ['odd, "quoted"']}
    text = results.table({"=1+1": record, "ann": record})
    assert text.splitlines()[1:] == ['\'=1+1,1.5,1.5,"odd, ""quoted"""', 'ann,1.5,1.5,"odd, ""quoted"""']


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_note_that_a_spreadsheet_would_run_is_disarmed(start):
    record = {"exercises": {"f": {"verdict": "passed", "points": 1.5}}, "notes": [f"{start}1+1"]}
    (row,) = csv.DictReader(io.StringIO(results.table({f"{start}x": record}), newline=""))
    assert (row["submission"], row["problems"]) == (
        "'" + start.replace("\r", " ") + "x",
        "'" + start.replace("\r", " ") + "1+1",
    )


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda folder, out: (folder / "nowhere", out), "nowhere does not exist"),
        (lambda folder, out: (folder, out), "holds no submission"),
        (lambda folder, out: (folder, folder), "choose another folder"),
        (lambda folder, out: (filled(folder), Path(__file__)), "no results can be written"),
        (lambda folder, out: (filled(folder), Path("/proc/results")), "no results can be written"),
    ],
)
def test_a_command_that_can_not_be_carried_out_says_why_in_one_sentence(folder, tmp_path, make, rule):
    submissions, out = make(folder, tmp_path / "results")
    with pytest.raises(UsageError, match=rule) as caught:
        grade(submissions, out)
    assert "\n" not in str(caught.value)


def filled(folder):
    (folder / "a.py").write_text(RIGHT)
    return folder


def test_an_exercise_that_does_not_exist_is_named(folder, run):
    filled(folder)
    with pytest.raises(UsageError, match=r"there is no exercise split_head; there are .*split_heads"):
        run(only=["split_head"])


def test_where_nothing_can_be_started_a_sentence_says_so(folder, run, own_sandboxes, monkeypatch):
    broken = ("process", lambda command, scratch: ["sh", "-c", "echo no such thing >&2; exit 1"], True)
    monkeypatch.setattr("mha_course.grader.sandbox.ways", lambda: [broken])
    with pytest.raises(UsageError, match="no such thing"):
        run(filled(folder))
