"""Exercise: the mean cross-entropy over the labels that are words, and over no padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course import training
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn, sequence_first, unchanged

SHIFT, NATS, MEAN = (
    "transformer#shifted-targets",
    "transformer#the-loss-in-nats",
    "transformer#one-mean-over-all-tokens",
)
PADDING, AXIS = "transformer#what-the-loss-wants", "self_attention#which-axis-does-softmax-run-along"
LARGE, HALF = "soft_addressing#why-subtract-the-maximum", "self_attention#half-precision"
SCORES, GRADIENTS, VIEW = "transformer#what-the-loss-wants", "self_attention#gradients", "multi_head#view-or-reshape"
NOTHING_LEFT = (
    "One thing could be better: where every label is padding, nothing is left to average, and 0 divided by 0 is NaN. "
    "One such batch turns all parameters into NaN; with 0 it does no harm."
)
HALF_PRECISION = (
    "One thing could be better: in float16, whose largest number is 65,504, the loss of several thousand labels is not "
    "right, since their sum is larger. Turn the logits into float32 first."
)


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, words in ((1, 1, 2), (1, 3, 5), (2, 1, 7), (2, 3, 5), (3, 5, 2), (5, 7, 11), (3, 3, 5)):
        yield Case("cross-entropy", sizes(batch, length, words), (unpadded(rng, batch, length, words),))
    yield Case("cross-entropy", f"{sizes(2, 5, 5)}, as many words as places", (unpadded(rng, 2, 5, 5),))
    logits, labels, _ = unpadded(rng, 2, 3, 7).args
    yield Case(
        "cross-entropy",
        f"{sizes(2, 3, 7)}, all scores of a place raised by 5",
        (Call((logits, labels, -100)), Call((logits + 5, labels, -100))),
        holds=(same_if_raised,),
    )
    labels = torch.randint(5, (1, 3), generator=rng)
    call = Call((30 * F.one_hot(labels, 5).float(), labels, -100))
    yield Case("cross-entropy", f"{sizes(1, 3, 5)}, a model that is certain and right", (call,), holds=(no_loss,))
    logits, labels, _ = unpadded(rng, 2, 3, 7).args
    yield Case("cross-entropy", f"{sizes(2, 3, 7)}, pad 0, no padding", (Call((logits, labels.clamp(min=1), 0)),))
    logits = randn(rng, 1, 6000, 3, scale=12)
    yield half_precision("cross-entropy", Call((logits.half(), logits.argmin(-1), -100)))
    logits = randn(rng, 2, 3, 5)
    label = f"{sizes(2, 3, 5)}, all padding"
    yield Case("cross-entropy", label, (Call((logits, torch.full((2, 3), 4), 4)),), advice=NOTHING_LEFT)
    yield from padding_cases(rng, padded, lambda padding: padding)
    yield from score_cases(rng, padded, unpadded, lambda padding: padding)


Where = Callable[[Tensor], Tensor]


def padding_cases(
    rng: Generator, make: Callable[..., Call], predicted: Where, pads: tuple[int, ...] = (0, 3, -100, 2, 0)
) -> Iterator[Case]:
    """Pad sentences by various numbers, behind the words and before them; what is said of padding must not matter.

    Args:
        rng: of the inputs.
        make: makes a padded batch.
        predicted: says of padding among the labels, (batch, length), at which places it is predicted.
        pads: numbers that stand for padding.
    """
    for (batch, length, words), pad in zip(
        ((2, 3, 5), (3, 5, 7), (3, 7, 5), (5, 11, 3), (3, 5, 11)), pads, strict=True
    ):
        label = f"{sizes(batch, length, words)}, pad {pad}"
        yield Case("padding", label, (make(rng, batch, length, words, pad),))
        logits, labels, *rest = make(rng, batch, length, words, pad).args
        other = torch.where(predicted(labels == pad)[..., None], randn(rng, batch, length, words, scale=5), logits)
        yield Case(
            "padding",
            f"{label}, other scores where padding is predicted",
            (Call((logits, labels, *rest)), Call((other, labels, *rest))),
            holds=(same_at_padding,),
        )
    logits, labels, *rest = make(rng, 3, 5, 7, 0).args
    yield Case("padding", f"{sizes(3, 5, 7)}, pad 0 in front of the words", (Call((logits, labels.flip(1), *rest)),))


def score_cases(
    rng: Generator, make: Callable[..., Call], unpadded: Callable[..., Call], predicted: Where, ruling_out: bool = True
) -> Iterator[Case]:
    """Ask for gradients; let scores be so far apart that probabilities are 0 in float32; store them in another order."""
    for batch, length, words, pad, scale in (
        (2, 3, 5, 4, 1),
        (3, 5, 7, 0, 1),
        (2, 7, 3, 2, 1),
        (2, 5, 7, 0, 30),
        (2, 5, 7, 0, 300),
    ):
        logits, labels, *rest = make(rng, batch, length, words, pad).args
        label = f"{sizes(batch, length, words)}, pad {pad}" + f", scores of about {scale}" * (scale > 1)
        call = Call((logits * scale, labels, *rest), backward=True)
        yield Case("any scores", f"{label}, with gradients", (call,))
        yield Case(
            "any scores",
            f"{label}, the gradient itself",
            (Call(call.args),),
            through=given(gradient_of_the_logits),
            holds=(gradient_arrives, no_gradient_at(predicted(labels == pad))),
        )
    if ruling_out:
        logits, labels, *rest = unpadded(rng, 2, 3, 7).args
        logits = logits.index_fill(-1, torch.tensor([6]), -math.inf)
        label = f"{sizes(2, 3, 7)}, the last word ruled out by -inf"
        yield Case("any scores", label, (Call((logits, labels.clamp(max=5), *rest)),))
    logits, labels, *rest = make(rng, 2, 5, 7, 0).args
    label = f"{sizes(2, 5, 7)}, pad 0, scores and labels stored sequence first"
    yield Case("any scores", label, (Call((sequence_first(logits), sequence_first(labels), *rest)),))


def half_precision(part: str, call: Call) -> Case:
    """Advise to compute in float32."""
    label, through = "one sentence of 6,000 tokens, 3 words, float16", given(as_float32)
    return Case(part, label, (call,), through=through, advice=HALF_PRECISION, tolerance=2e-2)


def sizes(batch: int, length: int, words: int) -> str:
    """Describe a batch as a learner would."""
    return f"batch {batch}, length {length}, {words} words"


def scores(rng: Generator, batch: int, length: int, words: int) -> Tensor:
    """Draw scores of mixed size: the model is sure in some places, and not in others."""
    sure = torch.tensor([0.3, 1.0, 4.0])[torch.randint(3, (batch, length, 1), generator=rng)]
    return randn(rng, batch, length, words) * sure


def unpadded(rng: Generator, batch: int, length: int, words: int, pad: int = -100) -> Call:
    return Call((scores(rng, batch, length, words), torch.randint(words, (batch, length), generator=rng), pad))


def padded(rng: Generator, batch: int, length: int, words: int, pad: int) -> Call:
    """Draw sentences of unequal length, the first of full length, filled up by `pad`, which is no word of them."""
    logits, labels, _ = unpadded(rng, batch, length, words).args
    labels = torch.where(labels == pad, (labels + 1) % words, labels)
    lengths = torch.randint(1, length, (batch,), generator=rng)
    lengths[0] = length
    return Call((logits, labels.masked_fill(torch.arange(length) >= lengths[:, None], pad), pad))


def gradient_of_the_logits(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def gradient(logits: Tensor, *rest: Any) -> Tensor:
        leaf = logits.clone().requires_grad_()
        found = torch.as_tensor(loss(leaf, *rest)).sum()
        if found.requires_grad:
            found.backward()
        return torch.zeros_like(logits) if leaf.grad is None else leaf.grad

    return gradient


def as_float32(loss: Callable[..., Any]) -> Callable[..., Tensor]:
    def converted(*args: Any) -> Tensor:
        return torch.as_tensor(loss(*args)).float()

    return converted


def no_gradient_at(padding: Tensor) -> Property:
    """Demand a gradient of exactly zero at some places, (batch, length)."""

    def broken(outputs: Sequence[Any]) -> str | None:
        there = outputs[0][padding]
        if not there.numel() or (there == 0).all():
            return None
        return f"where padding is predicted, the gradient should be exactly 0, but reaches {there.abs().max():.2g}"

    return Property("Nothing is learned from what the model says where there is padding.", broken)


gradient_arrives = Property(
    "A gradient reaches the scores.", lambda outputs: None if outputs[0].any() else "none reaches them"
)
no_loss = Property(
    "A model that is certain of every right word has no loss.",
    lambda outputs: None if abs(float(outputs[0])) < 1e-3 else f"its loss should be 0, but is {float(outputs[0]):.3g}",
)
same_if_raised = unchanged(
    "Softmax sees only differences: the same number added to all scores of a place changes nothing.",
    "with 5 added to every score, the loss moved by {change}",
)
same_at_padding = unchanged(
    "What the model says where there is padding does not count.",
    "only the scores where padding is predicted were changed, and the loss moved by {change}",
)


# --- wrong answers -------------------------------------------------------------------------------------------------

Loss = Callable[[Tensor, Tensor, int | None], Any]


def surprises(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the log-probability of each label, 0 where the label is the number of no word."""
    known = labels.clamp(0, logits.size(-1) - 1)
    each = F.cross_entropy(logits.flatten(0, 1), known.flatten(), reduction="none").view(labels.shape)
    return each * (known == labels)


