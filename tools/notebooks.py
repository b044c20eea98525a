"""Run notebooks in place and store them so that a second run leaves no difference.

What changes from run to run without meaning anything is removed: times, the kernel's version, the name of the machine's
Python, addresses of objects. The cells' ids, tags and other metadata stay.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python"}
# The same cuts are made by nbval when it compares (tools/nbval.cfg).
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")
SECONDS_A_CELL = 300


def run(path: Path) -> None:
    """Run one notebook from its own folder and store it; an error in a cell ends the run and stores nothing."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": path.parent}},
    ).execute()
    normalise(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def normalise(notebook: Any) -> None:
    """Remove from a notebook what differs between two runs that did the same."""
    notebook.metadata = {**notebook.metadata, "kernelspec": KERNELSPEC, "language_info": LANGUAGE}
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        cell.metadata.pop("ExecuteTime", None)
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
            for output in cell.outputs:
                _clean(output)


def _joined(outputs: list[Any]) -> list[Any]:
    """Join what was printed in one go: how it was cut into pieces depends on the clock."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _clean(output: Any) -> None:
    output.get("metadata", {}).pop("execution", None)
    # The number of a widget that is gone; what stays is its page version.
    output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    if "text" in output:
        output.text = ADDRESS.sub("0x", output.text)
    for kind, value in output.get("data", {}).items():
        if isinstance(value, str) and kind.startswith("text/"):
            output.data[kind] = ADDRESS.sub("0x", value)


def main() -> None:
    """Run the notebooks named, or all in the folders named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="notebooks, or folders of them")
    for path in parser.parse_args().paths:
        for notebook in sorted(path.glob("*.ipynb")) if path.is_dir() else [path]:
            sys.stdout.write(f"    {notebook}\n")
            sys.stdout.flush()
            run(notebook)


if __name__ == "__main__":
    main()
