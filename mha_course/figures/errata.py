"""The drawings of chapter 9: a dot product along two axes, what a change moves, parts left out, and weights that went wrong."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from mha_course.figures.blocks import PAPER, arrow, box
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE, WEIGHTS, with_minus

TIMES = "\N{MULTIPLICATION SIGN}"

# The parts of a layer from top to bottom, and whether the walked-through text has them.
ENCODER_PARTS = (("self-attention", True), ("add & norm", True), ("feed-forward", True), ("add & norm", False))
DECODER_PARTS = (
    ("causal mask", False),
    ("self-attention", True),
    ("add & norm", True),
    ("cross-attention", False),
    ("add & norm", False),
    ("feed-forward", True),
    ("add & norm", False),
)


def draw_sums_over(length: int, d_head: int) -> None:
    """Draw queries and keys multiplied along the features, which gives scores, and along the tokens, which does not.

    Args:
        length: number of tokens.
        d_head: width of queries and keys. The matrices are drawn in proportion.
    """
    _, axes = plt.subplots(2, 1, figsize=(4.6, 3.8))
    token_by_feature, feature_by_token = (length, d_head), (d_head, length)
    for ax, title, left, right, result in (
        (axes[0], f"summed over the {d_head} features", ("Q", token_by_feature), ("Kᵀ", feature_by_token), "scores"),
        (axes[1], f"summed over the {length} tokens", ("Qᵀ", feature_by_token), ("K", token_by_feature), "no scores"),
    ):
        unit = 2.0 / max(length, d_head)
        x = 0.0
        for sign, name, shape, color in (
            ("", *left, QUERY),
            (TIMES, *right, KEY),
            ("=", result, (left[1][0], right[1][1]), INK),
        ):
            if sign:
                ax.text(x + 0.3, 0, sign, ha="center", va="center", size=12)
                x += 0.6
            x += _matrix(ax, x, shape, unit, name, color)
        ax.set(xlim=(-0.2, 7.6), ylim=(-1.5, 1.5))
        ax.set_aspect("equal")
        ax.axis("off")
        ax.set_title(title, loc="left")


def draw_moved(moved: Mapping[str, Float[Tensor, " d_model"]], num_heads: int) -> None:
    """Draw how far each feature of the output moves, a panel for each layer, with lines between the heads.

    Args:
        moved: the name of each layer, and a size of 0 or more for each feature.
        num_heads: number of heads.
    """
    _, axes = plt.subplots(len(moved), 1, figsize=(4.6, 0.5 + 1.5 * len(moved)), sharex=True, squeeze=False)
    for ax, (name, sizes) in zip(axes.flat, moved.items(), strict=True):
        width = len(sizes) // num_heads
        ax.fill_between(range(len(sizes)), sizes.detach().numpy(), step="mid", color=QUERY, linewidth=0.4)
        for head in range(1, num_heads):
            ax.axvline(head * width - 0.5, color=INK, linewidth=0.5, linestyle=":")
        ax.set(xlim=(-0.5, len(sizes) - 0.5), ylim=(0, None), ylabel="moves by")
        ax.set_title(f"{name}: {int((sizes > 0).sum())} of {len(sizes)} features move", loc="left")
    last = axes[-1, 0]
    last.set_xlabel("feature of the output (dotted: from head to head)")
    last.set_xticks([0, *(head * width for head in range(2, num_heads, 2)), len(sizes)])


def draw_left_out() -> None:
    """Draw the parts of an encoder and a decoder layer: solid where a text has them, dashed where it left them out."""
    _, axes = plt.subplots(1, 2, figsize=(4.6, 5.2))
    for ax, title, parts, end in (
        (axes[0], "encoder layer,\nN times,\nthen memory", ENCODER_PARTS, "memory"),
        (axes[1], "decoder layer,\nN times,\nthen linear to words", DECODER_PARTS, "linear to words"),
    ):
        drawn = [*parts, (end, end == "memory")]
        ax.set(xlim=(0, 5), ylim=(-0.8, 8.6))
        ax.axis("off")
        ax.set_title(title)
        ax.text(2.5, 8.25, "tokens + positions", ha="center", va="center", size=9)
        places = [7.3 - 7.2 * i / (len(drawn) - 1) for i in range(len(drawn))]
        for y, before, (name, told) in zip(places, [8.35, *places], drawn, strict=False):
            arrow(ax, (2.5, before - 0.35), (2.5, y + 0.33))
            box(ax, (2.5, y), 3.6, 0.64, name if told else f"{name} *", INK if told else KEY, size=8.5)
            ax.patches[-1].set_linestyle("-" if told else (0, (3, 2)))
    axes[0].text(0, -0.75, "* dashed: left out", size=9, color=KEY)


def draw_on_padding(
    maps: Mapping[str, Float[Tensor, "query key"]], words: Sequence[str], real: Bool[Tensor, " key"]
) -> None:
    """Draw the same attention under several masks, with a frame round the columns of padding.

    Args:
        maps: weights in [0, 1], each under its name; the largest of all is drawn darkest.
        words: a label for each row and column.
        real: True on real tokens; padding stands behind them.
    """
    first = int(real.sum())
    largest = max(weights.max().item() for weights in maps.values())
    rows = math.ceil(len(maps) / 2)
    figure, axes = plt.subplots(rows, 2, figsize=(4.6, 2.6 * rows), squeeze=False)
    figure.set_layout_engine("constrained", h_pad=0.1)
    for ax in axes.flat[len(maps) :]:
        ax.axis("off")
    for ax, (name, weights) in zip(axes.flat, maps.items(), strict=False):
        ax.imshow(weights.detach().numpy(), cmap=WEIGHTS, vmin=0, vmax=largest, interpolation="none")
        corner, width = (first - 0.5, -0.5), len(real) - first
        ax.add_patch(Rectangle(corner, width, len(words), fill=False, edgecolor=KEY, linewidth=1.8))
        share = weights[:first, first:].sum(dim=-1).mean().item()
        ax.set_title(f"{name}:\n{share:.0%} on padding", size=9)
        ax.set_xticks(range(len(words)), words, size=8, rotation=90)
        ax.set_yticks(range(len(words)), words, size=8)
        ax.set_xlabel("key", color=KEY)
        ax.set_ylabel("query", color=QUERY)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.label_outer()


def draw_weightings(panels: Mapping[str, Float[Tensor, " key"]], names: Sequence[str]) -> None:
    """Draw several ways to weight the same keys, as bars with their numbers.

    Args:
        panels: the title of each way, and its weights, which may be negative.
        names: a name for each key.
    """
    _, axes = plt.subplots(1, len(panels), figsize=(4.6, 2.4), squeeze=False, sharey=True)
    letters = 36 // len(panels)  # as many as fit above a panel
    for ax, (title, weights) in zip(axes.flat, panels.items(), strict=True):
        heights = weights.tolist()
        bars = ax.bar(range(len(names)), heights, color=[HEADS[i % len(HEADS)] for i in range(len(names))])
        ax.bar_label(bars, [with_minus(f"{height:.2f}") for height in heights], size=8, color=INK, padding=2)
        ax.axhline(0, color=INK, linewidth=0.8)
        ax.set_xticks(range(len(names)), names, size=8)
        ax.set_title(textwrap.fill(title, letters), size=9)
        ax.margins(y=0.2)
        ax.spines[:].set_visible(False)
        ax.set_yticks([])
        ax.tick_params(length=0)


def draw_row_sums(sums: Float[Tensor, " query"]) -> None:
    """Draw how often each sum of a row of weights occurs, with a line at 1."""
    _, ax = plt.subplots(figsize=(4.6, 2.5))
    ax.hist(sums.detach().numpy(), bins=30, color=VALUE)
    ax.axvline(1, color=INK, linestyle="--", linewidth=1)
    ax.text(0.99, ax.get_ylim()[1], "before dropout: 1", ha="right", va="top", size=9)
    ax.set(xlabel="sum of a row of weights after dropout", ylabel="rows")


def _matrix(ax: Axes, x: float, shape: tuple[int, int], unit: float, name: str, color: str) -> float:
    """Draw a matrix whose left edge is at `x`; return its width."""
    height, width = (unit * side for side in shape)
    ax.add_patch(Rectangle((x, -height / 2), width, height, facecolor=PAPER, edgecolor=color, linewidth=1.6))
    ax.text(x + width / 2, height / 2 + 0.2, name, ha="center", va="center", color=color, weight="bold")
    ax.text(x + width / 2, -height / 2 - 0.2, f"{shape[0]} {TIMES} {shape[1]}", ha="center", va="center", size=8)
    return width
