"""Chapter 8: writing with a model, token by token: the best one, a drawn one, or several texts side by side (beams)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.cache import KVCache
from mha_course.multi_head import MultiHeadAttention
from mha_course.self_attention import causal_mask, scaled_dot_product_attention
from mha_course.transformer import LanguageModel, Transformer


def cached_causal_attention(
    query: Float[Tensor, "*batch query d_head"],
    key: Float[Tensor, "*batch key d_head"],
    value: Float[Tensor, "*batch key d_value"],
) -> tuple[Float[Tensor, "*batch query d_value"], Float[Tensor, "*batch query key"]]:
    """Attend from new tokens to themselves and to all earlier ones, whose keys and values were kept.

    Args:
        query: of the new tokens alone, which are the last ones of the text.
        key: of the whole text.
        value: of the whole text.

    Returns:
        The mixed values, and the weights. Of L new tokens among S, number i sees the tokens 0 to S - L + i.

    Raises:
        ValueError: if there are more queries than keys.

    >>> _, weights = cached_causal_attention(torch.zeros(2, 1), torch.zeros(3, 1), torch.ones(3, 1))
    >>> weights
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    return scaled_dot_product_attention(query, key, value, causal_mask(query.size(-2), key.size(-2), query.device))


class CachedSelfAttention(nn.Module):
    """Causal self-attention that reads a text in pieces of any size and computes each key and value once.

    >>> attention, x, cache = CachedSelfAttention(d_model=12, num_heads=3), torch.randn(1, 5, 12), KVCache()
    >>> pieces = [attention(x[:, :3], cache), attention(x[:, 3:], cache)]
    >>> torch.allclose(torch.cat(pieces, dim=1), attention(x), atol=1e-6)
    True
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        """Create the attention; d_model: width of every token; num_heads: number of heads, which must divide it."""
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads)

    def forward(
        self, x: Float[Tensor, "batch new d_model"], cache: KVCache | None = None
    ) -> Float[Tensor, "batch new d_model"]:
        """Attend from each new token; cache: holds the earlier tokens and gets the new ones; None: there are none."""
        total = x.size(1) + (0 if cache is None else cache.length)
        return self.attention(x, x, x, causal_mask(x.size(1), total, x.device), cache)


def step_positions(prompt_length: int, steps: int) -> list[int]:
    """Say at which position each piece of a text begins: the whole prompt first, then one token a step.

    Args:
        prompt_length: number of tokens in the prompt.
        steps: number of calls of the model.

    Returns:
        One position a call, counted from 0.

    >>> step_positions(prompt_length=3, steps=4)
    [0, 3, 4, 5]
    """
    return [0, *range(prompt_length, prompt_length + steps - 1)][:steps]


def top_k_filter(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Rule out all but the k best tokens.

    Args:
        logits: a score for each token of the vocabulary.
        k: how many stay; all of them if the vocabulary is no larger. Among equals the first ones stay.

    Returns:
        The same scores, and -inf for what is ruled out.

    Raises:
        ValueError: if `k` is below 1.

    Source: Fan et al. (2018), "Hierarchical Neural Story Generation", section 5.3.

    >>> top_k_filter(torch.tensor([1.0, 3.0, 2.0]), k=2)
    tensor([-inf, 3., 2.])
    """
    _require_one("k", k, "1 leaves the best token alone")
    _, order = _best(logits, k)
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, True)
    return logits.masked_fill(~kept, -torch.inf)


