"""Chapter 8: keys and values that are kept while a text is written token by token, so that none is computed twice."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, cat

KeysAndValues = tuple[Float[Tensor, "batch head key d_head"], Float[Tensor, "batch head key d_value"]]


class KVCache:
    """The keys and values of one attention layer, split into heads.

    >>> cache = KVCache()
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3, 4))  # a chunk of three tokens
    >>> keys, values = cache.append(torch.zeros(1, 2, 1, 4), torch.ones(1, 2, 1, 4))  # one token more
    >>> keys.shape, cache.length
    (torch.Size([1, 2, 4, 4]), 4)
    """

    def __init__(self, *, once: bool = False) -> None:
        """Start empty; once: filled by the first call and only read by later ones, as cross-attention needs it."""
        self.once = once
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens that are kept."""
        return 0 if self.keys is None else self.keys.size(-2)

    @property
    def complete(self) -> bool:
        """True if it was to be filled once, and is."""
        return self.once and self.keys is not None

    def append(
        self,
        keys: Float[Tensor, "batch head new d_head"],
        values: Float[Tensor, "batch head new d_value"],
    ) -> KeysAndValues:
        """Add the keys and values of new tokens behind the others; return all."""
        self.keys = keys if self.keys is None else cat([self.keys, keys], dim=-2)
        self.values = values if self.values is None else cat([self.values, values], dim=-2)
        return self.kept()

    def kept(self) -> KeysAndValues:
        """Return all that is kept, of which there must be some."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i what row `rows[i]` was: a beam that lives on in two takes its past along twice."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, rows)
            self.values = self.values.index_select(0, rows)


class ModelCache:
    """The caches of all layers of a model; make one for each text or batch of texts, and for one model alone."""

    def __init__(self, num_layers: int) -> None:
        """Start empty, with two caches a layer: of the tokens written so far, and of a decoder's memory."""
        self.own = [KVCache() for _ in range(num_layers)]
        self.memory = [KVCache(once=True) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Number of tokens written so far."""
        return self.own[0].length

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i of every layer what row `rows[i]` was."""
        for cache in (*self.own, *self.memory):
            cache.reorder(rows)
