import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mha_course.cache import KVCache
from mha_course.generation import (
    CachedSelfAttention,
    LanguageModelWriter,
    TransformerWriter,
    beam_search,
    cached_causal_attention,
    evaluation,
    generate,
    greedy,
    greedy_decode,
    sample,
    step_positions,
    stream,
    top_k_filter,
    top_p_filter,
)
from mha_course.multi_head import MultiHeadAttention
from mha_course.positions import AlibiAttention, RotaryAttention
from mha_course.transformer import LanguageModel, Transformer

BOS, EOS, VOCAB = 1, 2, 13
ATTENTIONS = {
    "plain": MultiHeadAttention,
    "rotary": RotaryAttention,
    "alibi": AlibiAttention,
    "grouped": partial(MultiHeadAttention, num_groups=2),
    "grouped rotary": partial(RotaryAttention, num_groups=2),
    "grouped alibi": partial(AlibiAttention, num_groups=2),
}


def drawn(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def drawn_ids(*shape, seed=1, low=3, high=VOCAB):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def lively(model, seed=2):
    """Give matrices so large that the scores depend on every token, and in float64, where no two are equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.double()


def erratic(logits):
    """Let scores that differ by a millionth choose another token: greedy decoding alone soon repeats itself."""
    return (logits * 1e6).sin()


def language_model(max_length=31, vocab=VOCAB, **options):
    return lively(
        LanguageModel(vocab, max_length, d_model=24, num_heads=4, d_ff=17, num_layers=2, dropout=0.5, **options)
    )


def translator(**options):
    options = {"d_model": 24, "num_heads": 4, "d_ff": 17, "num_layers": 2, "dropout": 0.5, "pad": 0, **options}
    return lively(Transformer(17, VOCAB, max_length=31, **options))


def sources():
    """Return three sources of 7, 4 and 1 tokens, padded with 0."""
    ids = drawn_ids(3, 7, high=17)
    ids[1, 4:] = ids[2, 1:] = 0
    return ids


def prompts():
    """Return three prompts of 7, 2 and 5 tokens, padded on the left, and their mask."""
    mask = torch.arange(7) >= torch.tensor([0, 5, 2])[:, None]
    return drawn_ids(3, 7), mask


class Recomputing:
    """Write with anything that maps ids to scores; it keeps no cache, but reads the whole text at each step."""

    def __init__(self, scores, prompt):
        self.scores, self.prompt, self.calls = scores, prompt, 0

    def begin(self):
        self.ids = self.prompt
        return self.read()

    def next(self, tokens):
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        return self.read()

    def reorder(self, rows):
        self.ids = self.ids[rows]

    def read(self):
        self.calls += 1
        return self.scores(self.ids)[:, -1]


def scripted(*scripts):
    """Return a writer whose every row says its script, whatever it is given."""
    rows = torch.tensor(scripts)

    def scores(ids):
        return F.one_hot(rows[:, : ids.size(1)], VOCAB).double() * 5.0

    return Recomputing(scores, torch.full((len(scripts), 1), BOS))


def slowly_continued(model, prompt, steps):
    """Return the best continuation of one prompt of real tokens, each token from a fresh run of the model."""
    model.eval()
    ids = prompt[None]
    for _ in range(steps):
        ids = torch.cat([ids, erratic(model(ids))[:, -1:].argmax(dim=-1)], dim=1)
    return ids[0, len(prompt) :]


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(3)
    sizes = {"vocab_size": VOCAB, "n_positions": 31, "n_embd": 24, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=EOS))
    return lively(model).eval()


# Attention over earlier tokens


def test_new_tokens_attend_to_all_earlier_ones_and_to_no_later_one():
    q, k, v = drawn(2, 3, 7, 5), drawn(2, 3, 7, 5, seed=2), drawn(2, 3, 7, 11, seed=3)
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for new in (1, 3, 7):
        output, weights = cached_causal_attention(q[..., -new:, :], k, v)
        assert_close(output, right[..., -new:, :])
        assert torch.equal(weights > 0, torch.ones(2, 3, 7, 7).tril()[..., -new:, :].bool())


def test_the_mask_of_new_tokens_is_made_where_they_are():
    x = torch.ones(2, 5, 7, device="meta")  # any device that is not the default one
    output, weights = cached_causal_attention(x[:, 2:], x, x)
    assert (output.device.type, weights.device.type) == ("meta", "meta")


def test_more_new_tokens_than_there_are_in_all_are_refused():
    with pytest.raises(ValueError, match="the 5 positions that ask must be among those that are asked"):
        cached_causal_attention(torch.ones(5, 2), torch.ones(3, 2), torch.ones(3, 2))


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 1, 3]])
def test_cached_attention_in_pieces_agrees_with_pytorchs_layer_over_the_whole(pieces):
    attention = lively(CachedSelfAttention(d_model=33, num_heads=3))
    ours, theirs = attention.attention, nn.MultiheadAttention(33, 3, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in (ours.q_proj, ours.k_proj, ours.v_proj)]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in (ours.q_proj, ours.k_proj, ours.v_proj)]))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    x, cache = drawn(2, 7, 33), KVCache()
    right, _ = theirs(x, x, x, attn_mask=torch.ones(7, 7, dtype=torch.bool).triu(1))
    assert_close(torch.cat([attention(piece, cache) for piece in x.split(pieces, dim=1)], dim=1), right)
    for _ in range(2):
        assert_close(attention(x), right)  # nothing is left of the text before


@pytest.mark.parametrize(("given", "right"), [((3, 4), [0, 3, 4, 5]), ((1, 3), [0, 1, 2]), ((5, 1), [0]), ((5, 0), [])])
def test_the_prompt_begins_at_0_and_each_step_where_the_last_one_ended(given, right):
    assert step_positions(*given) == right


# Choosing from scores


@pytest.mark.parametrize("k", [1, 2, 5, 12, 13, 17])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_top_k_agrees_with_transformers(k, dtype):
    logits = drawn(7, VOCAB, dtype=dtype)
    before = logits.clone()
    assert torch.equal(top_k_filter(logits, k), TopKLogitsWarper(k)(None, logits))
    assert torch.equal(logits, before)


def test_exactly_k_tokens_stay_the_first_ones_among_equals():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    stay = [[False, True, True, False, False], [True, True, False, False, False]]
    assert (top_k_filter(logits, 2) > -torch.inf).tolist() == stay
    assert torch.equal(top_k_filter(logits, 1).argmax(dim=-1), greedy(logits))


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.37, 0.5, 0.73, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_top_p_agrees_with_transformers(p, scale):
    logits = drawn(7, 101) * scale
    before = logits.clone()
    assert torch.equal(top_p_filter(logits, p), TopPLogitsWarper(p)(None, logits))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("p", "stay"),
    [
        (0.4, [1]),
        (0.5, [1]),
        (0.51, [1, 3]),
        (0.75, [1, 3]),
        (0.76, [0, 1, 3]),
        (0.875, [0, 1, 3]),
        (0.9, [0, 1, 2, 3]),
    ],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_p(p, stay):
    logits = torch.tensor([0.125, 0.5, 0.125, 0.25], dtype=torch.float64).log2() * torch.tensor(2.0).double().log()
    assert (top_p_filter(logits, p) > -torch.inf).nonzero().flatten().tolist() == stay


def test_a_p_of_1_rules_out_nothing_however_improbable():
    logits = torch.tensor([0.0, -50.0, 3.0, -30.0])
    assert torch.equal(top_p_filter(logits, 1.0), logits)


@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("top_p", [None, 0.8])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
def test_sampling_draws_what_transformers_processors_leave(temperature, top_k, top_p):
    logits = drawn(401, VOCAB)
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    scores = scores if top_k is None else TopKLogitsWarper(top_k)(None, scores)
    scores = scores if top_p is None else TopPLogitsWarper(top_p)(None, scores)
    ours, theirs = (torch.Generator().manual_seed(5) for _ in range(2))
    right = torch.multinomial(scores.softmax(dim=-1), 1, generator=theirs)[:, 0]
    assert torch.equal(sample(logits, temperature, top_k, top_p, ours), right)


def test_tokens_are_drawn_as_often_as_their_probabilities_say():
    logits = torch.tensor([0.125, 0.5, 0.375]).log().expand(10007, 3)
    drawn = sample(logits, generator=torch.Generator().manual_seed(1))
    assert_close(drawn.bincount() / 10007, torch.tensor([0.125, 0.5, 0.375]), rtol=0.0, atol=0.02)
    sharper = sample(logits, temperature=0.5, generator=torch.Generator().manual_seed(1))  # squares: 1, 16 and 9 of 26
    assert_close(sharper.bincount() / 10007, torch.tensor([1.0, 16.0, 9.0]) / 26, rtol=0.0, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [0.0, 1e-37, 1e-4])
def test_a_temperature_near_0_is_greedy_and_overflows_in_no_precision(temperature, dtype):
    logits = drawn(7, VOCAB).to(dtype) * 1000
    assert torch.equal(sample(logits, temperature), logits.argmax(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_from_half_precision_scores_the_same_tokens_are_drawn_as_from_single_precision_ones(dtype):
    scores = drawn_ids(2003, 13, low=-64, high=65) / 8  # their differences are exact in both
    draws = [sample(x, 3.0, generator=torch.Generator().manual_seed(2)) for x in (scores.to(dtype), scores)]
    assert torch.equal(*draws)


def test_any_axes_may_stand_before_the_vocabulary():
    logits = drawn(2, 3, VOCAB)
    assert sample(logits, top_k=3, top_p=0.9).shape == (2, 3)
    assert sample(logits[0, 0], top_k=1) == logits[0, 0].argmax()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: top_k_filter(x, 0), "k must be at least 1, but it is 0; 1 leaves the best token alone"),
        (lambda x: top_p_filter(x, 0.0), "p must be a probability above 0 and at most 1, but it is 0.0; 1 rules out"),
        (lambda x: top_p_filter(x, 1.5), "but it is 1.5"),
        (lambda x: top_p_filter(x, float("nan")), "but it is nan"),
        (lambda x: sample(x, temperature=-1.0), "the temperature must not be below 0, but it is -1.0; 0 chooses"),
        (lambda x: sample(x, temperature=float("nan")), "but it is nan"),
        (lambda x: generate(Recomputing(None, None), 0), "max_length must be at least 1, but it is 0; it counts"),
        (lambda x: beam_search(Recomputing(None, None), 3, 0, EOS), "max_length must be at least 1, but it is 0"),
        (lambda x: beam_search(Recomputing(None, None), 0, 5, EOS), "beams must be at least 1, but it is 0; 1 is"),
        (lambda x: beam_search(Recomputing(None, None), 3, 5, EOS, -0.5), "alpha must not be below 0, but it is -0.5"),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2, 3))


# Modes


def test_each_part_of_a_model_gets_back_the_mode_it_had_even_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()), nn.Linear(2, 2))
    model[1].eval()
    before = [part.training for part in model.modules()]

    def failing():
        with evaluation(model):
            assert not any(part.training for part in model.modules())
            assert not torch.is_grad_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert [part.training for part in model.modules()] == before
    assert torch.is_grad_enabled()


def test_whoever_reads_a_stream_keeps_gradients_and_a_model_in_training_mode():
    model = language_model().train()
    writer = LanguageModelWriter(model, *prompts())
    (model(prompts()[0])[:, -1] * writer.begin()).sum().backward()  # a teacher's scores may stand in a loss
    for tokens in stream(writer, 3):
        assert torch.is_grad_enabled()
        assert all(part.training for part in model.modules())
        model(tokens[:, None]).sum().backward()  # what was written can be trained on


def test_dropout_is_off_while_a_model_writes_and_nothing_asks_for_gradients():
    model, source = translator().train(), sources()
    writer = TransformerWriter(model, source, BOS)
    assert not writer.begin().requires_grad
    assert torch.equal(generate(writer, 11, EOS), generate(writer, 11, EOS))
    assert torch.equal(greedy_decode(model, source, 11, BOS, EOS), greedy_decode(model, source, 11, BOS, EOS))
    assert model.training


# Greedy decoding


def test_a_row_that_ended_is_filled_with_the_end_and_writing_stops_when_all_have():
    scripts = [[5, EOS, 7, 7, 7], [8, 9, 4, EOS, 7], [EOS, 3, 3, 3, 3]]
    right = torch.tensor([[5, EOS, EOS, EOS], [8, 9, 4, EOS], [EOS, EOS, EOS, EOS]])
    writer = scripted(*scripts)
    assert torch.equal(generate(writer, 5, EOS), right)
    assert writer.calls == 4
    decoded = greedy_decode(lambda source, target: writer.scores(target), torch.zeros(3, 2).long(), 5, BOS, EOS)
    assert torch.equal(decoded, F.pad(right, (1, 0), value=BOS))


def test_writing_stops_at_max_length_and_reads_the_last_token_no_more():
    writer = scripted([5, 6, 7, EOS])
    assert generate(writer, 3, EOS).tolist() == [[5, 6, 7]]
    assert writer.calls == 3
    assert generate(writer, 4).tolist() == [[5, 6, 7, EOS]]  # without an end, 2 is a token like any other


def test_a_beginning_that_is_also_the_end_ends_nothing():
    writer = scripted([5, 6, BOS, 7])
    decoded = greedy_decode(lambda source, target: writer.scores(target), torch.zeros(1, 2).long(), 4, BOS, BOS)
    assert decoded.tolist() == [[BOS, 5, 6, BOS]]
    assert generate(writer, 4, BOS).tolist() == [[5, 6, BOS]]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("attention", ["plain", "grouped"])
def test_with_a_cache_a_transformer_writes_what_it_writes_without(positions, norm_first, attention):
    model = translator(positions=positions, norm_first=norm_first, attention=ATTENTIONS[attention])
    writer = TransformerWriter(model, sources(), BOS)
    assert torch.equal(generate(writer, 19, EOS), greedy_decode(model, sources(), 19, BOS, EOS)[:, 1:])
    model.eval()
    slow = greedy_decode(lambda *given: erratic(model(*given)), sources(), 19, BOS, EOS)
    assert slow.unique().numel() > 5
    assert torch.equal(generate(writer, 19, EOS, choose=lambda logits: greedy(erratic(logits))), slow[:, 1:])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_written_together_go_on_as_each_one_does_alone_without_padding_or_cache(attention, positions, side):
    model = language_model(attention=ATTENTIONS[attention], positions=positions)
    ids, mask = prompts()
    alone = torch.stack([slowly_continued(model, ids[row][mask[row]], 11) for row in range(3)])
    assert alone.unique().numel() > 5
    if side == "right":
        ids = torch.stack([ids[row].roll(int(mask[row].sum())) for row in range(3)])
        mask = mask.flip(1)
    assert torch.equal(generate(LanguageModelWriter(model, ids, mask), 11, choose=lambda x: greedy(erratic(x))), alone)


def test_without_a_mask_all_tokens_are_real():
    model, (ids, _) = language_model(), prompts()
    right = torch.stack([slowly_continued(model, row, 11) for row in ids])
    assert torch.equal(generate(LanguageModelWriter(model, ids), 11, choose=lambda x: greedy(erratic(x))), right)


def test_sources_translated_together_are_translated_as_alone():
    model, source = translator(), sources()
    together, alone = (partial(generate, max_length=11, choose=lambda x: greedy(erratic(x))) for _ in range(2))
    right = torch.cat([alone(TransformerWriter(model, source[[i], :n], BOS)) for i, n in enumerate((7, 4, 1))])
    assert torch.equal(together(TransformerWriter(model, source, BOS)), right)


def test_greedy_decoding_agrees_with_transformers(gpt2):
    ids = drawn_ids(5, 3)
    right = gpt2.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=17, do_sample=False)
    ours = generate(Recomputing(lambda text: gpt2(text).logits, ids), 17, EOS)
    assert torch.equal(ours, right[:, 3:])


def test_the_same_seed_draws_the_same_text_and_another_one_another():
    writer = LanguageModelWriter(language_model(), *prompts())
    drawn = [
        generate(writer, 11, choose=partial(sample, temperature=2.0, generator=torch.Generator().manual_seed(seed)))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(generate(writer, 11, choose=partial(sample, top_k=1)), generate(writer, 11))


@pytest.mark.parametrize("length", [0, 7])
def test_a_prompt_without_a_real_token_is_refused(length):
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[1] = False
    row = 1 if length else 0
    with pytest.raises(
        ValueError, match=f"must have a real token to go on from, but that of row {row} has none; begin it"
    ):
        LanguageModelWriter(language_model(), drawn_ids(3, length), mask)
    with pytest.raises(ValueError, match="that of row 0 has none"):
        LanguageModelWriter(language_model(), drawn_ids(3, 0))


def test_a_text_that_outgrows_the_learned_positions_is_refused_but_padding_does_not_count():
    model, (ids, mask) = language_model(max_length=7), prompts()
    with pytest.raises(ValueError, match="this table of learned positions has 5 rows, but position 6 is asked for"):
        generate(LanguageModelWriter(language_model(max_length=5), ids, mask), 1)
    with pytest.raises(ValueError, match="has 7 rows, but position 7 is asked for"):
        generate(LanguageModelWriter(model, ids, mask), 2)
    assert generate(LanguageModelWriter(model, ids[1:], mask[1:]), 3).shape == (2, 3)  # of 2 and 5 real tokens


# Beams


def total(model_scores, prompt, text):
    """Return the log-probability of a text, without a cache, up to its first end."""
    length = text.tolist().index(EOS) + 1 if EOS in text.tolist() else len(text)
    steps = model_scores(torch.cat([prompt, text])[None])[0].log_softmax(dim=-1)
    return sum(steps[len(prompt) - 1 + i, text[i]] for i in range(length)), length


@pytest.mark.parametrize("alpha", [0.0, 0.7, 2.0])
def test_with_enough_beams_the_best_of_all_texts_are_found(alpha):
    model, length = language_model(vocab=5).eval(), 3
    prompt = torch.tensor([3, 1])
    every = set()
    for text in itertools.product(range(5), repeat=length):
        end = text.index(EOS) + 1 if EOS in text else length
        every.add(text[:end] + (EOS,) * (length - end))
    texts = torch.tensor(sorted(every))
    totals, lengths = zip(*(total(model, prompt, text) for text in texts), strict=True)
    ranks = torch.stack(totals) / torch.tensor(lengths).double() ** alpha
    right = ranks.argsort(descending=True)
    ids, scores = beam_search(LanguageModelWriter(model, prompt[None]), 5**length, length, EOS, alpha)
    assert torch.equal(ids[0, : len(texts)], texts[right])
    assert_close(scores[0, : len(texts)], torch.stack(totals)[right])
    assert (scores[0, len(texts) :] == -torch.inf).all()
    assert (ids[0, len(texts) :] == EOS).all()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beams", [2, 3, 7])
def test_beams_agree_with_transformers(gpt2, beams, alpha):
    ids = drawn_ids(5, 3, seed=beams)
    theirs = gpt2.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=11,
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=alpha,
        early_stopping="never",
        return_dict_in_generate=True,
        output_scores=True,
    )
    ours, scores = beam_search(Recomputing(lambda text: gpt2(text).logits, ids), beams, 11, EOS, alpha)
    ours, right = ours.flatten(0, 1), theirs.sequences[:, 3:]  # theirs is cut to the longest text
    assert torch.equal(ours, F.pad(right, (0, ours.size(1) - right.size(1)), value=EOS))
    lengths = (ours != EOS).sum(dim=-1) + (ours == EOS).any(dim=-1)
    assert lengths.unique().numel() > 2 or alpha == 2.0
    assert_close(scores.flatten() / lengths**alpha, theirs.sequences_scores.double(), rtol=1e-5, atol=1e-5)


def test_one_beam_is_greedy_decoding():
    for seed in range(1, 6):
        model = language_model(vocab=5)
        writer = LanguageModelWriter(model, drawn_ids(3, 2, seed=seed, low=0, high=5))
        ids, scores = beam_search(writer, 1, 11, EOS)
        assert torch.equal(ids[:, 0], generate(writer, 11, EOS))
        assert scores.shape == (3, 1)


def test_the_beams_own_cache_gives_each_text_the_probability_it_has_when_read_at_once():
    model, (ids, mask) = language_model(), prompts()
    texts, scores = beam_search(LanguageModelWriter(model, ids, mask), 5, 7, EOS, alpha=1.0)
    model.eval()
    for row, prompt in enumerate(ids[i][mask[i]] for i in range(3)):
        for text, score in zip(texts[row], scores[row], strict=True):
            assert_close(score, total(model, prompt, text)[0])
    model, source = translator(), sources()
    texts, scores = beam_search(TransformerWriter(model, source, BOS), 5, 7, EOS, alpha=1.0)
    model.eval()
    for row in range(3):
        for text, score in zip(texts[row], scores[row], strict=True):
            right, _ = total(partial(model, source[[row]]), torch.tensor([BOS]), text)
            assert_close(score, right)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_texts_searched_together_are_found_as_alone(alpha):
    model, (ids, mask) = language_model(), prompts()
    together, scores = beam_search(LanguageModelWriter(model, ids, mask), 3, 11, EOS, alpha)
    for row in range(3):
        writer = LanguageModelWriter(model, ids[row][mask[row]][None])
        alone, its_scores = beam_search(writer, 3, 11, EOS, alpha)
        filled = F.pad(alone[0], (0, together.size(2) - alone.size(2)), value=EOS)
        assert torch.equal(filled, together[row])
        assert_close(its_scores[0], scores[row])


def test_a_search_stops_as_soon_as_no_text_can_become_better_than_those_that_ended():
    # After the first token nothing but the end is probable: .6 and .4 of the probability have ended after two steps.
    def scores(text):
        first = torch.tensor([0.0, 0.0, 0.0, 0.6, 0.4]).log()
        end = torch.tensor([1e-9, 1e-9, 1.0, 1e-9, 1e-9]).log()
        return (first if text.size(1) == 1 else end).expand(*text.shape, 5)

    writer = Recomputing(scores, torch.tensor([[BOS]]))
    ids, found = beam_search(writer, 2, 29, EOS)
    assert ids.tolist() == [[[3, EOS], [4, EOS]]]
    assert_close(found.exp(), torch.tensor([[0.6, 0.4]]))
    assert writer.calls == 2


def test_a_greater_alpha_favours_longer_texts():
    # By hand: the end at once has .4; "3, 3, end" has .6 * .7 * .9 = .378, which is .378^(1/3) = .723 a token.
    def scores(text):
        rows = [[1e-9, 1e-9, 0.4, 0.6], [1e-9, 1e-9, 0.3, 0.7], [1e-9, 1e-9, 0.9, 0.1]]
        return torch.tensor(rows).log()[: text.size(1)].expand(len(text), -1, -1)

    writer = Recomputing(scores, torch.tensor([[BOS]]))
    (short, low), (long, high) = (beam_search(writer, 2, 3, EOS, alpha) for alpha in (0.0, 1.0))
    assert short[0].tolist() == [[EOS, EOS, EOS], [3, 3, EOS]]
    assert long[0].tolist() == [[3, 3, EOS], [3, EOS, EOS]]
    assert_close(low.exp(), torch.tensor([[0.4, 0.378]]))
    assert_close(high.exp(), torch.tensor([[0.378, 0.18]]))


def test_a_search_goes_on_while_a_longer_text_can_still_become_better():
    # By hand: the end at once has .5; "3, 3, end" has .45 * 1 * 1, which is .45^(1/3) = .77 a token.
    def scores(text):
        rows = [[0.05, 1e-30, 0.5, 0.45], [1e-30, 1e-30, 1e-30, 1.0], [1e-30, 1e-30, 1.0, 1e-30]]
        return torch.tensor(rows).log()[: text.size(1)].expand(len(text), -1, -1)

    ids, found = beam_search(Recomputing(scores, torch.tensor([[BOS]])), 1, 3, EOS, alpha=1.0)
    assert ids.tolist() == [[[3, 3, EOS]]]
    assert_close(found.exp(), torch.tensor([[0.45]]))


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_writes_too_and_adds_up_in_single(dtype):
    model, source = translator().to(dtype), sources()
    _, scores = beam_search(TransformerWriter(model, source, BOS), 3, 7, EOS)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    logits = drawn(1, 1, VOCAB).to(dtype)
    ids, found = beam_search(Recomputing(lambda text: logits, torch.tensor([[BOS]])), 3, 1, EOS)
    assert_close(found[0], logits[0, 0].float().log_softmax(dim=-1)[ids[0, :, 0]])
    one, _ = beam_search(TransformerWriter(model, source, BOS), 1, 7, EOS)
    assert torch.equal(one[:, 0], generate(TransformerWriter(model, source, BOS), 7, EOS))
    writer = LanguageModelWriter(language_model().to(dtype), *prompts())
    assert generate(writer, 7, choose=partial(sample, top_k=5, top_p=0.9)).shape == (3, 7)


# Chunks


@settings(max_examples=40, deadline=None)
@given(
    attention=st.sampled_from(sorted(ATTENTIONS)),
    positions=st.sampled_from(["sinusoidal", "learned"]),
    pieces=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    padding=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_a_language_model_reads_a_text_in_pieces_of_any_size_as_it_reads_the_whole(
    attention, positions, pieces, padding
):
    length = sum(pieces)
    model = language_model(max_length=35, attention=ATTENTIONS[attention], positions=positions).eval()
    ids, mask = drawn_ids(2, length), None
    if padding is not None:
        mask = torch.arange(length) >= torch.tensor(padding).clamp(max=length - 1)[:, None]
    with torch.no_grad():
        whole = model(ids, mask)
        cache, read, parts = model.new_cache(), 0, []
        for piece in ids.split(pieces, dim=1):
            read += piece.size(1)
            parts.append(model(piece, None if mask is None else mask[:, :read], cache))
    in_pieces = torch.cat(parts, dim=1)
    assert in_pieces.isfinite().all()
    real = slice(None) if mask is None else mask  # what padding says means nothing
    assert_close(in_pieces[real], whole[real])


@settings(max_examples=20, deadline=None)
@given(
    attention=st.sampled_from(list(ATTENTIONS)),
    positions=st.sampled_from(["sinusoidal", "learned"]),
    norm_first=st.booleans(),
    pieces=st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
def test_a_transformer_writes_its_target_in_pieces_of_any_size_as_it_writes_the_whole(
    attention, positions, norm_first, pieces
):
    model = translator(
        attention=ATTENTIONS[attention],
        cross_attention=MultiHeadAttention,
        positions=positions,
        norm_first=norm_first,
    ).eval()
    source, target = sources(), drawn_ids(3, sum(pieces))
    with torch.no_grad():
        memory, mask, cache = model.encode(source), model.source_mask(source), model.new_cache()
        parts = [model.decode(piece, memory, mask, cache) for piece in target.split(pieces, dim=1)]
        assert_close(torch.cat(parts, dim=1), model(source, target))
