"""Draw how far a learner is: chapters, exercises, points and what comes next; in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from mha_course.exercises import CATALOGUE
from mha_course.exercises.exercise import Exercise
from mha_course.grader.progress import Entries, Entry
from mha_course.grader.reports import WORDS

BAR = 20  # characters of a full bar
LINE = 100


@dataclass(frozen=True)
class Chapter:
    """One chapter's exercises and how far each is."""

    name: str
    exercises: Sequence[tuple[Exercise, Entry]]

    @property
    def title(self) -> str:
        """The chapter's name in words."""
        return self.name.replace("_", " ").capitalize()

    @property
    def points(self) -> float:
        """Points that were earned."""
        return sum(entry.points for _, entry in self.exercises)

    @property
    def most(self) -> float:
        """Points that can be earned."""
        return sum(exercise.points for exercise, _ in self.exercises)


@dataclass(frozen=True)
class Overview:
    """All chapters in the order of the course."""

    chapters: Sequence[Chapter]

    @classmethod
    def of(cls, exercises: Mapping[str, Exercise], entries: Entries) -> Overview:
        """Put together what there is and what was done; entries of exercises that no longer exist are passed over."""
        return cls(
            [
                Chapter(chapter, [(exercises[name], entries.get(name, Entry())) for name in names])
                for chapter, names in CATALOGUE.items()
            ]
        )

    @property
    def total(self) -> str:
        """Everything in one line."""
        every = [pair for chapter in self.chapters for pair in chapter.exercises]
        solved = sum(entry.verdict == "passed" for _, entry in every)
        points, most = (sum(getattr(chapter, what) for chapter in self.chapters) for what in ("points", "most"))
        return f"{solved} of {len(every)} exercises passed, {points:g} of {most:g} points."

    @property
    def following(self) -> str:
        """What to do next, in one line."""
        for chapter in self.chapters:
            for exercise, entry in chapter.exercises:
                if entry.verdict != "passed":
                    return (
                        f"Next: {exercise.name} ({exercise.points:g} points, about {exercise.minutes} minutes), "
                        f"in {chapter.name}_exercises.ipynb."
                    )
        return "You have solved every exercise of the course."

    def as_text(self, encoding: str = "utf-8") -> str:
        """Draw it in characters that a terminal with this encoding has."""
        full, empty = ("█", "░") if _can_write("█░✓◐✗○⏱", encoding) else ("#", ".")
        lines = [self.total, ""]
        width = max(len(chapter.title) for chapter in self.chapters)
        for chapter in self.chapters:
            filled = int(BAR * chapter.points / chapter.most)
            bar = full * filled + empty * (BAR - filled)
            lines.append(f"{chapter.title:<{width}}  {bar}  {chapter.points:g} of {chapter.most:g} points")
            lines += _wrapped([_short(*pair, plain=full == "#") for pair in chapter.exercises], LINE)
        return "\n".join((*lines, "", self.following))

    def as_html(self) -> str:
        """Draw it as a table that takes its colours from the page."""
        rows = []
        for chapter in self.chapters:
            items = ", ".join(
                f'<span title="{escape(WORDS[entry.verdict][1])}">{escape(_short(exercise, entry))}</span>'
                for exercise, entry in chapter.exercises
            )
            sums = f"{chapter.points:g} of {chapter.most:g} points"
            rows.append(
                f'<tr><th scope="row" style="text-align:left">{escape(chapter.title)}</th>'
                f'<td style="white-space:nowrap"><progress max="{chapter.most:g}" value="{chapter.points:g}" '
                f'aria-label="{escape(chapter.title)}: {sums}"></progress> {sums}</td>'
                f'<td style="text-align:left">{items}</td></tr>'
            )
        return (
            f'<div role="status"><p><strong>{escape(self.total)}</strong></p><table>{"".join(rows)}</table>'
            f"<p>{escape(self.following)}</p></div>"
        )


def _short(exercise: Exercise, entry: Entry, plain: bool = False) -> str:
    sign, word = WORDS[entry.verdict]
    return f"{f'({word})' if plain else sign} {exercise.name} {entry.points:g}/{exercise.points:g}"


def _wrapped(items: Sequence[str], width: int) -> list[str]:
    """Set items side by side, as many in a line as fit."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= width:
            lines[-1] += f"   {item}"
        else:
            lines.append(f"    {item}")
    return lines


def _can_write(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
