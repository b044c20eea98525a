"""Exercise: the same parts in another order, with a residual path that no norm stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.encoder import PreNormEncoderLayer
from mha_course.exercises.encoder.EncoderLayer import (
    ADD,
    DROPOUT,
    MASK,
    ORDER,
    PATH,
    SLIPS,
    Steps,
    common_misconceptions,
    layer,
    layer_cases,
    silence,
    tokens,
    variant,
)
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import close

LAST = "encoder#the-last-norm"


def cases(rng: Generator) -> Iterator[Case]:
    nothing = silence("self_attn.out_proj", 14, 14) | silence("ffn.2", 14, 11)
    x = tokens(rng, 1, 3, 14)
    label = "both sublayers adding nothing (out_proj and ffn[2] all zeros)"
    yield layer(rng, "layer", x, 2, 11, label, changes=nothing, holds=(returns(x),))
    calls = Call((x,)), Call((7 * x,))
    yield layer(rng, "layer", x, 2, 11, "and seven times the same input", calls=calls, holds=(adds_the_same(x),))
    calls = Call((x,)), Call((x + 10,))
    label = "and the same with 10 added to every feature"
    yield layer(rng, "layer", x, 2, 11, label, calls=calls, holds=(adds_the_same_to_shifted(x),))
    yield from layer_cases(rng, norm_first=True)


def returns(x: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        off = (outputs[0] - x).abs().max()
        return None if off < 1e-5 else f"what comes out differs from what went in by {off:.2g}"

    return Property("No norm stands on the residual path: a layer that adds nothing returns its input.", broken)


def adds_the_same(x: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        once, sevenfold = (outputs[0] - x)[0].norm(), (outputs[1] - 7 * x)[0].norm()
        # After the attention a token is no longer seven times the other, so feed-forward adds about as much, not just as much.
        if 0.4 < sevenfold / once < 2.5:
            return None
        return f"what is added has the length {once:.2g}, and to seven times the input {sevenfold:.2g}"

    return Property(
        "What is added hardly depends on the size of the input: each sublayer reads a normalised copy.", broken
    )


def adds_the_same_to_shifted(x: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        if close(outputs[1] - 10, outputs[0], 1e-3):
            return None
        return f"with 10 added to every feature, what is added to them moves by {(outputs[1] - 10 - outputs[0]).abs().max():.2g}"

    return Property("What all features of a token have in common makes no difference to what is added.", broken)


# --- wrong answers: PreNormEncoderLayer.forward, each with one slip ------------------------------------------------


class PreSteps(Steps):
    """The layer in steps that are right, for wrong answers to replace one of."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attend(self.norm1(x), mask))
        return x + self.drop(self.feed(self.norm2(x)))


def both_from_normed(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x)
    x = x + layer.drop(layer.attend(x, mask))
    x = layer.norm2(x)
    return x + layer.drop(layer.feed(x))


