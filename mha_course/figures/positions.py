"""The drawings of chapter 6: tokens looked up in a table, positions as hands of clocks, and accuracy by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from torch import Tensor

from mha_course.figures.style import INK, KEY, QUERY, VALUE, WEIGHTS, with_minus

# A scheme of positions keeps its colour and marker in all drawings.
SCHEMES = {
    "none": (INK, "x"),
    "sinusoidal": (QUERY, "o"),
    "learned": (KEY, "s"),
    "rotary": (VALUE, "^"),
    "ALiBi": ("#CC79A7", "D"),
}


def draw_one_hot(
    words: Sequence[str],
    vocabulary: Sequence[str],
    one_hot: Float[Tensor, "length vocab"],
    vectors: Float[Tensor, "vocab d_model"],
) -> None:
    """Draw looking up as a product: one-hot rows times the table give one vector a word.

    Args:
        words: the sentence.
        vocabulary: a name for each row of the table.
        one_hot: a single 1 a word, in the column of its row.
        vectors: the table.
    """
    shapes = (one_hot, vectors, one_hot @ vectors)
    ratios = [part.size(1) for part in shapes]
    _, axes = plt.subplots(1, 3, figsize=(4.6, 2.7), width_ratios=ratios)
    titles = ("one-hot rows", "times the table", "= vectors")
    for ax, part, title, rows in zip(axes, shapes, titles, (words, vocabulary, words), strict=True):
        ax.pcolormesh(part.numpy(), cmap=WEIGHTS, vmin=0, vmax=2, edgecolor=INK, linewidth=0.3)
        for row, line in enumerate(part.tolist()):
            for column, number in enumerate(line):
                color = "white" if number > 1 else "black"
                ax.text(column + 0.5, row + 0.5, f"{number:g}", ha="center", va="center", color=color, size=8)
        ax.set_yticks([row + 0.5 for row in range(len(rows))], rows, size=8)
        ax.set_xticks([])
        ax.set_ylim(len(words), 0)
        ax.set_title(title)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    axes[0].set_xticks([column + 0.5 for column in range(len(vocabulary))], vocabulary, size=8, rotation=90)


def draw_positions(
    tables: Mapping[str, Float[Tensor, "row column"]], ylabel: str = "position", xlabel: str = "column"
) -> None:
    """Draw tables of positions side by side on one scale, light for the lowest value of all and dark for the highest.

    Args:
        tables: a panel for each, under its name.
        ylabel: what a row is.
        xlabel: what a column is.
    """
    lowest = min(values.min().item() for values in tables.values())
    highest = max(values.max().item() for values in tables.values())
    figure, axes = plt.subplots(1, len(tables), figsize=(4.6, 3.0), squeeze=False, sharey=True)
    figure.set_layout_engine("constrained", w_pad=0.08)
    for ax, (name, values) in zip(axes.flat, tables.items(), strict=True):
        image = ax.imshow(
            values.detach().numpy(), cmap=WEIGHTS, vmin=lowest, vmax=highest, aspect="auto", interpolation="none"
        )
        ax.set_title(name)
        ax.set_xlabel(xlabel)
        ax.spines[:].set_visible(False)
    figure.colorbar(
        image, ax=axes, fraction=0.05, format=lambda value, _: with_minus(f"{value:g}")
    ).outline.set_visible(False)
    axes[0, 0].set_ylabel(ylabel)


def draw_clocks(table: Float[Tensor, "position d_model"], positions: Sequence[int]) -> None:
    """Draw each pair of columns as the hand of a clock: a row a pair, a column a position.

    Args:
        table: sines in even columns, cosines in odd ones, as `sinusoidal_positions` gives them.
        positions: which rows to draw.
    """
    pairs = table.size(1) // 2
    figure, axes = plt.subplots(pairs, len(positions), figsize=(4.6, 0.7 + 0.75 * pairs), squeeze=False)
    figure.suptitle("position", size=10)
    for pair in range(pairs):
        for ax, position in zip(axes[pair], positions, strict=True):
            sine, cosine = table[position, 2 * pair : 2 * pair + 2].tolist()
            ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=INK))
            ax.plot([0, sine], [0, cosine], color=QUERY, linewidth=2.2)
            ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=[], yticks=[])
            ax.set_aspect("equal")
            ax.spines[:].set_visible(False)
            if pair == 0:
                ax.set_title(str(position))
        axes[pair, 0].set_ylabel(f"pair {pair}", rotation=0, ha="right", va="center", size=9)


def draw_turned(pairs: Mapping[str, tuple[Float[Tensor, "2"], Float[Tensor, "2"]]]) -> None:
    """Draw queries and keys of two features as arrows, a panel for each pair of places.

    Args:
        pairs: the title of each panel, with its query (solid) and its key (dashed).
    """
    _, axes = plt.subplots(1, len(pairs), figsize=(4.6, 2.0), squeeze=False)
    for ax, (title, (query, key)) in zip(axes.flat, pairs.items(), strict=True):
        ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=INK, linewidth=0.6))
        for vector, name, color, style in ((query, "q", QUERY, "-"), (key, "k", KEY, "--")):
            x, y = vector.tolist()
            arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 2, "linestyle": style}
            ax.annotate("", xy=(x, y), xytext=(0, 0), arrowprops=arrow)
            ax.text(1.25 * x, 1.25 * y, name, color=color, ha="center", va="center", weight="bold")
        ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), xticks=[], yticks=[])
        ax.set_aspect("equal")
        ax.set_title(with_minus(title), size=9)
        ax.spines[:].set_visible(False)


def draw_by_length(
    accuracies: Mapping[str, Sequence[float]],
    lengths: Sequence[int],
    trained: int,
    chance: float,
    *,
    title: str = "",
    ax: Axes | None = None,
) -> None:
    """Draw how often each scheme of positions is right, from the trained length on.

    Args:
        accuracies: for each scheme of `SCHEMES` a share in [0, 1] at each length.
        lengths: the lengths, each about twice the one before.
        trained: the length in training.
        chance: the share that a blind guess gets right.
        title: what stands above.
        ax: where to draw; None makes a new figure.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(4.6, 3.2))
    for name, shares in accuracies.items():
        color, marker = SCHEMES[name]
        ax.plot(lengths, shares, color=color, marker=marker, markersize=5, label=name)
    ax.axvline(trained, color=INK, linewidth=0.8, linestyle=":")
    ax.axhline(chance, color=INK, linewidth=0.8, linestyle="--", label="chance")
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [str(length) for length in lengths])
    ax.set(ylim=(0, 1.05), xlabel="length", ylabel="accuracy", title=title)
    ax.minorticks_off()
