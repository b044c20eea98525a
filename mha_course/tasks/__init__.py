"""Tasks without end to train on, exact and the same everywhere: each batch is drawn from a seed and a step alone."""

from __future__ import annotations

import numpy as np
import torch


def generator_at(seed: int, step: int) -> torch.Generator:
    """Make the source of chance for one step, so that a training that is resumed needs to remember the step alone.

    Args:
        seed: at least 0; tells one training from another.
        step: at least 0; tells one batch from another.

    >>> torch.rand(1, generator=generator_at(0, 7)) == torch.rand(1, generator=generator_at(0, 7))
    tensor([True])
    """
    # PyTorch uses the lowest 32 bits of a seed alone, so the two numbers are mixed into as many.
    mixed = np.random.SeedSequence([seed, step]).generate_state(1, dtype=np.uint32)
    return torch.Generator().manual_seed(int(mixed[0]))
