"""The drawings of chapter 7: a layer in both orders, layer norm step by step, who is normalised with whom, curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import NullFormatter
from torch import Tensor

from mha_course.figures.blocks import DARK, PAPER, frame
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE, with_minus

STREAM, BRANCH = 1.1, 3.5  # where the residual path and the sublayers stand
LINES = ((QUERY, "o", "-"), (KEY, "s", "--"), (VALUE, "D", "-."), (HEADS[2], "^", ":"), (HEADS[1], "v", "-"))


def draw_layers() -> None:
    """Draw an encoder layer with its norms on the residual path (post-norm) and beside it (pre-norm)."""
    _, (post, pre) = plt.subplots(1, 2, figsize=(4.4, 5.6))
    for ax, title in ((post, "post-norm"), (pre, "pre-norm")):
        ax.set(xlim=(0, 5), ylim=(0, 13.4))
        ax.axis("off")
        ax.set_aspect("equal")
        ax.set_title(title, weight="bold")
        ax.text(STREAM, 13.0, "x", ha="center", va="center", weight="bold")
        # The thick line is the way on which the input itself comes through.
        ax.plot([STREAM, STREAM], [12.6, 0.7], color=INK, linewidth=3, zorder=0)
        ax.annotate(
            "", xy=(STREAM, 0.1), xytext=(STREAM, 0.75), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 3}
        )
    for top, name in ((12.0, "attention"), (6.2, "feed-\nforward")):
        _branch(post, top, {top - 1.5: name}, top - 3.0)
        _box(post, (STREAM, top - 4.3), "norm")
        _branch(pre, top, {top - 1.3: "norm", top - 2.9: name}, top - 4.3)


def draw_norm_steps(row: Float[Tensor, " d_model"]) -> None:
    """Draw one vector in the steps of layer norm: as it is, less its mean, divided by its standard deviation.

    Args:
        row: the vector; its numbers must not all be equal.
    """
    centred = row - row.mean()
    deviation = centred.square().mean().sqrt()
    steps = {
        f"as given: mean {row.mean():g}": row,
        "minus the mean: mean 0": centred,
        f"divided by {deviation:g}: mean 0, variance 1": centred / deviation,
    }
    _, axes = plt.subplots(3, 1, figsize=(4.4, 5.4), sharex=True, sharey=True, gridspec_kw={"hspace": 0.1})
    for ax, (title, numbers) in zip(axes, steps.items(), strict=True):
        bars = ax.bar(range(len(row)), numbers.tolist(), color=HEADS[0], edgecolor=INK, width=0.7)
        ax.bar_label(bars, [with_minus(f"{number:g}") for number in numbers.tolist()], padding=2, size=9)
        ax.axhline(0, color=INK, linewidth=0.8)
        ax.set_title(title)
        ax.margins(y=0.2)
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes[-1].set_xticks(range(len(row)))
    axes[-1].set_xlabel("feature")


def draw_normalised_over(lengths: Sequence[int], length: int, d_model: int) -> None:
    """Draw which numbers of a batch share a mean: those of one token in layer norm, those of one feature in batch norm.

    Args:
        lengths: number of real tokens in each sentence.
        length: tokens of a sentence with its padding, which is hatched.
        d_model: features of a token.
    """
    tokens = length * len(lengths)
    _, axes = plt.subplots(1, 2, figsize=(4.4, 0.9 + 0.3 * tokens))
    for ax, title in ((axes[0], "layer norm"), (axes[1], "batch norm")):
        for row in range(tokens):
            padding = row % length >= lengths[row // length]
            for column in range(d_model):
                together = row == 1 if title == "layer norm" else column == 1
                cell = Rectangle((column, row), 1, 1, facecolor=HEADS[0] if together else PAPER, edgecolor=DARK, lw=0.6)
                cell.set_hatch("////" if padding else "")
                ax.add_patch(cell)
        for sentence in range(1, len(lengths)):
            ax.plot([0, d_model], [sentence * length] * 2, color=DARK, linewidth=2.4)
        ax.set(xlim=(0, d_model), ylim=(tokens, 0), xticks=[], title=title, xlabel="feature")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    middles = [length * (sentence + 0.5) for sentence in range(len(lengths))]
    axes[0].set_yticks(middles, [f"sentence {sentence}" for sentence in range(len(lengths))], rotation=90, va="center")
    axes[1].set_yticks([])


def draw_reach(moved: Mapping[str, Bool[Tensor, "output input"]], words: Sequence[str]) -> None:
    """Draw which outputs move when one input is changed: a row for each output, a column for each input.

    Args:
        moved: for each part of a layer, True where it does.
        words: the tokens.
    """
    _, axes = plt.subplots(1, len(moved), figsize=(4.9, 2.5), sharey=True, squeeze=False)
    for ax, (name, cells) in zip(axes.flat, moved.items(), strict=True):
        for row, of_output in enumerate(cells.tolist()):
            for column, moves in enumerate(of_output):
                ax.add_patch(Rectangle((column, row), 1, 1, facecolor=PAPER, edgecolor=INK, linewidth=0.5))
                if moves:
                    ax.plot(column + 0.5, row + 0.5, marker="o", markersize=5, color=QUERY)
        ax.set(xlim=(0, len(words)), ylim=(len(words), 0), title=name, xlabel="changed input")
        ax.set_xticks([column + 0.5 for column in range(len(words))], words, rotation=90)
        ax.set_yticks([row + 0.5 for row in range(len(words))], words)
        ax.set_aspect("equal")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    axes[0, 0].set_ylabel("output that moves")


def draw_curves(
    series: Mapping[str, Sequence[float]],
    x: Sequence[float],
    xlabel: str,
    ylabel: str,
    *,
    xlog: bool = False,
    ylog: bool = False,
) -> None:
    """Draw measured values as lines that differ in colour, marker and stroke.

    Args:
        series: a name for each line, and its values.
        x: where they were measured; all of them are marked on the axis if they are few.
        xlabel: what stands along the horizontal axis.
        ylabel: what was measured.
        xlog: whether equal steps along the horizontal axis are equal factors.
        ylog: the same for the vertical axis.
    """
    _, ax = plt.subplots(figsize=(4.6, 3.2))
    few = len(x) <= 10
    every = 1 if few else len(x) // 5
    for place, ((name, values), (color, marker, stroke)) in enumerate(zip(series.items(), LINES, strict=False)):
        size = 7 - place  # where lines lie on one another, the marks of the earlier ones look out from behind
        ax.plot(
            x,
            values,
            color=color,
            marker=marker,
            markersize=size,
            markevery=every,
            linestyle=stroke,
            label=name,
        )
    if xlog:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(_plain)
    if ylog:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(_plain)
    if few:
        ax.set_xticks(x, [f"{value:g}" for value in x])
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if not ylog and min(map(min, series.values())) >= 0:
        ax.set_ylim(bottom=0)  # so that heights can be compared
    if len(series) > 1:
        # Above the lines, where it hides none of them.
        ax.legend(fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def _plain(value: float, _: float) -> str:
    """Write a power of ten as the text does."""
    exponent = round(math.log10(value))
    return f"{value:g}" if exponent > -3 else f"1e{exponent}"


def _branch(ax: Axes, top: float, boxes: Mapping[float, str], bottom: float) -> None:
    """Draw a way that leaves the residual path at `top`, leads through boxes and is added to it again at `bottom`."""
    ax.plot([STREAM, BRANCH, BRANCH], [top, top, bottom], color=INK, linewidth=1.2, zorder=0)
    ax.annotate(
        "",
        xy=(STREAM + 0.35, bottom),
        xytext=(BRANCH, bottom),
        arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0},
    )
    for y, name in boxes.items():
        _box(ax, (BRANCH, y), name)
    ax.add_patch(Circle((STREAM, bottom), 0.36, facecolor=PAPER, edgecolor=INK, linewidth=1.4))
    ax.text(STREAM, bottom, "+", color=DARK, ha="center", va="center", weight="bold", size=11)


def _box(ax: Axes, center: tuple[float, float], name: str) -> None:
    color = HEADS[1] if name == "norm" else INK
    frame(ax, center, 2.1, 1.0, color, rounding=0.2)
    ax.text(*center, name, color=DARK, ha="center", va="center", size=9, linespacing=0.95)
