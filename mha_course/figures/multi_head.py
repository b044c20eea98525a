"""The diagrams of chapter 4: the flow of the layer, and how heads share keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt

from mha_course.figures.blocks import arrow, box
from mha_course.figures.style import INK, KEY, QUERY, VALUE


def draw_three_steps() -> None:
    """Draw multi-head attention as its three steps, from queries, keys and values at the top to the output below."""
    _, ax = plt.subplots(figsize=(4.4, 5.4))
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 11.2)
    ax.axis("off")
    for x, name, color in ((3.0, "query", QUERY), (5.6, "key", KEY), (8.2, "value", VALUE)):
        ax.text(x, 10.9, name, ha="center", color=color, weight="bold")
        arrow(ax, (x, 10.7), (x, 10.0))
        box(ax, (x, 9.6), 1.9, 0.8, f"{name[0]}_proj", color)
        arrow(ax, (x, 9.2), (x, 8.56))
        for behind in (0.36, 0.18, 0.0):
            box(ax, (x + behind, 7.8 + behind), 1.9, 0.8, "" if behind else "split", color)
        arrow(ax, (x, 7.4), (5.6 + (x - 5.6) * 0.7, 6.15))
    for behind in (0.36, 0.18, 0.0):
        text = "" if behind else "scaled dot-product attention\nin every head"
        box(ax, (5.6 + behind, 5.5 + behind), 6.4, 1.3, text, INK)
    for x in (4.0, 5.6, 7.2):
        arrow(ax, (x, 4.85), (5.6 + (x - 5.6) * 0.7, 3.9))
    box(ax, (5.6, 3.5), 5.0, 0.8, "merge: heads side by side", INK)
    arrow(ax, (5.6, 3.1), (5.6, 2.3))
    box(ax, (5.6, 1.9), 5.0, 0.8, "out_proj", INK)
    arrow(ax, (5.6, 1.5), (5.6, 0.7))
    ax.text(5.6, 0.25, "output, one vector a query", ha="center")
    for y, number, name in ((8.7, "1", "project"), (5.5, "2", "attend"), (2.7, "3", "concat\nand\nproject")):
        ax.text(0.55, y, number, ha="center", va="center", size=20, weight="bold")
        ax.text(0.55, y - 0.5, name, ha="center", va="top", size=9)
    for y in (6.65, 4.35):
        ax.plot([0, 10], [y, y], color=INK, linewidth=0.6, linestyle=(0, (2, 4)))


def draw_groups(num_heads: int, shared: Sequence[tuple[int, str]]) -> None:
    """Draw, one below the other, which keys and values each head reads.

    Args:
        num_heads: number of heads, each with queries of its own.
        shared: for each row, the number of groups and what stands above it; each number divides `num_heads`.
    """
    row = 3.1
    _, ax = plt.subplots(figsize=(4.4, 1.6 * len(shared)))
    ax.set_xlim(0, num_heads)
    ax.set_ylim(-row * len(shared), 0)
    ax.axis("off")
    for number, (groups, title) in enumerate(shared):
        top, width = -row * number, num_heads / groups
        ax.text(0.1, top - 0.3, title, va="center")
        for head in range(num_heads):
            box(ax, (head + 0.5, top - 0.9), 0.76, 0.5, f"Q{head}", QUERY)
            arrow(ax, (head + 0.5, top - 1.15), (head + 0.5, top - 1.6))
        for group in range(groups):
            middle = width * (group + 0.5)
            box(ax, (middle, top - 1.85), width - 0.24, 0.5, f"K{group}", KEY)
            box(ax, (middle, top - 2.43), width - 0.24, 0.5, f"V{group}", VALUE)
