"""Exercise, to be repaired: an encoder that does not calculate columns which are padding in every sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mha_course.exercises.encoder.EncoderLayer import variant
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn, unchanged
from mha_course.self_attention import padding_mask

MASK, MODES = "encoder#padding-through-the-stack", "encoder#dropout"
POOLING = "encoder#pooling-the-mean-of-real-tokens"


def cases(rng: Generator) -> Iterator[Case]:
    for lengths, length, d_model in (([3, 2], 5, 3), ([2], 3, 2), ([1, 4, 2], 7, 5), ([5, 3], 5, 3), ([1], 7, 2)):
        x = randn(rng, len(lengths), length, d_model)
        holds = (not_given(max(lengths)), zeros_from(max(lengths)))
        yield _case("evaluation", x, lengths, "evaluation mode", holds=holds)
    x = randn(rng, 2, 7, 3)
    yield _case("evaluation", x.double(), [5, 2], "evaluation mode, float64", tolerance=1e-9)
    rule = unchanged(
        "What padding holds makes no difference to a real token.",
        "when only padding was changed, real tokens moved by {change}",
        where=(slice(None), slice(3)),
    )
    garbage = torch.cat([x[:, :3], 9 * randn(rng, 2, 4, 3)], dim=1)
    mask = padding_mask(torch.tensor([3, 3]), 7)
    label = f"{describe(x, [3, 3])}, evaluation mode, the padding changed"
    calls = Call((x, mask)), Call((garbage, mask))
    yield Case("evaluation", label, calls, _build(), holds=(rule,))
    calls = Call((x, mask)), Call((x[:, :5], padding_mask(torch.tensor([5, 4]), 5)))
    yield Case("evaluation", f"{describe(x, [3, 3])}, evaluation mode, then another batch", calls, _build())
    yield _case("gradients", x, [5, 2], "evaluation mode, with gradients", backward=True)
    yield _case("gradients", x, [5, 2], "training mode, with gradients", backward=True, train=True)
    yield _case("gradients", x, [7, 2], "training mode, no column to leave out", train=True)


def _build() -> Call:
    return Call((given(Counting, args=()),))


def _case(
    part: str,
    x: Tensor,
    lengths: list[int],
    label: str,
    holds: tuple[Property, ...] = (),
    train: bool = False,
    backward: bool = False,
    tolerance: float = 1e-4,
) -> Case:
    call = Call((x, padding_mask(torch.tensor(lengths), x.size(1))), backward=backward)
    label = f"{describe(x, lengths)}, {label}"
    return Case(part, label, (call,), _build(), train=train, holds=holds, tolerance=tolerance)


class Counting(nn.Module):
    """An encoder that mixes real tokens, and writes in everyone's last feature how many columns it was given."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, 0, 0, :, None].to(x)
        mixed = torch.sin(2 * x) + (x * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True)
        return torch.cat([mixed[..., :-1], torch.full_like(mixed[..., :1], x.size(1))], dim=-1)


def describe(x: Tensor, lengths: list[int]) -> str:
    many = "one sentence" if len(lengths) == 1 else f"{len(lengths)} sentences"
    return f"x {tuple(x.shape)}, {many} of {' and '.join(map(str, lengths))} real tokens"


