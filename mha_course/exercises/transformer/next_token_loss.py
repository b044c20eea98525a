"""Exercise: the loss of a language model, in which each place is compared with the token after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course import training
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part
from mha_course.exercises.properties import randn, unchanged
from mha_course.exercises.transformer.seq2seq_loss import (
    COMMON,
    NOTHING_LEFT,
    PADDING,
    by_library,
    general,
    half_precision,
    kept,
    no_loss,
    padded,
    padding_cases,
    real_mean,
    right,
    same_if_raised,
    score_cases,
    scores,
    shifted,
    sizes,
    surprises,
)

SHIFT, TWICE = "transformer#shifted-targets", "transformer#not-at-all-or-twice"
LARGE = "soft_addressing#why-subtract-the-maximum"


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, words in ((1, 3, 5), (2, 3, 5), (3, 7, 2), (5, 3, 11), (3, 3, 5)):
        yield Case("shift", sizes(batch, length, words), (unpadded(rng, batch, length, words),))
    yield Case("shift", f"{sizes(2, 5, 4)}, as many words as are predicted", (unpadded(rng, 2, 5, 4),))
    logits, tokens = unpadded(rng, 2, 3, 7).args
    yield Case("shift", f"{sizes(2, 3, 7)}, pad None", (Call((logits, tokens, None)),))
    other_last = torch.cat([logits[:, :-1], randn(rng, 2, 1, 7, scale=5)], dim=1)
    other_first = torch.cat([(tokens[:, :1] + 1) % 7, tokens[:, 1:]], dim=1)
    for what, args, rule in (
        ("other scores at the last token", (other_last, tokens), last_predicts_nothing),
        ("another first token", (logits, other_first), first_is_not_predicted),
        ("all scores raised by 5", (logits + 5, tokens), same_if_raised),
    ):
        yield Case("shift", f"{sizes(2, 3, 7)}, {what}", (Call((logits, tokens)), Call(args)), holds=(rule,))
    tokens = torch.randint(5, (1, 3), generator=rng)
    call = Call((30 * F.one_hot(tokens.roll(-1, dims=1), 5).float(), tokens))
    label = f"{sizes(1, 3, 5)}, a model that is certain of each token that comes next"
    yield Case("shift", label, (call,), holds=(no_loss,))
    logits = randn(rng, 1, 6000, 3, scale=12)
    yield half_precision("shift", Call((logits.half(), logits.argmin(-1).roll(1, 1))))
    label, logits = f"{sizes(2, 3, 5)}, all padding", randn(rng, 2, 3, 5)
    yield Case("shift", label, (Call((logits, torch.full((2, 3), 4), 4)),), advice=NOTHING_LEFT)
    yield from padding_cases(rng, padded, before)
    yield from score_cases(rng, padded, unpadded, before)
    for batch, words in ((1, 3), (2, 7)):
        yield Case(
            "any scores", f"{sizes(batch, 2, words)}, a single prediction each", (unpadded(rng, batch, 2, words),)
        )


def unpadded(rng: Generator, batch: int, length: int, words: int) -> Call:
    return Call((scores(rng, batch, length, words), torch.randint(words, (batch, length), generator=rng)))


def before(padding: Tensor) -> Tensor:
    """Return the places whose next token is padding, and the last ones, which predict nothing."""
    return F.pad(padding[:, 1:], (0, 1), value=True)


last_predicts_nothing = unchanged(
    "What is said at the last token is compared with nothing: there is no token after it.",
    "only the scores at the last token were changed, and the loss moved by {change}",
)
first_is_not_predicted = unchanged(
    "The first token is predicted by nothing: there is no place before it.",
    "only the first token was changed, and the loss moved by {change}",
)


# --- wrong answers -------------------------------------------------------------------------------------------------


def across_sentences(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    flat = logits.reshape(1, -1, logits.size(-1))
    return right(flat[:, :-1], tokens.reshape(1, -1)[:, 1:], pad)


def wraps_round(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return by_library(logits, tokens.roll(-1, dims=1), pad)


def wraps_round_all(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return by_library(logits, tokens.roll(-1), pad)


def filled_up_with_pad(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    labels = F.pad(tokens[:, 1:], (0, 1), value=0 if pad is None else pad)
    return F.cross_entropy(logits.flatten(0, 1), labels.clamp(min=0).flatten())


def along_the_batch(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return by_library(logits[:-1], tokens[1:], pad)


def tokens_alone_shifted(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return by_library(logits, tokens[:, 1:], pad)


def scores_alone_shifted(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return by_library(logits[:, :-1], tokens, pad)


def one_shifted_gathered(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    each = -logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return (each * kept(tokens, pad)).sum() / kept(tokens, pad).sum()


def last_alone(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return by_library(logits[:, -2:-1], tokens[:, -1:], pad)


def mask_of_the_readers(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    each = surprises(logits[:, :-1], tokens[:, 1:])
    return each[kept(tokens[:, :-1], pad)].mean()


def mask_of_both(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    each = surprises(logits[:, :-1], tokens[:, 1:])
    return each[kept(tokens[:, :-1], pad) & kept(tokens[:, 1:], pad)].mean()


def first_token_counted(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    each = surprises(logits[:, :-1], tokens[:, 1:]) * kept(tokens[:, 1:], pad)
    return each.sum() / kept(tokens, pad).sum()


def all_places_counted(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    each = surprises(logits[:, :-1], tokens[:, 1:]) * kept(tokens[:, 1:], pad)
    return each.sum() / tokens.numel()


def zero_is_none(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return by_library(logits[:, :-1], tokens[:, 1:], pad or -100)


def none_not_handled(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], ignore_index=pad)  # type: ignore[arg-type]


def none_compared(logits: Tensor, tokens: Tensor, pad: int | None = None) -> Tensor:
    keep: Any = tokens[:, 1:] != pad
    return real_mean(surprises(logits[:, :-1], tokens[:, 1:]) * keep.float(), tokens[:, 1:], pad)


def with_default(wrong: Any) -> Any:
    return lambda logits, tokens, pad=None: wrong(logits, tokens, pad)


MISCONCEPTIONS = (
    Misconception(
        "double_label_shift",
        "Each place is compared with the token after the next. Somewhere the shift happens twice: in what prepares the "
        "labels and in the loss, or in a loss that shifts inside and is given slices. The loss goes down as nicely as "
        "ever, and the model learns to leave out every other word. It has to happen exactly once, whoever does it.",
        TWICE,
        tuple(with_default(shifted(loss, 0, 2, lost=2)) for loss in (by_library, right)),
        (
            "https://github.com/huggingface/transformers/issues/46901",
            "https://github.com/huggingface/transformers/pull/46898",
            "https://github.com/LLM360/amber-train/issues/6",
        ),
    ),
    Misconception(
        "not_shifted",
        "Each place is compared with the token that stands there, the one that the model has just read. It can see the "
        "answer, so the loss falls to almost 0 in no time, and the model can do nothing but repeat. What stands at a "
        "place has to be judged by what comes next.",
        TWICE,
        tuple(
            with_default(shifted(loss, start, start, lost=lost))
            for loss in (by_library, right)
            for start, lost in ((0, 0), (0, 1), (1, 1))
        ),
        (
            "https://github.com/huggingface/transformers/pull/404",
            "https://github.com/huggingface/transformers/issues/3711",
            "https://github.com/KempnerInstitute/KempnerForge/pull/155",
        ),
    ),
    Misconception(
        "shifted_backwards",
        "The shift goes the wrong way: each place is compared with the token before it, which the model has read and "
        "need not guess. Scores lose their last place, tokens their first.",
        SHIFT,
        tuple(with_default(shifted(loss, 1, 0)) for loss in (by_library, right)),
        ("https://github.com/nshepperd/gpt-2/issues/58",),
    ),
    Misconception(
        "shifted_across_sentences",
        "Everything is laid out in one row first and shifted then. The last token of each sentence is thereby asked for "
        "the first of the next one, which has nothing to do with it. Shift within the sentences, then flatten. With one "
        "sentence it's invisible.",
        SHIFT,
        (across_sentences,),
    ),
    Misconception(
        "wraps_round",
        "roll puts what falls out at one end in at the other: the last token is asked for the first one. Nothing comes "
        "after the last token; its place has to go.",
        SHIFT,
        (wraps_round, wraps_round_all),
        ("https://github.com/huggingface/nanoVLM/issues/152",),
    ),
    Misconception(
        "filled_up_after_the_last",
        "The tokens are shifted and filled up behind, by pad or by 0, and the last place is compared with that filling. "
        "The model is taught that padding follows every text, however it's cut. There is nothing after the last "
        "token, so its place doesn't count.",
        SHIFT,
        (filled_up_with_pad,),
    ),
    Misconception(
        "shifted_along_the_batch",
        "The first axis is cut instead of the second: sentences are compared with the sentence after them. All is batch "
        "first here; the places are axis 1.",
        "multi_head#batch-first",
        (along_the_batch,),
    ),
    Misconception(
        "one_side_shifted",
        "Only one of the two is cut, so that there are more places than labels, or the other way round. If the tokens lose "
        "their first place, which place of the scores has nothing left to be compared with?",
        SHIFT,
        (tokens_alone_shifted, scores_alone_shifted, one_shifted_gathered),
    ),
    Misconception(
        "last_token_only",
        "Only the last token is predicted. In training every place predicts the token after it, all in one pass: a "
        "sentence of 100 tokens gives 99 lessons, not one.",
        "transformer#training-is-parallel-writing-is-not",
        (last_alone,),
    ),
    Misconception(
        "padding_of_the_readers",
        "The mask says where padding is *read*, where it should say where padding is to be *predicted*: it was not "
        "shifted along with the tokens. At the end of each sentence the last word is then asked for padding, and padding "
        "in front hides the first word. The places that count are those whose label is real.",
        PADDING,
        (mask_of_the_readers, mask_of_both),
        ("https://github.com/OpenRLHF/OpenRLHF/issues/465",),
    ),
    Misconception(
        "first_token_counted",
        "The sum is over the predicted tokens, the count over all that were read. One for each sentence is too many: its "
        "first token is predicted by nothing. The shorter the sentences, the more the loss comes out too small.",
        SHIFT,
        (first_token_counted, all_places_counted),
    ),
    Misconception(
        "pad_zero_taken_for_none",
        "A pad of 0 is taken for no pad at all: `if pad` and `pad or ...` can't tell 0 from None. And 0 is the number that "
        "padding has most often. Ask whether it `is None`.",
        PADDING,
        (zero_is_none,),
    ),
    Misconception(
        "pad_none_not_handled",
        "Where there is no padding, pad is None, and that is passed on or compared as if it were a number. F.cross_entropy "
        "needs a number for what it shall leave out; a tensor != None is no tensor but simply True.",
        PADDING,
        (none_not_handled, none_compared),
        ("https://github.com/huggingface/transformers/pull/6213",),
    ),
    *general({name: tuple(with_default(shifted(loss, 0, 1)) for loss in losses) for name, losses in COMMON.items()}),
)

EXERCISE = Exercise(
    name="next_token_loss",
    chapter="transformer",
    kind="function",
    minutes=10,
    parts=(
        Part("shift", 1, "compare what is said at each place with the token after it, and average over these", SHIFT),
        Part("padding", 1, "leave out every place at which padding is to be predicted", PADDING),
        Part(
            "any scores",
            1,
            "pass the right gradient to the scores, however far apart they are and however they lie in memory",
            LARGE,
        ),
    ),
    hints=(
        "A sentence of 4 tokens: which token does the model have to say after reading the first, and which after reading "
        "the last? How many predictions can be judged?",
        "Cut both along axis 1, so that place t of one stands beside token t + 1 of the other. After that it is "
        "seq2seq_loss; but what if pad is None, or 0?",
        "The scores lose their last place, the tokens their first. A slice can't be flattened by view. If pad `is None`, "
        "use a number that no token has, such as -100.",
    ),
    cases=cases,
    reference=training.next_token_loss,
    misconceptions=MISCONCEPTIONS,
)
