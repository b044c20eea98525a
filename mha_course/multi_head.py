"""Chapter 4: several attentions side by side, first one after the other, then all in one product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.cache import KVCache
from mha_course.masks import require_mask
from mha_course.self_attention import attention_weights, scaled_dot_product_attention


def split_heads(
    x: Float[Tensor, "batch length d_model"],
    num_heads: int,
) -> Float[Tensor, "batch head length d_head"]:
    """Give each head its own slice of every token's features.

    Args:
        x: one vector a token.
        num_heads: number of heads; must divide `d_model`.

    Returns:
        Head h holds features h * d_head to (h + 1) * d_head - 1 of every token, where d_head = d_model / num_heads.

    Raises:
        ValueError: if `num_heads` does not divide `d_model`.

    Source: Vaswani et al. (2017), section 3.2.2.

    >>> x = torch.arange(12).float().view(1, 2, 6)  # two tokens, six features
    >>> split_heads(x, 2)[0, 1]  # the second head: the last three features of both tokens
    tensor([[ 3.,  4.,  5.],
            [ 9., 10., 11.]])
    """
    _require_whole_heads(x.size(-1), num_heads)
    return rearrange(x, "batch length (head d_head) -> batch head length d_head", head=num_heads)


def merge_heads(
    x: Float[Tensor, "batch head length d_head"],
) -> Float[Tensor, "batch length d_model"]:
    """Put the heads' results side by side again, token by token: the inverse of `split_heads`.

    Args:
        x: what each head found for each token.

    Returns:
        One vector a token, of width head * d_head, head 0 first.

    Source: Vaswani et al. (2017), section 3.2.2 (Concat).

    >>> x = torch.randn(2, 5, 12)
    >>> torch.equal(merge_heads(split_heads(x, 3)), x)
    True
    """
    return rearrange(x, "batch head length d_head -> batch length (head d_head)")


def share_groups(
    x: Float[Tensor, "batch group key d_head"],
    num_heads: int,
) -> Float[Tensor, "batch head key d_head"]:
    """Repeat each group's keys or values for all heads that share it: head h reads group h // (heads / groups).

    Args:
        x: keys or values, one set a group.
        num_heads: number of heads; a multiple of the number of groups.

    Raises:
        ValueError: if the heads can't be shared out equally among the groups.

    Source: Ainslie et al. (2023), "GQA", section 2.2.

    >>> share_groups(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1), num_heads=4).flatten()
    tensor([1., 1., 2., 2.])
    """
    groups = x.size(1)
    _require_whole_groups(num_heads, groups)
    return x if groups == num_heads else x.repeat_interleave(num_heads // groups, dim=1)


def grouped_query_attention(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch group key d_head"],
    value: Float[Tensor, "batch group key d_value"],
    mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query key"]]:
    """Attend with fewer keys and values than queries: neighbouring heads share those of one group.

    Args:
        query: one set of queries a head.
        key: one set of keys a group; the number of groups must divide that of heads.
        value: one set of values a group.
        mask: True where a query may attend; broadcasts to (batch, head, query, key).

    Returns:
        The mixed values, and the weights they were mixed with.

    Raises:
        ValueError: if the heads can't be shared out equally among the groups, or the mask is not boolean.

    Source: Ainslie et al. (2023), "GQA", section 2.2.

    >>> output, _ = grouped_query_attention(torch.randn(1, 4, 5, 3), torch.randn(1, 2, 7, 3), torch.randn(1, 2, 7, 3))
    >>> output.shape
    torch.Size([1, 4, 5, 3])
    """
    keys, values = (share_groups(x, query.size(1)) for x in (key, value))
    return scaled_dot_product_attention(query, keys, values, mask)


class MultiHeadAttention(nn.Module):
    """Project, attend in every head at once, concatenate, project.

    Source: Vaswani et al. (2017), section 3.2.2.

    >>> attention = MultiHeadAttention(d_model=12, num_heads=3)
    >>> x = torch.randn(2, 5, 12)
    >>> attention(x, x, x).shape
    torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        num_groups: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
    ) -> None:
        """Create the four projections.

        Args:
            d_model: width of queries and output.
            num_heads: number of heads; must divide `d_model`.
            dropout: probability in [0, 1) with which an attention weight is set to 0 in training.
            num_groups: sets of keys and values that the heads share; must divide `num_heads`. None: one a head.
            key_width: width of the tokens that keys are made from; None: `d_model`.
            value_width: width of the tokens that values are made from; None: `d_model`.

        Raises:
            ValueError: if `num_heads` does not divide `d_model`, or `num_groups` does not divide `num_heads`.
        """
        super().__init__()
        _require_whole_heads(d_model, num_heads)
        self.num_heads = num_heads
        self.num_groups = num_heads if num_groups is None else num_groups
        _require_whole_groups(num_heads, self.num_groups)
        shared = d_model // num_heads * self.num_groups
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model if key_width is None else key_width, shared)
        self.v_proj = nn.Linear(d_model if value_width is None else value_width, shared)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Float[Tensor, "batch query d_model"],
        key: Float[Tensor, "batch new key_width"],
        value: Float[Tensor, "batch new value_width"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Attend, by the framework's fused function: fast, and where it has a kernel the weights never exist as a whole.

        Args:
            query: the tokens that ask.
            key: the tokens that are compared with; the same tensor as `query` in self-attention.
            value: what is fetched from each key's token.
            mask: True where a query may attend; broadcasts to (batch, head, query, key).
            cache: keys and values of earlier tokens, which come before the new ones; the new ones are added to it.

        Returns:
            One vector a query. A query that may attend to nothing gets `out_proj`'s bias alone.

        Raises:
            ValueError: if the mask is not boolean or has three axes, or if there are more keys than values or fewer.
        """
        require_mask(mask)
        queries, keys, values = self._project(query, key, value, cache)
        return self.out_proj(merge_heads(self._fused(queries, keys, values, mask)))

    def with_weights(
        self,
        query: Float[Tensor, "batch query d_model"],
        key: Float[Tensor, "batch new key_width"],
        value: Float[Tensor, "batch new value_width"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KVCache | None = None,
    ) -> tuple[Float[Tensor, "batch query d_model"], Float[Tensor, "batch head query key"]]:
        """Attend as `forward` does, step by step, and show the weights (before dropout: each row sums to 1)."""
        require_mask(mask)
        queries, keys, values = self._project(query, key, value, cache)
        weights = self._weights(queries, keys, mask)
        return self.out_proj(merge_heads(self.dropout(weights) @ values)), weights

    def _fused(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        if keys.size(-2) != values.size(-2):  # the kernel would read beyond the shorter one
            given = f"{keys.size(-2)} keys and {values.size(-2)} values"
            raise ValueError(f"{given} don't match; give each key one value")
        dropout = self.dropout.p if self.training else 0.0
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)

    def _weights(self, queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        return attention_weights(queries, keys, mask)

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        queries = split_heads(self.q_proj(query), self.num_heads)
        if cache is not None and cache.complete:
            keys, values = cache.kept()
        else:
            keys = split_heads(self.k_proj(key), self.num_groups)
            values = split_heads(self.v_proj(value), self.num_groups)
            if cache is not None:
                keys, values = cache.append(keys, values)
        return queries, share_groups(keys, self.num_heads), share_groups(values, self.num_heads)


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, Float[Tensor, "batch head query key"]]]:
    """Record the weights of every attention layer in a model while it runs.

    Args:
        model: any module; those of its parts that have a method `with_weights` are recorded.

    Yields:
        A dict that a call of the model fills: the name of each layer, and its weights in the last call.

    Raises:
        ValueError: if the model is called with a cache.

    >>> attention, x = nn.ModuleDict({"first": MultiHeadAttention(12, 3)}), torch.randn(2, 5, 12)
    >>> with recorded_weights(attention) as weights:
    ...     output = attention["first"](x, x, x)
    >>> weights["first"].shape
    torch.Size([2, 3, 5, 5])
    """
    weights: dict[str, Tensor] = {}

    def recording(name: str) -> Callable[..., None]:
        def record(layer: Any, args: tuple[Any, ...], options: dict[str, Any], _output: Tensor) -> None:
            if any(isinstance(given, KVCache) for given in (*args, *options.values())):
                raise ValueError("weights are recorded without a cache; run the model on the whole text at once")
            with torch.no_grad(), torch.random.fork_rng():  # dropout's draws must not change those that follow
                weights[name] = layer.with_weights(*args, **options)[1]

        return record

    handles = [
        layer.register_forward_hook(recording(name), with_kwargs=True)
        for name, layer in model.named_modules()
        if hasattr(layer, "with_weights")
    ]
    try:
        yield weights
    finally:
        for handle in handles:
            handle.remove()


def multi_head_attention_loop(
    attention: MultiHeadAttention,
    query: Float[Tensor, "batch query d_model"],
    key: Float[Tensor, "batch key key_width"],
    value: Float[Tensor, "batch key value_width"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "batch query d_model"]:
    """Do what `attention` does, one head after the other: the slow version, to be read first.

    Args:
        attention: the layer whose parameters are used; its dropout is not.
        query: the tokens that ask.
        key: the tokens that are compared with.
        value: what is fetched from each key's token.
        mask: True where a query may attend, the same for every head; broadcasts to (batch, 1, query, key).

    Returns:
        What `attention(query, key, value, mask)` returns.
    """
    every_head_alike = _same_for_every_head(mask)
    d_head = query.size(-1) // attention.num_heads
    heads_per_group = attention.num_heads // attention.num_groups
    outputs = []
    for head in range(attention.num_heads):
        group = head // heads_per_group
        own, shared = (slice(part * d_head, (part + 1) * d_head) for part in (head, group))
        output, _ = scaled_dot_product_attention(
            F.linear(query, attention.q_proj.weight[own], attention.q_proj.bias[own]),
            F.linear(key, attention.k_proj.weight[shared], attention.k_proj.bias[shared]),
            F.linear(value, attention.v_proj.weight[shared], attention.v_proj.bias[shared]),
            every_head_alike,
        )
        outputs.append(output)
    return attention.out_proj(torch.cat(outputs, dim=-1))


def _same_for_every_head(mask: Tensor | None) -> Tensor | None:
    require_mask(mask)
    if mask is None or mask.dim() < 4:
        return mask
    if mask.size(1) != 1:
        raise ValueError(
            f"the loop takes one mask for all heads, but this one has {mask.size(1)}; "
            "use the layer itself for a mask a head"
        )
    return mask[:, 0]


def _require_whole_heads(d_model: int, num_heads: int) -> None:
    if num_heads < 1 or d_model % num_heads:
        raise ValueError(
            f"num_heads must divide d_model, but {d_model} features cannot be shared out equally among "
            f"{num_heads} heads; choose a divisor of {d_model}"
        )


def _require_whole_groups(num_heads: int, num_groups: int) -> None:
    if num_groups < 1 or num_heads % num_groups:
        raise ValueError(
            f"num_groups must divide num_heads, but {num_heads} heads cannot be shared out equally among "
            f"{num_groups} groups; choose a divisor of {num_heads}"
        )
