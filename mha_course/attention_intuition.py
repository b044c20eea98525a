"""Chapter 1: attention as a weighted average, and a small model that finds a digit in a cluttered picture with it."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

PATCH = 8  # rows and columns of a patch: a digit fills it
STEP = 4  # pixels from one place to the next, so that neighbouring patches overlap by half
SIDE = 28  # rows and columns of a picture
SCRAPS = 12  # pieces of other digits that lie about in a picture
SCRAP = 4  # rows and columns of such a piece


def weighted_average(
    weights: Float[Tensor, "*batch place"], values: Float[Tensor, "*batch place width"]
) -> Float[Tensor, "*batch width"]:
    """Mix values: each counts in proportion to its weight.

    Args:
        weights: 0 or above; only their proportions matter.
        values: one vector for each place.

    Returns:
        The sum of weight times value over the sum of the weights: a vector that lies among the values. Where all
        weights are 0 there is nothing to mix, and the result is 0, with finite gradients.

    >>> weighted_average(torch.tensor([3.0, 1.0]), torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([1.5000, 1.0000])
    """
    total = weights.sum(dim=-1, keepdim=True)
    # A sum of 0 is replaced before the division: 0 / 0 would be NaN, and so would its gradient.
    shares = weights / torch.where(total == 0, torch.ones_like(total), total)
    return (shares.unsqueeze(-2) @ values).squeeze(-2)


def cut_into_patches(
    pictures: Float[Tensor, "batch height width"], size: int = PATCH, step: int = STEP
) -> Float[Tensor, "batch row column {size} {size}"]:
    """Cut pictures into square patches, a row and a column of places at a time.

    Args:
        pictures: one number a pixel.
        size: rows and columns of a patch.
        step: pixels from one place to the next; patches overlap if it is below the size.

    Returns:
        The patch at each place. Nothing is copied: it is a view of the pictures.

    Raises:
        ValueError: if a picture is smaller than a patch.

    >>> cut_into_patches(torch.zeros(1, 28, 28)).shape
    torch.Size([1, 6, 6, 8, 8])
    """
    if min(pictures.shape[1:]) < size:
        raise ValueError(
            f"a patch of {size} rows and columns does not fit a picture of {pictures.size(1)} by {pictures.size(2)}; "
            "take larger pictures or smaller patches"
        )
    return pictures.unfold(1, size, step).unfold(2, size, step)


def glimpse(
    scores: Float[Tensor, "batch row column"], patches: Float[Tensor, "batch row column height width"]
) -> tuple[Float[Tensor, "batch height width"], Float[Tensor, "batch row column"]]:
    """Look at a picture softly: everywhere at once, but most where the score is highest.

    Args:
        scores: how much each place deserves to be looked at, any real numbers.
        patches: what there is to see at each place.

    Returns:
        The glimpse, which is the weighted average of the patches; and the weights, which sum to 1 over all places
        of a picture.

    Source: Bahdanau et al. (2015), section 3.1, with places of a picture instead of words; Xu et al. (2015),
        "Show, Attend and Tell", section 4.2.

    >>> patches = torch.tensor([0.0, 8.0]).view(1, 1, 2, 1, 1)  # one black and one white place
    >>> seen, weights = glimpse(torch.tensor([[[0.0, 1.0986]]]), patches)  # 1.0986 is ln 3
    >>> seen.flatten(), weights.flatten()
    (tensor([6.0000]), tensor([0.2500, 0.7500]))
    """
    weights = scores.flatten(1).softmax(dim=-1)  # over rows and columns together: (batch, place)
    seen = weighted_average(weights, patches.flatten(3).flatten(1, 2))
    return seen.view(len(seen), *patches.shape[3:]), weights.view_as(scores)


class DigitFinder(nn.Module):
    """Score each place by what is seen there, take a glimpse, and read a digit from the glimpse alone.

    It learns from the digits' names. Nobody tells it where they are.
    """

    def __init__(self, hidden: int = 32, step: int = STEP) -> None:
        """Build both parts with random weights: `score` says where to look, `read` says what it is.

        Args:
            hidden: width of the layer between the pixels of a patch and its score.
            step: pixels from one place to the next; what was learned with one step can be used with another.
        """
        super().__init__()
        self.step = step
        self.score = nn.Sequential(nn.Linear(PATCH * PATCH, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.read = nn.Sequential(nn.Linear(PATCH * PATCH, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, pictures: Float[Tensor, "batch height width"]) -> Float[Tensor, "batch digit"]:
        """Return a score for each of the ten digits."""
        seen, _ = self.look(pictures)
        return self.read(seen.flatten(1))

    def look(
        self, pictures: Float[Tensor, "batch height width"]
    ) -> tuple[Float[Tensor, "batch size size"], Float[Tensor, "batch row column"]]:
        """Return the glimpse and the weights by which it was taken."""
        patches = cut_into_patches(pictures, step=self.step)
        scores = self.score(patches.flatten(3)).squeeze(-1)  # the same small network at every place
        return glimpse(scores, patches)


def hide_digits(
    digits: Float[Tensor, "digit height width"], count: int, seed: int, step: int = STEP
) -> tuple[Float[Tensor, "count side side"], Int[Tensor, " count"], Int[Tensor, "count 2"]]:
    """Make pictures in which one digit lies somewhere among scraps of others.

    Args:
        digits: pictures of digits, as large as a patch, from 0 (paper) to 1 (ink).
        count: how many pictures to make.
        seed: the same seed makes the same pictures.
        step: pixels from one place at which the digit may lie to the next; the scraps may lie anywhere.

    Returns:
        The pictures; for each, which of the `digits` is hidden in it; and its place as row and column among those
        of `cut_into_patches` with the same step.

    Source: after the cluttered pictures in Mnih et al. (2014), "Recurrent Models of Visual Attention", section 4.1.

    >>> pictures, chosen, places = hide_digits(torch.rand(3, 8, 8), count=5, seed=0)
    >>> pictures.shape, places.shape
    (torch.Size([5, 28, 28]), torch.Size([5, 2]))
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(end: int, *shape: int) -> Tensor:
        return torch.randint(end, (count, *shape), generator=generator)

    pictures = torch.zeros(count, SIDE, SIDE)
    pieces = cut_into_patches(digits, SCRAP, 1)  # (digit, row, column, SCRAP, SCRAP)
    for _ in range(SCRAPS):
        piece = pieces[draw(len(digits)), draw(pieces.size(1)), draw(pieces.size(2))]
        _paste(pictures, piece, draw(SIDE - SCRAP + 1, 2))
    chosen, places = draw(len(digits)), draw((SIDE - PATCH) // step + 1, 2)
    _paste(pictures, digits[chosen], places * step)
    return pictures, chosen, places


def _paste(
    pictures: Float[Tensor, "count side side"],
    pieces: Float[Tensor, "count size size"],
    corners: Int[Tensor, "count 2"],
) -> None:
    """Lay one piece over each picture, in place; its upper left pixel comes to lie at the corner."""
    reach = torch.arange(pieces.size(-1))
    rows = corners[:, 0, None, None] + reach[:, None]
    columns = corners[:, 1, None, None] + reach
    pictures[torch.arange(len(pictures))[:, None, None], rows, columns] = pieces