def top_p_filter(logits: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Rule out all but the nucleus: the smallest set of tokens whose probability reaches p.

    Args:
        logits: a score for each token of the vocabulary.
        p: probability in (0, 1] that the set must reach; the best token always stays, and 1 rules out nothing.

    Returns:
        The same scores, and -inf for what is ruled out.

    Raises:
        ValueError: if `p` is not in (0, 1].

    Source: Holtzman et al. (2020), "The Curious Case of Neural Text Degeneration", section 3.1.

    >>> top_p_filter(torch.tensor([0.1, 0.6, 0.3]).log(), p=0.7).exp()
    tensor([0.0000, 0.6000, 0.3000])
    """
    if not 0.0 < p <= 1.0:
        raise ValueError(
            f"p must be a probability above 0 and at most 1, but it is {p}; "
            "1 rules out nothing, and for the best token alone use greedy"
        )
    if p == 1.0:  # a sum of rounded probabilities may reach 1 before the last token
        return logits
    ordered, order = _best(logits, logits.size(-1))
    probabilities = ordered.softmax(dim=-1, dtype=_precise(logits))
    better = probabilities.cumsum(dim=-1) - probabilities  # what the tokens before each one reach without it
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, better < p)
    return logits.masked_fill(~kept, -torch.inf)


def greedy(logits: Float[Tensor, "*batch vocab"]) -> Int[Tensor, "*batch"]:
    """Choose the best token, the first one among equals.

    >>> greedy(torch.tensor([[1.0, 3.0, 3.0]]))
    tensor([1])
    """
    return logits.argmax(dim=-1)


def sample(
    logits: Float[Tensor, "*batch vocab"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*batch"]:
    """Draw a token: scores are divided by the temperature, then filtered by `top_k`, then by `top_p`.

    Args:
        logits: a score for each token of the vocabulary.
        temperature: above 1 evens the probabilities out, below 1 sharpens them; 0, their limit, is `greedy`.
        top_k: see `top_k_filter`; None rules out nothing.
        top_p: see `top_p_filter`; None rules out nothing.
        generator: where the random numbers come from, on the device of the logits; None: PyTorch's own.

    Returns:
        The id of one token a row.

    Raises:
        ValueError: if `temperature` is below 0, `top_k` below 1 or `top_p` not in (0, 1].

    >>> sample(torch.tensor([[0.0, 5.0, 0.0]]), temperature=0.01)
    tensor([1])
    """
    if not temperature >= 0.0:
        raise ValueError(f"the temperature must not be below 0, but it is {temperature}; 0 chooses the best token")
    if temperature == 0.0:
        return greedy(logits)
    # Down from 0, so that no small temperature makes them overflow.
    logits = (logits - logits.amax(dim=-1, keepdim=True)).to(_precise(logits)) / temperature
    if top_k is not None:
        logits = top_k_filter(logits, top_k)
    if top_p is not None:
        logits = top_p_filter(logits, top_p)
    rows = logits.softmax(dim=-1).reshape(-1, logits.size(-1))
    return torch.multinomial(rows, 1, generator=generator).reshape(logits.shape[:-1])


@contextmanager
def evaluation(model: object) -> Iterator[None]:
    """Switch a model's dropout off, and gradients too; afterwards each part is in the mode it was in."""
    modes = [(part, part.training) for part in model.modules()] if isinstance(model, nn.Module) else []
    try:
        for part, _ in modes:
            part.training = False
        # Not inference_mode: what it returns may stand in no later loss, such as a student's that learns from a teacher.
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def greedy_decode(
    model: Callable[
        [Int[Tensor, "batch source"], Int[Tensor, "batch target"]],
        Float[Tensor, "batch target vocab"],
    ],
    source: Int[Tensor, "batch source"],
    max_length: int,
    bos: int,
    eos: int,
) -> Int[Tensor, "batch target"]:
    """Write the best token again and again, reading the whole text anew for each: the slow version, to be read first.

    Args:
        model: scores what comes after each target token, given the source. It runs in evaluation mode.
        source: the sentences to read.
        max_length: greatest number of tokens to write.
        bos: id that begins every target.
        eos: id that ends it.

    Returns:
        `bos` and at most `max_length` tokens; a row that ended is filled up with `eos`.

    >>> def count(source, target):  # after each token comes the next number
    ...     return torch.eye(5)[target + 1]
    >>> greedy_decode(count, torch.zeros(1, 2, dtype=torch.long), max_length=9, bos=0, eos=3)
    tensor([[0, 1, 2, 3]])
    """
    target = torch.full((source.size(0), 1), bos, dtype=torch.long, device=source.device)
    done = torch.zeros_like(target[:, 0], dtype=torch.bool)
    for _ in range(max_length):
        with evaluation(model):
            best = greedy(model(source, target)[:, -1]).masked_fill(done, eos)
        target = torch.cat([target, best[:, None]], dim=1)
        done = done | (best == eos)
        if done.all():
            break
    return target


@runtime_checkable  # so that the tests' type checker can look for the three methods
class Writer(Protocol):
    """A model in the middle of writing a batch of texts. Greedy decoding, sampling and beams need nothing else of it."""

    def begin(self) -> Float[Tensor, "batch vocab"]:
        """Start anew; return the scores (logits) of the first token of each row."""

    def next(self, tokens: Int[Tensor, " batch"]) -> Float[Tensor, "batch vocab"]:
        """Add a token to each row; return the scores (logits) of the one after it."""

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i what row `rows[i]` was."""


class TransformerWriter:
    """Lets a Transformer write a target for each source; it runs in evaluation mode."""

    def __init__(self, model: Transformer, source: Int[Tensor, "batch source"], bos: int) -> None:
        """Take a model, the ids it shall read, and the id that begins every target."""
        self.model, self.source, self.bos = model, source, bos

    def begin(self) -> Float[Tensor, "batch vocab"]:
        """Read the sources; return the scores of the first token of each target."""
        with evaluation(self.model):
            self.memory = self.model.encode(self.source)
        self.mask = self.model.source_mask(self.source)
        self.cache = self.model.new_cache()
        return self.next(self.source.new_full((self.source.size(0),), self.bos))

    def next(self, tokens: Int[Tensor, " batch"]) -> Float[Tensor, "batch vocab"]:
        """Add a token to each target; return the scores of the one after it."""
        with evaluation(self.model):
            return self.model.decode(tokens[:, None], self.memory, self.mask, self.cache)[:, -1]

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i what row `rows[i]` was."""
        self.cache.reorder(rows)
        self.memory = self.memory[rows]
        self.mask = None if self.mask is None else self.mask[rows]


class LanguageModelWriter:
    """Lets a language model go on with each prompt; it runs in evaluation mode."""

    def __init__(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "batch prompt"],
        mask: Bool[Tensor, "batch prompt"] | None = None,
    ) -> None:
        """Move all padding to the left, so that every row goes on in the same column.

        Args:
            model: what writes.
            prompt: ids of the texts to go on with.
            mask: True on real tokens; None: all are real.

        Raises:
            ValueError: if a prompt has no real token.
        """
        real = torch.ones_like(prompt, dtype=torch.bool) if mask is None else mask
        if not real.any(dim=1).all():
            row = int(real.any(dim=1).long().argmin())
            raise ValueError(
                f"each prompt must have a real token to go on from, but that of row {row} has none; "
                "begin it with the token that begins a text"
            )
        order = real.long().argsort(dim=1, stable=True)
        self.model, self.prompt = model, prompt.gather(1, order)
        self.prompt_mask = None if mask is None else mask.gather(1, order)

    def begin(self) -> Float[Tensor, "batch vocab"]:
        """Read the prompts; return the scores of the first token after each."""
        self.mask, self.cache = self.prompt_mask, self.model.new_cache()
        return self._read(self.prompt)

    def next(self, tokens: Int[Tensor, " batch"]) -> Float[Tensor, "batch vocab"]:
        """Add a token to each text; return the scores of the one after it."""
        self.mask = None if self.mask is None else F.pad(self.mask, (0, 1), value=True)
        return self._read(tokens[:, None])

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i what row `rows[i]` was."""
        self.cache.reorder(rows)
        self.mask = None if self.mask is None else self.mask[rows]

    def _read(self, ids: Tensor) -> Tensor:
        with evaluation(self.model):
            return self.model(ids, self.mask, self.cache)[:, -1]


def stream(
    writer: Writer,
    max_length: int,
    eos: int | None = None,
    choose: Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, " batch"]] = greedy,
) -> Iterator[Int[Tensor, " batch"]]:
    """Write as `generate` does, and hand over the new token of each row as soon as it is chosen."""
    _require_one("max_length", max_length, "it counts the tokens to write, without the prompt")
    logits = writer.begin()
    done = torch.zeros_like(logits[:, 0], dtype=torch.bool)
    for step in range(1, max_length + 1):
        chosen = choose(logits)
        if eos is not None:
            chosen = chosen.masked_fill(done, eos)
            done = done | (chosen == eos)
        yield chosen
        if step == max_length or done.all():
            return
        logits = writer.next(chosen)


def generate(
    writer: Writer,
    max_length: int,
    eos: int | None = None,
    choose: Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, " batch"]] = greedy,
) -> Int[Tensor, "batch new"]:
    """Write until every row has ended.

    Args:
        writer: what writes; it begins anew.
        max_length: greatest number of tokens to write, at least 1.
        eos: id that ends a text; None: nothing does.
        choose: makes a choice from the scores, such as `functools.partial(sample, temperature=0.8, top_p=0.9)`.

    Returns:
        The new tokens alone, without `bos` or prompt; a row that ended is filled up with `eos`.

    Raises:
        ValueError: if `max_length` is below 1, or learned positions end before the text does.

    >>> model = LanguageModel(11, max_length=20, d_model=12, num_heads=3, d_ff=48, num_layers=2)
    >>> writer = LanguageModelWriter(model, torch.tensor([[3, 1, 4], [0, 1, 5]]), torch.tensor([[True] * 3, [False, True, True]]))
    >>> generate(writer, max_length=7).shape
    torch.Size([2, 7])
    """
    return torch.stack(list(stream(writer, max_length, eos, choose)), dim=1)


def beam_search(
    writer: Writer, beams: int, max_length: int, eos: int, alpha: float = 0.0
) -> tuple[Int[Tensor, "batch beams new"], Float[Tensor, "batch beams"]]:
    """Follow several texts a row at once, at each step the most probable ones, and keep the best that ended.

    A text is ranked by its log-probability divided by length^alpha. With one beam and alpha 0 this is greedy decoding.

    Args:
        writer: what writes; it begins anew.
        beams: number of texts a row that are followed, and that are returned; at least 1.
        max_length: greatest number of tokens to write, at least 1; here a text ends, whatever its last token.
        eos: id that ends a text, and counts in its length.
        alpha: 0 favours short texts, as each token costs probability; 1 ranks by the mean over tokens; at least 0.

    Returns:
        The new tokens of each text, best first, filled up with `eos`; and the sum of their log-probabilities, undivided.
        Where there are fewer texts than beams, the last ones consist of `eos` and score -inf.

    Raises:
        ValueError: if `beams` or `max_length` is below 1 or `alpha` below 0.

    Source: Wu et al. (2016), "Google's Neural Machine Translation System", section 7, whose penalty ((5 + length) / 6)^alpha
        is length^alpha here, as in most libraries.

    >>> model = Transformer(11, 13, max_length=20, d_model=12, num_heads=3, d_ff=48, num_layers=2)
    >>> ids, scores = beam_search(TransformerWriter(model, torch.tensor([[3, 1, 4]]), bos=1), beams=5, max_length=7, eos=2)
    >>> ids.shape[:2], scores.shape
    (torch.Size([1, 5]), torch.Size([1, 5]))
    """
    _require_one("beams", beams, "1 is greedy decoding")
    _require_one("max_length", max_length, "it counts the tokens to write, without the prompt")
    if not alpha >= 0.0:
        raise ValueError(f"alpha must not be below 0, but it is {alpha}; 0 ranks by probability alone")
    logits = writer.begin()
    batch, vocab = logits.shape
    sums = torch.zeros(batch, 1, dtype=_precise(logits), device=logits.device)
    texts = torch.full((batch, 1, max_length), eos, device=logits.device)
    scores = ranks = sums.new_full((batch, beams), -torch.inf)
    ended = texts.expand(-1, beams, -1)
    for step in range(1, max_length + 1):
        width = sums.size(1)
        steps = logits.log_softmax(dim=-1, dtype=sums.dtype).view(batch, width, vocab)
        # Twice as many as there are beams: even if one of each beam ends, enough are left to go on with.
        sums, index = _best((sums[..., None] + steps).flatten(1), 2 * beams)
        parents, tokens = index // vocab, index % vocab
        texts = texts.take_along_dim(parents[..., None], dim=1)
        texts[..., step - 1] = tokens

        ends = (tokens == eos) | (step == max_length)
        # An end that does not make it into the beam itself is none.
        new_ranks = (sums / step**alpha).masked_fill(~ends, -torch.inf)[:, :beams]
        ranks, order = _best(torch.cat([ranks, new_ranks], dim=1), beams)
        scores = torch.cat([scores, sums[:, :beams]], dim=1).take_along_dim(order, dim=1)
        ended = torch.cat([ended, texts[:, :beams]], dim=1).take_along_dim(order[..., None], dim=1)

        sums, order = _best(sums.masked_fill(ends, -torch.inf), beams)
        # A sum can only fall, and is divided by max_length^alpha at most.
        if (ranks[:, -1] >= sums[:, 0] / max_length**alpha).all():
            break
        texts = texts.take_along_dim(order[..., None], dim=1)
        rows = torch.arange(batch, device=order.device)[:, None] * width + parents.take_along_dim(order, dim=1)
        writer.reorder(rows.flatten())
        logits = writer.next(tokens.take_along_dim(order, dim=1).flatten())
    return ended[..., :step], scores


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest scores of each row and their places, the first one first among equals, as argmax has it."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    return ordered[..., :count], order[..., :count]


def _precise(logits: Tensor) -> torch.dtype:
    """Half precision is too coarse for sums over many tokens."""
    return torch.promote_types(logits.dtype, torch.float32)


def _require_one(name: str, number: int, remedy: str) -> None:
    if number < 1:
        raise ValueError(f"{name} must be at least 1, but it is {number}; {remedy}")
