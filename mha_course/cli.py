"""The command `mha-course`: the course's face in a terminal."""

from __future__ import annotations

import argparse
import difflib
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mha_course import __version__
from mha_course.grader import results
from mha_course.grader.gradebook import JOBS, SECONDS, UsageError, grade

if TYPE_CHECKING:
    from mha_course.exercises.exercise import Exercise
    from mha_course.grader.progress import Entries

SECONDS_LIMIT = 86_400  # a day


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command.

    Args:
        arguments: as typed after `mha-course`; None takes those of the process.

    Returns:
        The exit code: 0 done, 1 something fell short (`check`), could not be graded (`grade`) or disagreed (`bench`),
        2 wrong usage or a training that diverged, 130 stopped by Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know neither Chinese nor umlauts
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
        print(f"mha-course: stopped; {options.after_stop}", file=sys.stderr)
        return 130
    return code


def _list(options: argparse.Namespace) -> int:
    if options.json:
        fields = ("name", "chapter", "points", "kind", "task", "minutes")
        print(json.dumps([{field: getattr(one, field) for field in fields} for one in _exercises().values()], indent=2))
        return 0
    for one in _exercises().values():
        print(f"{one.name:<32} {one.chapter:<20} {one.points:>3g} points  {one.minutes:>3} minutes  {one.task}")
    return 0


def _hint(options: argparse.Namespace) -> int:
    from mha_course.grader import progress

    exercise = _exercises()[_known(options.name)]
    print("\n".join(exercise.numbered_hints(options.number)))
    _keep(lambda: progress.note_hint(options.folder, exercise.name, options.number))
    if options.number < len(exercise.hints):
        print(f"For one more: mha-course hint {exercise.name} {options.number + 1}")
    return 0


