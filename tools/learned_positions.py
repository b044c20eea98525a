"""Store how alike the learned positions of the pretrained model are, in the figure that shows them.

Of its first 64 rows and of its last 32 the cosines right of the diagonal are kept, row by row, in a byte each. Run it again if the
figure is to show other rows: .venv/bin/python tools/learned_positions.py
"""

from __future__ import annotations

import base64
import re
import sys

import torch
from torch.nn import functional as F

from mha_course import pretrained
from mha_course.figures.live import bundle

TARGET = bundle.HERE / "positions.mjs"
WINDOWS = ((0, 64), (480, 512))


def packed(first: int, end: int) -> str:
    """Give the cosines of some rows of the table with each other, as text."""
    rows = F.normalize(pretrained.load().position.weight.detach()[first:end])
    above = torch.triu_indices(len(rows), len(rows), offset=1)
    numbers = ((rows @ rows.T)[*above] * 127).round().char()
    return base64.b64encode(numbers.numpy().tobytes()).decode()


def main() -> None:
    """Write them into the module."""
    entries = ", ".join(f'{first}: "{packed(first, end)}"' for first, end in WINDOWS)
    text = TARGET.read_text("utf-8")
    TARGET.write_text(re.sub(r"(?m)^const LEARNED = .*$", f"const LEARNED = {{ {entries} }};", text), "utf-8")
    sys.stdout.write(f"{len(entries):,} bytes are written to {TARGET.name}\n")


if __name__ == "__main__":
    main()