def first_from_normed(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x)
    x = x + layer.drop(layer.attend(x, mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def second_from_normed(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    x = layer.norm2(x)
    return x + layer.drop(layer.feed(x))


def query_alone(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.self_attn(layer.norm1(x), x, x, mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def value_as_it_is(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    normed = layer.norm1(x)
    x = x + layer.drop(layer.self_attn(normed, normed, x, mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def query_as_it_is(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    normed = layer.norm1(x)
    x = x + layer.drop(layer.self_attn(x, normed, normed, mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def key_as_it_is(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    normed = layer.norm1(x)
    x = x + layer.drop(layer.self_attn(normed, x, normed, mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def value_alone(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.self_attn(x, x, layer.norm1(x), mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def norm_of_the_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x) + layer.drop(layer.attend(x, mask))
    return layer.norm2(x) + layer.drop(layer.feed(x))


def post_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return Steps.forward(layer, x, mask)


def norm_after_the_sublayer(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.norm1(layer.attend(x, mask)))
    return x + layer.drop(layer.norm2(layer.feed(x)))


def norm_at_the_end_too(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return layer.norm2(x + layer.drop(layer.feed(layer.norm2(x))))


def pre_then_post(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return layer.norm2(x + layer.drop(layer.feed(x)))


def no_first_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(x, mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def no_second_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.drop(layer.feed(x))


def no_norms(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(x, mask))
    return x + layer.drop(layer.feed(x))


def norms_exchanged(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm2(x), mask))
    return x + layer.drop(layer.feed(layer.norm1(x)))


def norm1_twice(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.drop(layer.feed(layer.norm1(x)))


def no_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.drop(layer.attend(layer.norm1(x), mask))
    return layer.drop(layer.feed(layer.norm2(x)))


def no_first_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def no_second_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return layer.drop(layer.feed(layer.norm2(x)))


def residual_of_the_input(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    middle = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.drop(layer.feed(layer.norm2(middle)))


def around_both(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    found = layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.drop(layer.feed(layer.norm2(found)))


def side_by_side(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x + layer.drop(layer.attend(layer.norm1(x), mask)) + layer.drop(layer.feed(layer.norm2(x)))


def side_by_side_on_one_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    normed = layer.norm1(x)
    return x + layer.drop(layer.attend(normed, mask)) + layer.drop(layer.feed(normed))


def added_to_itself(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.drop(layer.attend(layer.norm1(x), mask))
    x = x + x
    return x + layer.drop(layer.feed(layer.norm2(x)))


def input_twice(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = 2 * x + layer.drop(layer.attend(layer.norm1(x), mask))
    return 2 * x + layer.drop(layer.feed(layer.norm2(x)))


def whole_twice(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x + PreSteps.forward(layer, x, mask)


def feed_forward_first(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.feed(layer.norm2(x)))
    return x + layer.drop(layer.attend(layer.norm1(x), mask))


def dropout_on_the_sum(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.drop(x + layer.attend(layer.norm1(x), mask))
    return layer.drop(x + layer.feed(layer.norm2(x)))


def dropout_at_the_end_too(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return layer.drop(x + layer.drop(layer.feed(layer.norm2(x))))


def dropout_before_the_sublayer(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.attend(layer.drop(layer.norm1(x)), mask)
    return x + layer.feed(layer.drop(layer.norm2(x)))


def dropout_on_attention_alone(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.feed(layer.norm2(x))


def dropout_on_feed_forward_alone(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.attend(layer.norm1(x), mask)
    return x + layer.drop(layer.feed(layer.norm2(x)))


def in_place(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x += layer.drop(layer.attend(layer.norm1(x), mask))
    x += layer.drop(layer.feed(layer.norm2(x)))
    return x


def in_place_unseen(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        x += layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def path_cut_off(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x.detach() + layer.drop(layer.attend(layer.norm1(x), mask))
    return x.detach() + layer.drop(layer.feed(layer.norm2(x)))


def weights_too(layer: Any, x: Tensor, mask: Tensor | None = None) -> Any:
    normed = layer.norm1(x)
    return PreSteps.forward(layer, x, mask), layer.self_attn.with_weights(normed, normed, normed, mask)[1]


def slip(
    name: str, explanation: str, section: str, *forwards: Callable[..., Any], sources: tuple[str, ...] = ()
) -> Misconception:
    return Misconception(name, explanation, section, tuple(variant(PreSteps, one) for one in forwards), sources)


MISCONCEPTIONS = (
    slip(
        "residual_from_normed",
        "x was overwritten by its norm, and then added: what goes along the residual path is the normed input. So a norm stands on "
        "the path after all, and what a token held in size is lost at each layer. Only the sublayer reads the normed copy; "
        "what is added to its result is x as it came.",
        SLIPS,
        both_from_normed,
        first_from_normed,
        second_from_normed,
        sources=(
            "https://github.com/Howuhh/faster-trajectory-transformer/issues/3",
            "https://github.com/allenai/OLMo/pull/680",
            "https://github.com/dmlc/gluon-nlp/pull/1488",
        ),
    ),
    slip(
        "prenorm_query_only",
        "Only the query is normed; keys and values are made from x as it came. What attention adds then grows with the size of its "
        "input, and in a stack the sizes feed on themselves. All three are the same normed tensor.",
        SLIPS,
        query_alone,
        sources=("https://github.com/facebookresearch/xformers/pull/233",),
    ),
    slip(
        "prenorm_not_the_value",
        "The values are made from x as it came, and only query and key are normed. It is the values that are handed over, so what "
        "attention adds grows with the size of its input. All three are the same normed tensor.",
        SLIPS,
        value_as_it_is,
    ),
    slip(
        "prenorm_not_the_query",
        "Keys and values are made from the normed input, the query from x as it came: a large token then asks sharper "
        "questions. All three are the same normed tensor.",
        SLIPS,
        query_as_it_is,
    ),
    slip(
        "prenorm_not_the_key",
        "The keys are made from x as it came (and perhaps the query too): a large token is then found more, or less, than it should be. "
        "All three are the same normed tensor.",
        SLIPS,
        key_as_it_is,
        value_alone,
    ),
    slip(
        "norm_on_the_residual",
        "It is turned round: the sublayer reads x as it came, and what goes along the residual path is the normed copy. The sublayer "
        "reads the normed copy, and the path keeps x.",
        SLIPS,
        norm_of_the_residual,
    ),
    slip(
        "post_norm_for_pre_norm",
        "This is post-norm: the norm stands behind the sum, on the residual path. In pre-norm each sublayer reads a normalised "
        "copy, and the path itself stays untouched from top to bottom.",
        ORDER,
        post_norm,
        sources=("https://github.com/k2-fsa/snowfall/pull/184",),
    ),
    slip(
        "norm_after_the_sublayer",
        "The norms act on what the sublayers give back. They belong in front, on what the sublayers read.",
        ORDER,
        norm_after_the_sublayer,
        sources=("https://github.com/harvardnlp/annotated-transformer/issues/110",),
    ),
    slip(
        "norm_at_the_end_too",
        "The layer ends with a norm of the sum, so that one stands on the residual path. Pre-norm needs one more norm at the end "
        "of the whole stack, not at the end of each layer.",
        LAST,
        norm_at_the_end_too,
        pre_then_post,
    ),
    slip(
        "no_norm_before_attention",
        "Attention reads x as it came, without norm1.",
        ORDER,
        no_first_norm,
    ),
    slip(
        "no_norm_before_feed_forward",
        "Feed-forward reads x as it came, without norm2.",
        ORDER,
        no_second_norm,
        sources=("https://github.com/OpenNMT/OpenNMT-py/issues/2364",),
    ),
    slip("no_norms", "The norms are made, but never used.", ORDER, no_norms),
    slip(
        "norms_exchanged",
        "norm1 and norm2 have changed places. A model trained from zero does not mind; trained weights come out wrong.",
        ADD,
        norms_exchanged,
    ),
    slip(
        "norm1_used_twice",
        "norm1 stands in both places. Each of the two norms learns a scale and a shift of its own; norm2 is never used, gets no "
        "gradient, and nothing complains.",
        ADD,
        norm1_twice,
        sources=(
            "https://github.com/allenai/OLMo/issues/222",
            "https://github.com/kyegomez/MambaTransformer/issues/14",
        ),
    ),
    slip(
        "no_residual",
        "There is no residual path: the sublayers' results take the place of what they were given. A token then forgets what it "
        "was, and in a stack no gradient reaches the first layers.",
        PATH,
        no_residual,
    ),
    slip(
        "no_residual_around_attention",
        "No residual path leads past the attention: what it found takes the token's place.",
        PATH,
        no_first_residual,
    ),
    slip(
        "no_residual_around_feed_forward",
        "No residual path leads past feed-forward: its result takes the token's place.",
        PATH,
        no_second_residual,
    ),
    slip(
        "second_residual_from_the_input",
        "What is added to feed-forward's result is the layer's own input. It should be the sum that came before, "
        "with what attention found in it; as it is, that is lost again.",
        PATH,
        residual_of_the_input,
        sources=(
            "https://github.com/strutive07/transformer-tensorflow2.0/issues/14",
            "https://github.com/JanSchm/CapMarket/issues/8",
        ),
    ),
    slip(
        "one_residual_around_both",
        "One residual path leads past both sublayers together. Each of the two has a path of its own around it, and "
        "feed-forward's starts where the attention's has ended.",
        PATH,
        around_both,
        sources=("https://github.com/raoyongming/GFNet/issues/11",),
    ),
    slip(
        "sublayers_side_by_side",
        "Feed-forward reads the layer's input, as attention does, and both are added. Some large models do so to save time, but it "
        "is another layer: here feed-forward transforms what attention has found.",
        "encoder#mix-then-transform",
        side_by_side,
        side_by_side_on_one_norm,
    ),
    slip(
        "added_to_itself",
        "What attention found is added to itself: by then x is the name of the result, and the input is gone. Keep the input "
        "under a name of its own, or add in one line.",
        PATH,
        added_to_itself,
        sources=("https://github.com/kyegomez/BitNet/issues/32",),
    ),
    slip(
        "residual_added_twice",
        "The residual is added twice, at each sum or around the layer as a whole.",
        PATH,
        input_twice,
        whole_twice,
        sources=(
            "https://github.com/yunzeliu/MAP/issues/3",
            "https://github.com/lucidrains/enformer-pytorch/issues/6",
        ),
    ),
    slip(
        "feed_forward_first",
        "Feed-forward comes before attention. First the tokens exchange what they hold, then each is transformed.",
        "encoder#mix-then-transform",
        feed_forward_first,
    ),
    slip(
        "dropout_on_the_sum",
        "Dropout acts on the sum, and so deletes features of the residual path itself. What is deleted there is gone for all later "
        "layers: after 12 of them, with 0.1, 8 % of the input is left. It belongs on what the sublayer adds, before the sum.",
        DROPOUT,
        dropout_on_the_sum,
        dropout_at_the_end_too,
        sources=(
            "https://github.com/hyunwoongko/transformer/issues/8",
            "https://github.com/codertimo/BERT-pytorch/issues/85",
        ),
    ),
    slip(
        "dropout_before_the_sublayer",
        "Dropout acts on what the sublayers read. It belongs on what they give back, before that is added.",
        DROPOUT,
        dropout_before_the_sublayer,
    ),
    slip(
        "dropout_on_attention_alone",
        "What attention adds is dropped in training, what feed-forward adds is not. Dropout belongs on both.",
        DROPOUT,
        dropout_on_attention_alone,
    ),
    slip(
        "dropout_on_feed_forward_alone",
        "What feed-forward adds is dropped in training, what attention adds is not. Dropout belongs on both (the one on the "
        "attention weights is another).",
        DROPOUT,
        dropout_on_feed_forward_alone,
    ),
    slip(
        "input_changed",
        "x += ... works in place: it changes the caller's own tensor, and raises an error where that tensor wants a gradient. "
        "x = x + ... makes a new one.",
        SLIPS,
        in_place,
        in_place_unseen,
        sources=(
            "https://github.com/vllm-project/vllm/pull/24500",
            "https://github.com/iMED-Lab/ER-Net/pull/3",
        ),
    ),
    slip(
        "residual_path_cut_off",
        "The result is right, but no gradient comes back along the residual path (detach, .data, a copy without a graph). That "
        "path is what lets early layers of a deep stack learn.",
        PATH,
        path_cut_off,
    ),
    slip(
        "weights_returned_too",
        "The attention weights are returned beside the result. One tensor is asked for, so that layers can be stacked.",
        "encoder#one-layer",
        weights_too,
    ),
)

EXERCISE = Exercise(
    name="PreNormEncoderLayer",
    chapter="encoder",
    kind="class",
    minutes=15,
    parts=(
        Part("layer", 2, "let each sublayer read a normalised copy, and leave the residual path as it is", ORDER),
        Part("mask", 1, "keep what the mask hides out of every visible token's result", MASK),
        Part("gradients", 1, "let the right gradients reach the input and all parameters", PATH),
        Part("dropout", 1, "drop attention weights and features of what is added in training, and only then", DROPOUT),
    ),
    hints=(
        "If both sublayers added nothing, what should the layer return? Follow x through your code and see whether that comes out.",
        "The normed tensor is read by the sublayer alone, in attention as query, key and value. What is added to the sublayer's "
        "result is x as it came.",
        "Two sums. First: x, plus dropout of the attention of norm1(x). Then, from that sum: itself, plus dropout of the ffn of "
        "norm2 of itself. Give norm1(x) a name of its own, so that x stays what it was.",
    ),
    cases=cases,
    reference=PreNormEncoderLayer,
    misconceptions=(*MISCONCEPTIONS, *common_misconceptions(PreSteps)),
)
