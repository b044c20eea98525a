"""Static figures and small displays that the book's pages share."""

from mha_course.figures.display import show_source, table
from mha_course.figures.heatmap import heatmap
from mha_course.figures.multi_head import draw_three_steps
from mha_course.figures.running_example import FEATURES, WORDS, tiny_vectors
from mha_course.figures.style import HEADS, INK, KEY, QUERY, VALUE, WEIGHTS, set_up

__all__ = [
    "FEATURES",
    "HEADS",
    "INK",
    "KEY",
    "QUERY",
    "VALUE",
    "WEIGHTS",
    "WORDS",
    "draw_three_steps",
    "heatmap",
    "set_up",
    "show_source",
    "table",
    "tiny_vectors",
]
