"""The one way in which the book draws attention weights."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from mha_course.figures.style import INK, KEY, QUERY, WEIGHTS

NUMBERS_UP_TO = 9  # keys; beyond that a number no longer fits its cell
DARK_FROM = 0.71  # the weight from which white is easier to read on a cell than black


def heatmap(
    weights: Float[Tensor, "query key"],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    title: str = "",
    ax: Axes | None = None,
) -> None:
    """Draw weights: one row a query, one column a key, on a scale fixed at 0 (light) to 1 (dark).

    Args:
        weights: values in [0, 1]. They are written into the cells of a small map; a large one gets a colour bar.
        queries: a label for each row.
        keys: a label for each column; None: those of the queries.
        title: what stands above.
        ax: where to draw; None makes a new figure.

    Raises:
        ValueError: if the labels are not as many as the rows and columns.

    >>> heatmap(torch.eye(2), ["cat", "sat"], title="each word attends to itself")
    """
    keys = queries if keys is None else keys
    if weights.shape != (len(queries), len(keys)):
        raise ValueError(
            f"a map of {weights.size(0)} queries and {weights.size(1)} keys needs as many labels, but there are "
            f"{len(queries)} and {len(keys)}; label every row and column"
        )
    small = len(keys) <= NUMBERS_UP_TO
    alone = ax is None
    if ax is None:
        cell = 0.5 if small else 0.27
        _, ax = plt.subplots(figsize=(1.4 + cell * len(keys), 1.1 + cell * len(queries)))
    cells = ax.pcolormesh(weights.detach().numpy(), cmap=WEIGHTS, vmin=0, vmax=1, edgecolor=INK, linewidth=0.3)
    ax.set_xticks([key + 0.5 for key in range(len(keys))], keys, rotation=0 if _fits(keys) else 90)
    ax.set_yticks([query + 0.5 for query in range(len(queries))], queries)
    ax.set_xlabel("key", color=KEY)
    ax.set_ylabel("query", color=QUERY)
    ax.set_title(title)
    ax.set_aspect("equal")
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if small:
        for query, row in enumerate(weights.tolist()):
            for key, weight in enumerate(row):
                color = "white" if weight > DARK_FROM else "black"
                ax.text(key + 0.5, query + 0.5, _short(weight), ha="center", va="center", color=color, fontsize=8)
    elif alone:
        ax.figure.colorbar(cells, ax=ax, label="weight", fraction=0.04).outline.set_visible(False)


def _fits(labels: Sequence[str]) -> bool:
    return len(labels) <= NUMBERS_UP_TO and max(map(len, labels)) <= 5


def _short(weight: float) -> str:
    """Two decimals, without what takes space and says nothing.

    >>> _short(0.934), _short(0.001), _short(1.0)
    ('.93', '0', '1')
    """
    text = f"{weight:.2f}"
    return {"0.00": "0", "1.00": "1"}.get(text, text.removeprefix("0"))
