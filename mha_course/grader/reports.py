"""Show a verdict to a learner: as HTML in a notebook, and the same as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from mha_course.grader.judging import place
from mha_course.grader.verdicts import Part, Verdict

WORDS = {
    "passed": ("✓", "passed"),
    "partly": ("◐", "partly right"),
    "failed": ("✗", "not right yet"),
    "not_attempted": ("○", "not attempted"),
    "timed_out": ("⏱", "did not finish in time"),
    "crashed": ("✗", "ended early"),
    "not_gradable": ("?", "could not be graded"),
    "grader_error": ("!", "error in the grader, not in your code"),
}


def title(verdict: Verdict) -> str:
    """Return the verdict in one line."""
    sign, word = WORDS[verdict.verdict]
    points = "" if verdict.points is None else f", {verdict.points:g} of {verdict.max_points:g} points"
    return f"{sign} {verdict.exercise}: {word}{points}"


def as_text(verdict: Verdict, footer: str = "") -> str:
    """Return the whole report as plain text."""
    lines = [title(verdict)]
    if len(verdict.parts) > 1 and verdict.verdict != "passed":
        lines += [f"    {_mark(part)}  {part.name}" for part in verdict.parts]
    lines += [f"  {line}" for line in verdict.message.splitlines()]
    return "\n".join((*lines, footer) if footer else lines)


def as_html(verdict: Verdict, footer: str = "") -> str:
    """Return the whole report as HTML that takes its colours from the page, light or dark."""
    return "".join(_html(verdict, footer))


def _html(verdict: Verdict, footer: str) -> Iterator[str]:
    yield '<div role="status" style="border-left:.3em solid currentColor;padding:.2em 0 .2em 1em;max-width:46em">'
    yield f"<p><strong>{escape(title(verdict))}</strong></p>"
    if len(verdict.parts) > 1 and verdict.verdict != "passed":
        items = (f"{escape(part.name)}: {_mark(part)}" for part in verdict.parts)
        yield f"<p>{' · '.join(items)}</p>"
    if verdict.feedback is None:
        yield "".join(f"<p>{escape(line)}</p>" for line in verdict.message.splitlines())
    else:
        feedback = verdict.feedback
        yield f"<p><em>What should hold:</em> {escape(feedback.rule)}</p>"
        yield f"<p><em>What shows that it does not:</em> {escape(feedback.evidence)}</p>"
        if feedback.at_work:
            yield f"<p><em>What comes of it:</em> {escape(feedback.at_work)}</p>"
        if feedback.explanation:
            yield f"<p><em>{feedback.introduction},</em> “{escape(feedback.title)}”: {escape(feedback.explanation)}</p>"
        if feedback.section:
            yield f"<p><em>Where to read on:</em> {escape(place(feedback.section))} of the book.</p>"
        yield f"<p>For a hint: <code>hint({verdict.exercise!r})</code></p>"
        yield "".join(f"<p>{escape(note)}</p>" for note in verdict.notes)
    if footer:
        yield f"<p><small>{escape(footer)}</small></p>"
    yield "</div>"


def _mark(part: Part) -> str:
    return f"?/{part.max_points:g}, later" if part.waits else f"{part.points:g}/{part.max_points:g}"


def total(verdicts: Sequence[Verdict]) -> str:
    """Add up what several exercises gave, in one line."""
    points = sum(verdict.points or 0.0 for verdict in verdicts)
    passed = sum(verdict.verdict == "passed" for verdict in verdicts)
    most = sum(verdict.max_points for verdict in verdicts)
    return f"{passed} of {len(verdicts)} exercises passed, {points:g} of {most:g} points."
