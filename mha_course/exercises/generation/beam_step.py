"""Exercise: mend a step of beam search with a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn

BEAMS, CACHE = "transformer#beams", "transformer#the-key-value-cache"
Result = tuple[Tensor, Tensor]


class Cache:
    """What the model keeps of each text: our own cache, here with a token's id for its key."""

    def __init__(self) -> None:
        self.tokens: Any = None

    @property
    def length(self) -> int:
        return 0 if self.tokens is None else int(self.tokens.size(1))

    def append(self, tokens: Tensor) -> Tensor:
        self.tokens = tokens if self.tokens is None else torch.cat([self.tokens, tokens], dim=1)
        return self.tokens

    def reorder(self, beams: Tensor) -> None:
        self.tokens = self.tokens.index_select(0, beams)


class Reader(nn.Module):
    """A model with a cache: its scores depend on every token that the cache holds, and on their order."""

    def __init__(self, seed: int, vocab: int) -> None:
        super().__init__()
        self.table = 2 * torch.randn(89, vocab, generator=torch.Generator().manual_seed(seed))

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        text = cache.append(tokens)
        state = ((text + 3) * torch.arange(1, text.size(1) + 1)).cumsum(dim=1)
        return self.table[state[:, -tokens.size(1) :] % len(self.table)]


def cases(rng: Generator) -> Iterator[Case]:
    for beams, vocab, length in ((1, 5, 1), (2, 3, 2), (3, 7, 2), (2, 11, 5), (5, 7, 3), (5, 3, 3)):
        texts, sums = begun(rng, beams, vocab, length)
        label = (
            f"{beams} beam{'s' * (beams > 1)} of {length} token{'s' * (length > 1)}, vocabulary of {vocab}, one step"
        )
        yield written(rng, "a step", label, texts, sums, vocab, steps=1)
    texts, sums = torch.ones(3, 1, dtype=torch.long), torch.tensor([0.0, -torch.inf, -torch.inf])
    yield written(
        rng, "a step", "3 beams that have only begun, two of them with sum -inf, one step", texts, sums, 7, steps=1
    )

    # The sums lie so far apart, or so near to one another, that beams change places or replace one another.
    for label, length, starts in (
        ("2 beams of 2 tokens, of which the second goes on twice", 2, (-9.0, 0.0)),
        ("2 beams of 2 tokens, of which the first goes on twice", 2, (0.0, -9.0)),
        ("2 beams of 3 tokens, about equal", 3, (-1.0, -1.1)),
        ("3 beams of 2 tokens, the last one far ahead", 2, (-8.0, -9.0, 0.0)),
    ):
        for steps in (1, 2, 3):
            texts, _ = begun(rng, len(starts), 7, length)
            text = f"{label}, {steps} step{'s' * (steps > 1)}"
            yield written(rng, "the cache", text, texts, torch.tensor(starts), 7, steps, look=True)
    texts, sums = torch.ones(5, 1, dtype=torch.long), torch.tensor([0.0, *[-torch.inf] * 4])
    label = "5 beams from the beginning of a text, 7 steps"
    yield written(rng, "the cache", label, texts, sums, 11, 7, look=True)


def begun(rng: Generator, beams: int, vocab: int, length: int) -> tuple[Tensor, Tensor]:
    """Draw texts that have no token in common in any place, as far as the vocabulary allows."""
    columns = [torch.randperm(max(vocab, beams), generator=rng)[:beams] % vocab for _ in range(length)]
    return torch.stack(columns, dim=1), -randn(rng, beams).abs()


def written(
    rng: Generator, part: str, label: str, texts: Tensor, sums: Tensor, vocab: int, steps: int, look: bool = False
) -> Case:
    model = given(Reader, args=(int(torch.randint(2**31, (), generator=rng)), vocab))
    call = Call((model, texts, sums, steps, look))
    return Case(part, label, (call,), through=given(step_by_step, Cache), holds=(cache_holds_the_texts,) * look)


