"""Exercise: cross-entropy against labels that are a little unsure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course import training
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn
from mha_course.exercises.transformer.seq2seq_loss import (
    LARGE,
    PADDING,
    general,
    gradient_of_the_logits,
    half_precision,
    kept,
    padded,
    padding_cases,
    real_mean,
    same_if_raised,
    score_cases,
    scores,
    shifted,
    sizes,
)

SECTION = "transformer#label-smoothing"


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, words, share in (
        (1, 1, 3, 0.5),
        (1, 3, 5, 0.1),
        (2, 1, 7, 0.3),
        (2, 3, 5, 0.1),
        (3, 5, 3, 0.2),
        (5, 7, 11, 0.1),
        (3, 3, 5, 0.7),
        (2, 5, 5, 0.1),
        (2, 3, 5, 0.0),
        (2, 3, 5, 1.0),
    ):
        label = f"{sizes(batch, length, words)}, smoothing {share}"
        yield Case("smoothing", label, (unpadded(rng, batch, length, words, share),))
    wanted = torch.tensor([0.025, 0.925, 0.025, 0.025]).view(1, 1, 4)
    yield Case(
        "smoothing",
        "4 words, smoothing 0.1, a model that gives the right word a probability of 0.925 and each other one 0.025",
        (Call((wanted.log(), torch.tensor([[1]]), 3, 0.1)),),
        through=given(gradient_of_the_logits),
        compare=False,
        holds=(nothing_to_improve,),
    )
    logits, labels, pad, _ = unpadded(rng, 2, 3, 7).args
    label = f"{sizes(2, 3, 7)}, smoothing 0.1"
    yield Case(
        "smoothing",
        f"{label}, all scores raised by 5",
        (Call((logits, labels, pad, 0.1)), Call((logits + 5, labels, pad, 0.1))),
        holds=(same_if_raised,),
    )
    logits = randn(rng, 1, 6000, 3, scale=12)
    yield half_precision("smoothing", Call((logits.half(), logits[..., 1:].argmin(-1) + 1, 0, 0.1)))
    yield from padding_cases(rng, smoothed, lambda padding: padding, pads=(0, 3, 4, 2, 10))
    yield from score_cases(rng, smoothed, unpadded, lambda padding: padding, ruling_out=False)
    for batch, pad, share in ((1, 0, 0.1), (3, 4, 0.0), (2, 1, 0.3)):
        label = f"{sizes(batch, 3, 5)}, smoothing {share}, all padding"
        logits = randn(rng, batch, 3, 5)
        call = Call((logits, torch.full((batch, 3), pad), pad, share), backward=True)
        yield Case("nothing left", label, (call,), through=given(with_a_way_back), holds=(has_a_way_back,))


def unpadded(rng: Generator, batch: int, length: int, words: int, share: float = 0.1) -> Call:
    """Draw labels without the last word, whose number is that of padding."""
    logits = scores(rng, batch, length, words)
    return Call((logits, torch.randint(words - 1, (batch, length), generator=rng), words - 1, share))


def smoothed(rng: Generator, batch: int, length: int, words: int, pad: int) -> Call:
    share = 0.1 + 0.1 * int(torch.randint(3, (), generator=rng))
    return Call((*padded(rng, batch, length, words, pad).args, share))


def _still_pulled(outputs: Sequence[Any]) -> str | None:
    pull = float(outputs[0].flatten()[1])
    if outputs[0].abs().max() < 1e-4:
        return None
    return f"the gradient still asks for {'more' if pull < 0 else 'less'} of the right word"


def with_a_way_back(answer: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        loss = answer(*args)
        return (loss, loss.requires_grad) if isinstance(loss, Tensor) else loss

    return run


has_a_way_back = Property(
    "A loss can be run backwards, also where it is 0.",
    lambda outputs: None if outputs[0][1] else "backward() of your loss raises, as it does not depend on the scores",
)

nothing_to_improve = Property(
    "The loss is lowest where the right word has what its label leaves it, 1 - smoothing + smoothing / V.",
    _still_pulled,
)


# --- wrong answers -------------------------------------------------------------------------------------------------

Loss = Callable[[Tensor, Tensor, int, float], Any]


def hit(logp: Tensor, labels: Tensor) -> Tensor:
    return -logp.gather(-1, labels[..., None])[..., 0]


def right(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    return mixed(lambda own, all_words, share, logp: (1 - share) * own + share * all_words.mean(-1))(
        logits, labels, pad, smoothing
    )


def mixed(
    mix: Callable[[Tensor, Tensor, float, Tensor], Tensor],
    normalise: Callable[[Tensor], Tensor] = lambda logits: logits.log_softmax(-1),
) -> Loss:
    """Mix the surprise at the label, (batch, length), and at all words, (batch, length, word), and average."""

    def loss(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
        logp = normalise(logits)
        return real_mean(mix(hit(logp, labels), -logp, smoothing, logp), labels, pad)

    return loss


def against(distribution: Callable[[Tensor, int, float, int], Tensor]) -> Loss:
    """Measure against a distribution made of the one-hot labels, pad, the share and the number of words."""

    def loss(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
        words = logits.size(-1)
        wanted = distribution(F.one_hot(labels, words).to(logits.dtype), pad, smoothing, words)
        return real_mean(-(wanted * logits.log_softmax(-1)).sum(-1), labels, pad)

    return loss


def each(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    logp = logits.log_softmax(-1)
    return (1 - smoothing) * hit(logp, labels) - smoothing * logp.mean(-1)


def reduced(reduce: Callable[[Tensor, Tensor], Any]) -> Loss:
    """Reduce the losses of all places, (batch, length), given where the real ones are."""
    return lambda logits, labels, pad, smoothing: reduce(each(logits, labels, smoothing), kept(labels, pad))


def of_loss(change: Callable[[Tensor], Any]) -> Loss:
    return lambda *args: change(right(*args))


def spread_over_padding(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    logp, keep = logits.log_softmax(-1), kept(labels, pad)
    own, even = (hit(logp, labels) * keep).sum(), -logp.mean(-1).sum()
    return ((1 - smoothing) * own + smoothing * even) / keep.sum().clamp(min=1)


def even_mean_of_everything(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    logp = logits.log_softmax(-1)
    return (1 - smoothing) * real_mean(hit(logp, labels), labels, pad) - smoothing * logp.mean()


def counted_apart(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    logp, keep = logits.log_softmax(-1), kept(labels, pad)
    own = (hit(logp, labels) * keep).sum() / keep.sum().clamp(min=1)
    return (1 - smoothing) * own - smoothing * (logp.mean(-1) * keep).mean()


def ruled_out(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    return right(logits.index_fill(-1, torch.tensor([pad]), -1e9), labels, pad, smoothing)


def without_pad(hot: Tensor, pad: int, share: float, words: int) -> Tensor:
    return (hot * (1 - share) + share / (words - 1)).index_fill(-1, torch.tensor([pad]), 0)


def without_pad_and_label(hot: Tensor, pad: int, share: float, words: int) -> Tensor:
    return (hot * (1 - share) + (1 - hot) * share / (words - 2)).index_fill(-1, torch.tensor([pad]), 0)


def divergence(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    words = logits.size(-1)
    wanted = F.one_hot(labels, words) * (1 - smoothing) + smoothing / words
    apart = F.kl_div(logits.log_softmax(-1), wanted.to(logits.dtype), reduction="none").sum(-1)
    return real_mean(apart, labels, pad)


def overwritten(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    labels[labels == pad] = -100
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), label_smoothing=smoothing)


def by_library(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    flat = logits.reshape(-1, logits.size(-1))
    return F.cross_entropy(flat, labels.reshape(-1), ignore_index=pad, label_smoothing=smoothing)


def library_forgets_pad(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    return by_library(logits, labels, -100, smoothing)


def by_library_of(change: Callable[[Tensor], Tensor]) -> Loss:
    return lambda logits, labels, pad, smoothing: F.cross_entropy(
        change(logits), labels, ignore_index=pad, label_smoothing=smoothing
    )


def swapped(loss: Callable[..., Any]) -> Loss:
    def wrong(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Any:
        return loss(lambda x, y, p: right(x, y, p, smoothing))(logits, labels, pad)

    return wrong


def viewed(logits: Tensor, labels: Tensor, pad: int, smoothing: float) -> Tensor:
    return right(logits.view(-1, logits.size(-1))[None], labels.view(-1)[None], pad, smoothing)


def normalised_by(normalise: Callable[[Tensor], Tensor]) -> Loss:
    return mixed(lambda own, words, share, logp: (1 - share) * own + share * words.mean(-1), normalise)


MISCONCEPTIONS = (
    Misconception(
        "label_smoothing_pads",
        "The surprise at the right word leaves padding out, the even part does not: it's summed or averaged over all "
        "places. So what the model says where there is padding moves the loss after all, though only by a little, and "
        "the more padding a batch holds the more. Both parts of the mixture belong to one place; leave out the place.",
        PADDING,
        (spread_over_padding, even_mean_of_everything),
        (
            "https://github.com/pytorch/pytorch/issues/73205",
            "https://github.com/k-tahiro/bert-summarizer/pull/41",
        ),
    ),
    Misconception(
        "no_smoothing",
        "smoothing has no effect: the labels are as sure as ever.",
        SECTION,
        (lambda logits, labels, pad, smoothing: right(logits, labels, pad, 0.0),),
    ),
    Misconception(
        "shares_exchanged",
        "The two shares have changed places: nearly all goes to the even part, and the right word gets the small rest. "
        "smoothing is the share that is given *away*.",
        SECTION,
        (lambda logits, labels, pad, smoothing: right(logits, labels, pad, 1 - smoothing),),
    ),
    Misconception(
        "smoothing_added_on_top",
        "The even part is added to a whole loss. The shares then sum to more than 1, and are no distribution: what is "
        "spread must be taken from the right word first.",
        SECTION,
        (mixed(lambda own, words, share, logp: own + share * words.mean(-1)),),
        ("https://github.com/ildoonet/pytorch-randaugment/issues/30",),
    ),
    Misconception(
        "spread_not_averaged",
        "Every word gets the whole share instead of an equal part of it: the surprises are summed over the vocabulary and "
        "not divided by its size. With tens of thousands of words almost nothing is left of the right one.",
        SECTION,
        (mixed(lambda own, words, share, logp: (1 - share) * own + share * words.sum(-1)),),
        ("https://github.com/dice-group/dice-embeddings/issues/433",),
    ),
    Misconception(
        "right_word_left_out",
        "The share is spread over the other words only, without the right one: each gets smoothing / (V - 1). That's "
        "done in some libraries, and differs from the paper's even distribution over all V words, in which the right word "
        "keeps 1 - smoothing + smoothing / V. With a small vocabulary the difference is large.",
        SECTION,
        (against(lambda hot, pad, share, words: hot * (1 - share) + (1 - hot) * share / (words - 1)),),
        (
            "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/50",
            "https://github.com/fastai/fastai/pull/1814",
            "https://github.com/facebookresearch/fairseq/pull/3182",
        ),
    ),
    Misconception(
        "right_word_gets_no_part",
        "Every word but the right one gets smoothing / V, and the right one 1 - smoothing: its own part of the share is "
        "lost, and the probabilities sum to less than 1.",
        SECTION,
        (against(lambda hot, pad, share, words: hot * (1 - share) + (1 - hot) * share / words),),
    ),
    Misconception(
        "right_word_keeps_too_much",
        "The even part is subtracted from the right word only once: it keeps 1 - smoothing / V, or 1. The probabilities "
        "sum to more than 1; what the words get must be what was taken.",
        SECTION,
        (
            against(lambda hot, pad, share, words: hot * (1 - share / words) + share / words),
            against(lambda hot, pad, share, words: hot + (1 - hot) * share / words),
            against(lambda hot, pad, share, words: hot + (1 - hot) * share / (words - 1)),
        ),
        ("https://github.com/ildoonet/pytorch-randaugment/issues/30",),
    ),
    Misconception(
        "pad_gets_no_part",
        "The share is spread over all words but pad (and the right one). That's a reasonable choice and some code does "
        "it, by V - 1 or V - 2; here the even distribution is over the whole vocabulary, as in the paper and in PyTorch. "
        "Padding is left out as a label, that is as a place.",
        SECTION,
        (against(without_pad), against(without_pad_and_label)),
        ("https://github.com/harvardnlp/annotated-transformer/issues/39",),
    ),
    Misconception(
        "divergence_not_cross_entropy",
        "F.kl_div measures how much worse the scores are than the unsure label itself: the entropy of the label is "
        "subtracted. Gradients are the same, so training is too, but the number can't be compared with a "
        "cross-entropy: it's smaller by a constant, and 0 at its best.",
        SECTION,
        (divergence,),
        ("https://github.com/OpenNMT/OpenNMT-py/issues/432",),
    ),
    Misconception(
        "probabilities_averaged_first",
        "The even part takes the logarithm of the mean probability. The mean over all words is always 1 / V, whatever the "
        "model says, so this part is constant and teaches nothing. It is the mean of the logarithms that is meant.",
        SECTION,
        (mixed(lambda own, words, share, logp: (1 - share) * own - share * logp.exp().mean(-1).log()),),
    ),
    Misconception(
        "prediction_smoothed",
        "It is the model's probability that is mixed with an even one, where the label should be. That forgives the model "
        "what it thinks impossible, and leaves it free to be as sure as it likes.",
        SECTION,
        (
            mixed(
                lambda own, words, share, logp: -((1 - share) * (-own).exp() + share / logp.size(-1)).log(),
            ),
        ),
    ),
    Misconception(
        "padding_counted",
        "Padding counts like a word, in both parts of the mixture. (F.cross_entropy leaves out the label -100 on its own, "
        "and no other.)",
        PADDING,
        (library_forgets_pad,),
        ("https://github.com/lucidrains/DALLE-pytorch/issues/57",),
    ),
    Misconception(
        "loss_divides_by_padded_count",
        "Padding adds nothing to the sum, but it's still in the count: a mean over a tensor with zeros in it divides by "
        "the zeros too. Sum and count must be over the same labels.",
        PADDING,
        (reduced(lambda losses, keep: (losses * keep).mean()), counted_apart),
        ("https://github.com/huggingface/transformers/pull/5919",),
    ),
    Misconception(
        "nothing_left_is_nan",
        "Where every label is padding, 0 is divided by 0. The loss of that one batch is NaN, its gradient too, and after "
        "one step so is every parameter. Keep the number that you divide by from being 0.",
        PADDING,
        (
            by_library,
            reduced(lambda losses, keep: (losses * keep).sum() / keep.sum()),
            reduced(lambda losses, keep: losses[keep].mean()),
            reduced(lambda losses, keep: (losses * keep).sum() / (losses * keep).count_nonzero()),
        ),
        (
            "https://github.com/pytorch/pytorch/issues/70348",
            "https://github.com/nvidia-cosmos/cosmos-rl/pull/155",
            "https://github.com/OpenRLHF/OpenRLHF/pull/583",
        ),
    ),
    Misconception(
        "shifted_again",
        "Scores and labels are shifted against one another. Here that has been done before: the labels stand at the "
        "places where they are to be said. It has to happen exactly once.",
        "transformer#not-at-all-or-twice",
        tuple(swapped(lambda loss, a=a, b=b: shifted(loss, a, b)) for a, b in ((0, 1), (1, 0))),
        ("https://github.com/huggingface/transformers/issues/46901",),
    ),
    *general(
        {
            "pad_ruled_out": (ruled_out,),
            "softmax_twice": (lambda logits, *rest: right(logits.softmax(-1), *rest),),
            "scores_as_log_probabilities": (normalised_by(lambda logits: logits),),
            "probability_not_logarithm": (normalised_by(lambda logits: logits.softmax(-1)),),
            "sign_forgotten": (of_loss(lambda loss: -loss),),
            "bits_not_nats": (of_loss(lambda loss: loss / math.log(2)),),
            "perplexity": (of_loss(lambda loss: loss.exp()),),
            "summed_not_averaged": (reduced(lambda losses, keep: (losses * keep).sum()),),
            "summed_by_sentence": (reduced(lambda losses, keep: (losses * keep).sum(1).mean()),),
            "mean_of_sentence_means": (
                reduced(lambda losses, keep: ((losses * keep).sum(1) / keep.sum(1).clamp(min=1)).mean()),
            ),
            "one_loss_a_label": (
                reduced(lambda losses, keep: losses * keep),
                reduced(lambda losses, keep: losses[keep]),
            ),
            "words_not_second": (by_library_of(lambda logits: logits),),
            "reshaped_instead_of_moved": (
                by_library_of(lambda logits: logits.reshape(logits.size(0), logits.size(2), logits.size(1))),
            ),
            "softmax_over_places": (normalised_by(lambda logits: logits.log_softmax(1)),),
            "softmax_over_the_batch": (normalised_by(lambda logits: logits.log_softmax(0)),),
            "loss_as_a_number": (of_loss(lambda loss: loss.item()),),
            "gradient_cut": (of_loss(lambda loss: loss.detach()),),
            "log_of_softmax": (
                normalised_by(lambda logits: logits.softmax(-1).log()),
                normalised_by(lambda logits: (logits.softmax(-1) + 1e-9).log()),
                normalised_by(lambda logits: logits.softmax(-1).clamp(min=1e-9).log()),
            ),
            "exponential_overflows": (normalised_by(lambda logits: logits - logits.exp().sum(-1, keepdim=True).log()),),
            "view_noncontiguous": (viewed,),
            "labels_overwritten": (overwritten,),
        }
    ),
)

EXERCISE = Exercise(
    name="smoothed_loss",
    chapter="transformer",
    kind="function",
    minutes=20,
    parts=(
        Part(
            "smoothing",
            1,
            "measure against labels that give away the share `smoothing` of their certainty, evenly to all words",
            SECTION,
        ),
        Part("padding", 1, "leave padding out of both parts of the mixture, and of the count", PADDING),
        Part(
            "any scores",
            1,
            "pass the right gradient to the scores, however far apart they are and however they lie in memory",
            LARGE,
        ),
        Part("nothing left", 1, "return 0, with gradients of 0, where every label is padding", PADDING),
    ),
    hints=(
        "Of four words, smoothing 0.1: what probability does the label give to the right word, and to each other one? "
        "How does the cross-entropy against these four numbers fall into two parts?",
        "Cross-entropy is linear in the label. So the loss of a place is a mixture of two: the surprise at the right word, "
        "and the mean surprise over all words. And padding? And a batch of nothing but padding?",
        "From log_softmax, the first is minus the entry that gather picks, the second minus the mean over the last axis. Mix "
        "by 1 - smoothing and smoothing, multiply by the mask of real labels, sum, and divide by their number, but at "
        "least by 1.",
    ),
    cases=cases,
    reference=training.smoothed_loss,
    misconceptions=MISCONCEPTIONS,
)
