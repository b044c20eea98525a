"""Chapter 8: a Transformer that is trained from zero, on a CPU and in seconds, to translate number words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from mha_course import checkpoint
from mha_course.encoder import MakeAttention
from mha_course.generation import TransformerWriter, generate
from mha_course.loop import Progress, Recipe, about, train
from mha_course.multi_head import MultiHeadAttention, recorded_weights
from mha_course.tasks.number_words import LIMIT, Language
from mha_course.tasks.translation import BEGIN, END, PAD, Batch, NumberTranslation, exact_match
from mha_course.training import cross_entropies
from mha_course.transformer import Transformer

SHIPPED = Path(__file__).with_name("shipped")
MAX_LENGTH = 32  # more than the words of any number below a million


@dataclass(frozen=True)
class Plan:
    """How the translator is built and trained; the defaults are those of the one that is shipped.

    Args:
        language: what it translates English into.
        below: it is trained on numbers smaller than this.
        at_most_words: and of at most so many English words; None: of any number.
        d_model: width of every token.
        num_heads: number of heads.
        num_layers: layers of the encoder, and of the decoder.
        steps: updates.
        batch_size: numbers in an update.
        micro_batches: parts that an update is worked on in; at least as many as processes, at most `batch_size`.
        peak: scale of the learning rate, which rises for a tenth of the steps and follows a cosine down to 0 from there.
        seed: of parameters and batches; at least 0.

    Raises:
        ValueError: if the seed or `micro_batches` is out of range.
    """

    language: Language = "de"
    below: int = LIMIT
    at_most_words: int | None = None
    d_model: int = 64
    num_heads: int = 4
    num_layers: int = 2
    steps: int = 300
    batch_size: int = 256
    micro_batches: int = 2
    peak: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that can't be."""
        if self.seed < 0:
            raise ValueError(f"the seed must not be below 0, but it is {self.seed}; any other whole number will do")
        if not 1 <= self.micro_batches <= self.batch_size:
            raise ValueError(
                f"an update of {self.batch_size} numbers has from 1 to {self.batch_size} micro-batches, but "
                f"{self.micro_batches} are asked for; choose a number in between"
            )

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        rising = (step + 1) / (0.1 * self.steps)
        falling = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.peak * min(rising, falling)


