"""The grader's face in a notebook."""

import html
import re
import time

import pytest
import torch

from mha_course import notebook
from mha_course.grader import progress
from mha_course.multi_head import MultiHeadAttention, merge_heads
from mha_course.notebook import check, hint, solution, status


@pytest.fixture(autouse=True)
def _nothing_was_shown_or_solved_yet(monkeypatch):
    monkeypatch.setattr(notebook, "_shown", {})
    monkeypatch.setattr(notebook, "_solved", set())


def right(x, num_heads):
    if x.size(-1) % num_heads:
        raise ValueError
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def named(name, answer):
    answer.__name__ = name
    return answer


def in_words(report):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", report._repr_html_())))


def test_a_right_answer_passes_and_is_labelled_as_practice_with_its_seed():
    report = check(named("split_heads", right), seed=3)
    assert report.verdict.verdict == "passed"
    assert repr(report).startswith("✓ split_heads: passed, 3 of 3 points")
    assert "Practice, not a mark." in repr(report)
    assert "seed of the inputs: 3." in repr(report)


def test_feedback_comes_in_order_rule_evidence_cause_where_to_read_on_and_hint():
    report = check(named("split_heads", lambda x, h: x.reshape(x.size(0), h, x.size(1), -1)))
    expected = [
        "✗ split_heads: not right yet, 0 of 3 points",
        "Head h holds the h-th slice",
        "On batch 1, length 2, d_model 6, 2 heads:",
        "“split no transpose”",
        "A reshape keeps the order in memory",
        "the section “",
        "hint('split_heads')",
    ]
    for text in (repr(report), in_words(report)):
        places = [text.index(part) for part in expected]
        assert places == sorted(places)


def test_html_from_learner_code_is_shown_as_text():
    def shout(x, num_heads):
        raise ValueError("<script>alert(1)</script>")

    assert "<script>" not in check(named("split_heads", shout))._repr_html_()


def test_an_error_is_shown_at_the_learners_own_line():
    def clumsy(x, num_heads):
        return x.no_such_method()

    text = repr(check(named("split_heads", clumsy)))
    assert "AttributeError: 'Tensor' object has no attribute 'no_such_method'" in text
    assert re.search(r"test_notebook\.py, line \d+: return x\.no_such_method\(\)", text)


def test_what_is_printed_is_counted_and_kept_away(capsys):
    def chatty(x):
        print("shape", x.shape)
        return merge_heads(x)

    report = check(named("merge_heads", chatty))
    assert report.verdict.verdict == "passed"
    assert "remove the prints" in repr(report)
    assert capsys.readouterr().out == ""


def test_code_that_never_ends_is_stopped(monkeypatch):
    def endless(x):
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(notebook, "SECONDS", 1)
    start = time.monotonic()
    report = check(named("merge_heads", endless))
    assert report.verdict.verdict == "timed_out"
    assert time.monotonic() - start < 20


def test_stop_in_the_notebook_ends_the_check():
    calls = []

    def interrupted(x):
        calls.append(1)
        raise KeyboardInterrupt

    assert check(named("merge_heads", interrupted)).verdict.verdict == "failed"
    assert len(calls) == 1


def test_a_check_leaves_the_notebook_as_it_was():
    def careless(x):
        torch.manual_seed(99)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return merge_heads(x)

    torch.manual_seed(7)
    before = torch.get_rng_state()
    check(named("merge_heads", careless))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "an object of type NoneType' is not the name of an exercise"),
        (3, "an object of type int' is not the name of an exercise"),
        (MultiHeadAttention(6, 2), "as in check(MultiHeadAttention), not an object made with it"),
        ("split_heads", "without quotes, as in check(split_heads)"),
        (torch.zeros(2), "takes the function itself, as in check(softmax), and not what it returned"),
        (named("split_head", lambda x: x), "Did you mean split_heads?"),
    ],
)
def test_what_is_no_answer_gets_one_clear_sentence(answer, told):
    assert told in repr(check(answer))
    assert told in in_words(check(answer))


def test_hints_come_one_more_at_a_time_up_to_the_third():
    counts = [repr(hint("split_heads")).count("Hint") for _ in range(4)]
    assert counts == [1, 2, 3, 3]
    assert "There are no more hints. If that was not enough: solution('split_heads')." in repr(hint("split_heads"))
    assert "Did you mean merge_heads?" in repr(hint("merge_head"))
    assert repr(hint(named("merge_heads", right))).startswith("Hint 1 of 3")


def test_a_solution_is_opened_by_a_pass_or_by_the_last_hint():
    assert "not solved yet" in repr(solution("split_heads"))
    check(named("split_heads", right))
    shown = solution("split_heads")
    assert "# The course's own\ndef split_heads(x, num_heads):" in repr(shown)
    assert "# Another way, 2\n" in repr(shown)
    assert "BEGIN SOLUTION" not in shown._repr_html_()
    hint("merge_heads"), hint("merge_heads")
    assert "hint('merge_heads') shows the next one" in repr(solution("merge_heads"))
    hint("merge_heads")
    assert "def merge_heads(x):" in repr(solution("merge_heads"))
    assert "Did you mean merge_heads?" in repr(solution("merge_head"))


def test_a_learners_folder_keeps_count_across_sessions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "keeps no progress" in repr(status())
    check(named("split_heads", right))
    assert list(tmp_path.iterdir()) == []
    progress.create(tmp_path)
    check(named("split_heads", right))
    hint("merge_heads"), hint("merge_heads"), hint("merge_heads")
    monkeypatch.setattr(notebook, "_shown", {})
    monkeypatch.setattr(notebook, "_solved", set())
    assert "def split_heads(x, num_heads):" in repr(solution("split_heads"))
    assert "def merge_heads(x):" in repr(solution("merge_heads"))
    assert "✓ split_heads 3/3" in repr(status())
    assert "split_heads 3/3" in status()._repr_html_()


def test_a_damaged_count_is_said_and_left_for_the_command_to_mend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "progress.json").write_text("{")
    report = check(named("split_heads", right))
    assert report.verdict.verdict == "passed"
    for shown in (report, hint("split_heads"), status()):
        assert "`mha-course status` mends" in repr(shown)
    assert (tmp_path / "progress.json").read_text() == "{"


def test_a_value_of_another_cell_is_named(monkeypatch):
    monkeypatch.setattr("mha_course.grader.borrowed._bound_beside", lambda function: set())
    report = check(named("split_heads", borrowing))
    assert report.verdict.verdict == "passed"
    for shown in (repr(report), in_words(report)):
        assert "It uses `offset` of another cell" in shown


offset = 0


def borrowing(x, num_heads):
    return right(x + offset, num_heads)


def test_a_mistake_of_the_graders_own_is_no_zero(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("the grader is broken")

    monkeypatch.setattr("mha_course.grader.judging.find_failure", broken)
    verdict = check(named("split_heads", right)).verdict
    assert (verdict.verdict, verdict.points) == ("grader_error", None)
    assert "not your code's fault" in verdict.message
    assert "the grader is broken" in verdict.message
