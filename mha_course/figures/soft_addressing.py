"""The drawings of chapter 2: one look-up step by step, what each similarity calls near, and colours side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from mha_course.figures.style import INK, KEY, QUERY, VALUE, WEIGHTS, with_minus
from mha_course.soft_addressing import Similarity, dot, softmax

KEY_AT, SCORE_AT, BAR_AT, VALUE_AT = 1.3, 4.3, 4.9, 8.2  # where each column stands


def draw_lookup(
    query: Float[Tensor, " d_key"],
    keys: Float[Tensor, "key d_key"],
    values: Float[Tensor, "key d_value"],
    labels: Sequence[str],
    asked: str,
) -> None:
    """Draw one look-up by dot product in its three steps, a row for each entry and the mixture below.

    Args:
        query: what is looked for.
        keys: the address of each entry.
        values: the content of each entry.
        labels: a name for each entry.
        asked: the name of the query.
    """
    scores = dot(query[None], keys)[0]
    weights = softmax(scores, dim=-1)
    _, ax = plt.subplots(figsize=(4.6, 0.9 + 0.36 * len(labels)))
    ax.set_xlim(0, 10)
    ax.set_ylim(len(labels) + 1.2, -2.6)
    ax.axis("off")
    ax.text(KEY_AT, -2.1, f"query: {asked} {_vector(query)}", color=QUERY, weight="bold", va="center")
    for x, title, align in (
        (KEY_AT, "key", "left"),
        (SCORE_AT, "1 score", "right"),
        (BAR_AT, "2 weight", "left"),
        (VALUE_AT, "3 value", "left"),
    ):
        color = {"key": KEY, "3 value": VALUE}.get(title, INK)
        ax.text(x, -0.7, title, color=color, ha=align, va="center", weight="bold", size=9)
    rows = zip(labels, keys, scores.tolist(), weights.tolist(), values, strict=True)
    for row, (label, key, score, weight, value) in enumerate(rows):
        ax.text(KEY_AT - 0.2, row + 0.5, label, ha="right", va="center", size=9)
        ax.text(KEY_AT, row + 0.5, _vector(key), color=KEY, va="center", size=9)
        ax.text(SCORE_AT, row + 0.5, with_minus(f"{score:g}"), ha="right", va="center", size=9)
        ax.add_patch(Rectangle((BAR_AT, row + 0.15), 2.2 * weight, 0.7, facecolor=WEIGHTS(0.6), edgecolor=INK))
        ax.text(BAR_AT + 2.2 * weight + 0.1, row + 0.5, f"{weight:.2f}", va="center", size=9)
        ax.text(VALUE_AT, row + 0.5, _vector(value), color=VALUE, va="center", size=9)
    ax.plot([VALUE_AT, 10], [len(labels) + 0.15] * 2, color=INK, linewidth=0.8)
    mixture = ", ".join(with_minus(f"{number:.2f}") for number in (weights @ values).tolist())
    ax.text(
        10, len(labels) + 0.75, f"sum of weight times value: ({mixture})", color=VALUE, ha="right", va="center", size=9
    )


def draw_level_lines(query: Float[Tensor, "2"], similarities: Mapping[str, Similarity]) -> None:
    """Draw which keys of the plane score alike: a line joins keys of equal score, and darker is higher.

    Args:
        query: what is looked for; an arrow from the origin.
        similarities: a panel for each, under its name.
    """
    steps = torch.linspace(-3, 3, 25)
    plane = torch.cartesian_prod(steps, steps)  # (25 * 25, 2), x first
    rows = (len(similarities) + 1) // 2
    figure, axes = plt.subplots(rows, 2, figsize=(4.8, 2.4 * rows), sharex=True, sharey=True, squeeze=False)
    figure.supxlabel("first feature of the key", color=KEY, size=10)
    figure.supylabel("second feature of the key", color=KEY, size=10)
    # Blue on blue is seen by its white edge.
    arrow = {"arrowstyle": "-|>", "color": QUERY, "linewidth": 2.5, "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
    edge = [withStroke(linewidth=6, foreground="white")]
    for ax in axes.flat[len(similarities) :]:
        ax.axis("off")
    for ax, (name, similarity) in zip(axes.flat, similarities.items(), strict=False):
        scores = similarity(query[None], plane)[0].view(len(steps), len(steps)).T.detach().numpy()
        # The darkest third of the scale is left out: the arrow would not be seen on it.
        ax.contourf(steps, steps, scores, levels=7, cmap=WEIGHTS, vmax=scores.max() + np.ptp(scores) / 2)
        ax.contour(steps, steps, scores, levels=7, colors=INK, linewidths=0.6, linestyles="solid")
        x, y = query.tolist()
        ax.annotate("", xy=(x, y), xytext=(0, 0), arrowprops=arrow | {"path_effects": edge})
        ax.plot(0, 0, marker="o", markersize=5, color=QUERY, markeredgecolor="white")
        ax.set_title(name)
        ax.set_aspect("equal")


def draw_swatches(names: Sequence[str], colors: Mapping[str, Float[Tensor, "name rgb"]]) -> None:
    """Draw colours side by side: a row for each name, a column for each way to find its colour.

    Args:
        names: what stands beside each row.
        colors: red, green and blue in [0, 1] for each name, under the title of the column.
    """
    _, ax = plt.subplots(figsize=(5.2, 0.6 + 0.42 * len(names)))
    for column, found in enumerate(colors.values()):
        for row, color in enumerate(found.tolist()):
            ax.add_patch(Rectangle((column, row), 0.94, 0.88, facecolor=color, edgecolor=INK, linewidth=0.6))
    ax.set_xlim(0, len(colors))
    ax.set_ylim(len(names), 0)
    ax.set_xticks([column + 0.47 for column in range(len(colors))], list(colors))
    ax.set_yticks([row + 0.44 for row in range(len(names))], list(names))
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _vector(vector: Float[Tensor, " width"]) -> str:
    """Write a vector down as in the text.

    >>> _vector(torch.tensor([1.5, 0.0]))
    '(1.5, 0)'
    """
    return "(" + ", ".join(with_minus(f"{number:g}") for number in vector.tolist()) + ")"
