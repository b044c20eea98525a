"""Write the data of chapter 1's figure: the digit finder, trained as in the chapter, and pictures that it never learned from.

.venv/bin/python tools/look_weights.py

It needs scikit-learn for the digits. Each learned number is rounded to one byte; what that costs is measured and printed.
"""

import base64
import re
import sys
from pathlib import Path

import torch
from jaxtyping import Float, Int
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional as F

from mha_course.attention_intuition import PATCH, STEP, DigitFinder, hide_digits
from mha_course.figures.live import bundle

TARGET = bundle.HERE / "attention_intuition_weights.mjs"
# Of the chapter's pictures for the test: first those that it shows, then one for each other digit, one at which the model
# looks well and which it misreads, and one at which it looks astray.
SHOWN = (22, 5, 14, 24, 19, 15, 16, 45, 18, 2, 571, 348)
HEAD = """// Written by tools/look_weights.py: what the digit finder of chapter 1 has learned, and pictures that it never learned from.

/** Both networks, two layers each, [weight, bias]: numbers as [scale, bytes], where each byte is a whole number from −127 to 127. */
"""
MIDDLE = """
/**
 * Digits, and the clutter in which they lie. "A" to "P" is a pixel with 1 to 16 sixteenths of ink, "a" to "z" a run of
 * 1 to 26 pixels of paper.
 */
"""


def train(pictures: Float[Tensor, "picture side side"], answers: Int[Tensor, " picture"]) -> DigitFinder:
    """Train a digit finder as the chapter does."""
    torch.manual_seed(0)
    finder = DigitFinder()
    optimizer = torch.optim.Adam(finder.parameters(), lr=0.01)
    for _ in range(301):
        batch = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(finder(pictures[batch]), answers[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return finder.requires_grad_(requires_grad=False)


def as_list(numbers: Tensor) -> str:
    """Round numbers to bytes, also in their place, and write them as a list of their scale and the bytes in base64."""
    scale = float(f"{numbers.abs().max().item() / 127:.6g}")
    whole = (numbers / scale).round().clamp(-127, 127)
    numbers.copy_(whole * scale)
    return f'[{scale}, "{base64.b64encode(whole.to(torch.int8).numpy().tobytes()).decode()}"]'


def in_letters(picture: Float[Tensor, "height width"]) -> str:
    """Write a picture row by row, a letter for each pixel with ink and for each run of pixels without."""
    letters = "".join(chr(64 + round(16 * ink)) for ink in picture.flatten().tolist())
    return re.sub("@{1,26}", lambda run: chr(96 + len(run[0])), letters)


def main() -> None:
    """Train, round, measure before and after, and write."""
    data = load_digits()
    digits, names = torch.tensor(data.images / 16, dtype=torch.float32), torch.tensor(data.target)
    pictures, chosen, _ = hide_digits(digits[:1200], count=4000, seed=0)
    new, new_chosen, places = hide_digits(digits[1200:], count=1000, seed=1)
    answers = names[1200:][new_chosen]

    def report(title: str) -> None:
        weight = finder.look(new)[1][torch.arange(len(new)), *places.T].mean().item()
        right = (finder(new).argmax(dim=1) == answers).float().mean().item()
        sys.stdout.write(f"{title}: {right:.3f} read rightly, {weight:.3f} of the weight on the digit\n")

    finder = train(pictures, names[:1200][chosen])
    report("as trained")
    layers = ""
    for part, network in finder.named_children():
        lists = [as_list(numbers) for numbers in network.parameters()]
        layers += f"  {part}: [\n    [{lists[0]},\n      {lists[1]}],\n    [{lists[2]},\n      {lists[3]}],\n  ],\n"
    report("rounded to bytes")

    collection = ""
    for shown in SHOWN:
        clutter = new[shown].clone()
        # What lies below the digit is not known; the same place of a picture whose digit lies elsewhere fills the hole.
        other = next(i for i in SHOWN if (places[i] - places[shown]).abs().max() * STEP >= PATCH)
        row, column = (places[shown] * STEP).tolist()
        hole = (slice(row, row + PATCH), slice(column, column + PATCH))
        digit = clutter[hole].clone()
        clutter[hole] = new[other][hole]
        collection += (
            f"  {{ digit: {answers[shown]}, place: {places[shown].tolist()}, "
            f'ink: "{in_letters(digit)}",\n    clutter: "{in_letters(clutter)}" }},\n'
        )
    TARGET.write_text(
        f"{HEAD}export const FINDER = {{\n{layers}}};\n{MIDDLE}export const PICTURES = [\n{collection}];\n", "utf-8"
    )
    sys.stdout.write(f"{TARGET.relative_to(Path.cwd())}: {TARGET.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
