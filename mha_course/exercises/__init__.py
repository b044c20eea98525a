"""The graded exercises, one file each: exercises/<chapter>/<exercise>.py."""

from __future__ import annotations

import importlib
from functools import cache

from mha_course.exercises.exercise import Exercise

# Sets of exercises in reading order (the last two are chapter 8's), and the modules of the package in which their answers
# stand, each after those that it imports.
MODULES = {
    "attention_intuition": (),  # nothing later builds on its module
    "soft_addressing": ("soft_addressing",),
    "self_attention": ("self_attention", "masks"),
    "multi_head": ("multi_head",),
    "pretrained": (),  # its module needs that of the encoder
    "positions": ("positions",),
    "encoder": ("encoder",),
    "transformer": ("decoder", "transformer", "training"),
    "generation": ("generation",),
}
UNSEEN = ("cache",)  # modules that others need, and no answer may name


def _names(chapter: str) -> tuple[str, ...]:
    names: tuple[str, ...] = importlib.import_module(f"mha_course.exercises.{chapter}").EXERCISES
    return names


# Chapters in reading order, and the exercises of each from easy to hard.
CATALOGUE = {chapter: names for chapter in MODULES if (names := _names(chapter))}
NAMES = tuple(name for names in CATALOGUE.values() for name in names)


@cache
def load_all() -> dict[str, Exercise]:
    """Return every exercise by name, in the order of the course."""
    return {name: load(name) for name in NAMES}


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
    """Return the modules that an answer may import: those of earlier chapters which don't hold that answer."""
    if exercise.imports is not None:
        return exercise.imports
    chapters = list(MODULES)
    earlier = [name for chapter in chapters[: chapters.index(exercise.chapter)] for name in MODULES[chapter]]
    own = exercise.reference.__module__.removeprefix("mha_course.")
    if own in UNSEEN:
        own = "multi_head"  # the first that would give it away
    return tuple(earlier[: earlier.index(own)] if own in earlier else earlier)


def supplied_modules(exercise: Exercise) -> tuple[str, ...]:
    """Return the modules that have to be at hand where an answer runs."""
    return (*UNSEEN, *allowed_modules(exercise))
