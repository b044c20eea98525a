"""Put a figure's modules together into the one script that a page or a notebook loads.

Needs the standard library alone, as the book is built without PyTorch. A figure NAME consists of `NAME.mjs`, `NAME.py`, its picture for
readers without JavaScript (`stills/NAME.html`), rules of style of its own (`NAME.css`) where it needs any, and an entry in `DATA`
where it loads data on demand.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
STYLE = HERE / "kit.css"  # of all figures
# Data that a figure loads once its reader asks for it: a file, handed out in pieces of a size, or a folder whose files are the pieces.
DATA: dict[str, tuple[Path, int] | Path] = {
    "pretrained": HERE / "data" / "pretrained",
    "transformer": (HERE.parents[1] / "tasks" / "shipped" / "checkpoint.safetensors", 48_000),
}

_IMPORT = re.compile(r'^import \{\s*\w+(?:,\s*\w+)*,?\s*\} from "\./(\w+)\.mjs";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|let|function|class|async) )", re.MULTILINE)

# Comments on lines of their own: a third of the weight, and nobody reads them in a page.
_COMMENT = re.compile(r"^ *(?://.*|/\*\*(?:[^*]|\*(?!/))*\*/)\n", re.MULTILINE)


def names() -> list[str]:
    """Name all figures, in alphabetical order."""
    return sorted(path.stem for path in HERE.glob("*.mjs") if path.with_suffix(".py").exists())


def for_notebook(name: str) -> str:
    """Give a figure as the one module that anywidget asks for."""
    return f"{_joined(name)}\nexport default widget(figure);\n"


def for_page(name: str) -> str:
    """Give a figure as a classic script: modules are refused in a page that is opened from the disk."""
    return f'(() => {{\n"use strict";\n{_joined(name)}\ndefine(figure);\n}})();\n'


def style(name: str) -> str:
    """Give the rules of style that are a figure's own."""
    path = HERE / f"{name}.css"
    return path.read_text("utf-8") if path.exists() else ""


def element(name: str, state: Mapping[str, object]) -> str:
    """Write a figure with its state as HTML; until its script has run, its picture stands in its place."""
    still = HERE / "stills" / f"{name}.html"
    picture = still.read_text("utf-8") if still.exists() else ""
    tag = f"mha-{name.replace('_', '-')}"
    return (
        f'<{tag} data-state="{html.escape(json.dumps(state, ensure_ascii=False, allow_nan=False))}">{picture}</{tag}>'
    )


@cache
def pieces(name: str) -> tuple[bytes, ...]:
    """Give the data that a figure loads on demand, in pieces; none for most figures."""
    if name not in DATA:
        return ()
    source = DATA[name]
    if isinstance(source, Path):
        return tuple(path.read_bytes() for path in sorted(source.glob("*.bin")))
    path, size = source
    data = path.read_bytes()
    return tuple(data[start : start + size] for start in range(0, len(data), size))


def write(name: str, folder: Path) -> None:
    """Write what a page with this figure loads: the script, the styles, and the pieces of data as scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STYLE.name).write_text(STYLE.read_text("utf-8"), "utf-8")
    tag = name.replace("_", "-")
    (folder / f"{tag}.css").write_text(style(name), "utf-8")
    (folder / f"{tag}.js").write_text(for_page(name), "utf-8")
    for index, piece in enumerate(pieces(name)):
        text = f'(globalThis.mhaPieces ??= {{}})["{tag}-{index}"] = "{base64.b64encode(piece).decode()}";\n'
        (folder / f"{tag}-{index}.js").write_text(text, "utf-8")


def _joined(name: str) -> str:
    """Join a module and those that it imports, each once and in the order needed."""
    order: list[str] = []

    def visit(module: str) -> None:
        for needed in _IMPORT.findall((HERE / f"{module}.mjs").read_text("utf-8")):
            visit(needed)
        if module not in order:
            order.append(module)

    visit(name)
    sources = [(HERE / f"{module}.mjs").read_text("utf-8") for module in order]
    joined = "\n".join(_EXPORT.sub("", _IMPORT.sub("", source)) for source in sources)
    left = re.search(r"^(?:import|export)\b.*", joined, re.MULTILINE)
    if left:
        raise ValueError(
            f'{name}.mjs can\'t be joined: {left[0]!r} is neither `import {{ a, b }} from "./module.mjs";` nor an exported definition'
        )
    return _COMMENT.sub("", joined)
