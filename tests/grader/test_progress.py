"""What a learner has done is kept whole, and damage to it is seen and mended."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from mha_course.exercises import CATALOGUE, load_all
from mha_course.grader import progress
from mha_course.grader.overview import Overview
from mha_course.grader.progress import FILE, Damaged, Entry, Unreadable, load, note, note_hint, rebuild
from mha_course.grader.verdicts import Verdict


def verdict(name, word="passed", points=3.0):
    return Verdict(name, word, points, 3.0, "")


@pytest.fixture
def folder(tmp_path):
    progress.create(tmp_path)
    return tmp_path


def test_what_was_noted_is_read_again(folder):
    note(folder, verdict("split_heads", "partly", 2.0))
    note_hint(folder, "split_heads", 2)
    note(folder, verdict("merge_heads"))
    assert load(folder) == {
        "merge_heads": Entry("passed", 3.0, solved=True),
        "split_heads": Entry("partly", 2.0, hints=2),
    }


def test_what_was_solved_once_stays_solved_and_hints_are_never_taken_back(folder):
    note(folder, verdict("split_heads"))
    note(folder, verdict("split_heads", "failed", 0.0))
    note_hint(folder, "split_heads", 3)
    note_hint(folder, "split_heads", 1)
    assert load(folder)["split_heads"] == Entry("passed", 3.0, solved=True, hints=3)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [(Entry(), False), (Entry(hints=2), False), (Entry(hints=3), True), (Entry("failed", 0.0, solved=True), True)],
)
def test_a_solution_is_for_those_who_solved_it_or_read_every_hint(entry, expected):
    assert entry.may_see_solution is expected


def test_a_check_that_gave_no_mark_changes_nothing(folder):
    note(folder, Verdict("split_heads", "grader_error", None, 3.0, ""))
    assert load(folder) == {}


def test_a_folder_without_a_file_keeps_nothing_and_gets_none(tmp_path):
    note(tmp_path, verdict("split_heads"))
    note_hint(tmp_path, "split_heads", 1)
    assert load(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_begun_anew(folder):
    note(folder, verdict("split_heads"))
    progress.create(folder)
    assert "split_heads" in load(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace('"points": 3.0', '"points": 4.0'),
        lambda text: text.replace('"passed"', '"praised"'),
        lambda text: "[]",
        lambda text: '{"version": 1, "exercises": 3, "sum": "4e07408562bedb8b"}',
        lambda text: json.dumps({"version": 0}),
        lambda text: text.encode("utf-16"),
    ],
)
def test_damage_is_seen_and_the_file_left_as_it_is(folder, damage):
    note(folder, verdict("split_heads"))
    damaged = damage((folder / FILE).read_text())
    damaged = damaged if isinstance(damaged, bytes) else damaged.encode()
    (folder / FILE).write_bytes(damaged)
    with pytest.raises(Damaged):
        load(folder)
    with pytest.raises(Damaged):
        note(folder, verdict("merge_heads"))
    assert (folder / FILE).read_bytes() == damaged


def test_entries_of_another_form_are_damage_even_with_the_right_sum(folder):
    exercises = {"split_heads": {"verdict": "passed"}}
    found = {"version": 1, "exercises": exercises, "sum": progress._sum(exercises)}
    (folder / FILE).write_text(json.dumps(found))
    with pytest.raises(Damaged, match="not of the form"):
        load(folder)


def test_a_newer_version_s_file_is_left_alone(folder):
    (folder / FILE).write_text('{"version": 2}')
    with pytest.raises(Unreadable, match="newer version"):
        note(folder, verdict("split_heads"))
    assert (folder / FILE).read_text() == '{"version": 2}'


def test_a_rebuilt_file_holds_what_the_notebooks_gave_and_the_damaged_one_is_kept(folder):
    (folder / FILE).write_text("{")
    assert rebuild(folder, [verdict("split_heads"), Verdict("merge_heads", "not_gradable", None, 3.0, "")]).exists()
    assert load(folder) == {"split_heads": Entry("passed", 3.0, solved=True)}
    (folder / FILE).write_text("{{")
    rebuild(folder, [])
    assert [path.read_text() for path in sorted(folder.glob("progress.damaged-*.json"))] == ["{", "{{"]


def test_checks_at_the_same_time_lose_nothing(folder):
    names = [f"exercise_{number}" for number in range(30)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: note(folder, verdict(name)), names))
    assert sorted(load(folder)) == sorted(names)


def test_a_file_in_use_for_long_is_said_to_be(folder, monkeypatch):
    monkeypatch.setattr(progress, "LOCK_SECONDS", 0.05)
    with progress.FileLock(folder / f".{FILE}.lock"), pytest.raises(Unreadable, match="in use"):
        note(folder, verdict("split_heads"))


@pytest.fixture(scope="module")
def exercises():
    return load_all()


def test_the_overview_adds_up_and_names_what_comes_next(exercises):
    most = sum(exercise.points for exercise in exercises.values())
    nothing = Overview.of(exercises, {})
    first = next(iter(exercises.values()))
    assert nothing.total == f"0 of {len(exercises)} exercises passed, 0 of {most:g} points."
    assert nothing.following.startswith(f"Next: {first.name} ({first.points:g} points")
    one = Overview.of(exercises, {first.name: Entry("passed", first.points, solved=True), "no_longer_there": Entry()})
    assert one.total == f"1 of {len(exercises)} exercises passed, {first.points:g} of {most:g} points."
    second = list(exercises.values())[1]
    assert one.following.startswith(f"Next: {second.name} ")
    every = {name: Entry("passed", one.points, solved=True) for name, one in exercises.items()}
    assert Overview.of(exercises, every).following == "You have solved every exercise of the course."


def test_a_full_bar_is_full_and_an_empty_one_empty(exercises):
    names = CATALOGUE["multi_head"]
    entries = {name: Entry("passed", exercises[name].points, solved=True) for name in names}
    text = Overview.of(exercises, entries).as_text()
    assert next(line for line in text.splitlines() if line.startswith("Multi head")).count("█") == 20
    assert next(line for line in text.splitlines() if line.startswith("Self attention")).count("░") == 20
    assert f"✓ {names[0]}" in text


def test_a_terminal_without_such_characters_gets_plain_ones(exercises):
    text = Overview.of(exercises, {"split_heads": Entry("partly", 2.0)}).as_text("ascii")
    text.encode("ascii")
    assert "(partly right) split_heads 2/3" in text


def test_in_a_notebook_the_same_is_a_table_with_bars_that_have_names(exercises):
    html = Overview.of(exercises, {"split_heads": Entry("partly", 2.0)}).as_html()
    assert html.count("<progress ") == len(CATALOGUE)
    assert 'aria-label="Multi head: 2 of ' in html
    assert "split_heads 2/3" in html