def real_mean(each: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    keep = torch.ones_like(labels, dtype=torch.bool) if pad is None else labels != pad
    return each[keep].sum() / keep.sum().clamp(min=1)


def right(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return real_mean(surprises(logits, labels), labels, pad)


def of_scores(change: Callable[[Tensor], Tensor]) -> Loss:
    return lambda logits, labels, pad: right(change(logits), labels, pad)


def of_loss(change: Callable[[Tensor], Any]) -> Loss:
    return lambda logits, labels, pad: change(right(logits, labels, pad))


def of_log_probabilities(change: Callable[[Tensor], Tensor]) -> Loss:
    """Take minus the entry of each label in what `change` makes of the scores."""

    def loss(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
        known = labels.clamp(0, logits.size(-1) - 1)
        each = -change(logits).gather(-1, known[..., None])[..., 0]
        return real_mean(each, labels, pad)

    return loss


def kept(labels: Tensor, pad: int | None) -> Tensor:
    return torch.ones_like(labels, dtype=torch.bool) if pad is None else labels != pad


def padding_counted(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1))


def padding_counted_by_gather(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return -logits.log_softmax(-1).gather(-1, labels[..., None]).mean()


def padded_count(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return (surprises(logits, labels) * kept(labels, pad)).mean()


def padding_scores_zeroed(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return surprises(logits.masked_fill(~kept(labels, pad)[..., None], 0), labels).mean()


def padded_count_of_zeroed_scores(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    zeroed = logits * kept(labels, pad)[..., None]
    return F.cross_entropy(zeroed.flatten(0, 1), labels.clamp(min=0).flatten())


def zero_is_padding(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return right(logits, labels, 0)


def pad_ruled_out(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    if pad is None or not 0 <= pad < logits.size(-1):
        return right(logits, labels, pad)
    return right(logits.index_fill(-1, torch.tensor([pad]), -1e9), labels, pad)


def summed(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return (surprises(logits, labels) * kept(labels, pad)).sum()


def summed_by_sentence(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return (surprises(logits, labels) * kept(labels, pad)).sum(1).mean()


def mean_of_sentence_means(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    keep = kept(labels, pad)
    return ((surprises(logits, labels) * keep).sum(1) / keep.sum(1).clamp(min=1)).mean()


def one_a_label(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return surprises(logits, labels) * kept(labels, pad)


def class_axis_second(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=-100 if pad is None else pad)


def reshaped_not_moved(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    batch, length, words = logits.shape
    moved = logits.reshape(batch, words, length)
    return F.cross_entropy(moved, labels, ignore_index=-100 if pad is None else pad)


def in_another_order(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    flat = logits.transpose(0, 1).reshape(-1, logits.size(-1))
    return F.cross_entropy(flat, labels.reshape(-1), ignore_index=-100 if pad is None else pad)


def by_library(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    """Leave everything to F.cross_entropy, for which the mean over nothing is NaN."""
    ignored = -100 if pad is None else pad
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), ignore_index=ignored)


def shifted(loss: Loss, scores_from: int = 0, labels_from: int = 0, lost: int = 1) -> Loss:
    """Shift scores and labels against one another: leave out some at the beginning, the rest of `lost` at the end."""

    def wrong(logits: Tensor, labels: Tensor, pad: int | None) -> Any:
        length = max(logits.size(1) - lost, 0)
        said, wanted = logits[:, scores_from:], labels[:, labels_from:]
        return loss(said[:, :length], wanted[:, :length], pad)

    return wrong


def viewed(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return right(logits.view(-1, logits.size(-1))[None], labels.view(-1)[None], pad)


def one_hot_product(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    hot = F.one_hot(labels.clamp(0, logits.size(-1) - 1), logits.size(-1))
    return real_mean(-(hot * logits.log_softmax(-1)).sum(-1), labels, pad)


def labels_overwritten(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    labels[labels == pad] = -100
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1))


def best_word_only(logits: Tensor, labels: Tensor, pad: int | None) -> Tensor:
    return real_mean((logits.argmax(-1) != labels).to(logits.dtype), labels, pad)


def unstable(logits: Tensor) -> Tensor:
    return logits - logits.exp().sum(-1, keepdim=True).log()


def general(losses: Mapping[str, tuple[Callable[..., Any], ...]]) -> tuple[Misconception, ...]:
    """Return the misconceptions that the losses of this chapter share, each with wrong answers of the given losses.

    Args:
        losses: by the name of a misconception its wrong answers; only those that are named are returned.
    """
    return tuple(
        Misconception(name, text, section, losses[name], sources)
        for name, text, section, sources in SHARED
        if name in losses
    )


SHARED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "padding_counted",
        "Padding counts like a word. In a batch of unequal sentences most of the loss may then come from places at "
        "which nothing is to be said; the model gets good at predicting padding, and the loss looks better than the "
        "model is. (F.cross_entropy leaves out the label -100 on its own, and no other: your pad has to be named.)",
        PADDING,
        (
            "https://github.com/lucidrains/DALLE-pytorch/issues/57",
            "https://github.com/lukas-blecher/LaTeX-OCR/issues/305",
            "https://github.com/01-ai/Yi/issues/110",
        ),
    ),
    (
        "loss_divides_by_padded_count",
        "Padding adds nothing to the sum, but it's still in the count: a mean over a tensor with zeros in it divides by "
        "the zeros too. The more padding a batch holds, the smaller its loss and its gradient, so that a batch with one "
        "long sentence teaches less than it should. Sum and count must be over the same labels.",
        PADDING,
        ("https://github.com/huggingface/transformers/pull/5919",),
    ),
    (
        "padding_scores_zeroed",
        "The scores are set to 0 where there is padding, and the places are counted all the same. Equal scores are not "
        "no opinion for free: softmax makes an even distribution of them, and the loss there is the logarithm of the "
        "number of words. It is the losses of those places that must go, and their number.",
        PADDING,
        (),
    ),
    (
        "zero_is_padding",
        "The number 0 is always left out, whatever pad says. Where 0 is the number of a word, the model never learns "
        "that word; where padding has another number, it counts.",
        PADDING,
        ("https://github.com/nyu-mll/jiant/issues/925", "https://github.com/lucidrains/parti-pytorch/issues/8"),
    ),
    (
        "pad_ruled_out",
        "The word pad is ruled out before softmax. The labels are what is to be left out, not a word of the vocabulary: "
        "a model that gives padding a high score in the middle of a sentence is wrong, and the loss should tell it.",
        PADDING,
        (),
    ),
    (
        "softmax_twice",
        "The scores go through softmax before they go into a function that does so itself (F.cross_entropy takes "
        "scores). The second softmax sees numbers between 0 and 1: even a model that is certain and right then gets a "
        "loss well above 0, and gradients are small. It still trains, only badly, which is why it so often stays unseen.",
        SCORES,
        (
            "https://github.com/jindongwang/Deep-learning-activity-recognition/issues/10",
            "https://github.com/ariecattan/SciCo/issues/2",
            "https://github.com/gitabcworld/MatchingNetworks/issues/5",
        ),
    ),
    (
        "scores_as_log_probabilities",
        "The score of the right word is taken as it is (F.nll_loss does that: it expects log-probabilities and takes "
        "your word for it). Scores are not normalised: the loss could be pushed down without end by raising all of them.",
        SCORES,
        (),
    ),
    (
        "probability_not_logarithm",
        "The probability of the right word is averaged, not its logarithm. Cross-entropy is minus the logarithm: 0 for "
        "certainty, and without limit for what was thought impossible, so that a confident mistake costs most.",
        NATS,
        (),
    ),
    (
        "sign_forgotten",
        "The sign is missing. Logarithms of probabilities are negative; without a minus, going down in loss means making "
        "the right word less likely.",
        NATS,
        (),
    ),
    (
        "bits_not_nats",
        "The logarithm is to base 2, so that the loss is in bits. All of it is too large by a factor of 1.44, and so is "
        "every gradient.",
        NATS,
        (),
    ),
    (
        "perplexity",
        "The result is the exponential of the loss, the perplexity. It's good for reading; what is minimised is the "
        "cross-entropy, whose gradient does not grow with the loss.",
        NATS,
        (),
    ),
    (
        "error_rate",
        "The result counts wrong best words. That is what one reports in the end, but it has no gradient to learn from: "
        "an argmax does not move when scores change a little.",
        GRADIENTS,
        (),
    ),
    (
        "summed_not_averaged",
        "The losses are summed. Such a loss grows with the batch and its length, and the size of the steps grows with "
        "it; a mean over labels can be compared from batch to batch.",
        MEAN,
        ("https://github.com/guillaumegenthial/sequence_tagging/issues/78",),
    ),
    (
        "summed_by_sentence",
        "Only the sentences are averaged: within each of them the losses are summed, so that the loss grows with the "
        "length. It is the mean over the labels of the whole batch that is asked for.",
        MEAN,
        ("https://github.com/awni/speech/issues/18",),
    ),
    (
        "mean_of_sentence_means",
        "Each sentence is averaged first, then the sentences. A word of a short sentence then weighs more than one of a "
        "long sentence. All labels of the batch should weigh the same: one sum, one count.",
        MEAN,
        (
            "https://github.com/huggingface/transformers/issues/34510",
            "https://github.com/PrimeIntellect-ai/prime-rl/pull/102",
        ),
    ),
    (
        "one_loss_a_label",
        "The result is one loss a label. What is minimised must be a single number.",
        MEAN,
        (),
    ),
    (
        "words_not_second",
        "F.cross_entropy looks for the words along axis 1, where your scores have the places. In most shapes that is "
        "an error; where there are as many words as places it goes through without one, and compares the wrong numbers.",
        SCORES,
        ("https://github.com/markhliu/DGAI/issues/7",),
    ),
    (
        "reshaped_instead_of_moved",
        "The scores are reshaped to (batch, words, length). That only cuts the same row of numbers at other places; no "
        "axis moves, and the scores of one place end up among those of others. To swap two axes takes a transpose.",
        "multi_head#why-view-then-transpose",
        ("https://github.com/voiler/IMPALA/issues/3",),
    ),
    (
        "flattened_in_another_order",
        "Scores and labels are flattened in different orders: one sentence after another here, one place after another "
        "there. Their numbers match, but they belong to different tokens. With one sentence it's invisible.",
        "multi_head#batch-first",
        (),
    ),
    (
        "softmax_over_places",
        "softmax runs along the places instead of the words. At each place the probabilities of all words must sum to 1: "
        "that is the last axis.",
        AXIS,
        ("https://github.com/clcarwin/sphereface_pytorch/issues/24",),
    ),
    (
        "softmax_over_the_batch",
        "softmax runs along the batch, so the sentences compete for each word. At each place the probabilities of all "
        "words must sum to 1: that is the last axis.",
        AXIS,
        (),
    ),
    (
        "gradient_cut",
        "The value is right, but no gradient gets through: somewhere the graph is cut (.detach(), .data, torch.no_grad, "
        "torch.tensor(...) of a tensor). Training runs, and the model stays as it is.",
        GRADIENTS,
        (),
    ),
    (
        "loss_as_a_number",
        "A plain Python number comes back (.item(), float(...)). It has the right value and no way back: backward() "
        "needs the tensor. Numbers are for printing.",
        GRADIENTS,
        (),
    ),
    (
        "log_of_softmax",
        "The logarithm is taken of probabilities that have been rounded: where scores lie far apart, a probability is 0 "
        "in float32 and its logarithm minus infinity; a tiny number added to it caps the loss instead, and there the "
        "gradient is gone. Do both steps as one, so that the exponential is never undone.",
        LARGE,
        (
            "https://github.com/summerlvsong/Aggregation-Cross-Entropy/issues/2",
            "https://github.com/tensorflow/models/pull/181",
        ),
    ),
    (
        "exponential_overflows",
        "The exponentials are taken of the scores as they are. Above 88 they are infinite in float32. Softmax does not "
        "change if the largest score of a place is subtracted from all first, and then nothing can overflow.",
        LARGE,
        (),
    ),
    (
        "zero_times_infinity",
        "The loss is a product with a one-hot vector, summed over all words. If a word was ruled out by a score of minus "
        "infinity, its term is 0 times infinity, which is NaN. Pick out the entry of the right word; the others "
        "have no part in the loss.",
        LARGE,
        ("https://github.com/OpenBMB/ModelCenter/issues/14",),
    ),
    (
        "view_noncontiguous",
        "view only relabels memory that already lies in the right order, so it raises on a tensor that was sliced or "
        "transposed. reshape relabels where it can and copies where it must.",
        VIEW,
        ("https://github.com/unslothai/unsloth-zoo/pull/591",),
    ),
    (
        "labels_overwritten",
        "Padding is marked by -100 in the caller's own labels. The loss is right, but whoever uses the labels afterwards "
        "(an embedding, the count of right words) finds numbers that no word has. Mark a copy.",
        SHIFT,
        (),
    ),
)

LOG2 = math.log(2)
COMMON: dict[str, tuple[Loss, ...]] = {
    "padding_counted": (padding_counted, padding_counted_by_gather),
    "loss_divides_by_padded_count": (padded_count,),
    "padding_scores_zeroed": (padding_scores_zeroed, padded_count_of_zeroed_scores),
    "zero_is_padding": (zero_is_padding,),
    "pad_ruled_out": (pad_ruled_out,),
    "softmax_twice": (of_scores(lambda logits: logits.softmax(-1)),),
    "scores_as_log_probabilities": (of_log_probabilities(lambda logits: logits),),
    "probability_not_logarithm": (
        of_log_probabilities(lambda logits: logits.softmax(-1)),
        of_log_probabilities(lambda logits: 1 - logits.softmax(-1)),
        of_log_probabilities(lambda logits: logits.softmax(-1) - 1),
    ),
    "sign_forgotten": (of_loss(lambda loss: -loss),),
    "bits_not_nats": (of_loss(lambda loss: loss / LOG2),),
    "perplexity": (of_loss(lambda loss: loss.exp()),),
    "error_rate": (best_word_only,),
    "summed_not_averaged": (summed,),
    "summed_by_sentence": (summed_by_sentence,),
    "mean_of_sentence_means": (mean_of_sentence_means,),
    "one_loss_a_label": (one_a_label, lambda *args: one_a_label(*args).flatten()),
    "words_not_second": (class_axis_second,),
    "reshaped_instead_of_moved": (reshaped_not_moved,),
    "flattened_in_another_order": (in_another_order,),
    "softmax_over_places": (of_log_probabilities(lambda logits: logits.log_softmax(1)),),
    "softmax_over_the_batch": (of_log_probabilities(lambda logits: logits.log_softmax(0)),),
    "loss_as_a_number": (of_loss(lambda loss: loss.item()),),
    "gradient_cut": (of_loss(lambda loss: loss.detach()),),
    "log_of_softmax": (
        of_log_probabilities(lambda logits: logits.softmax(-1).log()),
        of_log_probabilities(lambda logits: (logits.softmax(-1) + 1e-9).log()),
        of_log_probabilities(lambda logits: logits.softmax(-1).clamp(min=1e-9).log()),
    ),
    "exponential_overflows": (of_log_probabilities(unstable),),
    "zero_times_infinity": (one_hot_product,),
    "view_noncontiguous": (viewed,),
    "labels_overwritten": (labels_overwritten,),
}

MISCONCEPTIONS = (
    *general(COMMON),
    Misconception(
        "shifted_again",
        "Scores and labels are shifted against one another. Here that has been done before: the labels stand at the "
        "places where they are to be said. Shifted a second time, the model learns to leave a word out. Who shifts "
        "differs from library to library; it has to happen exactly once.",
        "transformer#not-at-all-or-twice",
        tuple(
            shifted(loss, scores_from, labels_from)
            for loss in (by_library, right)
            for scores_from, labels_from in ((0, 1), (1, 0))
        ),
        (
            "https://github.com/huggingface/transformers/issues/46901",
            "https://github.com/LLM360/amber-train/issues/6",
        ),
    ),
)

EXERCISE = Exercise(
    name="seq2seq_loss",
    chapter="transformer",
    kind="function",
    minutes=15,
    parts=(
        Part(
            "cross-entropy",
            1,
            "return the mean, over all labels, of minus the logarithm of the label's probability",
            NATS,
        ),
        Part("padding", 1, "leave padding out, both of the sum and of the count", PADDING),
        Part(
            "any scores",
            1,
            "pass the right gradient to the scores, however far apart they are and however they lie in memory",
            LARGE,
        ),
    ),
    hints=(
        "For one place with the scores 0, 0 and 0: what probability does the right word have, and what is minus its "
        "logarithm? And what is the mean over two sentences, one of five words, one of two words and three paddings?",
        "F.cross_entropy does softmax, logarithm and mean in one stable step. It wants the words along axis 1, or all "
        "places in one row; and it can leave one label out.",
        "Bring the scores to (batch * length, words) and the labels to (batch * length), by reshape. Then look up the "
        "argument ignore_index. (By hand: log_softmax, gather, and a sum over the kept labels divided by their number.)",
    ),
    cases=cases,
    reference=training.seq2seq_loss,
    misconceptions=MISCONCEPTIONS,
)
