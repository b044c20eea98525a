"""Exercise: one loss out of several micro-batches, as if they had been one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import training
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import close, randn

SECTION = "transformer#one-mean-over-all-tokens"
GRADIENTS = "self_attention#gradients"
NOTHING_LEFT = (
    "One thing could be better: where no micro-batch has a token, 0 is divided by 0, which is NaN. One such step turns "
    "all parameters into NaN; with 0 it does no harm."
)


def cases(rng: Generator) -> Iterator[Case]:
    sizes: tuple[int, ...]
    for sizes in ((2,), (5,), (1, 2), (3, 1), (2, 5, 3), (1, 1, 7), (13, 2, 5, 3, 1)):
        yield _case(rng, "mean", sizes)
    yield _case(rng, "mean", (3, 3), ", as many tokens in each")
    losses = _losses(rng, 10)
    for first, second in (((2, 3, 5), (7, 1, 2)), ((3, 7), (10,))):
        label = f"the same tokens as micro-batches of {_listed(first)} and of {_listed(second)}"
        calls = (Call((_cut(losses, first),)), Call((_cut(losses, second),)))
        yield Case("mean", label, calls, holds=(same_however_cut,))
    losses = _losses(rng, 7)
    losses[2:5] = 0
    label = "micro-batches of 2, 4 and 1 tokens, three of which have a loss of 0"
    yield Case("mean", label, (Call((_cut(losses, (2, 4, 1)),)),))
    label = "no token in any micro-batch"
    yield Case("mean", label, (Call(([torch.zeros(0), torch.zeros(0)],)),), advice=NOTHING_LEFT)
    for sizes in ((1, 2), (2, 5, 3), (3, 3), (7, 1, 1, 2)):
        label = f"micro-batches of {_listed(sizes)} tokens, with gradients"
        call = Call((_losses(rng, sum(sizes)), sizes), backward=True)
        yield Case("gradients", label, (call,), through=given(in_pieces))
        label = f"micro-batches of {_listed(sizes)} tokens, the gradient itself"
        yield Case("gradients", label, (Call(call.args),), through=given(gradient_of_the_pieces), holds=(all_alike,))
    for sizes in ((3, 0, 2), (0, 5), (2, 0, 0, 7)):
        yield _case(rng, "no tokens", sizes)
        label = f"micro-batches of {_listed(sizes)} tokens, with gradients"
        call = Call((_losses(rng, sum(sizes)), sizes), backward=True)
        yield Case("no tokens", label, (call,), through=given(in_pieces))


def _losses(rng: Generator, number: int) -> Tensor:
    """Draw losses as a model has them: many small, some large."""
    return 0.1 + 2 * randn(rng, number).square()


def _cut(losses: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [piece.clone() for piece in losses.split(list(sizes))]


def _listed(sizes: Sequence[int]) -> str:
    return " and ".join(", ".join(map(str, sizes)).rsplit(", ", 1))


def _case(rng: Generator, part: str, sizes: Sequence[int], more: str = "") -> Case:
    label = f"micro-batches of {_listed(sizes)} tokens" if len(sizes) > 1 else f"one micro-batch of {sizes[0]} tokens"
    losses = _cut(_losses(rng, sum(sizes)), sizes)
    return Case(part, label + more, (Call((losses,)),))


def in_pieces(accumulated_loss: Callable[..., Any]) -> Callable[..., Any]:
    def called(losses: Tensor, sizes: Sequence[int]) -> Any:
        return accumulated_loss(list(losses.split(list(sizes))))

    return called


def gradient_of_the_pieces(accumulated_loss: Callable[..., Any]) -> Callable[..., Tensor]:
    def gradient(losses: Tensor, sizes: Sequence[int]) -> Tensor:
        leaf = losses.clone().requires_grad_()
        found = torch.as_tensor(accumulated_loss(list(leaf.split(list(sizes)))))
        if found.requires_grad:
            found.backward()
        return torch.zeros_like(losses) if leaf.grad is None else leaf.grad

    return gradient


def _moved(outputs: Sequence[Any]) -> str | None:
    if close(outputs[1], outputs[0]):
        return None
    return f"cut in one way the loss is {outputs[0]:.4g}, cut in the other {outputs[1]:.4g}"


def _unlike(outputs: Sequence[Any]) -> str | None:
    gradient = outputs[0]
    if not gradient.any():
        return "none reaches them"
    if close(gradient, gradient.mean().expand_as(gradient)):
        return None
    return f"the gradients lie between {gradient.min():.3g} and {gradient.max():.3g}"


same_however_cut = Property("It makes no difference how the tokens are shared out among micro-batches.", _moved)
all_alike = Property("Every token has the same part in the loss: the gradients of all are equal.", _unlike)


# --- wrong answers -------------------------------------------------------------------------------------------------

Losses = Sequence[Tensor]


def mean_of_means(token_losses: Losses) -> Tensor:
    return torch.stack([losses.mean() for losses in token_losses]).mean()


def mean_of_means_of_real(token_losses: Losses) -> Tensor:
    return torch.stack([losses.mean() for losses in token_losses if losses.numel()]).mean()


def mean_of_means_clamped(token_losses: Losses) -> Tensor:
    return torch.stack([losses.sum() / max(len(losses), 1) for losses in token_losses]).mean()


def sum_of_means(token_losses: Losses) -> Tensor:
    return torch.stack([losses.mean() for losses in token_losses]).sum()


def divided_twice(token_losses: Losses) -> Tensor:
    return torch.cat(list(token_losses)).mean() / len(token_losses)


def summed(token_losses: Losses) -> Tensor:
    return torch.cat(list(token_losses)).sum()


def by_micro_batches(token_losses: Losses) -> Tensor:
    return torch.cat(list(token_losses)).sum() / len(token_losses)


def stacked(token_losses: Losses) -> Tensor:
    return torch.stack(list(token_losses)).mean()


def zero_padded(token_losses: Losses) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(token_losses), batch_first=True).mean()


def last_only(token_losses: Losses) -> Tensor:
    return token_losses[-1].mean()


def last_count(token_losses: Losses) -> Tensor:
    return torch.cat(list(token_losses)).sum() / len(token_losses[-1])


def first_count(token_losses: Losses) -> Tensor:
    return torch.cat(list(token_losses)).sum() / (len(token_losses) * len(token_losses[0]))


def running_mean(token_losses: Losses) -> Tensor:
    mean = token_losses[0].mean()
    for losses in token_losses[1:]:
        mean = (mean + losses.mean()) / 2
    return mean


def zeros_not_counted(token_losses: Losses) -> Tensor:
    everything = torch.cat(list(token_losses))
    return everything.sum() / (everything != 0).sum().clamp(min=1)


def numbers_added(token_losses: Losses) -> float:
    return sum(losses.sum().item() for losses in token_losses) / sum(map(len, token_losses))


def made_anew(token_losses: Losses) -> Tensor:
    return torch.tensor([float(loss) for losses in token_losses for loss in losses]).mean()


def made_anew_counting(token_losses: Losses) -> Tensor:
    return torch.cat([losses.detach() for losses in token_losses]).mean()


def all_but_last_detached(token_losses: Losses) -> Tensor:
    pieces = [losses.detach() for losses in token_losses[:-1]] + [token_losses[-1]]
    return torch.cat(pieces).mean()


def list_emptied(token_losses: list[Tensor]) -> Tensor:
    total, count = torch.zeros(()), 0
    while token_losses:
        losses = token_losses.pop()
        total, count = total + losses.sum(), count + len(losses)
    return total / max(count, 1)


def in_place(token_losses: Losses) -> Tensor:
    count = sum(map(len, token_losses))
    for losses in token_losses:
        losses /= count  # noqa: PLW2901
    return torch.cat(list(token_losses)).sum()


MISCONCEPTIONS = (
    Misconception(
        "grad_accum_mean_of_means",
        "Each micro-batch is averaged, then the means. That is right only if all hold equally many tokens. Where they "
        "don't, a token of a short micro-batch weighs more than one of a long one, and the result changes with the way in "
        "which the same sentences are cut up. Several well-known libraries did this for years; the loss curves look "
        "right. Divide once, at the end.",
        SECTION,
        (mean_of_means, mean_of_means_of_real, mean_of_means_clamped),
        (
            "https://github.com/meta-pytorch/torchtune/pull/1875",
            "https://github.com/huggingface/transformers/pull/34191",
            "https://github.com/karpathy/nanochat/pull/59",
            "https://github.com/ml-explore/mlx-lm/pull/1413",
        ),
    ),
    Misconception(
        "means_summed",
        "The means of the micro-batches are added up, as happens when backward() is called for each and nothing is divided. "
        "The gradient is as many times too large as there are micro-batches; Adam hides that, clipping does not.",
        SECTION,
        (sum_of_means,),
        ("https://github.com/karpathy/nanoGPT/issues/168",),
    ),
    Misconception(
        "divided_by_micro_batches_too",
        "The mean over all tokens is divided by the number of micro-batches once more. The number of tokens has taken care "
        "of everything already.",
        SECTION,
        (divided_twice,),
    ),
    Misconception(
        "summed_not_averaged",
        "The losses are summed. Then the gradient grows with the number of tokens that happen to be in the step.",
        SECTION,
        (summed,),
    ),
    Misconception(
        "divided_by_micro_batches",
        "The sum over all tokens is divided by the number of micro-batches, where it is tokens that were summed. The loss "
        "grows with the length of the sentences.",
        SECTION,
        (by_micro_batches,),
    ),
    Misconception(
        "stacked_as_equals",
        "The micro-batches are stacked, which works only if all have equally many tokens. Lay them end to end instead.",
        SECTION,
        (stacked,),
    ),
    Misconception(
        "filled_up_with_zeros",
        "The shorter micro-batches are filled up with zeros, and these are counted. The loss comes out too small, the more "
        "so the more unequal they are.",
        SECTION,
        (zero_padded,),
    ),
    Misconception(
        "last_micro_batch_only",
        "Only the last micro-batch is left: each overwrites the one before, as when gradients are set to zero within the "
        "loop. All that was computed for the others is lost.",
        SECTION,
        (last_only,),
        ("https://github.com/bytetriper/RAE/issues/67",),
    ),
    Misconception(
        "one_count_for_all",
        "The number of tokens is taken from one micro-batch, as if all had as many.",
        SECTION,
        (last_count, first_count),
    ),
    Misconception(
        "running_mean_of_two",
        "The mean so far and the next one are averaged again and again. The last micro-batch then makes up one half, the "
        "one before it one quarter, and so on.",
        SECTION,
        (running_mean,),
    ),
    Misconception(
        "zero_losses_not_counted",
        "Tokens whose loss is 0 are taken for padding. A model that is certain and right has a loss of 0 as well, and that "
        "success must count. What is handed over holds real tokens only.",
        SECTION,
        (zeros_not_counted,),
    ),
    Misconception(
        "gradient_cut",
        "The value is right, but no gradient gets through: a new tensor is made of the numbers, or a detached one. Training "
        "runs, and the model stays as it is.",
        GRADIENTS,
        (made_anew, made_anew_counting),
    ),
    Misconception(
        "loss_as_a_number",
        "The losses are added as plain numbers (.item(), float(...)). The value is right and there's no way back: "
        "backward() needs the tensor.",
        GRADIENTS,
        (numbers_added,),
    ),
    Misconception(
        "only_last_has_gradient",
        "The value is right, but only the last micro-batch is learned from: the others were detached while they were added "
        "up. To accumulate means that all of them count.",
        GRADIENTS,
        (all_but_last_detached,),
    ),
    Misconception(
        "list_emptied",
        "The list is emptied while it's read (pop). It belongs to the caller, who may want the losses afterwards.",
        SECTION,
        (list_emptied,),
    ),
    Misconception(
        "losses_overwritten",
        "The losses are divided in place (/=), which changes the caller's own tensors.",
        SECTION,
        (in_place,),
    ),
)

EXERCISE = Exercise(
    name="accumulated_loss",
    chapter="transformer",
    kind="function",
    minutes=10,
    parts=(
        Part("mean", 1, "return the mean over all tokens, in whatever micro-batches they come", SECTION),
        Part("gradients", 1, "let every token of every micro-batch have the same part in the gradient", GRADIENTS),
        Part("no tokens", 1, "work where a micro-batch holds no token at all", SECTION),
    ),
    hints=(
        "Two micro-batches: one of three tokens, each with a loss of 1, and one of a single token with a loss of 5. What "
        "would the loss be if they had been one batch? And the mean of their means?",
        "Before you divide, everything has to be added up; and what you divide by is a number of what?",
        "Either lay all tokens end to end with torch.cat, or keep two running totals, one of the losses and one of their "
        "number. Keep tensors: a gradient must get back to every token.",
    ),
    cases=cases,
    reference=training.accumulated_loss,
    misconceptions=MISCONCEPTIONS,
)