class Translator:
    """A Transformer together with the vocabularies of its task."""

    def __init__(self, plan: Plan, *, attention: MakeAttention = MultiHeadAttention) -> None:
        """Build it with the random parameters that belong to the plan's seed.

        Args:
            plan: sizes, languages and numbers.
            attention: makes the attention from (d_model, num_heads, dropout); your own class fits here.

        Raises:
            ValueError: if the plan's numbers are out of range.
        """
        self.plan, self.attention = plan, attention
        self.task = NumberTranslation(plan.language, plan.below, at_most_words=plan.at_most_words)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            self.model = Transformer(
                len(self.task.source_vocabulary),
                len(self.task.target_vocabulary),
                MAX_LENGTH,
                plan.d_model,
                plan.num_heads,
                4 * plan.d_model,
                plan.num_layers,
                pad=PAD,
                attention=attention,
            ).eval()

    def train(
        self,
        *,
        folder: Path | None = None,
        resume: bool = False,
        progress: bool | None = None,
        watch: Callable[[], None] | None = None,
        watch_every: int = 50,
    ) -> list[Progress]:
        """Train it, and measure it every `watch_every` steps on the first 500 numbers or so of those held out.

        Args:
            folder: where the checkpoint is kept; None keeps none.
            resume: go on from the checkpoint in `folder`.
            progress: True draws a bar, False is silent, None draws it where somebody watches.
            watch: called after each measurement, to look at the translator as it learns.
            watch_every: steps from one measurement to the next.

        Returns:
            One entry a step; see `mha_course.loop.train`, also for what it raises.
        """
        plan = self.plan
        sample = self.task.batch(self.task.held_out_numbers[:: max(1, len(self.task.held_out_numbers) // 500)])

        def batch_at(step: int, index: int) -> tuple[Tensor, Tensor, Tensor]:
            size = len(range(index, plan.batch_size, plan.micro_batches))
            batch = self.task.batch_at(plan.seed, step * plan.micro_batches + index, size)
            return batch.source, batch.decoder_input, batch.labels

        def measure(_model: object) -> dict[str, float]:
            score = float(self.right([sample]).float().mean())
            if watch is not None:
                watch()
            return {"exact match": score}

        return train(
            self.model,
            torch.optim.AdamW(self.model.parameters(), lr=plan.peak, betas=(0.9, 0.98), weight_decay=0.01),
            batch_at,
            _loss,
            Recipe(
                steps=plan.steps,
                micro_batches=plan.micro_batches,
                clip_norm=1.0,
                seed=plan.seed,
                save_every=50,
                measure_every=watch_every,
                about={**asdict(plan), "attention": _name(self.attention)},
            ),
            learning_rate=plan.learning_rate,
            metrics=measure,
            folder=folder,
            resume=resume,
            progress=progress,
        )

    def right(self, batches: Iterable[Batch]) -> Bool[Tensor, " numbers"]:
        """Say of every number in the batches whether its translation is right in every word."""
        return torch.cat([exact_match(self._write(batch.source).cpu(), batch.labels) for batch in batches])

    def translate(self, number: int) -> list[str]:
        """Write a number in the other language, a word (or a part of one) a token."""
        return self.task.target_vocabulary.decode(self._write(self.task.batch([number]).source)[0])

    @torch.no_grad()
    def alignment(self, number: int) -> tuple[list[str], list[str], Float[Tensor, "layer head target source"]]:
        """Show where the decoder looks while it writes a number.

        Returns:
            The English words, the words it writes with the mark of the end, and how much each of these attends to each
            of those in the decoder's cross-attention.
        """
        source = self.task.batch([number]).source
        written = self._write(source)
        written = written[:, : int((written[0] == END).long().argmax()) + 1 or None]
        begun = F.pad(written[:, :-1], (1, 0), value=BEGIN)
        with recorded_weights(self.model) as weights:
            self.model(source.to(self._device), begun)
        maps = [weights[f"decoder.layers.{i}.cross_attn"][0].cpu() for i in range(self.plan.num_layers)]
        words = self.task.target_vocabulary.tokens
        return (
            self.task.source_vocabulary.decode(source[0]),
            [words[i] for i in written[0].tolist()],
            torch.stack(maps),
        )

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _write(self, source: Int[Tensor, "batch source"]) -> Int[Tensor, "batch target"]:
        return generate(TransformerWriter(self.model, source.to(self._device), BEGIN), MAX_LENGTH - 1, END)


def load(folder: Path = SHIPPED, *, attention: MakeAttention = MultiHeadAttention) -> Translator:
    """Load the translator that comes with the course, or one that `mha-course train numbers` made.

    Args:
        folder: where its checkpoint is.
        attention: what it was built with.

    Raises:
        ValueError: if there is none, it is damaged, or of a translator with another attention.
    """
    tensors, kept = checkpoint.read(folder)
    plan = about(kept.get("settings", {}))
    built_with = plan.pop("attention", None)
    try:
        translator = Translator(Plan(**plan), attention=attention)
    except TypeError:
        built_with = None
    if built_with is None:
        raise ValueError(
            f"a translator is loaded from the checkpoint of one, but the one in {folder} holds another model; "
            "mha-course train numbers makes one"
        )
    if built_with != _name(attention):
        raise ValueError(
            f"the translator in {folder} was built with {built_with}, but is loaded with {_name(attention)}; "
            "give load its attention"
        )
    parameters = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    try:
        translator.model.load_state_dict(parameters)
    except RuntimeError:
        raise ValueError(f"the translator in {folder} has other parts than its plan says; it can't be loaded") from None
    return translator


def _name(attention: MakeAttention) -> str:
    return getattr(attention, "__qualname__", repr(attention))


def _loss(model: torch.nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, int]:
    source, decoder_input, labels = batch
    losses = cross_entropies(model(source, decoder_input), labels, PAD)
    return losses.sum(), losses.numel()
