"""Chapter 8: the shipped translator at work in the page, token by token, with its cross-attention."""

from __future__ import annotations

import re
from typing import Any

import traitlets

from mha_course.figures.live.base import LiveFigure, Number
from mha_course.tasks.translation import Vocabulary
from mha_course.tasks.translator import MAX_LENGTH

LARGEST = 999_999_999
MOST_WORDS = 20
LONGEST = MAX_LENGTH - 1  # tokens of a text, as the translator writes it
MAPS = ["L1", "L0", *(f"L{layer}H{head}" for layer in (1, 0) for head in range(4))]


class Said(traitlets.Unicode[str, str]):
    """A number in digits or in English words, as it is typed."""

    def validate(self, obj: Any, value: Any) -> str:
        """Refuse in one sentence what the figure's field refuses."""
        typed = re.sub(r"[\s,]+", " ", value).strip().lower() if isinstance(value, str) else ""
        if not typed:
            raise ValueError(f"{self.name} must be a number in digits or in English words, but it is {value!r}")
        if re.fullmatch(r"[0-9 ]+", typed):
            if int(typed.replace(" ", "")) > LARGEST:
                raise ValueError(f"{self.name} must be at most {LARGEST:,}, but it is {value!r}; leave digits out")
            return str(value).strip()
        if re.fullmatch(r"[^a-z]*[0-9][^a-z]*", typed):
            raise ValueError(
                f"{self.name} must be a whole number without dots or signs, but it is {value!r}; write 342"
            )
        words = re.split(r" |\b-\b", typed)
        strange = [word for word in words if word not in Vocabulary("en").tokens[3:]]
        if strange:
            raise ValueError(
                f"{self.name} must be digits or English number words, but {strange[0]!r} is none; "
                "write 342, or 'three hundred forty two'"
            )
        if len(words) > MOST_WORDS:
            raise ValueError(
                f"{self.name} must have at most {MOST_WORDS} words, but it has {len(words)}; leave some out"
            )
        return str(value).strip()


class NumberTranslator(LiveFigure):
    """The translator that comes with the course, which writes the German for a number, with the real weights.

    One beam is greedy decoding, and `alpha` plays no part there. `step` says how many tokens are written; more than there are
    means all. `attention` is what is drawn: a layer's mean ("L1") or a single head ("L1H2"). With `guess` the figure holds back what
    comes next until it is written.

    >>> figure = NumberTranslator(text="1,234,567", beams=4)
    >>> figure.text = "forty two"
    >>> figure.text = "two million"
    Traceback (most recent call last):
    ...
    ValueError: text must be digits or English number words, but 'million' is none; write 342, or 'three hundred forty two'
    """

    name = "transformer"

    text = Said("342,087").tag(sync=True)
    step = traitlets.Int(LONGEST, min=0, max=LONGEST).tag(sync=True)
    beams = traitlets.Int(1, min=1, max=4).tag(sync=True)
    alpha = Number(0.0, min=0.0, max=1.0).tag(sync=True)
    attention = traitlets.Enum(MAPS, "L1").tag(sync=True)
    guess = traitlets.Bool(default_value=False).tag(sync=True)
