"""The book as one PDF. Printing takes a minute, so what is done to the print is tested on a small one."""

import importlib.util
from pathlib import Path

from pypdf import PdfReader, PdfWriter


def tool():
    path = Path(__file__).parents[2] / "tools" / "pdf.py"
    spec = importlib.util.spec_from_file_location("pdf", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_heading_that_chromium_repeats_stands_in_the_outline_once(tmp_path):
    book = PdfWriter()
    book.add_blank_page(width=100, height=100)
    chapter = book.add_outline_item(title="The encoderThe encoder", page_number=0)
    book.add_outline_item(title="Places and patches", page_number=0, parent=chapter)
    book.add_outline_item(title="Two maskTwo mask", page_number=0, parent=chapter)
    book.add_outline_item(title="QKV", page_number=0)
    path = tmp_path / "book.pdf"
    book.write(path)
    tool().mend_headings(path)
    mended = PdfReader(path)
    first, below, last = mended.outline
    assert (first.title, [item.title for item in below], last.title) == (
        "The encoder", ["Places and patches", "Two mask"], "QKV"
    )  # fmt: skip
    assert len(mended.pages) == 1


def test_a_print_without_headings_is_left_alone(tmp_path):
    book = PdfWriter()
    book.add_blank_page(width=100, height=100)
    book.write(tmp_path / "book.pdf")
    tool().mend_headings(tmp_path / "book.pdf")
    assert len(PdfReader(tmp_path / "book.pdf").pages) == 1
