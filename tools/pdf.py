"""Print the whole book into one PDF, with Chromium.

All pages are built as one, which Chromium then prints; solutions and folded answers are printed open.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, TextStringObject

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "_build" / "attention.pdf"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BUILD = ["--builder", "custom", "--custom-builder", "singlehtml"]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--generate-pdf-document-outline",
    "--no-pdf-header-footer",
]


def mend_headings(path: Path) -> None:
    """Write each heading of the outline once: Chromium repeats one that it moved on to the next page."""
    book = PdfWriter(path, incremental=True)  # the whole written anew would be twice as large
    _mend_below(book.root_object.get("/Outlines", DictionaryObject()))
    book.write(path)


def _mend_below(item: DictionaryObject) -> None:
    child = item.get("/First")
    while child is not None:
        child = child.get_object()
        title = str(child["/Title"])
        half = title[: len(title) // 2]
        if title == half + half:
            child[NameObject("/Title")] = TextStringObject(half)
        _mend_below(child)
        child = child.get("/Next")


def main() -> None:
    """Build, print, and say where the PDF is; end with one sentence where that can't be done."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"Printing needs Chromium or Chrome, and none of {', '.join(BROWSERS)} is here: install one of them.")
    TARGET.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(sys.executable).with_name("jupyter-book"))
        build = [program, "build", "--quiet", "--path-output", folder, *BUILD, str(ROOT)]
        done = subprocess.run(build, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"The book could not be built:\n{done.stderr[-2000:]}")
        site = Path(folder) / "_build" / "singlehtml"
        # Its links to styles and pictures are those of the top folder.
        page = site / "book.html"
        shutil.copy(site / "book" / "index.html", page)
        done = subprocess.run(
            [browser, *FLAGS, f"--print-to-pdf={TARGET}", page.as_uri()], check=False, capture_output=True, text=True
        )
    if done.returncode or not TARGET.exists():
        sys.exit(f"Chromium could not print the book:\n{done.stderr[-2000:]}")
    mend_headings(TARGET)
    sys.stdout.write(f"The book is in {TARGET.relative_to(ROOT)} ({TARGET.stat().st_size / 1e6:.0f} MB).\n")


if __name__ == "__main__":
    main()
