"""Compute what the figure of chapter 5 loads: the maps of every head of the pretrained model, on each of the figure's sentences.

A sentence is a file. It holds 72 maps, layer by layer and head by head, each row by row; a weight is a whole number of 65535ths
in two bytes, the lower one first. So each is right to within 1/131070.
"""

from __future__ import annotations

import sys

from mha_course import pretrained
from mha_course.figures.live import bundle
from mha_course.figures.live.pretrained import SENTENCES

STEPS = 65535


def packed(model: pretrained.MiniLM, sentence: str) -> bytes:
    """Return the maps of one sentence as they are stored."""
    maps = model.attention_maps(*model.tokenize([sentence]))[:, 0]
    data: bytes = (maps.double() * STEPS).round().numpy().astype("<u2").tobytes()
    return data


def main() -> None:
    """Write the files, and say how large they are."""
    model = pretrained.load()
    folder = bundle.HERE / "data" / "pretrained"
    folder.mkdir(parents=True, exist_ok=True)
    for index, sentence in enumerate(SENTENCES):
        size = (folder / f"{index:02}.bin").write_bytes(packed(model, sentence))
        sys.stdout.write(f"    {size:6,} bytes  {sentence}\n")


if __name__ == "__main__":
    main()
