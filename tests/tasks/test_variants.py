from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from mha_course.multi_head import MultiHeadAttention, merge_heads, split_heads
from mha_course.self_attention import causal_mask, padding_mask
from mha_course.tasks.translator import Plan, Translator, load
from mha_course.tasks.variants import ForesightAttention, UnscaledAttention, variants, without_positions

PLAN = Plan(below=1000, d_model=20, num_heads=5, num_layers=2)


def twins(kind, d_model=21, num_heads=3):
    """The variant and the layer it is derived from, with the same parameters."""
    torch.manual_seed(3)
    plain, variant = MultiHeadAttention(d_model, num_heads), kind(d_model, num_heads)
    variant.load_state_dict(plain.state_dict())
    return plain, variant


def test_unscaled_attention_is_pytorchs_with_a_scale_of_one():
    plain, unscaled = twins(UnscaledAttention)
    x, memory = torch.randn(2, 5, 21), torch.randn(2, 7, 21)
    heads = [
        split_heads(projection(of), 3)
        for projection, of in ((plain.q_proj, x), (plain.k_proj, memory), (plain.v_proj, memory))
    ]
    expected = plain.out_proj(merge_heads(F.scaled_dot_product_attention(*heads, scale=1.0)))
    output, weights = unscaled.with_weights(x, memory, memory)
    torch.testing.assert_close(unscaled(x, memory, memory), expected)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, (heads[0] @ heads[1].mT).softmax(dim=-1))
    assert not torch.allclose(plain(x, memory, memory), expected, atol=1e-3)


def test_attention_with_foresight_ignores_the_causal_mask():
    plain, foresight = twins(ForesightAttention)
    x = torch.randn(2, 5, 21)
    everything = torch.ones(5, 5, dtype=torch.bool)
    expected, weights = plain.with_weights(x, x, x, everything)
    torch.testing.assert_close(foresight(x, x, x, causal_mask(5)), expected)
    torch.testing.assert_close(foresight.with_weights(x, x, x, causal_mask(5)), (expected, weights))
    torch.testing.assert_close(foresight(x, x, x), expected)


def test_attention_with_foresight_still_hides_padding():
    plain, foresight = twins(ForesightAttention)
    x, mask = torch.randn(2, 5, 21), padding_mask(torch.tensor([5, 3]), 5)
    expected, weights = plain.with_weights(x, x, x, mask)
    assert (weights[1, :, :, 3:] == 0).all()
    torch.testing.assert_close(foresight(x, x, x, mask), expected)
    torch.testing.assert_close(foresight.with_weights(x, x, x, mask), (expected, weights))


@torch.no_grad()
def test_without_positions_the_encoder_reads_a_set():
    translator, source = Translator(PLAN), torch.tensor([[5, 11, 7, 13, 3]])
    order = torch.tensor([4, 1, 0, 3, 2])

    def reordered(model):
        return torch.allclose(model.encode(source[:, order]), model.encode(source)[:, order], atol=1e-5)

    assert not reordered(translator.model)
    assert without_positions(translator) is translator
    assert reordered(translator.model)
    assert not translator.model.target.table.any()


def test_all_variants_begin_with_the_same_parameters():
    models = {name: translator.model for name, translator in variants(PLAN).items()}
    expected = dict(models["all parts"].named_parameters())
    for model in models.values():
        assert dict(model.named_parameters()).keys() == expected.keys()
        assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())


def test_a_variant_that_was_kept_is_loaded_as_it_was_or_not_at_all(tmp_path):
    for name, attention in (("no positions", MultiHeadAttention), ("no scale", MultiHeadAttention)):
        variants(replace(PLAN, steps=1))[name].train(folder=tmp_path / name, progress=False)
        with pytest.raises(ValueError, match=r"has other parts than its plan says|was built with UnscaledAttention"):
            load(tmp_path / name, attention=attention)
    assert load(tmp_path / "no scale", attention=UnscaledAttention).attention is UnscaledAttention


@torch.no_grad()
@pytest.mark.parametrize("name", ["no positions", "no scale", "one head", "no causal mask"])
def test_each_variant_computes_something_else_than_the_whole(name):
    models, source, target = variants(PLAN), torch.tensor([[5, 11, 7]]), torch.tensor([[1, 9, 4, 6, 8]])
    whole = models["all parts"].model(source, target)
    assert (models[name].model(source, target) - whole).abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize(("name", "sees"), [("all parts", False), ("no causal mask", True)])
def test_only_without_the_causal_mask_a_place_sees_the_answer(name, sees):
    model, source = variants(PLAN)[name].model, torch.tensor([[5, 11, 7]])
    one, other = model(source, torch.tensor([[1, 9, 4]])), model(source, torch.tensor([[1, 9, 8]]))
    assert bool((one - other)[:, :2].abs().max() > 1e-4) == sees


def test_one_head_is_as_wide_as_the_model():
    attention = variants(PLAN)["one head"].model.decoder.layers[1].cross_attn
    assert attention.num_heads == 1
