"""The two diagrams of chapter 4: the flow of the layer, and where each head's numbers lie."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from mha_course.figures.blocks import arrow, box
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE
from mha_course.multi_head import split_heads

HATCHES = ("", "////", "....", "xxxx")


def draw_three_steps() -> None:
    """Draw multi-head attention as its three steps, from queries, keys and values at the top to the output below."""
    _, ax = plt.subplots(figsize=(5.2, 5.6))
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 11.2)
    ax.axis("off")
    for x, name, color in ((3.2, "query", QUERY), (5.6, "key", KEY), (8.0, "value", VALUE)):
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


def draw_split(x: Float[Tensor, "1 length d_model"], num_heads: int) -> None:
    """Draw where the numbers of `x` go when it is split in the right way, and when `view` alone is used.

    Args:
        x: whole numbers, so that they fit their cells; one sequence.
        num_heads: at most 4. Each head's own numbers keep its colour and its hatching wherever they go.
    """
    _, length, d_model = x.shape
    d_head = d_model // num_heads
    owner = (torch.arange(d_model) // d_head).expand(x.shape)
    right = split_heads(x, num_heads), split_heads(owner.float(), num_heads).long()
    wrong = x.view(1, num_heads, length, d_head), owner.reshape(1, num_heads, length, d_head)
    _, axes = plt.subplots(3, 1, figsize=(5.2, 4.9), height_ratios=[1.6, length, length])
    _number_row(axes[0], x.flatten(), owner.flatten(), "in memory: one token after the other")
    for token in range(length):
        axes[0].text((token + 0.5) * d_model, 1.55, f"token {token}", ha="center", va="center", size=8)
    axes[0].set_ylim(2, -0.1)
    for ax, (values, owners), row, title in (
        (axes[1], right, "token", "view, then transpose: each head has every token"),
        (axes[2], wrong, "row", "view alone: the shape is the same, the numbers are not"),
    ):
        _number_blocks(ax, values[0], owners[0], row, title)


def _number_row(ax: Axes, values: Tensor, owners: Tensor, title: str) -> None:
    for place, (value, owner) in enumerate(zip(values.tolist(), owners.tolist(), strict=True)):
        _cell(ax, place, 0, value, owner)
    _frame(ax, len(values), 1, title)


def _number_blocks(ax: Axes, values: Tensor, owners: Tensor, row: str, title: str) -> None:
    num_heads, length, d_head = values.shape
    step = d_head + 3
    for head in range(num_heads):
        for token in range(length):
            for feature in range(d_head):
                value, owner = values[head, token, feature].item(), int(owners[head, token, feature].item())
                _cell(ax, head * step + 2 + feature, token, value, owner)
            ax.text(head * step + 1.85, token + 0.5, f"{row} {token}", ha="right", va="center", size=8)
        ax.text(head * step + 2 + d_head / 2, -0.3, f"head {head}", ha="center", weight="bold", size=9)
    _frame(ax, num_heads * step, length, title)


def _cell(ax: Axes, x: float, y: float, value: float, owner: int) -> None:
    face = HEADS[owner]
    ax.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="#222222", linewidth=0.6, hatch=HATCHES[owner]))
    plate = {"boxstyle": "round,pad=0.15", "facecolor": face, "edgecolor": "none"}
    ax.text(x + 0.5, y + 0.5, f"{value:.0f}", ha="center", va="center", color="black", size=9, bbox=plate)


def _frame(ax: Axes, width: float, height: float, title: str) -> None:
    ax.set_xlim(0, width)
    ax.set_ylim(height + 0.1, -0.8 if height > 1 else -0.1)
    ax.set_aspect("equal")
    ax.axis("off")
    ax.set_title(title, loc="left")
