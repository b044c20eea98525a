"""The drawings of chapter 3: the six steps as matrices, maps and masks, a mixture in the plane, ways from word to word."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from mha_course.figures.blocks import DARK, PAPER, arrow
from mha_course.figures.heatmap import heatmap
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE

MARKERS = "osD^v"
TIMES = "\N{MULTIPLICATION SIGN}"


def draw_six_steps(length: int, d_model: int, d_head: int) -> None:
    """Draw the matrices of self-attention in proportion to their shapes, from the tokens to the output.

    Args:
        length: number of tokens.
        d_model: width of a token.
        d_head: width of queries, keys and values.
    """
    unit = 4 / d_model  # the tokens are four units wide
    _, (top, bottom) = plt.subplots(2, 1, figsize=(4.8, 4.7), height_ratios=[5.0, 2.6])
    for ax, height, title in ((top, 5.1, "steps 1 and 2"), (bottom, 2.7, "steps 3 to 6, drawn larger")):
        ax.set(xlim=(-0.1, 7.4), ylim=(-height / 2 - 0.2, height / 2))
        ax.set_aspect("equal")
        ax.axis("off")
        ax.set_title(title, loc="left")
    _matrix(top, 0, (length, d_model), unit, "tokens X", INK)
    _sign(top, 4.3, TIMES)
    for behind, color in ((0.3, VALUE), (0.15, KEY), (0.0, QUERY)):
        _matrix(top, 4.6 + behind, (d_model, d_head), unit, "" if behind else " ", color, lift=behind / 2)
    top.text(5.15, 2.5, "three matrices W", ha="center", va="center", weight="bold")
    _sign(top, 5.95, "=")
    for y, name, color in ((1.3, "Q", QUERY), (0.0, "K", KEY), (-1.3, "V", VALUE)):
        _matrix(top, 6.25, (length, d_head), unit, name, color, lift=y)
    x = 0.0
    for sign, name, shape, color in (
        ("", "Q", (length, d_head), QUERY),
        (TIMES, "Kᵀ", (d_head, length), KEY),
        ("→", "weights", (length, length), INK),
        (TIMES, "V", (length, d_head), VALUE),
        ("=", "output", (length, d_head), INK),
    ):
        if sign:
            _sign(bottom, x + 0.22, sign)
            x += 0.44
        _matrix(bottom, x, shape, 1.65 * unit, name, color)
        x += max(1.65 * unit * shape[1], 0.72)


def draw_mixtures(
    values: Float[Tensor, "key 2"],
    labels: Sequence[str],
    mixtures: Mapping[str, Float[Tensor, "2"]],
    axes: Sequence[str],
) -> None:
    """Draw values as places in the plane, the area that mixtures of them can reach, and some mixtures.

    Args:
        values: a place for each key.
        labels: a name for each key; names of one place stand together.
        mixtures: what came back, under the name of the question.
        axes: what the two numbers mean.
    """
    _, ax = plt.subplots(figsize=(5.0, 4.2))
    # The corners of the area, in order: whatever direction one looks in, one of them is the furthest.
    directions = torch.linspace(0, 2 * math.pi, 181)
    furthest = (torch.stack([directions.cos(), directions.sin()], dim=1) @ values.T).argmax(dim=1)
    ax.fill(*values[furthest].T, facecolor=VALUE, alpha=0.15, edgecolor=VALUE)
    together: dict[tuple[float, float], list[str]] = {}
    for (x, y), label in zip(values.tolist(), labels, strict=True):
        together.setdefault((x, y), []).append(label)
    for place, names in together.items():
        ax.plot(*place, marker="s", color=VALUE)
        ax.annotate(", ".join(names), place, xytext=(6, 6), textcoords="offset points", color=VALUE)
    for (name, mixture), marker in zip(mixtures.items(), MARKERS, strict=False):
        ax.plot(*mixture.tolist(), marker=marker, color=QUERY, linestyle="none", markersize=8, label=name, alpha=0.8)
    ax.set(xlabel=axes[0], ylabel=axes[1])
    ax.margins(0.14)
    ax.legend(loc="upper right")


def draw_maps(maps: Mapping[str, tuple[Float[Tensor, "query key"], Sequence[str], Sequence[str]]]) -> None:
    """Draw maps of weights below one another.

    Args:
        maps: weights in [0, 1], a label for each row and a label for each column, each under the map's name.
    """
    height = sum(0.5 * len(queries) + 1.1 for _, queries, _ in maps.values())
    figure, axes = plt.subplots(len(maps), 1, figsize=(4.2, height), squeeze=False)
    _part(figure)
    for ax, (name, (weights, queries, keys)) in zip(axes.flat, maps.items(), strict=True):
        heatmap(weights, queries, keys, title=name, ax=ax)


def draw_masks(masks: Mapping[str, Bool[Tensor, "query key"]], words: Sequence[str]) -> None:
    """Draw masks side by side, two in a row: filled where a query may attend, hatched where it may not.

    Args:
        masks: square ones, each under its name.
        words: a name for each row and column.
    """
    rows = (len(masks) + 1) // 2
    figure, axes = plt.subplots(rows, 2, figsize=(4.6, 2.6 * rows), squeeze=False)
    _part(figure)
    for ax in axes.flat[len(masks) :]:
        ax.axis("off")
    for ax, (name, mask) in zip(axes.flat, masks.items(), strict=False):
        for query, row in enumerate(mask.tolist()):
            for key, allowed in enumerate(row):
                face, hatch = (HEADS[0], "") if allowed else (PAPER, "////")
                ax.add_patch(Rectangle((key, query), 1, 1, facecolor=face, hatch=hatch, edgecolor=DARK, linewidth=0.5))
        length = len(mask)
        ax.set(xlim=(0, length), ylim=(length, 0), title=name)
        ax.title.set_size(9)
        ax.set_aspect("equal")
        ax.set_xticks([key + 0.5 for key in range(length)], words, size=9, rotation=90)
        ax.set_yticks([query + 0.5 for query in range(length)], words, size=9)
        ax.set_xlabel("key", color=KEY)
        ax.set_ylabel("query", color=QUERY)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.label_outer()  # each name once, at the edge of the picture


def draw_paths(words: Sequence[str]) -> None:
    """Draw the way from the first word to the last: step by step in a recurrent network, at once in self-attention."""
    last = len(words) - 1
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(4.6, 3.7))
    _part(figure)
    for ax, title in ((upper, f"recurrent network: {last} steps"), (lower, "self-attention: 1 step")):
        ax.set(xlim=(-0.6, last + 0.6), ylim=(-0.6, 2.0))
        ax.axis("off")
        ax.set_title(title, loc="left")
        for place, word in enumerate(words):
            ax.text(place, -0.45, word, ha="center", va="center")
    for place in range(last + 1):
        upper.plot(place, 0.9, marker="o", markersize=14, markerfacecolor=PAPER, markeredgecolor=INK)
        arrow(upper, (place, -0.2), (place, 0.6), INK, 1.0)
        lower.plot(place, 0, marker="o", markersize=6, color=KEY)
        if place:
            arrow(upper, (place - 0.8, 0.9), (place - 0.2, 0.9), KEY, 2.2)
            upper.text(place - 0.5, 1.2, str(place), ha="center", color=KEY)
    lower.plot(last, 1.6, marker="o", markersize=14, markerfacecolor=PAPER, markeredgecolor=QUERY)
    for place in range(last + 1):
        color, width = (KEY, 2.2) if place == 0 else (INK, 0.9)
        arrow(lower, (place, 0.12), (last - (last - place) * 0.06, 1.32 if place > 1 else 1.5), color, width)


def draw_influence(lengths: Sequence[int], lines: Mapping[str, Sequence[float]]) -> None:
    """Draw how much the first token acts on the last output, for layers that read longer and longer sentences.

    Args:
        lengths: numbers of tokens.
        lines: the influence at each length, under the name of the layer; that of self-attention is drawn solid.
    """
    _, ax = plt.subplots(figsize=(4.6, 3.8))
    for (name, line), marker in zip(lines.items(), MARKERS, strict=False):
        color, style = (QUERY, "-") if name == "self-attention" else (KEY, "--")
        ax.plot(lengths, line, style, color=color, marker=marker, markersize=5, label=name)
    ax.set(xscale="log", yscale="log", xlabel="length of the sentence", ylabel="first token's influence")
    ax.set_xticks(lengths, [str(length) for length in lengths], minor=False)
    ax.minorticks_off()
    ax.set_ylim(1e-24, 10)
    ax.legend(loc="lower left")


def _part(figure: Figure) -> None:
    """Keep what stands below one panel from the title of the next."""
    figure.set_layout_engine("constrained", h_pad=0.12)


def _matrix(ax: Axes, x: float, shape: tuple[int, int], unit: float, name: str, color: str, lift: float = 0.0) -> None:
    rows, columns = shape
    height, width = rows * unit, columns * unit
    ax.add_patch(Rectangle((x, lift - height / 2), width, height, facecolor=PAPER, edgecolor=color, linewidth=1.6))
    if name:
        ax.text(x + width / 2, lift + height / 2 + 0.2, name, ha="center", va="center", color=color, weight="bold")
        size = f"{rows} {TIMES} {columns}"
        ax.text(x + width / 2, lift - height / 2 - 0.2, size, ha="center", va="center", size=9)


def _sign(ax: Axes, x: float, sign: str) -> None:
    ax.text(x, 0, sign, ha="center", va="center", size=12)
