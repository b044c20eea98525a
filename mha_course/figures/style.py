"""One look for every figure: readable on a light page, on a dark page and without colour."""

from __future__ import annotations

import re

import matplotlib as mpl
from IPython.core.getipython import get_ipython
from matplotlib.colors import LinearSegmentedColormap
from matplotlib_inline.backend_inline import set_matplotlib_formats

# A grey in the middle: its contrast is 4.6 to 1 against a white page, 5 against the book's dark one, which lightens it, and 4 in a
# dark notebook.
INK = "#757575"

# The colours of Okabe and Ito, chosen to differ for every kind of colour vision.
QUERY = "#0072B2"
KEY = "#D55E00"
VALUE = "#009E73"
HEADS = ("#56B4E9", "#E69F00", "#CC79A7", "#F0E442")

# Its lightness falls evenly from 0 to 1, so it also reads in grey. No cell is transparent: a number in it stays legible.
WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#f3f6fa", "#c6dbef", "#6baed6", "#2171b5", "#08306b"])


def with_minus(text: str) -> str:
    """Give numbers below 0 the minus sign of formulas in place of a hyphen; what has code in it (`-1`) is left alone.

    >>> with_minus("score -0.5"), with_minus("dim=-1"), with_minus("`-1`")
    ('score −0.5', 'dim=-1', '`-1`')
    """
    return text if "`" in text else re.sub(r"(?<![\w=-])-(?=[\d.])", "−", text)


def set_up() -> None:
    """Make figures transparent SVG with mid-grey ink, byte for byte the same in every run.

    Call it once, at the top of a notebook. Outside IPython only the look is set.
    """
    mpl.rcParams.update(
        {
            "axes.edgecolor": INK,
            "axes.facecolor": "none",
            "axes.labelcolor": INK,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlecolor": INK,
            "axes.titlesize": 10,
            "figure.constrained_layout.use": True,
            "figure.facecolor": "none",
            "font.size": 10,
            "hatch.linewidth": 0.6,
            "legend.frameon": False,
            "legend.labelcolor": INK,
            "savefig.facecolor": "none",
            "svg.hashsalt": "mha_course",
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None})
