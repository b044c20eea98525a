"""Chapter 3: the book's masks in the forms that other libraries ask for, and back.

Here a mask is boolean, and True means "may attend". Elsewhere True may mean the opposite, a mask may hold numbers that are
added to the scores, and its axes may be others.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mha_course.self_attention import require_boolean

HIDDEN = -1e4  # and lower: what libraries add to a score in order to hide it


def to_additive(mask: Bool[Tensor, "*axes"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "*axes"]:
    """Give what is to be added to the scores: 0 where a query may attend, the lowest finite number elsewhere.

    The lowest finite number hides a key as well as -inf does, and a query that may attend to nothing gets no NaN.

    >>> to_additive(torch.tensor([True, False]), torch.float16)
    tensor([     0., -65504.], dtype=torch.float16)
    """
    require_boolean(mask)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def from_additive(mask: Float[Tensor, "*axes"]) -> Bool[Tensor, "*axes"]:
    """Read a mask that is added to the scores: 0 allows, -10,000 and lower hides.

    Raises:
        ValueError: if another number is in it: that shifts a score, and no boolean mask can say so.

    >>> from_additive(torch.tensor([0.0, -1e9, -torch.inf]))
    tensor([ True, False, False])
    """
    if not mask.is_floating_point():
        raise ValueError(
            f"an additive mask holds decimal numbers, but the type of this one is {mask.dtype}; "
            "from_tokenizer and from_attn_mask read others"
        )
    allowed, hidden = mask == 0, mask <= HIDDEN
    if not (allowed | hidden).all():
        other = mask[~(allowed | hidden)].flatten()[0].item()
        raise ValueError(
            f"an additive mask holds 0 (allowed) and {HIDDEN:g} or lower (hidden), but this one holds {other:g}; "
            "numbers that shift the scores are a bias, which attention_weights takes beside the mask"
        )
    return allowed


def to_attn_mask(
    mask: Bool[Tensor, "..."], batch: int, num_heads: int, queries: int
) -> Bool[Tensor, "batch_head query key"]:
    """Give the `attn_mask` of `nn.MultiheadAttention`: True where a query may NOT attend, batch and heads in one axis.

    Args:
        mask: broadcasts to (batch, head, query, key).
        batch: number of sequences.
        num_heads: number of heads.
        queries: number of queries.

    >>> to_attn_mask(torch.tensor([[True, False]]), batch=1, num_heads=2, queries=1)
    tensor([[[False,  True]],
            [[False,  True]]])
    """
    require_mask(mask)
    return ~mask.expand(batch, num_heads, queries, -1).reshape(batch * num_heads, queries, -1)


def from_attn_mask(
    blocked: Bool[Tensor, "*batch_head query key"], num_heads: int
) -> Bool[Tensor, "batch head query key"]:
    """Read the `attn_mask` of `nn.MultiheadAttention`: True where a query may NOT attend.

    Args:
        blocked: (query, key), the same for all, or (batch * head, query, key).
        num_heads: number of heads.

    Returns:
        True where a query may attend; a mask that is the same for all has axes of size 1 for batch and head.

    >>> from_attn_mask(torch.tensor([[False, True]]), num_heads=2)
    tensor([[[[ True, False]]]])
    """
    _require_blocked(blocked)
    return ~(blocked[None, None] if blocked.dim() == 2 else blocked.unflatten(0, (-1, num_heads)))


def to_key_padding_mask(mask: Bool[Tensor, "batch 1 1 key"]) -> Bool[Tensor, "batch key"]:
    """Give the `key_padding_mask` of PyTorch's layers: True on padding.

    >>> to_key_padding_mask(torch.tensor([[[[True, False]]]]))
    tensor([[False,  True]])
    """
    return ~_of_padding(mask)


def from_key_padding_mask(padding: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """Read the `key_padding_mask` of PyTorch's layers: True on padding.

    >>> from_key_padding_mask(torch.tensor([[False, True]]))
    tensor([[[[ True, False]]]])
    """
    _require_blocked(padding)
    return ~padding[:, None, None, :]


def to_tokenizer(mask: Bool[Tensor, "batch 1 1 key"]) -> Int[Tensor, "batch key"]:
    """Give the `attention_mask` of tokenizers and of transformers' models: 1 on real tokens, 0 on padding.

    >>> to_tokenizer(torch.tensor([[[[True, False]]]]))
    tensor([[1, 0]])
    """
    return _of_padding(mask).long()


def from_tokenizer(
    attention_mask: Int[Tensor, "batch key"] | Bool[Tensor, "batch key"],
) -> Bool[Tensor, "batch 1 1 key"]:
    """Read the `attention_mask` that a tokenizer gives: 1 on real tokens, 0 on padding.

    Raises:
        ValueError: if it holds anything but 0 and 1.

    >>> from_tokenizer(torch.tensor([[1, 1, 0]]))
    tensor([[[[ True,  True, False]]]])
    """
    real = attention_mask == 1
    if not (real | (attention_mask == 0)).all():
        raise ValueError(
            "a tokenizer's mask holds 1 (real) and 0 (padding) alone, but this one holds other numbers; "
            "token ids, say, become a mask by comparing them with the padding's id"
        )
    return real[:, None, None, :]


def require_mask(mask: Tensor | None) -> None:
    """Refuse a mask that would be read otherwise than it is meant.

    Raises:
        ValueError: if the mask is not boolean, or has three axes: the first might be the batch or the heads.
    """
    if mask is None:
        return
    require_boolean(mask)
    if mask.dim() == 3:
        raise ValueError(
            f"the mask must have the axes (batch, head, query, key) or the last two, but its shape is {tuple(mask.shape)}; "
            "mask[:, None] is the same for all heads, mask[None] the same for the whole batch"
        )


def _of_padding(mask: Tensor) -> Tensor:
    require_boolean(mask)
    if mask.dim() != 4 or mask.shape[1:3] != (1, 1):
        raise ValueError(
            f"only a mask of padding, of the shape (batch, 1, 1, key), has this form, but the shape is {tuple(mask.shape)}; "
            "others can be given as to_attn_mask or to_additive"
        )
    return mask[:, 0, 0]


def _require_blocked(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise ValueError(
            f"a mask in which True hides must be boolean, but the type of this one is {mask.dtype}; convert one of zeros "
            "and ones with mask.bool(), and read one of decimal numbers with from_additive"
        )
