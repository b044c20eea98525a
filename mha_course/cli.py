"""The command `mha-course`: the grader's face in a terminal."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mha_course import __version__
from mha_course.grader.gradebook import JOBS, SECONDS, UsageError, grade

if TYPE_CHECKING:
    from mha_course.exercises.exercise import Exercise

SECONDS_LIMIT = 86_400  # a day


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command.

    Args:
        arguments: as typed after `mha-course`; None takes those of the process.

    Returns:
        The exit code: 0 done, 1 something fell short (`check`) or could not be graded (`grade`), 2 wrong usage.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"mha-course: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read the output has seen enough, as in `mha-course list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("mha-course: stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    return code


def _list(options: argparse.Namespace) -> int:
    if options.json:
        fields = ("name", "chapter", "points", "kind", "minutes")
        print(json.dumps([{field: getattr(one, field) for field in fields} for one in _exercises().values()], indent=2))
        return 0
    for one in _exercises().values():
        print(f"{one.name:<32} {one.chapter:<20} {one.points:>3g} points  {one.minutes:>3} minutes  {one.kind}")
    return 0


def _hint(options: argparse.Namespace) -> int:
    exercise = _exercises()[_known(options.name)]
    print("\n".join(exercise.numbered_hints(options.number)))
    if options.number < len(exercise.hints):
        print(f"For one more: mha-course hint {exercise.name} {options.number + 1}")
    return 0


def _start(options: argparse.Namespace) -> int:
    from mha_course.exercises.notebooks import start

    try:
        notebooks = start(options.folder)
    except OSError as error:
        raise UsageError(f"can't write to {options.folder}: {error.strerror or error}; name another folder") from None
    for path, is_new in notebooks:
        print(f"wrote {path}" if is_new else f"kept  {path} (it was there already, with your work in it)")
    print(f"Open them with: jupyter-lab {options.folder}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from mha_course.grader.attempt import attempt
    from mha_course.grader.judging import judge
    from mha_course.grader.plan import plan
    from mha_course.grader.reports import as_text, total
    from mha_course.grader.sandbox import Sandbox
    from mha_course.grader.submission import read

    if not options.work.exists():
        raise UsageError(f"there is no file or folder {options.work}")
    submission = read(options.work)
    if not submission.cells:
        raise UsageError(f"{options.work} can't be checked: {'; '.join(submission.problems)}")
    turn = threading.Lock()
    verdicts = []
    with Sandbox() as sandbox, turn:
        for exercise in _exercises().values():
            if not submission.is_folder and plan(submission, exercise.name) is None and submission.is_complete:
                continue  # one file need not hold every exercise
            verdict = attempt(exercise, submission, sandbox, turn, judge, seed=options.seed, seconds=options.seconds)
            verdicts.append(verdict)
            print(as_text(verdict), end="\n\n", flush=True)
        print(total(verdicts))
        print(f"Practice, seed {options.seed}. Your code ran apart, with: {', '.join(sandbox.protections)}.")
    return 0 if verdicts and all(verdict.verdict == "passed" for verdict in verdicts) else 1


def _grade(options: argparse.Namespace) -> int:
    only = None if options.only is None else [_known(name) for name in options.only]
    summary = grade(
        options.submissions, options.out, seed=options.seed, seconds=options.seconds, only=only, jobs=options.jobs
    )
    for name in summary.passed_over:
        print(f"passed over: {name} (no notebook, Python file or folder)", file=sys.stderr)
    print(f"{len(summary.records)} submissions in {summary.out}, {summary.graded} of them graded now.")
    if summary.errors:
        print(f"The grader itself failed on {summary.errors} exercises: they have no mark; see `grader_error` there.")
    return 1 if summary.errors else 0


def _exercises() -> dict[str, Exercise]:
    from mha_course.exercises import (
        load_all,
    )  # brings PyTorch, which takes a second; `grade` starts it elsewhere meanwhile

    return load_all()


def _known(name: str) -> str:
    if name in _exercises():
        return name
    near = difflib.get_close_matches(name, _exercises(), n=1)
    guess = f"did you mean {near[0]}?" if near else "`mha-course list` shows all."
    raise UsageError(f"no exercise is called {name!r}; {guess}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mha-course", description="Practise and grade the exercises of the course.")
    parser.add_argument("--version", action="version", version=f"mha-course {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="list the exercises")
    listing.add_argument("--json", action="store_true", help="as JSON: name, chapter, points, kind, minutes")
    listing.set_defaults(run=_list)

    hint = commands.add_parser("hint", help="show hints for an exercise")
    hint.add_argument("name", metavar="NAME", help="the exercise")
    hint.add_argument(
        "number", metavar="NUMBER", nargs="?", type=int, default=1, choices=(1, 2, 3), help="how many: 1 to 3"
    )
    hint.set_defaults(run=_hint)

    start = commands.add_parser("start", help="write the learner's notebooks into a folder; nothing is overwritten")
    start.add_argument("folder", metavar="DIR", type=Path)
    start.set_defaults(run=_start)

    check = commands.add_parser("check", help="check your own work, for practice")
    check.add_argument("work", metavar="DIR", type=_path, help="your folder, or one notebook or Python file")
    check.set_defaults(run=_check)

    grading = commands.add_parser("grade", help="grade a folder of submissions")
    grading.add_argument("submissions", metavar="SUBMISSIONS", type=_path, help="each file or folder in it is one")
    grading.add_argument("--out", metavar="RESULTS", type=_path, required=True, help="a folder for the results")
    grading.add_argument("--only", metavar="NAME", nargs="+", help="grade these exercises alone")
    grading.add_argument("--jobs", type=_positive_int, default=JOBS, help="submissions at a time (%(default)s)")
    grading.set_defaults(run=_grade)

    for command in (check, grading):
        command.add_argument("--seed", type=_seed, default=0, help="of the inputs (%(default)s)")
        command.add_argument(
            "--seconds", type=_positive, default=SECONDS, help="for one exercise of one submission (%(default)g)"
        )
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= SECONDS_LIMIT:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and at most {SECONDS_LIMIT}")
    return value


def _positive_int(text: str) -> int:
    value = _whole(text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value


def _seed(text: str) -> int:
    value = _whole(text)
    if value is None or not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at most 64 bits")
    return value


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _path(text: str) -> Path:
    if not text:  # Path would take it for the folder at hand
        raise argparse.ArgumentTypeError("an empty text names no file or folder")
    return Path(text)
