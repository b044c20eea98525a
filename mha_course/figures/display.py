"""What a page shows besides figures: the package's own source, and tables of measured values."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from IPython.display import Markdown

from mha_course.figures.style import with_minus


def show_source(thing: type | Callable[..., Any], *, docstrings: bool = True) -> Markdown:
    """Show the source of a function, method or class as it stands in the package.

    A page that shows code this way can't drift from the code that is tested.

    Args:
        thing: what to show.
        docstrings: whether to leave the docstrings in.

    >>> def double(x):
    ...     '''Twice as much.'''
    ...     return 2 * x
    >>> print(show_source(double, docstrings=False).data)
    ```python
    def double(x):
        return 2 * x
    ```
    """
    source = textwrap.dedent(inspect.getsource(thing)).rstrip()
    return Markdown(f"```python\n{source if docstrings else _without_docstrings(source)}\n```")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Markdown:
    """Show rows of measured values under a header.

    Args:
        header: a title for each column.
        rows: as many values each; Markdown in a text is rendered, and a number below 0 gets the minus sign of formulas.

    >>> print(table(["heads", "score"], [(12, -0.5)]).data)
    | heads | score |
    | --- | --- |
    | 12 | −0.5 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return Markdown("\n".join("| " + " | ".join(with_minus(str(cell)) for cell in line) + " |" for line in lines))


def _without_docstrings(source: str) -> str:
    gone: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(node) is None:
            continue
        text = node.body[0]
        gone.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    kept = [line for number, line in enumerate(source.splitlines(), start=1) if number not in gone]
    # A class whose docstring went would begin with the empty line that stood below it.
    return "\n".join(line for number, line in enumerate(kept) if line or not kept[number - 1].endswith(":"))
