"""Exercise: mend a training loop that looks at held-out data now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn

SECTION, DROPOUT = "transformer#learning-to-translate", "encoder#dropout"
GRADIENTS = "self_attention#gradients"


class HalfDropped(nn.Module):
    """A layer whose dropout leaves nothing to chance: in training every second feature is 0, the others are doubled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.tensor([2.0, 0.0]).repeat(x.size(-1))[: x.size(-1)] if self.training else x) @ self.weight


class Descent:
    """Plain gradient descent, with the two methods of an optimizer that a loop calls."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.05)


def at_work(train_and_watch: Callable[..., Any]) -> Callable[..., tuple[Any, Tensor, Tensor]]:
    """Train on all batches but the last, which is held out."""

    def run(part: str, inputs: Tensor, targets: Tensor, every: int, mode: bool) -> tuple[Any, Tensor, Tensor]:
        model = HalfDropped(inputs.size(-1)).train(mode)
        *batches, held_out = zip(inputs, targets, strict=True)
        modes: dict[
            int, bool
        ] = {}  # the model's, by the number of the batch; the held-out one's is True if it ever was

        def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            number = next((i for i, one in enumerate(batches) if one is batch), -1)
            modes[number] = model.training or (number < 0 and modes.get(number, False))
            loss: Tensor = (model(batch[0]) - batch[1]).square().mean()
            return loss

        losses = train_and_watch(model, Descent(model), loss_of, list(batches), held_out, every)
        if part == "watching":
            return losses, torch.zeros(0), torch.tensor(modes.get(-1, False))
        return [], next(model.parameters()), torch.tensor([modes.get(i, False) for i in range(len(batches))])

    return run


def train_and_watch(
    model: nn.Module,
    optimizer: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
    batches: Sequence[Any],
    held_out: Any,
    every: int,
) -> list[float]:
    """Train on the batches in turn; return the loss on held-out data after every `every` of them."""
    losses = []
    for number, batch in enumerate(batches, start=1):
        model.train()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if number % every == 0:
            model.eval()
            with torch.no_grad():
                losses.append(loss_of(model, held_out).item())
    return losses


def cases(rng: Generator) -> Iterator[Case]:
    for batches, every, mode in (
        (5, 2, True),
        (1, 2, True),
        (3, 7, True),
        (2, 1, True),
        (7, 3, True),
        (3, 5, False),
        (5, 2, False),
    ):
        args = (randn(rng, batches + 1, 3, 4), randn(rng, batches + 1, 3), every, mode)
        label = f"{batches} batch{'es' * (batches > 1)} and a look after every {every}, a model with dropout"
        label += "" if mode else ", handed over in evaluation mode"
        for part, rule in (("learning", drops), ("watching", drops_nothing)):
            call = Call((part, *args))
            yield Case(part, label, (call,), through=given(at_work, HalfDropped, Descent), holds=(rule,))


def _dropped(outputs: Sequence[Any]) -> str | None:
    modes = outputs[0][2].tolist()
    without = [str(number) for number, training in enumerate(modes, start=1) if not training]
    return f"nothing was dropped in batch {' and '.join(without)} of {len(modes)}" if without else None


drops = Property("Dropout is at work in every batch that is learned from.", _dropped)
drops_nothing = Property(
    "Dropout is off whenever the model is looked at.",
    lambda outputs: "it was on for the held-out batch" if outputs[0][2] else None,
)


# --- wrong answers -------------------------------------------------------------------------------------------------

Switch = Callable[[nn.Module], Any]
Due = Callable[[int, int, int], bool]


def nothing(model: nn.Module) -> None:
    """Leave the model's mode as it is."""


def loop(
    start: Switch = nothing,
    before: Switch = nn.Module.train,
    look: Switch = nn.Module.eval,
    after: Switch = nothing,
    clear: str = "before",
    due: Due = lambda number, every, last: number % every == 0,
    early: bool = False,
    report_training: bool = False,
    learn_everything: bool = False,
) -> Callable[..., list[float]]:
    """Build a training loop out of its steps; each is right unless another is given.

    Args:
        start: switches the model's mode at the start.
        before: switches it before each batch.
        look: switches it before each look.
        after: switches it after each look.
        clear: whether gradients are cleared "before" they are computed, "between" that and the step, or "never".
        due: whether there is a look at a batch's number, given `every` and the last number.
        early: whether the look comes before the step.
        report_training: whether the loss on the batch is reported instead.
        learn_everything: whether the held-out batch is learned from, too.
    """

    def train(
        model: nn.Module,
        optimizer: Any,
        loss_of: Callable[..., Tensor],
        batches: Sequence[Any],
        held_out: Any,
        every: int,
    ) -> list[float]:
        losses: list[float] = []

        def step(batch: Any) -> float:
            if clear == "before":
                optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            if clear == "between":
                optimizer.zero_grad()
            optimizer.step()
            return loss.item()

        def watch() -> None:
            look(model)
            losses.append(step(held_out) if learn_everything else loss_of(model, held_out).item())
            after(model)

        start(model)
        for number, batch in enumerate(batches, start=1):
            is_due = due(number, every, len(batches))
            if is_due and early:
                watch()
            before(model)
            loss = step(batch)
            if is_due and report_training:
                losses.append(loss)
            elif is_due and not early:
                watch()
        return losses

    return train


