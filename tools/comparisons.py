"""Write the page of the book that compares the course's code with other libraries, from the tests that do it."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "book" / "comparisons.md"

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    TARGET.write_text(importlib.import_module("comparisons.page").page(), "utf-8")
