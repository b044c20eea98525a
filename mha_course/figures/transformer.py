"""The drawings of chapter 8: the layer and the model as blocks, shifted targets, curves, small maps, trees and choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from textwrap import fill

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter
from torch import Tensor

from mha_course.figures.blocks import arrow, box
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE, WEIGHTS

# In inches. A phone shows a picture of this width at five sixths of its size, and wider ones smaller.
WIDE = 4.3
_box = partial(box, size=8)
# Each line has a colour, a dash and a mark of its own, so that none is needed to tell them apart.
LINES = (
    (QUERY, "-", "o"),
    (KEY, "--", "s"),
    (VALUE, "-.", "D"),
    ("#CC79A7", ":", "^"),
    (INK, (0, (5, 1, 1, 1, 1, 1)), "v"),
)


def draw_decoder_layer() -> None:
    """Draw a decoder layer from its input at the top to its output below: three sublayers, each with Add & Norm."""
    _, ax = plt.subplots(figsize=(WIDE, 5.9))
    ax.set(xlim=(0.3, 10.25), ylim=(0, 11.8))
    ax.axis("off")
    ax.text(3.9, 11.45, "x: one vector a target token", ha="center", weight="bold", size=9)
    for top, text, color in (
        (10.4, "masked self-attention\nself_attn", QUERY),
        (6.9, "cross-attention\ncross_attn", QUERY),
        (3.4, "feed-forward\nffn", INK),
    ):
        arrow(ax, (3.9, min(top + 1.2, 11.3)), (3.9, top + 0.2))
        _box(ax, (3.9, top - 0.4), 4.4, 1.2, text, color)
        arrow(ax, (3.9, top - 1.0), (3.9, top - 1.5))
        _box(ax, (3.9, top - 1.9), 4.4, 0.8, f"Add & Norm\nnorm{round((13.9 - top) / 3.5)}", INK)
        # The residual path leads round the sublayer.
        ax.plot([3.9, 0.7, 0.7], [top + 0.55, top + 0.55, top - 1.9], color=INK, linewidth=1.2)
        arrow(ax, (0.7, top - 1.9), (1.65, top - 1.9))
    arrow(ax, (3.9, 1.1), (3.9, 0.55))
    ax.text(3.9, 0.15, "output: one vector a target token", ha="center", weight="bold", size=9)
    ax.text(4.05, 7.4, "query", va="center", color=QUERY, size=8)
    _box(ax, (8.85, 6.5), 2.6, 1.2, "memory\nfrom the encoder", INK)
    arrow(ax, (7.55, 6.75), (6.15, 6.75), KEY)
    arrow(ax, (7.55, 6.25), (6.15, 6.25), VALUE)
    ax.text(6.85, 6.9, "key", ha="center", va="bottom", color=KEY, size=8)
    ax.text(6.85, 6.1, "value", ha="center", va="top", color=VALUE, size=8)
    for x, y, text in (
        (7.5, 10.0, "no token sees\na later one"),
        (8.8, 5.3, "every layer reads\nthe same memory"),
        (7.5, 3.0, "each token\non its own"),
    ):
        ax.text(x, y, text, ha="center", va="center", size=8)


def draw_transformer(num_layers: int, source: str, target: str, written: str) -> None:
    """Draw the whole model: encoder on the left, decoder on the right, memory from the one to the other.

    Args:
        num_layers: layers of each.
        source: the text that is read.
        target: what the decoder is given, shifted by one.
        written: what it shall predict.
    """
    _, ax = plt.subplots(figsize=(WIDE, 5.4))
    ax.set(xlim=(0, 10.4), ylim=(0, 10.8))
    ax.axis("off")
    for x, text, name, kind in ((2.4, source, "encoder", "source"), (7.8, target, "decoder", "target")):
        ax.text(x, 10.4, fill(text, 24), ha="center", va="center", size=8, weight="bold")
        arrow(ax, (x, 10.1), (x, 9.5))
        _box(ax, (x, 9.0), 4.4, 1.0, f"tokens + positions\n{kind}", INK)
        arrow(ax, (x, 8.5), (x, 7.85))
        for behind in (0.36, 0.18, 0.0):
            inside = "" if behind else f"{num_layers} {name} layers\n{name}"
            _box(ax, (x + behind - 0.18, 6.4 + behind), 4.0, 2.2, inside, INK)
    arrow(ax, (2.4, 5.3), (2.4, 4.5))
    _box(ax, (2.4, 4.0), 4.4, 1.0, "memory\none vector a source token", INK)
    ax.plot([4.6, 5.1, 5.1], [4.0, 4.0, 6.2], color=INK, linewidth=1.2)
    arrow(ax, (5.1, 6.2), (5.65, 6.2))
    arrow(ax, (7.8, 5.3), (7.8, 4.5))
    _box(ax, (7.8, 4.0), 4.4, 1.0, "scores of all words\noutput", INK)
    arrow(ax, (7.8, 3.5), (7.8, 2.7))
    _box(ax, (7.8, 2.2), 4.4, 0.9, "softmax: probabilities", INK)
    arrow(ax, (7.8, 1.75), (7.8, 1.1))
    ax.text(7.8, 0.7, fill(written, 24), ha="center", va="center", size=8, weight="bold")


def draw_shifts(columns: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> None:
    """Draw what a decoder reads and, below each word, which one it is to say there.

    Args:
        columns: a panel each, under its title: the words read and the words to be said; "" where nothing is asked.
    """
    _, axes = plt.subplots(len(columns), 1, figsize=(WIDE, 1.45 * len(columns)), squeeze=False)
    for ax, (title, (read, said)) in zip(axes.flat, columns.items(), strict=True):
        for place, (above, below) in enumerate(zip(read, said, strict=True)):
            _cell(ax, place, 0.0, above, HEADS[0])
            if below:
                arrow(ax, (place + 0.5, 0.72), (place + 0.5, 1.18))
                _cell(ax, place, 1.2, below, HEADS[1])
        ax.set(xlim=(-0.9, len(read)), ylim=(2.0, -0.1))
        for y, name in ((0.35, "reads"), (1.55, "says")):
            ax.text(-0.1, y, name, ha="right", va="center", size=8)
        ax.axis("off")
        ax.set_title(title, loc="left")


def draw_curves(
    series: Mapping[str, Sequence[float]],
    xlabel: str,
    ylabel: str,
    *,
    at: Sequence[float] | None = None,
    log: bool = False,
    ax: Axes | None = None,
) -> None:
    """Draw one line each, told apart by colour, dash and mark.

    Args:
        series: a name for each line, and its values.
        xlabel: what is counted on the horizontal axis.
        ylabel: what is measured.
        at: where on the horizontal axis the values stand; None counts from 1.
        log: whether one step up is a factor.
        ax: where to draw; None makes a new figure.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(WIDE, 3.2))
    for (name, values), (color, dash, mark) in zip(series.items(), LINES, strict=False):
        places = range(1, len(values) + 1) if at is None else at
        every = max(1, len(values) // 8)
        ax.plot(
            places, values, color=color, linestyle=dash, linewidth=1.6, marker=mark, markevery=every, ms=5, label=name
        )
    ax.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
    if log:  # 0.1 and 1 are read more easily than powers of ten
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    if len(series) > 1:  # above the axes, where it hides no line
        columns = 2 if max(map(len, series)) < 18 else 1
        ax.legend(fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, handlelength=3)


def draw_maps(
    maps: Mapping[str, Float[Tensor, "query key"]], queries: Sequence[str], keys: Sequence[str], columns: int = 2
) -> None:
    """Draw maps of the same words side by side, on the book's scale of 0 (light) to 1 (dark), without numbers.

    Args:
        maps: the weights, under the title of each.
        queries: a label for each row.
        keys: a label for each column.
        columns: how many stand side by side.
    """
    rows = -(-len(maps) // columns)
    wide = (WIDE - 0.9) / columns  # a map, without the labels on its left
    size = (WIDE, 0.9 + rows * (0.35 + wide * len(queries) / len(keys)))
    _, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for ax in axes.flat[len(maps) :]:
        ax.axis("off")
    for ax, (title, weights) in zip(axes.flat, maps.items(), strict=False):
        ax.imshow(weights.numpy(), cmap=WEIGHTS, vmin=0, vmax=1)
        ax.set_title(title)
        ax.set_xticks(range(len(keys)), keys, rotation=90, size=8)
        ax.set_yticks(range(len(queries)), queries, size=8)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(True)  # the lightest cells are hardly darker than a white page
    for ax in axes[-1]:
        ax.set_xlabel("key", color=KEY, size=8)
    for ax in axes[:, 0]:
        ax.set_ylabel("query", color=QUERY, size=8)


def draw_tree(
    branches: Mapping[tuple[str, ...], Mapping[str, float]], paths: Mapping[str, tuple[tuple[str, ...], str]]
) -> None:
    """Draw which texts a model may write, and the paths that two ways of searching take.

    Args:
        branches: for each text so far, () first, the probability of each next word.
        paths: for each way of searching its text, and the dash of its line.
    """
    texts = [(*text, word) for text, words in branches.items() for word in words]
    leaves = [text for text in texts if text not in branches]
    height = {text: float(row) for row, text in enumerate(leaves)}
    for text in reversed(list(branches)):  # a text stands in the middle of those that go on from it
        height[text] = sum(height[*text, word] for word in branches[text]) / len(branches[text])
    _, ax = plt.subplots(figsize=(WIDE, 0.5 + 0.52 * len(leaves)))
    for text in texts:
        before, chance = text[:-1], branches[text[:-1]][text[-1]]
        x, y = 3.2 * len(text), height[text]
        start = (x - 3.2 + (0.85 if before else 0.6), height[before])
        ax.plot([start[0], x - 0.85], [start[1], y], color=INK, linewidth=0.8)
        for color, (path, dash) in zip((KEY, QUERY), paths.values(), strict=False):
            if path[: len(text)] == text:
                ax.plot([start[0], x - 0.85], [start[1], y], color=color, linestyle=dash, linewidth=2.6)
        near = (0.45 * start[0] + 0.55 * (x - 0.85), 0.45 * start[1] + 0.55 * y - 0.08)
        align = "center" if start[1] == y else "right" if y < start[1] else "left"
        ax.text(*near, f"{chance:.2f}", ha=align, va="bottom", size=8)
        _box(ax, (x, y), 1.7, 0.62, text[-1], INK)
        if text in leaves:
            product = 1.0
            for place in range(len(text)):
                product *= branches[text[:place]][text[place]]
            found = "".join(f"  {name}" for name, (path, _) in paths.items() if path == text)
            ax.text(x + 1.0, y, f"{product:.3f}{found}", va="center", size=8, weight="bold" if found else "normal")
    _box(ax, (0, height[()]), 1.2, 0.62, "begin", INK)
    ax.set(xlim=(-0.7, 3.2 * max(map(len, texts)) + 3.4), ylim=(len(leaves) - 0.5, -0.6))
    ax.axis("off")


def draw_choices(choices: Mapping[str, Float[Tensor, " word"]], words: Sequence[str]) -> None:
    """Draw the probabilities of the next word, a panel for each way to choose; what is ruled out is marked so."""
    rows = -(-len(choices) // 2)
    _, axes = plt.subplots(rows, 2, figsize=(WIDE, rows * (0.5 + 0.2 * len(words))), sharex=True, sharey=True)
    for ax, (title, probabilities) in zip(axes.flat, choices.items(), strict=False):
        ax.barh(range(len(words)), probabilities.tolist(), color=HEADS[0], edgecolor=INK)
        for row, probability in enumerate(probabilities.tolist()):
            text = "ruled out" if probability == 0.0 else f"{probability:.2f}"
            ax.text(probability + 0.02, row, text, va="center", size=8)
        ax.set_title(title)
        ax.set_xlim(0, 1.15)
        ax.set_yticks(range(len(words)), words, size=8)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.spines["bottom"].set_visible(False)
    axes.flat[0].invert_yaxis()


def _cell(ax: Axes, x: float, y: float, text: str, face: str) -> None:
    ax.add_patch(Rectangle((x + 0.03, y), 0.94, 0.7, facecolor=face, edgecolor="#222222", linewidth=0.6))
    ax.text(x + 0.5, y + 0.35, text, ha="center", va="center", color="black", size=8)
