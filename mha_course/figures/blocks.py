"""Boxes and arrows, of which the pictures of layers are made."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from mha_course.figures.style import INK

# A box hides what is behind it; its fill is light on every page, so the text in it is dark.
PAPER, DARK = "#f3f6fa", "#1a1a1a"


def frame(
    ax: Axes, center: tuple[float, float], width: float, height: float, color: str, rounding: float = 0.15
) -> None:
    """Draw an empty box with round corners."""
    x, y = center[0] - width / 2, center[1] - height / 2
    shape = f"round,pad=0,rounding_size={rounding:g}"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, facecolor=PAPER, edgecolor=color, linewidth=1.6))


def box(
    ax: Axes, center: tuple[float, float], width: float, height: float, text: str, color: str, size: float = 9
) -> None:
    """Draw a box with a text in its middle."""
    frame(ax, center, width, height, color)
    ax.text(*center, text, ha="center", va="center", color=DARK, size=size)


def arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK, linewidth: float = 1.2
) -> None:
    """Draw an arrow from one point to another."""
    ax.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": linewidth})
