"""The drawings of chapter 1: a weighted average, a glimpse, attention over a picture, its history, and a word in context."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.nn import functional as F

from mha_course.attention_intuition import PATCH, SIDE, STEP
from mha_course.figures.blocks import DARK, PAPER, arrow
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE, WEIGHTS

ENLARGED = 8  # a pixel of a picture becomes this many in each direction: browsers blur what they enlarge themselves
# When, whose attention, and what was new; the sources stand in the chapter.
HISTORY = (
    (1967, "people", "eyes follow\nthe question"),
    (1980, "people", "attention binds\nfeatures"),
    (1995, "pictures", "one part of a\ndigit after another"),
    (1998, "pictures", "maps of what\nstands out"),
    (2014, "pictures", "where to look\nis learned: hard"),
    (2014, "words", "translation\nlooks back: soft"),
    (2017, "words", "the Transformer:\nattention alone"),
)
FULL = 0.62  # how far along the scale a weight of 1 is drawn: ink has to be seen on it
HALF_PANEL = (158.0, 74.0)  # half the width and height of the frame of `draw_meanings`, in points


def draw_mixture(
    weights: Float[Tensor, " place"],
    values: Float[Tensor, "place width"],
    labels: Sequence[str],
    features: Sequence[str],
    name: str,
) -> None:
    """Draw a weighted average: a row for each vector with its weight as a bar, and the mixture below.

    Args:
        weights: positive, with the sum 1.
        values: one vector for each label.
        labels: what the vectors belong to.
        features: a name for each number of a vector.
        name: what the mixture is called.
    """
    mixture = weights @ values
    rows, width = len(labels), len(features)
    _, ax = plt.subplots(figsize=(4.8, 1.5 + 0.36 * rows))
    for row, (label, weight, vector) in enumerate(zip(labels, weights.tolist(), values, strict=True)):
        ax.text(-2.5, row + 0.5, label, ha="right", va="center")
        ax.add_patch(Rectangle((-2.3, row + 0.18), 1.5 * weight, 0.64, facecolor=WEIGHTS(0.6), edgecolor=INK))
        ax.text(-2.2 + 1.5 * weight, row + 0.5, f"{weight:.2f}", va="center", size=9)
        _cells(ax, row, vector, float(values.max()))
    _cells(ax, rows + 0.6, mixture, float(values.max()))
    ax.text(-0.25, rows + 1.1, name, ha="right", va="center", color=VALUE, weight="bold")
    ax.plot([-2.5, width], [rows + 0.3] * 2, color=INK, linewidth=0.8)
    for column, feature in enumerate(features):
        ax.text(column + 0.5, -0.3, feature.replace(" ", "\n"), ha="center", va="baseline", size=9, linespacing=1.0)
    ax.text(-2.3, -0.3, "weight", ha="left", va="baseline", size=9)
    ax.set_xlim(-3.6, width)
    ax.set_ylim(rows + 1.7, -0.9)
    ax.axis("off")


def _cells(ax: Axes, row: float, vector: Tensor, largest: float) -> None:
    for column, number in enumerate(vector.tolist()):
        color = WEIGHTS(FULL * number / largest)
        ax.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor=INK, linewidth=0.6))
        ax.text(column + 0.5, row + 0.5, f"{number:g}"[:4], ha="center", va="center", color="black", size=9)


def draw_glimpse(
    picture: Float[Tensor, "height width"],
    patches: Float[Tensor, "place height size"],
    weights: Float[Tensor, " place"],
) -> None:
    """Draw how a picture of a few pixels becomes a glimpse: each patch in a row of numbers, weighted and added up.

    Args:
        picture: ink from 0 to 1, as high as a patch.
        patches: what stands at each place; the places lie side by side.
        weights: of the places, with the sum 1.
    """
    (high, wide), size = picture.shape, patches.size(2)
    square, row, end = wide + 1.6, wide + size + 3.4, wide + size + 3.4 + high * size  # where each column begins
    step = high + 1.0
    bottom, top = step * len(patches), (step * len(patches) - 1 - high) / 2
    _, ax = plt.subplots(figsize=(4.8, 3.1))

    def show(down: float, pixels: Tensor) -> float:
        _pixels(ax, (square, down), pixels)
        _pixels(ax, (row, down + high / 2 - 0.5), pixels.reshape(1, -1))
        return down + high / 2

    _pixels(ax, (0, top), picture)
    for place, (patch, weight) in enumerate(zip(patches, weights.tolist(), strict=True)):
        middle, name = show(step * place, patch), f"place {place}"
        ax.add_patch(Rectangle((size * place, top), size, high, fill=False, edgecolor=QUERY, linewidth=2))
        ax.text(size * (place + 0.5), top + high + 0.2, name, ha="center", va="top", size=9)
        ax.text(square + size / 2, step * place + high + 0.1, name, ha="center", va="top", size=9)
        arrow(ax, (square + size + 0.2, middle), (row - 0.2, middle))
        ax.text(end + 0.3, middle, f"{weight:.2f}", va="center", size=9)
    ax.plot([square, end + 2.0], [bottom] * 2, color=INK, linewidth=0.8)
    middle = show(bottom + 0.4, (weights[:, None, None] * patches).sum(dim=0))
    arrow(ax, (row - 0.2, middle), (square + size + 0.2, middle))
    ax.text(square - 0.4, middle, "glimpse", ha="right", va="center", color=VALUE, weight="bold")
    for title, x in (
        ("picture", wide / 2),
        ("patches", square + size / 2),
        ("in a row", (row + end) / 2),
        ("weights", end + 1.1),
    ):
        ax.text(x, -0.5, title, ha="center", va="bottom", size=9)
    ax.set(xlim=(-0.2, end + 2.3), ylim=(bottom + high + 0.7, -1.4), aspect="equal")
    ax.axis("off")


def _pixels(ax: Axes, corner: tuple[float, float], ink: Tensor) -> None:
    """Draw pixels with their numbers; the first one has its upper left corner at the given point."""
    paper, dark = np.array(to_rgb(PAPER)), np.array(to_rgb(DARK))
    for (row, column), number in np.ndenumerate(ink.detach().numpy()):
        x, y = corner[0] + column, corner[1] + row
        fill = (1 - number) * paper + number * dark
        ax.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=INK, linewidth=0.6))
        written = PAPER if number > 0.5 else DARK
        ax.text(x + 0.5, y + 0.5, f"{number:.2g}", ha="center", va="center", color=written, size=8.5)


def draw_hiding(digit: Float[Tensor, "size size"], picture: Float[Tensor, "side side"], place: tuple[int, int]) -> None:
    """Draw a digit, the picture in which it is hidden, and the places at which a model may look.

    Args:
        digit: what is hidden.
        picture: where.
        place: row and column of the digit's place.
    """
    _, axes = plt.subplots(1, 3, figsize=(4.8, 2.1), width_ratios=(PATCH, SIDE, SIDE))
    _show(axes[0], digit)
    _show(axes[1], picture)
    _show(axes[2], picture)
    corners = torch.arange(0, SIDE - PATCH + 1, STEP)
    across, down = torch.meshgrid(corners, corners, indexing="xy")
    middle = PATCH / 2 - 0.5
    axes[2].plot(across.flatten() + middle, down.flatten() + middle, ".", color=KEY, markersize=4, clip_on=False)
    _frame(axes[2], place)
    for ax, title in zip(axes, ("a digit", "hidden", "36 places to look"), strict=True):
        ax.set_title(title)


def draw_attention(
    pictures: Float[Tensor, "picture side side"],
    looks: Mapping[str, tuple[Tensor, Tensor]],
    read: Mapping[str, Sequence[str]],
) -> None:
    """Draw where a model looked: its weights as blue over each picture, and below it the glimpse that it got.

    Args:
        pictures: what was looked at; two rows for each.
        looks: for each column, under its title, the glimpses and the weights as `DigitFinder.look` gives them.
        read: for each column, what was read from each glimpse.
    """
    count = len(pictures)
    figure = plt.figure(figsize=(5.0, 2.1 * count))
    # Laid out by hand: matplotlib's own layout differs in the last digit between runs, and the file with it.
    figure.set_layout_engine("none")
    label = 0.11 / count  # what a line of text takes of the figure's height
    blocks = figure.add_gridspec(count, 1, left=0.01, right=0.99, bottom=label, top=1 - label, hspace=0.14)
    axes = np.vstack(
        [
            blocks[row]
            .subgridspec(2, len(looks), height_ratios=(SIDE, 0.55 * SIDE), hspace=0.06, wspace=0.1)
            .subplots(squeeze=False)
            for row in range(count)
        ]
    )
    for column, (title, (seen, weights)) in enumerate(looks.items()):
        axes[0, column].set_title(title)
        for row in range(count):
            _show(axes[2 * row, column], pictures[row], coverage(weights)[row])
            below = axes[2 * row + 1, column]
            _show(below, seen[row])
            below.set_xlabel(read[title][row], labelpad=2)


def coverage(weights: Float[Tensor, "picture row column"]) -> Float[Tensor, "picture side side"]:
    """Say for each pixel how much of the attention falls on patches that hold it, from 0 to 1.

    >>> weights = torch.zeros(1, 6, 6)
    >>> weights[0, 0, 0] = 1.0
    >>> coverage(weights)[0, 7, 7:9]
    tensor([1., 0.])
    """
    everywhere = weights.flatten(1)[:, None].expand(-1, PATCH * PATCH, -1)
    return F.fold(everywhere.contiguous(), (SIDE, SIDE), PATCH, stride=STEP)[:, 0]


def draw_progress(steps: Sequence[int], series: Mapping[str, Sequence[float]]) -> None:
    """Draw shares from 0 to 1 over the steps of a training, each line with a marker of its own.

    Args:
        steps: how many steps had been made at each point.
        series: a name for each line, and its values.
    """
    _, ax = plt.subplots(figsize=(4.8, 2.9))
    for (name, values), color, marker in zip(series.items(), (QUERY, KEY, VALUE), "osD", strict=False):
        ax.plot(steps, values, color=color, marker=marker, markersize=4, label=name)
    ax.set(xlabel="steps of training", ylim=(-0.02, 1.02))
    ax.legend(fontsize=9, loc="lower right")


def draw_shares(shares: Mapping[str, float], chance: float) -> None:
    """Draw shares of right answers as bars, each with its number, and a line for what guessing would give.

    Args:
        shares: from 0 to 1, under the name of each bar.
        chance: what guessing gives.
    """
    _, ax = plt.subplots(figsize=(4.8, 0.7 + 0.42 * len(shares)))
    for row, (name, share) in enumerate(shares.items()):
        ax.barh(row, share, height=0.66, color=HEADS[0], edgecolor=INK)
        ax.text(share + 0.015, row, f"{share:.2f}", va="center")
        ax.text(-0.02, row, name, ha="right", va="center")
    ax.axvline(chance, color=INK, linestyle=":")
    ax.text(chance, -0.55, "guessing", ha="center", va="bottom", size=9)
    ax.set(xlim=(0, 1.1), ylim=(len(shares) - 0.5, -0.55), yticks=[])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("share of digits read rightly")


def draw_timeline() -> None:
    """Draw what happened when, from top to bottom, in a column for people, one for pictures and one for words."""
    _, ax = plt.subplots(figsize=(4.2, 4.4))
    columns = {"people": (KEY, "o"), "pictures": (QUERY, "s"), "words": (VALUE, "D")}
    for column, (name, (color, marker)) in enumerate(columns.items()):
        rows = [row for row, event in enumerate(HISTORY) if event[1] == name]
        ax.text(column, -0.9, name, color=color, weight="bold", ha="center", va="center")
        ax.plot([column] * 2, [-0.6, max(rows)], color=INK, linewidth=0.8, zorder=0)
        for row in rows:
            year, _, text = HISTORY[row]
            ax.plot(column, row, marker=marker, color=color, markersize=7)
            side, place = ("right", -0.12) if column else ("left", 0.12)
            ax.text(column + place, row, f"{year}\n{text}", ha=side, va="center", size=9.5, linespacing=1.2)
    ax.set_xlim(-0.5, 2.5)
    ax.set_ylim(len(HISTORY) - 0.4, -1.2)
    ax.axis("off")


def draw_meanings(points: Float[Tensor, "sentence 2"], groups: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Draw where a word's vector lies in each sentence.

    Args:
        points: one for each sentence.
        groups: a meaning, and a label for each sentence in which the word has it, in the order of the points.
    """
    wide, high = (points.abs().amax(dim=0) * torch.tensor([1.2, 1.3])).tolist()
    _, ax = plt.subplots(figsize=(4.8, 2.5))
    spots = [(x / wide * HALF_PANEL[0], y / high * HALF_PANEL[1]) for x, y in points.tolist()]  # about, in points
    taken, start = list(spots), 0
    for (meaning, labels), color, marker, size in zip(groups, (QUERY, KEY), "os", (11, 6), strict=True):
        part, own = points[start : start + len(labels)], spots[start : start + len(labels)]
        ax.plot(*part.T, marker, color=color, markersize=size, label=meaning)
        start += len(labels)
        for place, spot, label in zip(part.tolist(), own, labels, strict=True):
            side = _freest_side(spot, label, taken)
            taken.append((spot[0] + side[0], spot[1] + side[1]))
            ax.annotate(label, tuple(place), side, textcoords="offset points", ha="center", va="center", size=9)
    ax.set(xlim=(-wide, wide), ylim=(-high, high), xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, borderpad=0)