def _start(options: argparse.Namespace) -> int:
    from mha_course.exercises.notebooks import start
    from mha_course.grader import progress

    try:
        notebooks = start(options.folder)
        progress.create(options.folder)
    except progress.Unreadable as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"can't write to {options.folder}: {error.strerror or error}; name another folder") from None
    for path, is_new in notebooks:
        print(f"wrote {path}" if is_new else f"kept  {path} (it was there already, with your work in it)")
    print(f"Open them with: jupyter-lab {options.folder}")
    print(f"See how far you are with: mha-course status {options.folder}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from mha_course.grader import practice, progress
    from mha_course.grader.reports import as_text, total
    from mha_course.grader.sandbox import Sandbox
    from mha_course.grader.submission import read

    if not options.work.exists():
        raise UsageError(f"there is no file or folder {options.work}")
    submission = read(options.work)
    if not submission.cells:
        raise UsageError(f"{options.work} can't be checked: {'; '.join(submission.problems)}")
    folder = options.work if options.work.is_dir() else options.work.parent
    verdicts = []
    with Sandbox() as sandbox:
        for verdict in practice.check(submission, _exercises(), sandbox, seed=options.seed, seconds=options.seconds):
            verdicts.append(verdict)
            print(as_text(verdict), end="\n\n", flush=True)
            _keep(partial(progress.note, folder, verdict))
        print(total(verdicts))
        print(f"Practice, seed {options.seed}. Your code ran apart, with: {', '.join(sandbox.protections)}.")
    return 0 if verdicts and all(verdict.verdict == "passed" for verdict in verdicts) else 1


def _status(options: argparse.Namespace) -> int:
    from mha_course.grader.overview import Overview

    entries = _progress_in(options.folder)
    print(Overview.of(_exercises(), entries).as_text(sys.stdout.encoding or "ascii"))
    return 0


def _progress_in(folder: Path) -> Entries:
    """Read a learner's progress; where the file is damaged or gone, make it anew from the notebooks."""
    from mha_course.grader import practice, progress
    from mha_course.grader.sandbox import Sandbox
    from mha_course.grader.submission import read

    try:
        entries = progress.load(folder)
        reason = "there was no progress.json"
    except progress.Damaged as damage:
        entries, reason = None, f"progress.json was damaged ({damage})"
    except progress.Unreadable as error:
        raise UsageError(str(error)) from None
    if entries is not None:
        return entries
    submission = read(folder) if folder.is_dir() and any(folder.glob("*_exercises.ipynb")) else None
    if submission is None or not submission.cells:
        raise UsageError(
            f"{folder} holds no notebooks of the course; go to the folder that `mha-course start` wrote, or name it"
        )
    print(f"{reason[0].upper()}{reason[1:]}; your notebooks are checked to make it anew …", file=sys.stderr, flush=True)
    with Sandbox() as sandbox:
        verdicts = list(practice.check(submission, _exercises(), sandbox, seed=0, seconds=SECONDS))
    try:
        aside = progress.rebuild(folder, verdicts)
        entries = progress.load(folder)
    except (progress.Damaged, progress.Unreadable) as error:
        raise UsageError(str(error)) from None
    if aside is not None:
        print(f"The damaged file is kept as {aside.name}.", file=sys.stderr)
    return entries or {}


def _keep(note: Callable[[], None]) -> None:
    """Write something down where the learner's folder keeps count, or say why it can't be."""
    from mha_course.grader import progress

    try:
        note()
    except (progress.Damaged, progress.Unreadable) as error:
        print(f"mha-course: progress.json was not brought up to date: {error}", file=sys.stderr)


def _watch(options: argparse.Namespace) -> int:
    from mha_course.grader import practice, progress
    from mha_course.grader.reports import as_text
    from mha_course.grader.sandbox import Sandbox

    if not options.folder.is_dir():
        raise UsageError(f"there is no folder {options.folder}")
    with Sandbox() as sandbox:
        watch = practice.Watch(options.folder, _exercises())
        _ = sandbox.protections  # started before it is needed
        print(
            f"Watching {options.folder}: save a notebook and what you changed in it is checked. Ctrl-C ends.",
            flush=True,
        )
        for path, submission, changed in watch:
            for problem in submission.problems:
                print(f"{path.name}: {problem}", flush=True)
            if not changed:
                print(f"{path.name} was saved; no answer in it has changed.", flush=True)
            for verdict in practice.check(
                submission, {one.name: one for one in changed}, sandbox, seed=options.seed, seconds=options.seconds
            ):
                print(as_text(verdict), end="\n\n", flush=True)
                _keep(partial(progress.note, options.folder, verdict))
    return 0


def _solution(options: argparse.Namespace) -> int:
    from mha_course.exercises.solutions import solutions
    from mha_course.grader.progress import HINTS, Entry

    exercise = _exercises()[_known(options.name)]
    entry = _progress_in(options.folder).get(exercise.name, Entry())
    if not entry.may_see_solution:
        raise UsageError(
            f"{exercise.name} is not solved yet, and {entry.hints} of its {HINTS} hints are read; solve it, or read on: "
            f"mha-course hint {exercise.name} {min(entry.hints + 1, HINTS)}"
        )
    for title, source in solutions(exercise):
        print(f"# {title}\n{source}\n")
    return 0


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


def _bench(options: argparse.Namespace) -> int:
    from mha_course.bench import bench, plan

    try:
        planned = plan(
            only=options.only,
            parts=options.parts,
            shapes=options.shape,
            lengths=options.lengths,
            repeats=options.repeats,
            threads=options.threads,
            device=options.device,
            quick=options.quick,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None

    def show(table: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{'':<99}\r", end="", file=sys.stderr)
        if options.json != "-":
            print(table, end="\n\n", flush=True)

    _require_writable(options.json)
    try:
        report = bench(planned, _progress(planned.steps), show)
    except RuntimeError as error:
        raise UsageError(f"PyTorch gave up: {error}; try a smaller --shape or fewer --lengths") from None
    if options.json == "-":
        print(report.as_json())
    elif options.json is not None:
        results.write(Path(options.json), report.as_json() + "\n")
    return 1 if any(section.refused for section in (*report.attention, *report.decoding)) else 0


def _require_writable(name: str | None) -> None:
    """Refuse, before the work, a file that can't be written: that should not cost minutes."""
    if name is not None and name != "-":
        try:
            with Path(name).open("a", encoding="utf-8"):
                pass
        except OSError as error:
            raise UsageError(f"can't write to {name}: {error.strerror or error}; name another file") from None


def _progress(steps: int) -> Callable[[str], None]:
    """Return what draws a bar, one step longer with each call; nothing where no one looks on."""
    done = itertools.count(1)

    def step(what: str) -> None:
        if sys.stderr.isatty():
            part = min(next(done) / steps, 1.0)
            print(f"\r[{'#' * round(20 * part):<20}] {part:>4.0%} {what:<72.72}", end="", file=sys.stderr, flush=True)

    return step


def _train(options: argparse.Namespace) -> int:
    import torch
    from safetensors import SafetensorError

    from mha_course.loop import Stopped
    from mha_course.surroundings import join_processes, require_device
    from mha_course.tasks.translator import Plan, Translator

    folder = options.folder or Path(f"numbers-{options.language}")
    try:
        require_device(options.device, "train")
        plan = Plan(
            options.language,
            below=options.below,
            steps=options.steps,
            micro_batches=options.micro_batches,
            seed=options.seed,
        )
        translator = Translator(plan)
        # Each process that torchrun starts gets a card of its own.
        card = f":{os.environ['LOCAL_RANK']}" if options.device == "cuda" and "LOCAL_RANK" in os.environ else ""
        translator.model.to(options.device + card)
        translator.train(folder=folder, resume=options.resume)
    except (ValueError, FloatingPointError) as error:
        raise UsageError(str(error).replace("micro_batches=", "--micro-batches ")) from None
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"can't write to {folder}: {reason}; name another folder with --folder") from None
    except Stopped as stopped:
        print(f"mha-course: {stopped}; say --resume", file=sys.stderr)
        return 130
    if join_processes(torch.device(options.device))[0] == 0:  # of several processes one speaks
        right = translator.right(translator.task.held_out(2500))
        wrong = translator.task.held_out_numbers[~right].tolist()
        print(f"{len(right) - len(wrong):,} of {len(right):,} numbers that it never saw are right in every word.")
        for number in wrong[:5] or translator.task.held_out_numbers[:: max(1, len(right) // 3)].tolist():
            print(f"  {number:>7,}  {' '.join(translator.translate(number))}{'  (wrong)' if wrong else ''}")
        print(f"It is kept in {folder}.")
    return 0


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
    parser = argparse.ArgumentParser(
        prog="mha-course",
        description="Practise and grade the exercises of the course; train and measure what it builds.",
    )
    parser.add_argument("--version", action="version", version=f"mha-course {__version__}")
    parser.set_defaults(after_stop="the same command goes on where it was")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="list the exercises")
    listing.add_argument("--json", action="store_true", help="as JSON: name, chapter, points, kind, task, minutes")
    listing.set_defaults(run=_list)

    hint = commands.add_parser("hint", help="show hints for an exercise")
    hint.add_argument("name", metavar="NAME", help="the exercise")
    hint.add_argument(
        "number", metavar="NUMBER", nargs="?", type=int, default=1, choices=(1, 2, 3), help="how many: 1 to 3"
    )
    hint.set_defaults(run=_hint)

    solution = commands.add_parser("solution", help="show right answers, once you have solved it or read its hints")
    solution.add_argument("name", metavar="NAME", help="the exercise")
    solution.set_defaults(run=_solution)

    start = commands.add_parser("start", help="write the learner's notebooks into a folder; nothing is overwritten")
    start.add_argument("folder", metavar="DIR", type=Path)
    start.set_defaults(run=_start)

    check = commands.add_parser("check", help="check your own work, for practice")
    check.add_argument("work", metavar="DIR", type=_path, help="your folder, or one notebook or Python file")
    check.set_defaults(run=_check)

    status = commands.add_parser("status", help="show how far you are, and what comes next")
    status.add_argument("folder", metavar="DIR", type=_path, nargs="?", default=Path(), help="your folder (this one)")
    status.set_defaults(run=_status)

    watch = commands.add_parser("watch", help="check again whenever you save")
    watch.add_argument("folder", metavar="DIR", type=_path, nargs="?", default=Path(), help="your folder (this one)")
    watch.set_defaults(run=_watch, after_stop="what was checked is kept")

    grading = commands.add_parser("grade", help="grade a folder of submissions")
    grading.add_argument("submissions", metavar="SUBMISSIONS", type=_path, help="each file or folder in it is one")
    grading.add_argument("--out", metavar="RESULTS", type=_path, required=True, help="a folder for the results")
    grading.add_argument("--only", metavar="NAME", nargs="+", help="grade these exercises alone")
    grading.add_argument("--jobs", type=_positive_int, default=JOBS, help="submissions at a time (%(default)s)")
    grading.set_defaults(run=_grade)

    racing = commands.add_parser("bench", help="compare time and memory of attention, here and in other libraries")
    racing.add_argument("--only", metavar="NAME", nargs="+", help="these contestants alone")
    racing.add_argument("--parts", nargs="+", choices=("attention", "decoding", "lengths"), help="these parts alone")
    racing.add_argument("--shape", metavar="B,L,D,H", action="append", help="batch, length, width, heads; repeatable")
    racing.add_argument("--lengths", metavar="N", nargs="+", type=_positive_int, help="at which memory is compared")
    racing.add_argument("--repeats", metavar="N", type=_positive_int, help="how often each takes its turn (20)")
    racing.add_argument("--threads", metavar="N", type=_positive_int, help="of the CPU (as PyTorch chooses)")
    racing.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="where (%(default)s)")
    racing.add_argument("--quick", action="store_true", help="small sizes and few turns: to see what it does")
    racing.add_argument("--json", metavar="FILE", nargs="?", const="-", help="as JSON too; with no FILE, JSON alone")
    racing.set_defaults(run=_bench, after_stop="the tables that are shown are complete")

    training = commands.add_parser("train", help="train the translator of chapter 8")
    training.add_argument("task", choices=("numbers",), help="numbers: number words from English")
    training.add_argument(
        "--language", choices=("de", "fr", "zh"), default="de", help="the one to translate into (%(default)s)"
    )
    training.add_argument(
        "--below", metavar="N", type=int, default=1_000_000, help="train on numbers below N (%(default)s)"
    )
    training.add_argument(
        "--steps", metavar="N", type=_positive_int, default=300, help="how many updates (%(default)s)"
    )
    training.add_argument(
        "--micro-batches",
        metavar="N",
        type=_positive_int,
        default=2,
        help="parts of an update, to share among processes (%(default)s)",
    )
    training.add_argument("--seed", type=_seed, default=0, help="of parameters and data, at least 0 (%(default)s)")
    training.add_argument("--folder", metavar="DIR", type=_path, help="where it is kept (numbers-LANGUAGE)")
    training.add_argument("--resume", action="store_true", help="go on where it was stopped; give the same options")
    training.add_argument(
        "--device",
        choices=("cpu", "cuda", "mps"),
        default="cpu",
        help="what it is trained on (%(default)s)",
    )
    training.set_defaults(run=_train, after_stop="with --resume the same command goes on from the last checkpoint")

    for command in (hint, solution):
        command.add_argument("--folder", metavar="DIR", type=_path, default=Path(), help="yours (this one)")
    for command in (check, watch, grading):
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
