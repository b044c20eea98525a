"""Derive what a learner starts from out of the solution, so that nothing is kept twice."""

from __future__ import annotations

import re

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_STARTER, END_STARTER = "### BEGIN STARTER", "### END STARTER"  # around lines that are commented out
PLACEHOLDER = 'raise NotImplementedError("replace this line by your own")'


def is_solution(source: str) -> bool:
    """Say whether a cell holds a solution between the two markers."""
    return BEGIN in source


def stub(source: str) -> str:
    """Replace what stands between the markers by what the learner starts from.

    Args:
        source: a cell with one or more regions between BEGIN and END markers, each marker on a line of its own. A region
            gives way to a line that says where to write; or, if one between BEGIN_STARTER and END_STARTER follows at
            once, to the lines of that one, each without the `# ` before it: code that is to be repaired.

    Returns:
        The cell without its solutions and markers.

    Raises:
        ValueError: if a marker has no partner.

    >>> print(stub("def f(x):\\n    ### BEGIN SOLUTION\\n    return x + 1\\n    ### END SOLUTION"))
    def f(x):
        raise NotImplementedError("replace this line by your own")
    """
    lines: list[str] = []
    opened = ""  # the marker of the region that a line stands in
    partner = {BEGIN: END, BEGIN_STARTER: END_STARTER}
    all_lines = source.splitlines()
    for number, line in enumerate(all_lines):
        marker = line.strip()
        if marker in (*partner, *partner.values()):
            if marker != (partner[opened] if opened else marker if marker in partner else None):
                raise ValueError(f"a line {marker!r} has no partner in the cell that starts {source[:40]!r}")
            opened = "" if opened else marker
            following = all_lines[number + 1].strip() if number + 1 < len(all_lines) else ""
            if marker == END and following != BEGIN_STARTER:
                lines.append(re.match(r"\s*", line)[0] + PLACEHOLDER)  # type: ignore[index]
        elif opened == BEGIN_STARTER:
            lines.append(re.sub(r"^(\s*)# ?", r"\1", line))
        elif not opened:
            lines.append(line)
    if opened:
        raise ValueError(f"a line {opened!r} has no partner in the cell that starts {source[:40]!r}")
    return "\n".join(lines)


def solution(source: str) -> str:
    """Return the cell without markers and starter, as a learner who has solved it may see it.

    >>> print(solution("def f(x):\\n    ### BEGIN SOLUTION\\n    return x + 1\\n    ### END SOLUTION"))
    def f(x):
        return x + 1
    """
    without = re.sub(rf"^\s*{BEGIN_STARTER}\n(?:.*\n)*?\s*{END_STARTER}(?:\n|\Z)", "", source, flags=re.MULTILINE)
    return "\n".join(line for line in without.splitlines() if line.strip() not in (BEGIN, END))
