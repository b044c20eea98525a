"""Derive what a learner starts from out of the solution, so that nothing is kept twice."""

from __future__ import annotations

import re

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
PLACEHOLDER = 'raise NotImplementedError("replace this line by your own")'


def is_solution(source: str) -> bool:
    """Say whether a cell holds a solution between the two markers."""
    return BEGIN in source


def stub(source: str) -> str:
    """Replace what stands between the markers by a line that says where to write.

    Args:
        source: a cell with one or more regions between BEGIN and END markers, each marker on a line of its own.

    Returns:
        The cell without its solutions and markers.

    Raises:
        ValueError: if a marker has no partner.

    >>> print(stub("def f(x):\\n    ### BEGIN SOLUTION\\n    return x + 1\\n    ### END SOLUTION"))
    def f(x):
        raise NotImplementedError("replace this line by your own")
    """
    lines: list[str] = []
    inside = False
    for line in source.splitlines():
        marker = line.strip()
        if marker in (BEGIN, END):
            if inside == (marker == BEGIN):
                raise ValueError(f"a line {marker!r} has no partner in the cell that starts {source[:40]!r}")
            inside = not inside
            if inside:
                lines.append(re.match(r"\s*", line)[0] + PLACEHOLDER)  # type: ignore[index]
        elif not inside:
            lines.append(line)
    if inside:
        raise ValueError(f"a line {BEGIN!r} has no partner in the cell that starts {source[:40]!r}")
    return "\n".join(lines)
