"""The graded exercises, one file each: exercises/<chapter>/<exercise>.py."""

from __future__ import annotations

import importlib
from functools import cache

from mha_course.exercises.exercise import Exercise

# Chapters in reading order, and the exercises of each from easy to hard.
CATALOGUE = {
    "self_attention": ("scaled_dot_product_attention",),
    "multi_head": ("split_heads", "merge_heads", "MultiHeadAttention"),
}

# The package's modules in reading order. A graded answer may import those of earlier chapters, none of its own.
READING_ORDER = ("soft_addressing", "self_attention", "multi_head", "positions", "encoder", "pretrained")


@cache
def load_all() -> dict[str, Exercise]:
    """Return every exercise by name, in the order of the course."""
    return {name: load(name) for names in CATALOGUE.values() for name in names}


@cache
def load(name: str) -> Exercise:
    """Return one exercise.

    Raises:
        KeyError: if there is none of that name.
    """
    for chapter, names in CATALOGUE.items():
        if name in names:
            exercise: Exercise = importlib.import_module(f"mha_course.exercises.{chapter}.{name}").EXERCISE
            return exercise
    raise KeyError(name)


def allowed_modules(exercise: Exercise) -> tuple[str, ...]:
    """Return the modules that an answer may import: those of the chapters before its own."""
    return READING_ORDER[: READING_ORDER.index(exercise.chapter)]