def step_by_step(beam_step: Callable[..., Result]) -> Callable[..., Any]:
    def run(model: Any, texts: Tensor, sums: Tensor, steps: int, look: bool) -> Any:
        cache = Cache()
        if texts.size(1) > 1:
            model(texts[:, :-1], cache)
        for _ in range(steps):
            texts, sums = beam_step(model, texts, sums, cache)
        return (texts, sums, cache.tokens) if look else (texts, sums)

    return run


def _other_tokens(outputs: Sequence[Any]) -> str | None:
    texts, _, kept = outputs[0]
    for row, (text, tokens) in enumerate(zip(texts.tolist(), kept.tolist(), strict=True)):
        if text[:-1] != tokens:
            return (
                f"text {row} is {text}; its newest token has yet to be read, so its row of the cache should hold "
                f"{text[:-1]}, but it holds {tokens}"
            )
    return None


cache_holds_the_texts = Property("After a step row i of the cache belongs to text i.", _other_tokens)


# --- right and wrong answers ---------------------------------------------------------------------------------------


class Step:
    """A step in parts that are right, for wrong answers to replace one of."""

    def __call__(self, model: Any, texts: Tensor, sums: Tensor, cache: Any) -> Result:
        logits = model(texts[:, -1:], cache)[:, -1]
        totals = self.add(sums, self.logarithms(logits))
        sums, parents, tokens = self.best(totals)
        texts = self.extend(texts, parents, tokens)
        self.reorder(cache, parents, tokens)
        return texts, sums

    def logarithms(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)

    def add(self, sums: Tensor, steps: Tensor) -> Tensor:
        return sums[:, None] + steps

    def best(self, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        beams, vocab = totals.shape
        sums, index = totals.flatten().topk(beams)
        return sums, index // vocab, index % vocab

    def extend(self, texts: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat([texts[parents], tokens[:, None]], dim=1)

    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        cache.reorder(parents)


def beam_step(model: Any, texts: Tensor, sums: Tensor, cache: Any) -> Result:
    return Step()(model, texts, sums, cache)


class NotReordered(Step):
    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        pass


class ReorderedByToken(Step):
    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        cache.reorder(tokens)


class ReorderedByTokenInRange(Step):
    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        cache.reorder(tokens % len(parents))


class ReorderedByPlace(Step):
    def best(self, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.index = totals.flatten().topk(len(totals)).indices
        return super().best(totals)

    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        cache.reorder(self.index)


class ReorderedTheOtherWay(Step):
    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        cache.reorder(parents.argsort())


class ReorderedByRank(Step):
    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        cache.reorder(torch.arange(len(parents)))


class ReorderedTwice(Step):
    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        cache.reorder(parents)
        cache.reorder(parents)


class TextsStay(Step):
    def extend(self, texts: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat([texts, tokens[:, None]], dim=1)


class NothingMoves(TextsStay):
    def reorder(self, cache: Any, parents: Tensor, tokens: Tensor) -> None:
        pass


class BeamsApart(Step):
    def best(self, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sums, tokens = totals.max(dim=-1)
        return sums, torch.arange(len(totals)), tokens


class Exchanged(Step):
    def best(self, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sums, parents, tokens = super().best(totals)
        return sums, tokens, parents


class NotNormalised(Step):
    def logarithms(self, logits: Tensor) -> Tensor:
        return logits


class Probabilities(Step):
    def logarithms(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=-1)


class SumsForgotten(Step):
    def add(self, sums: Tensor, steps: Tensor) -> Tensor:
        return steps


class CacheNotRead(Step):
    """The whole text is read anew in each step, and kept behind what was kept before."""

    def __call__(self, model: Any, texts: Tensor, sums: Tensor, cache: Any) -> Result:
        logits = model(texts, cache)[:, -1]
        sums, parents, tokens = self.best(self.add(sums, self.logarithms(logits)))
        self.reorder(cache, parents, tokens)
        return self.extend(texts, parents, tokens), sums


MISCONCEPTIONS = (
    Misconception(
        "cache_not_reordered",
        "The texts move to other rows, and what the cache keeps of them stays where it was. Where a beam has replaced "
        "another one, the model goes on with the words of one text and the memory of another. No shape is wrong and every "
        "single step looks right.",
        BEAMS,
        (NotReordered(), ReorderedByRank()),
        (
            "https://github.com/huggingface/transformers/issues/46612",
            "https://github.com/bigscience-workshop/petals/issues/571",
        ),
    ),
    Misconception(
        "cache_reordered_by_something_else",
        "The cache is reordered by the ids of the chosen tokens, or by places among all continuations. Its rows are texts; "
        "what is needed is the number of the text that each new text continues.",
        BEAMS,
        (ReorderedByToken(), ReorderedByTokenInRange(), ReorderedByPlace()),
    ),
    Misconception(
        "cache_reordered_the_other_way",
        "The rows of the cache are moved in the opposite direction, as if the numbers said where a row goes *to*. They say "
        "where it comes *from*. Where two beams just change places the two are the same.",
        BEAMS,
        (ReorderedTheOtherWay(),),
    ),
    Misconception(
        "cache_reordered_twice",
        "The cache is reordered twice in one step. Once it has been done, its rows belong to the new texts.",
        BEAMS,
        (ReorderedTwice(),),
    ),
    Misconception(
        "texts_not_reordered",
        "The new tokens are written behind the texts in their old order. Each token belongs to the text that it was chosen "
        "for: the texts move too, and not the cache alone.",
        BEAMS,
        (TextsStay(), NothingMoves()),
        ("https://github.com/vllm-project/vllm/issues/1101",),
    ),
    Misconception(
        "beams_kept_apart",
        "Each text chooses its own best token, so that no beam ever replaces another: that's greedy decoding, several times "
        "over. The continuations of all texts are compared with one another, and the best of all live on.",
        BEAMS,
        (BeamsApart(),),
        ("https://github.com/facebookresearch/ParlAI/pull/2047",),
    ),
    Misconception(
        "parents_and_tokens_exchanged",
        "Text and token have changed places. In the flattened scores those of text 0 come first, one for each token of the "
        "vocabulary, and then those of text 1: the whole part of the division by the vocabulary's size is the text, the "
        "remainder is the token.",
        BEAMS,
        (Exchanged(),),
    ),
    Misconception(
        "scores_not_normalised",
        "Raw scores are added up. One text's scores may lie higher than another's altogether, which says nothing about the "
        "text; logarithms of probabilities (log_softmax) can be compared.",
        BEAMS,
        (NotNormalised(),),
    ),
    Misconception(
        "probabilities_added",
        "Probabilities are added up. The probability of a text is the *product* of those of its tokens; it's their "
        "logarithms that are added.",
        BEAMS,
        (Probabilities(),),
    ),
    Misconception(
        "sums_forgotten",
        "Only the newest tokens are compared. A beam lives on for the probability of its *whole* text.",
        BEAMS,
        (SumsForgotten(),),
    ),
    Misconception(
        "text_read_again",
        "The whole text is handed to the model. The cache holds all of it but the newest token; what is handed over is "
        "added there once more.",
        CACHE,
        (CacheNotRead(),),
    ),
)

EXERCISE = Exercise(
    name="beam_step",
    chapter="generation",
    kind="function",
    minutes=15,
    parts=(
        Part("a step", 1, "choose the best continuations of all texts", BEAMS),
        Part("the cache", 3, "leave everything ready for the next step, for whichever texts live on", CACHE),
    ),
    hints=(
        "Two texts; the best two continuations both belong to text 1. Write down texts, sums and what the cache holds, "
        "before the step and after it. Which of the three still speaks of text 0?",
        "The model sees only the newest token of each text. From where does it know the others, and how does it know whose "
        "they are?",
        "The cache has a method that nobody calls. It wants to be told, for each new text, the number of the text that it "
        "continues; this must happen after the model has read the newest tokens.",
    ),
    cases=cases,
    reference=beam_step,
    misconceptions=MISCONCEPTIONS,
    results=("texts", "sums", "rows of the cache"),
    task="repair",
)