MISCONCEPTIONS = (
    Misconception(
        "never_back_to_training",
        "The model is put into evaluation mode for the look, and never back. From the first look on, dropout is off, and the "
        "rest of the training runs without it. Nothing fails, the losses even look better for a while; only overfitting "
        "comes sooner. A mode stays until somebody changes it, so whoever needs one has to set it.",
        DROPOUT,
        (loop(start=nn.Module.train, before=nothing),),
        (
            "https://github.com/fartashf/vsepp/issues/4",
            "https://github.com/shubhamagarwal92/mmd/issues/14",
            "https://github.com/tk-rusch/coRNN/issues/1",
        ),
    ),
    Misconception(
        "watched_with_dropout",
        "The model is looked at while dropout is at work (the switch to evaluation mode has gone, or comes too late). "
        "Training is right now, but what is measured is another, damaged model, and a different one in each look.",
        DROPOUT,
        (loop(look=nothing), loop(look=nn.Module.train)),
        (
            "https://github.com/udacity/deep-learning-v2-pytorch/issues/3",
            "https://github.com/wolny/pytorch-3dunet/issues/53",
        ),
    ),
    Misconception(
        "never_in_training_mode",
        "The model is in evaluation mode all the time, so nothing is ever dropped.",
        DROPOUT,
        (loop(start=nn.Module.eval, before=nothing),),
    ),
    Misconception(
        "mode_taken_for_granted",
        "The model is put back into training mode after each look, but nothing makes sure that it starts in it. A model that "
        "was just loaded, or tried out, comes in evaluation mode.",
        DROPOUT,
        (loop(before=nothing, after=nn.Module.train),),
    ),
    Misconception(
        "gradients_pile_up",
        "The gradients are never cleared. backward() adds to what is there, so every step goes along the sum of all gradients "
        "so far.",
        GRADIENTS,
        (loop(clear="never"),),
        (
            "https://github.com/pytorch/pytorch/issues/47175",
            "https://github.com/wenet-e2e/wekws/pull/73",
            "https://github.com/yastrebksv/TennisCourtDetector/issues/7",
        ),
    ),
    Misconception(
        "gradients_cleared_too_late",
        "The gradients are cleared after they were computed and before they are used. Every step is one of length 0, and the "
        "model stays as it was.",
        GRADIENTS,
        (loop(clear="between"),),
    ),
    Misconception(
        "learned_from_held_out",
        "The held-out batch is learned from as well. Then it is no longer held out, and its loss says nothing about data that "
        "the model has not seen.",
        SECTION,
        (loop(learn_everything=True),),
    ),
    Misconception(
        "training_loss_reported",
        "What is returned are losses on the batches learned from, with dropout on. They say how well the model fits what it has "
        "seen; the question was what it makes of data that it hasn't.",
        SECTION,
        (loop(report_training=True),),
    ),
    Misconception(
        "looked_too_early",
        "The look comes before the step, or is counted from 0, so that it's one batch early. After `every` batches means: when "
        "they have been learned from.",
        SECTION,
        (
            loop(early=True),
            loop(due=lambda number, every, last: (number - 1) % every == 0),
            loop(due=lambda number, every, last: (number - 1) % every == 0, early=True),
        ),
    ),
    Misconception(
        "every_ignored",
        "The number of looks is another one: after each batch, or once at the end. There should be one after every `every` "
        "batches.",
        SECTION,
        (
            loop(due=lambda number, every, last: True),
            loop(due=lambda number, every, last: number == last),
            loop(due=lambda number, every, last: number % every == 0 or number == last),
        ),
    ),
)

EXERCISE = Exercise(
    name="train_and_watch",
    chapter="transformer",
    kind="function",
    minutes=10,
    parts=(
        Part("learning", 2, "learn from every batch, with dropout at work in each of them", DROPOUT),
        Part(
            "watching",
            1,
            "return the loss on the held-out batch, without dropout, after every `every` batches",
            SECTION,
        ),
    ),
    hints=(
        "Go through the loop by hand, with five batches and a look after every second one, and write down for each batch in "
        "which mode the model is. What does model.eval() change, and how long does that last?",
        "The first batches are learned from as they should be. What has happened to the model between the last right one and "
        "the first wrong one?",
        "The look needs one mode, the learning another. Let each of them set the mode it needs, every time.",
    ),
    cases=cases,
    reference=train_and_watch,
    misconceptions=MISCONCEPTIONS,
    results=("losses", "weights", "modes"),
    task="repair",
)
