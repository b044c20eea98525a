import copy
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from layers import recorder
from mha_course.encoder import EncoderLayer, PreNormEncoderLayer
from mha_course.multi_head import MultiHeadAttention
from mha_course.positions import AlibiAttention, RotaryAttention, SinusoidalTokenEmbedding, TokenAndPositionEmbedding
from mha_course.self_attention import causal_mask
from mha_course.transformer import LanguageModel, Output, Transformer

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=10, deadline=None, derandomize=True)

# Of a model of width 12, 3 heads, 17 between the dense layers: its parts, counted by hand.
ATTENTION, DENSE, NORM = 4 * (12 * 12 + 12), (12 * 17 + 17) + (17 * 12 + 12), 2 * 12
LAYER = ATTENTION + DENSE + 2 * NORM
DECODER_LAYER = 2 * ATTENTION + DENSE + 3 * NORM


def spread(model):
    """Draw larger parameters than the default, so that no part is close to doing nothing."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.05, std=0.4)
    return model.double()


def translator(**options):
    return spread(Transformer(11, 13, max_length=19, d_model=12, num_heads=3, d_ff=17, num_layers=2, **options))


def writer(**options):
    return spread(LanguageModel(11, max_length=19, d_model=12, num_heads=3, d_ff=17, num_layers=2, **options))


def ids(batch, length, vocab=11, seed=2):
    """Draw tokens; 0 is left for the padding."""
    return torch.randint(1, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


VARIANTS = [
    {},
    {"norm_first": False},
    {"tied": True},
    {"tied": False},
    {"positions": "learned"},
    {"positions": "sinusoidal"},
]


def in_chunks(step, text, sizes):
    return torch.cat([step(piece) for piece in text.split(sizes, dim=1)], dim=1)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_score_depends_on_the_source_and_on_what_was_written_and_on_nothing_later(options):
    model, source, target = translator(**options), ids(1, 7), ids(1, 5, 13)
    scores = model(source, target)
    assert scores.shape == (1, 5, 13)
    for at in range(5):
        other = target.clone()
        other[0, at] = target[0, at] % 12 + 1
        changed = (model(source, other) - scores).abs().amax(dim=(0, 2)) > 1e-6
        assert changed.tolist() == [i >= at for i in range(5)]
    for at in range(7):
        other = source.clone()
        other[0, at] = source[0, at] % 10 + 1
        assert ((model(other, target) - scores).abs().amax(dim=-1) > 1e-6).all()


@pytest.mark.parametrize("options", [*VARIANTS, {"attention": RotaryAttention}, {"attention": AlibiAttention}], ids=str)
def test_a_language_model_sees_what_came_before_and_nothing_later(options):
    model, text = writer(**options), ids(1, 5)
    scores = model(text)
    assert scores.shape == (1, 5, 11)
    for at in range(5):
        other = text.clone()
        other[0, at] = text[0, at] % 10 + 1
        changed = (model(other) - scores).abs().amax(dim=(0, 2)) > 1e-6
        assert changed.tolist() == [i >= at for i in range(5)]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_the_order_of_earlier_tokens_matters(positions):
    source, target = torch.tensor([[3, 1, 4, 2]]), torch.tensor([[5, 9, 2]])
    turned = torch.tensor([[3, 4, 1, 2]])
    model = translator(positions=positions)
    assert (model(turned, target) - model(source, target)).abs().max() > 1e-3
    assert (model(source, target[:, [1, 0, 2]]) - model(source, target))[:, 2].abs().max() > 1e-3
    model = writer(positions=positions)
    assert (model(turned) - model(source))[:, 3].abs().max() > 1e-3


@properties
@given(extra=st.integers(1, 5), pad=st.sampled_from([0, 10]), options=st.sampled_from(VARIANTS))
def test_padding_behind_the_source_or_the_target_changes_nothing(extra, pad, options):
    model, source, target = translator(pad=pad, **options), ids(2, 5, 10), ids(2, 3, 13)
    right = model(source, target)
    padded = torch.cat([source, torch.full((2, extra), pad)], dim=1)
    assert_close(model.encode(padded)[:, :5], model.encode(source))
    assert_close(model(padded, target), right)
    longer = torch.cat([target, ids(2, extra, 13, seed=extra)], dim=1)
    assert_close(model(padded, longer)[:, :3], right)


def test_the_sources_mask_is_true_on_real_tokens_and_none_where_there_is_no_padding():
    source = torch.tensor([[3, 0, 2], [1, 0, 0]])
    assert translator().source_mask(source) is None
    mask = translator(pad=0).source_mask(source)
    assert mask.shape == (2, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[True, False, True], [True, False, False]]
    assert translator(pad=2).source_mask(source)[:, 0, 0].tolist() == [[True, True, False], [True, True, True]]


def test_the_memory_is_used_under_the_mask_that_is_given():
    model, source, target = translator(), ids(2, 5), ids(2, 3, 13)
    memory, mask = model.encode(source), torch.tensor([[True, True, False, False, True]] * 2)[:, None, None]
    other = torch.where(mask[:, 0, 0, :, None], memory, 9.0)
    assert_close(model.decode(target, other, mask), model.decode(target, memory, mask))
    assert (model.decode(target, other) - model.decode(target, memory, mask)).abs().max() > 1e-3


@properties
@given(
    left=st.integers(0, 4),
    right=st.integers(0, 4),
    options=st.sampled_from([*VARIANTS, {"attention": RotaryAttention}, {"attention": AlibiAttention}]),
)
def test_padding_on_either_side_changes_nothing_for_a_language_model(left, right, options):
    model, text, other = writer(**options), ids(1, 5), ids(1, 5 + left + right, seed=3)
    padded = F.pad(text, (left, right))
    mask = torch.stack([F.pad(torch.ones(5, dtype=torch.bool), (left, right)), torch.ones(5 + left + right).bool()])
    scores = model(torch.cat([padded, other]), mask)
    assert scores.isfinite().all()
    assert_close(scores[:1, left : left + 5], model(text))
    assert_close(scores[1:], model(other))


def test_examples_of_a_batch_do_not_affect_one_another():
    source, target = ids(3, 7), ids(3, 5, 13)
    model, alone = translator(pad=0), translator(pad=0)
    source[1, 4:] = 0
    for i in range(3):
        assert_close(model(source, target)[i], alone(source[i : i + 1], target[i : i + 1])[0])
    assert_close(writer()(target % 11)[1:2], writer()(target[1:2] % 11))


@properties
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), options=st.sampled_from(VARIANTS))
def test_chunks_of_any_size_give_the_scores_of_the_whole_target(sizes, options):
    model, source, target = translator(pad=0, **options), ids(2, 7), ids(2, sum(sizes), 13)
    source[1, 4:] = 0
    memory, mask, cache = model.encode(source), model.source_mask(source), model.new_cache()
    scores = in_chunks(lambda piece: model.decode(piece, memory, mask, cache), target, sizes)
    assert_close(scores, model(source, target))
    assert cache.length == sum(sizes)
    assert [part.length for part in cache.memory] == [7, 7]


@properties
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    left=st.integers(0, 3),
    options=st.sampled_from([*VARIANTS, {"attention": RotaryAttention}, {"attention": AlibiAttention}]),
)
def test_chunks_of_any_size_give_the_scores_of_the_whole_text_even_behind_padding(sizes, left, options):
    model, text = writer(**options), ids(2, sum(sizes))
    mask = torch.ones(2, sum(sizes), dtype=torch.bool)
    mask[1, : min(left, sum(sizes) - 1)] = False
    cache = model.new_cache()
    scores = in_chunks(lambda piece: model(piece, mask[:, : cache.length + piece.size(1)], cache), text, sizes)
    assert_close(scores[0], model(text)[0])
    assert_close(scores[1, left:], model(text[1:, left:])[0] if left < sum(sizes) else scores[1, left:])
    assert cache.length == sum(sizes)
    cache = model.new_cache()
    assert_close(in_chunks(lambda piece: model(piece, cache=cache), text, sizes), model(text))


def test_a_second_text_knows_nothing_of_the_first():
    model, source, target = translator(), ids(2, 7), ids(2, 5, 13)
    right, other = model(source, target), ids(2, 4, seed=5)
    for text in (other, source):
        memory, cache = model.encode(text), model.new_cache()
        scores = in_chunks(lambda piece, m=memory, c=cache: model.decode(piece, m, None, c), target, [2, 3])
    assert_close(scores, right)
    model, first, second = writer(), model.new_cache(), model.new_cache()
    assert first.length == second.length == 0
    model(source, cache=first)
    assert second.length == 0
    assert_close(model(other, cache=second), model(other))


def test_reordered_texts_go_on_as_if_they_had_been_so_from_the_start():
    model, source, target, rows = translator(pad=0), ids(3, 7), ids(3, 4, 13), torch.tensor([2, 0, 2, 1])
    source[1, 4:] = 0
    cache = model.new_cache()
    model.decode(target, model.encode(source), model.source_mask(source), cache)
    cache.reorder(rows)
    new = ids(4, 1, 13, seed=4)
    scores = model.decode(new, model.encode(source[rows]), model.source_mask(source[rows]), cache)
    assert_close(scores, model(source[rows], torch.cat([target[rows], new], dim=1))[:, 4:])


def test_the_source_is_read_with_its_own_table_and_the_target_with_its_own():
    model = translator()
    source, target = torch.tensor([[10, 0, 3]]), torch.tensor([[12, 11, 0]])  # the last of each vocabulary
    memory, scores = model.encode(source), model(source, target)
    model.target.token.weight.data[:11] += 1.0
    assert torch.equal(model.encode(source), memory)
    model.source.token.weight.data[10] += torch.arange(12)
    assert (model.encode(source) - memory).abs().max() > 1e-3
    assert scores.shape == (1, 3, 13)


def test_both_halves_are_put_together_from_the_parts_of_the_chapters():
    model, source, target = translator(pad=0), ids(2, 7), ids(2, 5, 13)
    source[1, 4:] = 0
    mask = (source != 0)[:, None, None]
    memory = model.encoder(model.source(source), mask)
    right = model.decoder(model.target(target), memory, causal_mask(5), mask) @ model.output.table.weight.T
    assert_close(model(source, target), right)
    model, text = writer(tied=False), ids(2, 5)
    assert_close(model(text), model.encoder(model.embedding(text), causal_mask(5)) @ model.output.table.weight.T)


def test_a_tied_output_layer_uses_the_embeddings_table_and_shortens_its_scores():
    token, x = nn.Embedding(11, 4), torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    tied, own = Output(token, tied=True), Output(token, tied=False)
    assert tied.table.weight is token.weight
    assert_close(tied(x), x @ token.weight.T / 2)  # the root of the width, 4
    assert own.table.weight.shape == (11, 4)
    assert own.table.weight is not token.weight
    assert_close(own(x), x @ own.table.weight.T)


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.double, copy.deepcopy], ids=["half", "double", "copy"])
def test_what_is_tied_stays_tied(change):
    for make, name in ((translator, "target"), (writer, "embedding")):
        model = change(make(tied=True))
        assert model.output.table.weight is getattr(model, name).token.weight
        fresh = change(make(tied=True))
        fresh.load_state_dict(model.state_dict())
        assert fresh.output.table.weight is getattr(fresh, name).token.weight


def test_a_source_and_target_table_are_never_one():
    model = translator(tied=True)
    assert model.source.token.weight is not model.target.token.weight
    assert model.output.table.weight is not model.source.token.weight


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({}, 11 * 12 + 13 * 12 + 2 * LAYER + NORM + 2 * DECODER_LAYER + NORM + 13 * 12),
        ({"tied": True}, 11 * 12 + 13 * 12 + 2 * LAYER + NORM + 2 * DECODER_LAYER + NORM),
        ({"norm_first": False}, 11 * 12 + 13 * 12 + 2 * LAYER + 2 * DECODER_LAYER + 13 * 12),
        ({"positions": "learned"}, (11 + 19 + 13 + 19) * 12 + 2 * LAYER + NORM + 2 * DECODER_LAYER + NORM + 13 * 12),
    ],
)
def test_a_transformer_has_as_many_parameters_as_by_hand_and_each_gets_a_gradient(options, right):
    model = translator(**options)
    assert sum(p.numel() for p in model.parameters()) == right
    model(ids(2, 7), ids(2, 5, 13)).pow(3).sum().backward()
    # A shift of all keys adds the same to all scores of a query, which changes no weight.
    assert all((p.grad != 0).any() for name, p in model.named_parameters() if not name.endswith("k_proj.bias"))


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({}, 11 * 12 + 19 * 12 + 2 * LAYER + NORM),
        ({"tied": False}, 11 * 12 + 19 * 12 + 2 * LAYER + NORM + 11 * 12),
        ({"norm_first": False}, 11 * 12 + 19 * 12 + 2 * LAYER),
        ({"positions": "sinusoidal"}, 11 * 12 + 2 * LAYER + NORM),
    ],
)
def test_a_language_model_has_as_many_parameters_as_by_hand_and_each_gets_a_gradient(options, right):
    model = writer(**options)
    assert sum(p.numel() for p in model.parameters()) == right
    model(ids(2, 7)).pow(3).sum().backward()
    assert all((p.grad != 0).any() for name, p in model.named_parameters() if not name.endswith("k_proj.bias"))


def dropped(module, run):
    """Return which share of what a module was first given is 0, while something runs."""
    shares = []
    handle = module.register_forward_pre_hook(lambda _, args: shares.append((args[0] == 0).double().mean().item()))
    run()
    handle.remove()
    return shares[0]


def test_dropout_acts_on_every_embedding_in_training_and_nowhere_in_evaluation():
    model, source, target = translator(dropout=0.4), ids(3, 17), ids(3, 17, 13)
    text_model = writer(dropout=0.4)
    places = [
        (model, model.encoder, lambda: model.encode(source)),
        (model, model.decoder, lambda: model.decode(target, torch.ones(3, 2, 12).double())),
        (text_model, text_model.encoder, lambda: text_model(source)),
    ]
    for whole, part, run in places:
        assert 0.3 < dropped(part, run) < 0.5
        assert not torch.equal(run(), run())
        whole.eval()
        assert dropped(part, run) == 0.0
        assert torch.equal(run(), run())
        whole.train()


@pytest.mark.parametrize("make", [translator, writer])
def test_the_options_reach_every_part(make):
    attention, made = recorder()
    model = make(dropout=0.25, norm_first=False, attention=attention)
    assert made == [(12, 3, 0.25)] * (6 if make is translator else 2)
    assert {part.p for part in model.modules() if isinstance(part, nn.Dropout)} == {0.25}
    assert model.dropout.p == 0.25
    assert not any(isinstance(part, PreNormEncoderLayer) for part in model.modules())
    assert sum(isinstance(part, EncoderLayer) for part in model.modules()) == 2
    assert {part.p for part in make().modules() if isinstance(part, nn.Dropout)} == {0.0}


@pytest.mark.parametrize("attention", [RotaryAttention, AlibiAttention])
def test_distances_are_known_within_the_source_and_within_the_target_but_not_between_them(attention):
    source, target = ids(2, 7), ids(2, 5, 13)
    with pytest.raises(
        ValueError, match="for cross-attention use MultiHeadAttention, in a decoder as its cross_attention"
    ):
        translator(attention=attention)(source, target)
    model = translator(attention=attention, cross_attention=MultiHeadAttention)
    memory, cache = model.encode(source), model.new_cache()
    scores = in_chunks(lambda piece: model.decode(piece, memory, None, cache), target, [1, 2, 2])
    assert_close(scores, model(source, target))


def test_positions_are_computed_in_a_transformer_and_learned_in_a_language_model_unless_chosen():
    for model, kind in (
        (translator(), SinusoidalTokenEmbedding),
        (translator(positions="learned"), TokenAndPositionEmbedding),
    ):
        assert isinstance(model.source, kind)
        assert isinstance(model.target, kind)
    assert isinstance(writer().embedding, TokenAndPositionEmbedding)
    assert isinstance(writer(positions="sinusoidal").embedding, SinusoidalTokenEmbedding)


def test_a_text_longer_than_its_learned_positions_is_refused_and_one_with_computed_ones_is_not():
    text = ids(1, 20)
    with pytest.raises(ValueError, match="has 19 rows, but position 19 is asked for"):
        writer()(text)
    model, cache = writer(), writer().new_cache()
    model(text[:, :19], cache=cache)
    with pytest.raises(ValueError, match="position 19 is asked for"):
        model(text[:, 19:], cache=cache)
    model = translator(positions="learned")
    for source, target in ((text, text[:, :3]), (text[:, :3], text)):
        with pytest.raises(ValueError, match="position 19 is asked for"):
            model(source, target)
    assert writer(positions="sinusoidal")(text).isfinite().all()
    padded = torch.cat([torch.zeros(1, 7, dtype=torch.long), text[:, :19]], dim=1)
    assert_close(writer()(padded, torch.arange(26)[None] >= 7)[:, 7:], writer()(text[:, :19]))


def test_a_width_that_the_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="num_heads must divide d_model"):
        Transformer(11, 13, 19, d_model=12, num_heads=5, d_ff=17, num_layers=2)
    with pytest.raises(ValueError, match="num_heads must divide d_model"):
        LanguageModel(11, 19, d_model=12, num_heads=5, d_ff=17, num_layers=2)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_that_loads_the_parameters_of_another_gives_the_same(tied, positions):
    source, target = ids(2, 7), ids(2, 5, 13)
    for make, texts in ((translator, (source, target)), (writer, (source,))):
        model, fresh = make(tied=tied, positions=positions), make(tied=tied, positions=positions)
        for parameter in fresh.parameters():
            nn.init.zeros_(parameter)
        fresh.load_state_dict(model.state_dict())
        assert torch.equal(fresh(*texts), model(*texts))
        assert not any("table" in name and "output" not in name for name in model.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_in_another_precision_computes_in_it(dtype):
    source, target = ids(2, 7), ids(2, 5, 13)
    model = translator(positions="sinusoidal").to(dtype)
    assert model(source, target).dtype == dtype
    model = writer(positions="sinusoidal").to(dtype)
    long = ids(2, 23)  # longer than the table of positions
    assert model(long).dtype == dtype
    assert model(long, torch.arange(23).expand(2, 23) > 3).isfinite().all()


def test_a_mask_that_leaves_out_the_tokens_in_the_cache_is_refused():
    model = writer()
    cache = model.new_cache()
    model(ids(2, 5), cache=cache)
    with pytest.raises(ValueError, match="must cover all 6 tokens, the 5 in the cache included, but it covers 1"):
        model(ids(2, 1), torch.ones(2, 1, dtype=torch.bool), cache)


def test_a_source_may_be_padded_on_the_left():
    model, source, target = translator(pad=0), ids(1, 5), ids(1, 3, 13)
    assert_close(model(F.pad(source, (2, 0)), target), model(source, target))


def test_positions_that_do_not_exist_are_refused_and_those_of_an_attention_are_named():
    unchecked = inspect.unwrap(LanguageModel.__init__)
    with pytest.raises(ValueError, match="'rotary' is asked for; rotary and ALiBi positions come with their attention"):
        unchecked(LanguageModel.__new__(LanguageModel), 11, 19, 12, 3, 17, 2, positions="rotary")
