import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course import masks

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=20, deadline=None, derandomize=True)


def mask_of(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def tokens(*shape, seed=2):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@properties
@given(seed=st.integers(0, 999), batch=st.integers(1, 3), heads=st.integers(1, 3), dtype=st.sampled_from("hbfd"))
def test_a_mask_that_goes_out_and_comes_back_is_what_it_was(seed, batch, heads, dtype):
    full, padding = mask_of(batch, heads, 5, 7, seed=seed), mask_of(batch, 1, 1, 7, seed=seed)
    dtype = {"h": torch.float16, "b": torch.bfloat16, "f": torch.float32, "d": torch.float64}[dtype]
    assert torch.equal(masks.from_additive(masks.to_additive(full, dtype)), full)
    assert torch.equal(masks.from_attn_mask(masks.to_attn_mask(full, batch, heads, 5), heads), full)
    assert torch.equal(masks.from_key_padding_mask(masks.to_key_padding_mask(padding)), padding)
    assert torch.equal(masks.from_tokenizer(masks.to_tokenizer(padding)), padding)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_additive_mask_has_the_type_of_the_scores_and_hides_what_the_boolean_one_hides(dtype):
    additive = masks.to_additive(torch.tensor([[True, False, True]]), dtype)
    assert additive.dtype == dtype
    assert additive.tolist() == [[0.0, torch.finfo(dtype).min, 0.0]]
    scores = torch.tensor([[-1e4, 1e4, -1e4]], dtype=dtype)
    assert (scores + additive).softmax(dim=-1).tolist() == [[0.5, 0.0, 0.5]]


def test_an_additive_mask_that_hides_everything_gives_no_nan():
    scores = torch.zeros(3, requires_grad=True)
    (scores + masks.to_additive(torch.zeros(3, dtype=torch.bool))).softmax(dim=-1).square().sum().backward()
    assert scores.grad.isfinite().all()


def test_an_additive_mask_is_the_one_that_pytorch_adds():
    mask = mask_of(2, 1, 5, 7)
    mask[..., 3] = True
    q, k, v = tokens(2, 3, 5, 11), tokens(2, 3, 7, 11), tokens(2, 3, 7, 13)
    assert_close(
        F.scaled_dot_product_attention(q, k, v, attn_mask=masks.to_additive(mask)),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    )


def test_each_librarys_number_for_hidden_is_understood():
    numbers = [0.0, -0.0, -1e4, -1e9, torch.finfo(torch.float16).min, torch.finfo(torch.float32).min, -torch.inf]
    assert masks.from_additive(torch.tensor(numbers)).tolist() == [True, True, False, False, False, False, False]


@pytest.mark.parametrize("number", [1.0, -1.0, -9999.0, 1e9, torch.inf, torch.nan])
def test_a_number_that_would_shift_a_score_is_refused(number):
    with pytest.raises(
        ValueError, match=rf"this one holds {re.escape(f'{number:g}')}; numbers that shift the scores are a bias"
    ):
        masks.from_additive(torch.tensor([[0.0, -1e9], [number, 0.0]]))


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 1, 1, 7), (2, 1, 5, 7), (1, 3, 1, 7), (2, 3, 5, 7)])
def test_pytorchs_mask_holds_the_heads_of_one_sequence_next_to_one_another(shape):
    mask = mask_of(*shape)
    blocked = masks.to_attn_mask(mask, batch=2, num_heads=3, queries=5)
    assert blocked.shape == (6, 5, 7)
    every = mask.broadcast_to(2, 3, 5, 7)
    for batch in range(2):
        for head in range(3):
            assert torch.equal(blocked[batch * 3 + head], every[batch, head].logical_not())


def test_pytorchs_layer_under_a_mask_that_went_out_hides_what_the_mask_hides():
    torch.manual_seed(1)
    layer, mask = nn.MultiheadAttention(33, 3, batch_first=True), mask_of(2, 3, 5, 7)
    mask[..., 3] = True
    q, k = tokens(2, 5, 33), tokens(2, 7, 33)
    blocked = masks.to_attn_mask(mask, 2, 3, 5)
    _, weights = layer(q, k, k, attn_mask=blocked, average_attn_weights=False)
    assert torch.equal(weights > 0, mask)


def test_pytorchs_masks_are_read_with_axes_that_broadcast():
    blocked = mask_of(6, 5, 7)
    mask = masks.from_attn_mask(blocked, num_heads=3)
    assert mask.shape == (2, 3, 5, 7)
    for batch in range(2):
        for head in range(3):
            assert torch.equal(mask[batch, head], blocked[batch * 3 + head].logical_not())
    assert torch.equal(masks.from_attn_mask(blocked[0], num_heads=3), blocked[0].logical_not().view(1, 1, 5, 7))


def test_padding_is_true_for_pytorch_and_zero_for_a_tokenizer():
    mask = torch.tensor([[True, True, False], [True, False, False]])[:, None, None]
    padding, ids = masks.to_key_padding_mask(mask), masks.to_tokenizer(mask)
    assert padding.tolist() == [[False, False, True], [False, True, True]]
    assert ids.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert ids.dtype == torch.long
    assert torch.equal(masks.from_key_padding_mask(padding), mask)
    for dtype in (torch.long, torch.int32, torch.bool):
        assert torch.equal(masks.from_tokenizer(ids.to(dtype)), mask)


@pytest.mark.parametrize("number", [2, -1, 101])
def test_token_ids_that_are_taken_for_a_mask_are_refused(number):
    with pytest.raises(ValueError, match=r"holds 1 \(real\) and 0 \(padding\) alone"):
        masks.from_tokenizer(torch.tensor([[1, 0], [1, number]]))


def test_masks_are_made_where_their_argument_is():
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool, device="meta")  # any device that is not the default one
    made = [
        masks.to_additive(mask),
        masks.to_attn_mask(mask, 2, 3, 5),
        masks.to_key_padding_mask(mask),
        masks.to_tokenizer(mask),
    ]
    assert {x.device.type for x in made} == {"meta"}


def test_no_converter_changes_its_input():
    mask = mask_of(2, 1, 1, 7)
    before = mask.clone()
    additive, blocked = masks.to_additive(mask), masks.to_attn_mask(mask, 2, 3, 5)
    masks.to_key_padding_mask(mask)
    masks.to_tokenizer(mask)
    assert torch.equal(mask, before)
    kept = additive.clone(), blocked.clone()
    masks.from_additive(additive)
    masks.from_attn_mask(blocked, 3)
    assert torch.equal(additive, kept[0])
    assert torch.equal(blocked, kept[1])
