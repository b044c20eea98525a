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


def draw_bert_layer() -> None:
    """Draw the attention half of a BERT layer, each part with the name in the file and the name in this book."""
    _, ax = plt.subplots(figsize=(4.5, 7.0))
    ax.set(xlim=(0, 9), ylim=(0, 14))
    ax.axis("off")
    middle = 3.6
    ax.text(middle, 13.55, "hidden_states = x", ha="center", weight="bold")
    for x, theirs, color in ((1.15, "query", QUERY), (middle, "key", KEY), (6.05, "value", VALUE)):
        arrow(ax, (middle, 13.4), (x, 12.65))
        _box(ax, (x, 12.05), 2.2, 1.2, f"{theirs}\n{theirs[0]}_proj", color)
        arrow(ax, (x, 11.45), (middle + 0.5 * (x - middle), 10.65))
    for y, height, text in (
        (10.2, 0.9, "split into heads"),
        (8.8, 0.9, "scores = q · k / √d_head"),
        (7.25, 1.2, "+ attention_mask\nmask"),
        (5.7, 0.9, "softmax, dropout"),
        (4.3, 0.9, "weights · values, merge"),
        (2.85, 1.2, "dense\nout_proj"),
        (0.95, 1.2, "LayerNorm\nnorm1"),
    ):
        _box(ax, (middle, y), 4.9, height, text, INK)
    for start, end in (
        (9.75, 9.25),
        (8.35, 7.85),
        (6.65, 6.15),
        (5.25, 4.75),
        (3.85, 3.45),
        (2.25, 1.55),
        (0.35, -0.1),
    ):
        arrow(ax, (middle, start), (middle, end))
    # The residual path leads round everything and joins before the norm.
    ax.plot([5.35, 7.4, 7.4], [13.68, 13.68, 1.9], color=INK, linewidth=1.2)
    arrow(ax, (7.4, 1.9), (middle + 0.1, 1.9))
    ax.text(7.2, 2.0, "+ x", ha="right", size=9)
    for top, bottom, name in ((12.65, 3.8, "BERT's class\n“self”"), (3.5, 0.35, "BERT's class\n“output”")):
        ax.plot([7.75, 7.95, 7.95, 7.75], [top, top, bottom, bottom], color=INK, linewidth=0.8)
        ax.text(8.5, (top + bottom) / 2, name, rotation=90, ha="center", va="center", size=9, linespacing=1.4)


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
        ax.set_yticks([row + 0.5 for row in range(batch)], range(batch), size=9)
        ax.set_ylabel("sentence", size=9)
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
    if ax is None:
        _, ax = plt.subplots(figsize=(4.4, 3.8))
    image = ax.imshow(similarities.detach().numpy(), cmap=WEIGHTS, vmin=0, vmax=1)
    middles = [size * group + (size - 1) / 2 for group in range(len(groups))]
    ax.set_xticks(middles, groups, rotation=30, ha="right", size=9)
    ax.set_yticks(middles, groups, size=9)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title)
    for group in range(len(groups)):
        corner = (size * group - 0.5, size * group - 0.5)
        ax.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=KEY, linewidth=1.6))
    ax.figure.colorbar(image, ax=ax, label="similarity", fraction=0.045).outline.set_visible(False)


def draw_role_scores(scores: Mapping[str, Float[Tensor, "layer head"]]) -> None:
    """Draw for each role the score of every head: one row a layer, one column a head, from 0 (light) to 1 (dark)."""
    layers, heads = next(iter(scores.values())).shape
    size = (4.2, 0.4 + 1.85 * len(scores))
    _, axes = plt.subplots(len(scores), 1, figsize=size, squeeze=False, gridspec_kw={"hspace": 0.1})
    for ax, (name, of_heads) in zip(axes.flat, scores.items(), strict=True):
        ax.imshow(of_heads.numpy(), cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto")
        for layer, row in enumerate(of_heads.tolist()):
            for head, score in enumerate(row):
                color = "white" if score > DARK_FROM else "black"
                text = f"{score:.2f}".removeprefix("0")
                ax.text(head, layer, text, ha="center", va="center", color=color, size=8)
        ax.set_xticks(range(heads), [f"H{head}" for head in range(heads)], size=8)
        ax.set_yticks(range(layers), [f"L{layer}" for layer in range(layers)], size=8)
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
    _, ax = plt.subplots(figsize=(4.4, 3.4))
    for (name, values), color, marker in zip(series.items(), (QUERY, KEY, VALUE), "osD", strict=False):
        ax.plot(range(len(layers)), values, color=color, marker=marker, markersize=5, label=name)
    ax.set_xticks(range(len(layers)), layers)
    ax.locator_params(axis="y", steps=(1, 2, 5, 10))  # ticks that two decimals can say
    ax.yaxis.set_major_formatter("{x:.2f}")
    ax.set_title(label)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, fontsize=9, columnspacing=1, handlelength=1.5)


def breakable(name: str) -> str:
    """Set a dotted name as code that a narrow table may break behind a dot.

    >>> breakable("norm1.weight")
    '<code>norm1.<wbr>weight</code>'
    """
    return f"<code>{name.replace('.', '.<wbr>')}</code>"


def _mask_cell(ax: Axes, column: int, row: int, text: str, real: bool) -> None:
    face, hatch = (HEADS[0], "") if real else (PAPER, "////")
    cell = Rectangle((column, row), 1, 1, facecolor=face, hatch=hatch, edgecolor="#222222", linewidth=0.6)
    ax.add_patch(cell).set_clip_on(False)  # else the outermost lines are halved
    plate = None if real else {"boxstyle": "round,pad=0.1", "facecolor": face, "edgecolor": "none"}
    ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", color="black", size=8, bbox=plate)


def _box(ax: Axes, center: tuple[float, float], width: float, height: float, text: str, color: str) -> None:
    frame(ax, center, width, height, color)
    upper, _, lower = text.partition("\n")
    x, y = center
    if lower:  # the name in the file above, ours below
        ax.text(x, y + 0.13, upper, ha="center", color=DARK, size=9)
        ax.text(x, y - 0.37, lower, ha="center", color=DARK, size=9, weight="bold")
    else:
        ax.text(x, y, upper, ha="center", va="center", color=DARK, size=9)