def not_given(columns: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        given_to_it = round(float(outputs[0][0, 0, -1]))
        if given_to_it == columns:
            return None
        return f"the encoder was given {given_to_it} columns, where {columns} hold all the real tokens"

    return Property(
        "In evaluation mode the encoder is given the columns that hold a real token, and no others.", broken
    )


def zeros_from(columns: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        largest = float(outputs[0][:, columns:].abs().max()) if columns < outputs[0].size(1) else 0.0
        return None if largest == 0 else f"from column {columns} on there is {largest:.2g}"

    return Property("The columns that were left out come back as zeros.", broken)


# --- answers, a right one and wrong ones ---------------------------------------------------------------------------


class TrimmedEncoder(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.training:
            return self.encoder(x, mask)
        longest = longest_of(mask)
        output = self.encoder(x[:, :longest], mask[..., :longest])
        return F.pad(output, (0, 0, 0, x.size(1) - longest))


def longest_of(mask: Tensor) -> int:
    return int(mask.sum(dim=-1).max())


def in_evaluation(trim: Callable[[Any, Tensor, Tensor], Tensor]) -> type[nn.Module]:
    def forward(module: Any, x: Tensor, mask: Tensor) -> Tensor:
        return module.encoder(x, mask) if module.training else trim(module, x, mask)

    return variant(TrimmedEncoder, forward)


def trimmed(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    longest = longest_of(mask)
    return module.encoder(x[:, :longest], mask[..., :longest])


def features_padded(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    return F.pad(trimmed(module, x, mask), (0, x.size(1) - longest_of(mask)))


def at_the_front(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    return F.pad(trimmed(module, x, mask), (0, 0, x.size(1) - longest_of(mask), 0))


def examples_padded(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    return F.pad(trimmed(module, x, mask), (0, 0, 0, 0, 0, x.size(1) - longest_of(mask)))


def input_put_back(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    return torch.cat([trimmed(module, x, mask), x[:, longest_of(mask) :]], dim=1)


def last_repeated(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    output = trimmed(module, x, mask)
    return torch.cat([output, output[:, -1:].expand(-1, x.size(1) - output.size(1), -1)], dim=1)


def everything_calculated(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    return module.encoder(x, mask)


def calculated_and_zeroed(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    output = module.encoder(x, mask).clone()
    output[:, longest_of(mask) :] = 0
    return output


def all_padding_zeroed(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    return F.pad(trimmed(module, x, mask), (0, 0, 0, x.size(1) - longest_of(mask))) * mask[:, 0, 0, :, None]


def written_into_the_input(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    output = trimmed(module, x, mask)
    with torch.no_grad():
        x.zero_()
        x[:, : output.size(1)] = output
    return x


def first_sentence_measured(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    longest = int(mask[0].sum())
    output = module.encoder(x[:, :longest], mask[..., :longest])
    return F.pad(output, (0, 0, 0, x.size(1) - longest))


def shortest_measured(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    longest = int(mask.sum(dim=-1).min())
    output = module.encoder(x[:, :longest], mask[..., :longest])
    return F.pad(output, (0, 0, 0, x.size(1) - longest))


def one_more(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    longest = min(longest_of(mask) + 1, x.size(1))
    output = module.encoder(x[:, :longest], mask[..., :longest])
    return F.pad(output, (0, 0, 0, x.size(1) - longest))


def one_less(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    longest = max(longest_of(mask) - 1, 1)
    output = module.encoder(x[:, :longest], mask[..., :longest])
    return F.pad(output, (0, 0, 0, x.size(1) - longest))


def length_remembered(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    if not hasattr(module, "longest"):
        module.longest = longest_of(mask)
    output = module.encoder(x[:, : module.longest], mask[..., : module.longest])
    return F.pad(output, (0, 0, 0, x.size(1) - output.size(1)))


def without_graph(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        return TrimmedEncoder.forward(module, x, mask)


def copied_without_graph(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    output = torch.zeros_like(x)
    output[:, : longest_of(mask)] = trimmed(module, x, mask).detach()
    return output


def float32_zeros(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    output = torch.zeros(x.shape)
    output[:, : longest_of(mask)] = trimmed(module, x, mask)
    return output


def trimmed_in_training_too(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    longest = longest_of(mask)
    return F.pad(trimmed(module, x, mask), (0, 0, 0, x.size(1) - longest))


MISCONCEPTIONS = (
    Misconception(
        "columns_not_put_back",
        "What was cut off is not put back: the result is shorter than the input, and only in evaluation mode, so that a training "
        "runs through and the first use fails.",
        MASK,
        (in_evaluation(trimmed),),
        ("https://github.com/pytorch/pytorch/issues/97111",),
    ),
    Misconception(
        "other_axis_padded",
        "Zeros were added, but along another axis than the tokens'. functional.pad takes its numbers from the last axis on, two for "
        "each: first before and after the features, then before and after the tokens.",
        MASK,
        (in_evaluation(features_padded), in_evaluation(examples_padded)),
        ("https://github.com/lucidrains/linear-attention-transformer/issues/4",),
    ),
    Misconception(
        "put_back_at_the_front",
        "The zeros were put in front of the tokens, so that every token now stands in another column than in the input. They were cut "
        "off at the end.",
        MASK,
        (in_evaluation(at_the_front),),
    ),
    Misconception(
        "something_else_put_back",
        "The length is right, but the columns that were left out hold something (the input, or a token's result once more) which looks "
        "like a result and is none. Zeros are asked for.",
        MASK,
        (in_evaluation(input_put_back), in_evaluation(last_repeated)),
    ),
    Misconception(
        "everything_calculated",
        "The length is right because nothing is cut off any more. That gives up what the class is for: columns that are padding in "
        "every sentence need not be calculated.",
        MASK,
        (in_evaluation(everything_calculated), in_evaluation(calculated_and_zeroed)),
        ("https://github.com/pytorch/pytorch/issues/86120",),
    ),
    Misconception(
        "all_padding_set_to_zero",
        "The padding of the shorter sentences is set to zero too. Only the columns that were left out come back as zeros; the "
        "others are what the encoder made of them.",
        POOLING,
        (in_evaluation(all_padding_zeroed),),
    ),
    Misconception(
        "input_changed",
        "The result is written into x, and with it the caller's own tensor is changed.",
        "encoder#slips-around-a-norm",
        (in_evaluation(written_into_the_input),),
    ),
    Misconception(
        "longest_sentence_missed",
        "The length is that of the first, or the shortest, sentence. Then longer ones lose real tokens. It takes the longest.",
        MASK,
        (in_evaluation(first_sentence_measured), in_evaluation(shortest_measured)),
    ),
    Misconception(
        "off_by_one",
        "The encoder is given one column more, or one less, than the longest sentence has tokens. x[:, :n] holds columns 0 to n - 1, "
        "which are n.",
        MASK,
        (in_evaluation(one_more), in_evaluation(one_less)),
    ),
    Misconception(
        "length_remembered",
        "The length of the first batch is kept and used again for the next, which has another.",
        MASK,
        (in_evaluation(length_remembered),),
    ),
    Misconception(
        "gradient_cut_off",
        "No gradient comes back through the encoder. Evaluation mode is not the same as no_grad: people take gradients in it, to see "
        "what a result depends on, say.",
        MODES,
        (in_evaluation(without_graph), in_evaluation(copied_without_graph)),
    ),
    Misconception(
        "trimmed_in_training_too",
        "Training is changed as well. There everything should stay as it was: the encoder is given all columns.",
        MODES,
        (variant(TrimmedEncoder, trimmed_in_training_too),),
    ),
    Misconception(
        "always_float32",
        "The zeros were made as float32, whatever came in. new_zeros and zeros_like take the type from another tensor.",
        MASK,
        (in_evaluation(float32_zeros),),
    ),
)

EXERCISE = Exercise(
    name="TrimmedEncoder",
    chapter="encoder",
    kind="class",
    minutes=10,
    task="repair",
    parts=(
        Part(
            "evaluation", 1, "give a result of the input's length, without calculating what is padding everywhere", MASK
        ),
        Part("gradients", 1, "let gradients through, and leave training as it is", MODES),
    ),
    hints=(
        "Give it two sentences of 3 and 2 real tokens, padded to 5, in both modes, and print the shapes that come out. What will "
        "somebody do with the result who still has the old mask?",
        "The columns were cut off for a good reason; leave that as it is. Something has to happen to the encoder's result before it is "
        "returned.",
        "Append columns of zeros, as many as were cut off, along the axis of the tokens: with torch.cat and new_zeros, or with "
        "functional.pad, whose numbers go from the last axis to the first, two for each.",
    ),
    cases=cases,
    reference=TrimmedEncoder,
    misconceptions=MISCONCEPTIONS,
)
