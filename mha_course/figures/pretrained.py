"""The drawings of chapter 5: BERT's layer with both names of each part, a mask in its forms, similarities, head scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from mha_course.figures.blocks import DARK, PAPER, arrow, frame
from mha_course.figures.heatmap import DARK_FROM
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE, WEIGHTS

WRITTEN_FROM = 0.25  # a lower score is left to its shade, so that the eye finds the high ones


def draw_bert_layer() -> None:
    """Draw the attention half of a BERT layer, each part with the name in the file and the name in this book."""
    _, ax = plt.subplots(figsize=(5.2, 6.4))
    ax.set(xlim=(0, 10.4), ylim=(0, 12.9))
    ax.axis("off")
    ax.text(4.2, 12.55, "hidden_states = x", ha="center", weight="bold")
    for x, theirs, color in ((1.5, "query", QUERY), (4.2, "key", KEY), (6.9, "value", VALUE)):
        arrow(ax, (4.2, 12.4), (x, 11.75))
        _box(ax, (x, 11.2), 2.5, 1.0, f"{theirs}\n{theirs[0]}_proj", color)
        arrow(ax, (x, 10.65), (4.2 + 0.5 * (x - 4.2), 9.65))
    for y, text in (
        (9.2, "split into heads"),
        (7.9, "scores = q · k / √d_head"),
        (6.6, "+ attention_mask\nmask"),
        (5.3, "softmax, dropout"),
        (4.0, "weights · values, merge"),
    ):
        _box(ax, (4.2, y), 5.2, 0.84, text, INK)
        arrow(ax, (4.2, y - 0.45), (4.2, y - 0.86))
    _box(ax, (4.2, 2.66), 5.2, 0.9, "dense\nout_proj", INK)
    arrow(ax, (4.2, 2.2), (4.2, 1.62))
    _box(ax, (4.2, 1.1), 5.2, 0.9, "LayerNorm\nnorm1", INK)
    arrow(ax, (4.2, 0.62), (4.2, 0.1))
    # The residual path leads round everything and joins before the norm.
    ax.plot([5.7, 8.5, 8.5], [12.65, 12.65, 1.9], color=INK, linewidth=1.2)
    arrow(ax, (8.5, 1.9), (4.3, 1.9))
    ax.text(8.35, 2.0, "+ x", ha="right", size=9)
    for top, bottom, name in ((11.8, 3.5, "BERT's class\n“self”"), (3.3, 0.5, "BERT's class\n“output”")):
        ax.plot([9.0, 9.2, 9.2, 9.0], [top, top, bottom, bottom], color=INK, linewidth=0.8)
        ax.text(9.75, (top + bottom) / 2, name, rotation=90, ha="center", va="center", size=9)


def draw_mask_forms(tokens: Sequence[Sequence[str]], mask: Bool[Tensor, "batch length"]) -> None:
    """Draw the tokens of a batch, and their mask as the tokenizer gives it, as this book has it, and as scores need it.

    Args:
        tokens: the tokens of each sentence, padding included.
        mask: True on real tokens. Padding is hatched.
    """
    batch, length = mask.shape
    _, axes = plt.subplots(4, 1, figsize=(4.5, 0.4 + 4 * (0.35 + 0.28 * batch)))
    for ax, title, real, padding in (
        (axes[0], "tokens", "", ""),
        (axes[1], "from the tokenizer, (batch, length)", "1", "0"),
        (axes[2], "in this book, (batch, 1, 1, length)", "True", "False"),
        (axes[3], "added to the scores, (batch, 1, 1, length)", "0", "lowest"),
    ):
        for row in range(batch):
            for column in range(length):
                text = real if mask[row, column] else padding
                _mask_cell(ax, column, row, text or tokens[row][column], bool(mask[row, column]))
        ax.set(xlim=(0, length), ylim=(batch, 0), xticks=[])
        ax.set_title(title, loc="left")
        ax.set_yticks([row + 0.5 for row in range(batch)], [f"sentence {row}" for row in range(batch)], size=8)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)


def draw_similarities(
    similarities: Float[Tensor, "sentence other"], groups: Sequence[str], title: str = "", ax: Axes | None = None
) -> None:
    """Draw how similar each sentence is to each other one, on the book's scale of 0 to 1.

    Args:
        similarities: cosines; one below 0 is drawn as 0.
        groups: names of groups of equal size, in the order of the sentences; each gets a frame.
        title: what stands above.
        ax: where to draw; None makes a new figure.

    Raises:
        ValueError: if the groups can't share out the sentences equally.
    """
    total = len(similarities)
    if not groups or total % len(groups):
        raise ValueError(
            f"the groups must be of equal size, but there are {total} sentences for {len(groups)} groups; "
            "name as many groups as share them out"
        )
    size = total // len(groups)
    alone = ax is None
    if ax is None:
        _, ax = plt.subplots(figsize=(5.0, 4.4))
    image = ax.imshow(similarities.detach().numpy(), cmap=WEIGHTS, vmin=0, vmax=1)
    middles = [size * group + (size - 1) / 2 for group in range(len(groups))]
    ax.set_xticks(middles, groups, rotation=30, ha="right", size=8)
    ax.set_yticks(middles, groups, size=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title)
    for group in range(len(groups)):
        corner = (size * group - 0.5, size * group - 0.5)
        ax.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=KEY, linewidth=1.6))
    if alone:
        ax.figure.colorbar(image, ax=ax, label="similarity", fraction=0.045).outline.set_visible(False)


def draw_role_scores(scores: Mapping[str, Float[Tensor, "layer head"]]) -> None:
    """Draw for each role the score of every head: one row a layer, one column a head, from 0 (light) to 1 (dark)."""
    layers, heads = next(iter(scores.values())).shape
    _, axes = plt.subplots(len(scores), 1, figsize=(4.2, 0.4 + 1.7 * len(scores)), squeeze=False)
    for ax, (name, of_heads) in zip(axes.flat, scores.items(), strict=True):
        ax.imshow(of_heads.numpy(), cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto")
        for layer, row in enumerate(of_heads.tolist()):
            for head, score in enumerate(row):
                if score >= WRITTEN_FROM:
                    color = "white" if score > DARK_FROM else "black"
                    ax.text(
                        head, layer, f"{score:.2f}".removeprefix("0"), ha="center", va="center", color=color, size=7
                    )
        ax.set_xticks(range(heads), [f"H{head}" for head in range(heads)], size=7)
        ax.set_yticks(range(layers), [f"L{layer}" for layer in range(layers)], size=7)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_title(name)


def draw_by_layer(series: Mapping[str, Sequence[float]], layers: Sequence[str], label: str) -> None:
    """Draw values that change from layer to layer, each line with a marker and a colour of its own.

    Args:
        series: a name for each line, and its values.
        layers: a name for each place on the horizontal axis.
        label: what is measured.
    """
    _, ax = plt.subplots(figsize=(5.2, 3.3))
    for (name, values), color, marker in zip(series.items(), (QUERY, KEY, VALUE), "osD", strict=False):
        ax.plot(range(len(layers)), values, color=color, marker=marker, markersize=5, label=name)
    ax.set_xticks(range(len(layers)), layers, size=8)
    ax.set_ylabel(label)
    ax.legend(fontsize=8, loc="best")


def _mask_cell(ax: Axes, column: int, row: int, text: str, real: bool) -> None:
    face, hatch = (HEADS[0], "") if real else (PAPER, "////")
    ax.add_patch(Rectangle((column, row), 1, 1, facecolor=face, hatch=hatch, edgecolor="#222222", linewidth=0.6))
    plate = None if real else {"boxstyle": "round,pad=0.1", "facecolor": face, "edgecolor": "none"}
    ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", color="black", size=7, bbox=plate)


def _box(ax: Axes, center: tuple[float, float], width: float, height: float, text: str, color: str) -> None:
    frame(ax, center, width, height, color)
    upper, _, lower = text.partition("\n")
    if lower:  # the name in the file above, ours below
        ax.text(*center, f"{upper}\n", ha="center", va="center", color=DARK, size=9, linespacing=1.1)
        ax.text(*center, f"\n{lower}", ha="center", va="center", color=DARK, size=9, weight="bold", linespacing=1.1)
    else:
        ax.text(*center, upper, ha="center", va="center", color=DARK, size=9)