def _freest_side(spot: tuple[float, float], label: str, taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Choose where beside its spot a label is furthest from what else is drawn, and within the frame; all in points."""
    half = 2.5 * len(label)
    sides = [(0.0, 14.0), (0.0, -14.0), (half + 10, 0.0), (-half - 10, 0.0)]

    def room(side: tuple[float, float]) -> float:
        x, y = spot[0] + side[0], spot[1] + side[1]
        if abs(x) + half > HALF_PANEL[0] - 6 or abs(y) > HALF_PANEL[1] - 10:  # it would touch the frame
            return -1.0
        return min(math.hypot(max(abs(x - a) - half, 0), y - b) for a, b in taken if (a, b) != spot)

    return max(sides, key=room)


def _show(ax: Axes, picture: Tensor, marked: Tensor | None = None) -> None:
    """Draw a picture as dark ink on light paper, the paper blue where it is marked."""
    ink = picture.detach().clamp(0, 1)[..., None].numpy()
    paper = np.array(to_rgb(PAPER)) if marked is None else WEIGHTS(FULL * marked.detach().numpy())[..., :3]
    colors = ink * np.array(to_rgb(DARK)) + (1 - ink) * paper
    high, wide = picture.shape
    enlarged = np.kron(colors, np.ones((ENLARGED, ENLARGED, 1)))
    # Not clipped: the name of a clipping path in the file hangs on the last digit of the layout, which differs between runs.
    ax.imshow(enlarged, extent=(-0.5, wide - 0.5, high - 0.5, -0.5), interpolation="none", clip_on=False)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(True)


def _frame(ax: Axes, place: tuple[int, int]) -> None:
    row, column = (STEP * number - 0.5 for number in place)
    ax.add_patch(Rectangle((column, row), PATCH, PATCH, fill=False, edgecolor=QUERY, linewidth=2, clip_on=False))
