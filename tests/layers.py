"""What the tests of layers and stacks share."""

import torch
from torch import nn

from mha_course.multi_head import MultiHeadAttention


def drawn(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def spread(module, seed=1):
    """Draw larger parameters than the default, those of norms too, so that no part is close to doing nothing."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.4)
    return module


def recorder():
    """Return what makes attentions as the layers ask for them, and the list in which each wish is noted."""
    made = []

    def make(d_model, num_heads, dropout):
        made.append((d_model, num_heads, dropout))
        return MultiHeadAttention(d_model, num_heads, dropout)

    return make, made
