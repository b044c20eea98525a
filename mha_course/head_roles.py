"""Chapter 5: does a head of a real model have a role that can be named? Say what it is, then score all heads on it.

A role is a pattern: for each query, the keys that would be a hit. A head's score is the share of its weight that hits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Short enough to draw, unlike one another, and about half of them with a word that occurs twice.
SENTENCES = (
    "The cat sat on the mat.",
    "Rain fell all night and the river rose.",
    "My brother plays chess with his neighbour on Sundays.",
    "A red kite hung above the roofs of the town.",
    "She wrote a long letter and never sent it.",
    "The train to the coast leaves in ten minutes.",
    "Nobody in the office knew who had locked the door.",
    "He opened the window because it was warm inside.",
    "Our teacher lost her glasses in the library.",
    "Two students carried a heavy box up the stairs.",
    "The soup needs more salt and a little time.",
    "Every spring the storks return to their nest.",
    "A letter arrived, but nobody opened the letter.",
    "The farmer sold one horse and kept the other horse.",
    "Tea was served, although most guests do not drink tea.",
    "The map was old, so we bought a new map.",
    "When a bell rang, we asked who had rung the bell.",
    "I know a song about rain, but rain makes me sad.",
    "They painted one wall blue and left another wall white.",
    "First the lamp flickered, then the lamp went out.",
    "Bread is cheap here, and good bread is hard to find.",
    "A ship came in, and the captain of the ship waved.",
    "You need a key for this door and a key for that one.",
    "The dog chased a ball until the ball rolled under a car.",
    "Some people like snow, other people fear snow.",
    "A girl threw a stone, and the stone broke a window.",
    "Music was her life, and without music she was lost.",
    "The king feared the general, for the general was loved.",
    "We planted a tree where the old tree had stood.",
    "His answer was short, and the answer was no.",
    "One glass broke, so he fetched a second glass.",
    "The bridge is closed until the new bridge opens.",
    "Paper burns fast, and damp paper burns slowly.",
    "If the shop has no milk, try another shop.",
    "That mountain looks near, but no mountain is near.",
    "A clock struck nine while a second clock struck ten.",
)

Pattern = Bool[Tensor, "batch query key"]


def previous_token(ids: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Pattern:
    """Hit: the token just before.

    >>> previous_token(torch.tensor([[7, 8, 9]]), torch.tensor([[True, True, True]])).int().squeeze()
    tensor([[0, 0, 0],
            [1, 0, 0],
            [0, 1, 0]], dtype=torch.int32)
    """
    return _pairs(mask) & (_offset(ids) == -1)


def next_token(ids: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Pattern:
    """Hit: the token just after.

    >>> next_token(torch.tensor([[7, 8, 9]]), torch.tensor([[True, True, True]])).int().squeeze()
    tensor([[0, 1, 0],
            [0, 0, 1],
            [0, 0, 0]], dtype=torch.int32)
    """
    return _pairs(mask) & (_offset(ids) == 1)


def first_token(ids: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Pattern:
    """Hit: the first token, where BERT's tokenizer puts the mark [CLS].

    >>> first_token(torch.tensor([[7, 8]]), torch.tensor([[True, True]])).int().squeeze()
    tensor([[1, 0],
            [1, 0]], dtype=torch.int32)
    """
    return _pairs(mask) & (torch.arange(ids.size(1)) == 0)


def last_token(ids: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Pattern:
    """Hit: the last real token, where BERT's tokenizer puts the mark [SEP].

    >>> last_token(torch.tensor([[7, 8, 0]]), torch.tensor([[True, True, False]])).int().squeeze()
    tensor([[0, 1, 0],
            [0, 1, 0],
            [0, 0, 0]], dtype=torch.int32)
    """
    last = torch.arange(ids.size(1)) == mask.sum(dim=1, keepdim=True) - 1
    return _pairs(mask) & last[:, None, :]


def same_token(ids: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Pattern:
    """Hit: another place where the same token stands; asked of those that occur more than once.

    >>> same_token(torch.tensor([[7, 8, 7]]), torch.tensor([[True, True, True]])).int().squeeze()
    tensor([[0, 0, 1],
            [0, 0, 0],
            [1, 0, 0]], dtype=torch.int32)
    """
    return _pairs(mask) & (ids[:, :, None] == ids[:, None, :]) & (_offset(ids) != 0)


ROLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "previous token": previous_token,
    "next token": next_token,
    "[CLS]": first_token,
    "[SEP]": last_token,
    "same word elsewhere": same_token,
}


def role_scores(
    maps: Float[Tensor, "layer batch head query key"],
    ids: Int[Tensor, "batch length"],
    mask: Bool[Tensor, "batch length"],
) -> dict[str, Float[Tensor, "layer head"]]:
    """Score every head on every role in `ROLES`.

    Args:
        maps: the weights of every head; each row sums to 1.
        ids: the tokens, as the tokenizer gives them.
        mask: True on real tokens.

    Returns:
        For each role the scores, in [0, 1], as `role_score` gives them.

    Raises:
        ValueError: if no sentence gives a role anything to hit.

    >>> ids, mask = torch.tensor([[7, 8, 7]]), torch.tensor([[True, True, True]])
    >>> role_scores(even_maps(mask), ids, mask)["same word elsewhere"]  # one hit among three keys
    tensor([[0.3333]])
    """
    return {name: role_score(maps, role(ids, mask)) for name, role in ROLES.items()}


def role_score(
    maps: Float[Tensor, "layer batch head query key"],
    pattern: Pattern,
) -> Float[Tensor, "layer head"]:
    """Say what share of its weight each head puts on the hits.

    Args:
        maps: the weights of every head; each row sums to 1.
        pattern: True on the keys that would be a hit. Queries without one are not asked.

    Returns:
        The mean over all queries asked, in [0, 1].

    Raises:
        ValueError: if there is no hit to be made in any sentence.

    >>> maps = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).view(1, 1, 1, 2, 2)
    >>> role_score(maps, torch.tensor([[[False, True], [False, False]]]))  # only the first query is asked
    tensor([[0.7500]])
    """
    asked = pattern.any(dim=-1)
    if not asked.any():
        raise ValueError(
            "a role needs at least one query with a hit, but the pattern has none; "
            "take sentences in which the role can show"
        )
    return (maps * pattern[:, None]).sum(dim=(1, 3, 4)) / asked.sum()


def even_maps(mask: Bool[Tensor, "batch length"]) -> Float[Tensor, "1 batch 1 query key"]:
    """Give the map of a head that looks at all real tokens alike: its score is what chance would score.

    >>> even_maps(torch.tensor([[True, True, False]])).squeeze()[0]
    tensor([0.5000, 0.5000, 0.0000])
    """
    row = mask / mask.sum(dim=1, keepdim=True)
    return row[None, :, None, None, :].expand(1, -1, 1, mask.size(1), -1)


def _pairs(mask: Tensor) -> Tensor:
    return mask[:, :, None] & mask[:, None, :]


def _offset(ids: Tensor) -> Tensor:
    place = torch.arange(ids.size(1))
    return place[None, :] - place[:, None]
