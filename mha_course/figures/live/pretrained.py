"""Chapter 5: every head of the pretrained model, on a dozen sentences."""

from __future__ import annotations

import traitlets

from mha_course.figures.live.base import LiveFigure
from mha_course.head_roles import ROLES

# What each shows: two equal words; a pronoun and its noun, which one word changes; a subject far from its verb; a word with two
# meanings; a list. One sentence, one file of maps: after a change here run tools/head_maps.py.
SENTENCES = (
    "The cat sat on the mat.",
    "One door closed, another door opened.",
    "New shop, old shop.",
    "The river rose, and the river fell.",
    "The animal did not cross the street because it was too tired.",
    "The animal did not cross the street because it was too wide.",
    "The dog barked until its owner came.",
    "Every spring the storks return to their nest.",
    "The keys on the table are gone.",
    "The bank lent her money for a house.",
    "The bank of the river was covered in reeds.",
    "We need apples, bread, milk, and a cake.",
)
LONGEST = 15  # tokens


class HeadBrowser(LiveFigure):
    """The maps of all 72 heads of all-MiniLM-L6-v2 on one of `SENTENCES`, and one of them large.

    `token` is the query whose row is read out, counted from `[CLS]`, which is 0; beyond the end of a sentence it is `[SEP]`.
    `role` is one of `head_roles.ROLES`, "itself" or "none": all heads are scored for it.

    >>> figure = HeadBrowser(sentence="New shop, old shop.", layer=2, head=9, token=5)
    >>> figure.head = 12
    Traceback (most recent call last):
    ...
    traitlets.traitlets.TraitError: The value of the 'head' trait of a HeadBrowser instance should not be greater than 11, but ...
    """

    name = "pretrained"

    sentence = traitlets.Enum(SENTENCES, SENTENCES[0]).tag(sync=True)
    layer = traitlets.Int(4, min=0, max=5).tag(sync=True)
    head = traitlets.Int(5, min=0, max=11).tag(sync=True)
    token = traitlets.Int(3, min=0, max=LONGEST - 1).tag(sync=True)
    role = traitlets.Enum(("none", "itself", *ROLES), "none").tag(sync=True)
