from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from mha_course.cache import KVCache, ModelCache
from mha_course.multi_head import MultiHeadAttention
from mha_course.positions import AlibiAttention, RotaryAttention
from mha_course.self_attention import causal_mask

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=15, deadline=None, derandomize=True)

LAYERS = [
    MultiHeadAttention,
    partial(MultiHeadAttention, num_groups=1),
    partial(MultiHeadAttention, num_groups=2),
    RotaryAttention,
    AlibiAttention,
]
NAMES = ["every head its own", "one group", "two groups", "rotary", "alibi"]


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chunk(start, length, batch=2):
    """Return keys and values that name their sequence, head, position and feature: no two numbers are alike."""
    numbers = torch.arange(batch * 3 * 100 * 5).float().view(batch, 3, 100, 5)[:, :, start : start + length]
    return numbers, -numbers[..., :2]


def test_new_tokens_come_behind_the_others_and_values_beside_their_keys():
    cache = KVCache()
    assert cache.length == 0
    for start, length in ((0, 2), (2, 1), (3, 5)):
        keys, values = cache.append(*chunk(start, length))
        right_keys, right_values = chunk(0, start + length)
        assert torch.equal(keys, right_keys)
        assert torch.equal(values, right_values)
        assert cache.length == start + length
    assert torch.equal(cache.keys, keys)
    assert torch.equal(cache.values, values)


def test_what_was_returned_does_not_grow_with_the_cache():
    cache, given = KVCache(), chunk(0, 3)
    before = [x.clone() for x in given]
    returned = cache.append(*given)
    cache.append(*chunk(3, 2))
    assert all(map(torch.equal, before, given))
    assert all(map(torch.equal, before, returned))


def test_rows_are_reordered_with_their_keys_and_their_values():
    cache = KVCache()
    keys, values = cache.append(*chunk(0, 3, batch=3))
    cache.reorder(torch.tensor([2, 0]))
    assert torch.equal(cache.keys, torch.stack([keys[2], keys[0]]))
    assert torch.equal(cache.values, torch.stack([values[2], values[0]]))


def test_two_rows_that_were_one_go_on_apart():
    cache = KVCache()
    cache.append(*chunk(0, 3))
    cache.reorder(torch.tensor([1, 1]))
    cache.keys[0] = 0.0
    assert torch.equal(cache.keys[1], chunk(0, 3)[0][1])


def test_an_empty_cache_may_be_reordered():
    cache = KVCache()
    cache.reorder(torch.tensor([1, 0]))
    assert cache.length == 0


def test_a_models_cache_counts_the_tokens_written_and_not_those_of_the_memory():
    cache = ModelCache(3)
    assert cache.length == 0
    for layer in range(3):
        cache.own[layer].append(*chunk(0, 2))
        cache.memory[layer].append(*chunk(0, 7))
    assert cache.length == 2


def test_every_layer_keeps_its_tokens_and_its_memory_apart():
    cache, other = ModelCache(3), ModelCache(3)
    parts = [*cache.own, *cache.memory, *other.own, *other.memory]
    assert len({id(part) for part in parts}) == 12
    assert [part.once for part in parts] == ([False] * 3 + [True] * 3) * 2
    cache.own[0].append(*chunk(0, 2))
    assert [part.length for part in parts] == [2] + [0] * 11


def test_reordering_a_model_reorders_all_of_it():
    cache = ModelCache(2)
    for part in (*cache.own, *cache.memory):
        part.append(*chunk(0, 3))
    cache.reorder(torch.tensor([1, 0]))
    keys, values = chunk(0, 3)
    for part in (*cache.own, *cache.memory):
        assert torch.equal(part.keys, keys.flip(0))
        assert torch.equal(part.values, values.flip(0))


def attention(make):
    torch.manual_seed(2)
    layer = make(24, 4).double()
    for parameter in layer.parameters():  # larger than the default, so that the weights are far from even
        nn.init.normal_(parameter, std=0.4)
    return layer


def in_chunks(layer, x, sizes, cache=None):
    """Feed a text piece by piece, each under the causal mask of its own place, by both ways of the layer in turn."""
    cache = KVCache() if cache is None else cache
    outputs = []
    for i, piece in enumerate(x.split(sizes, dim=1)):
        mask = causal_mask(piece.size(1), cache.length + piece.size(1))
        step = layer if i % 2 else (lambda *given: layer.with_weights(*given)[0])
        outputs.append(step(piece, piece, piece, mask, cache))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("make", LAYERS, ids=NAMES)
@properties
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_chunks_of_any_size_give_what_the_whole_text_gives(make, sizes):
    layer, x = attention(make), drawn(2, sum(sizes), 24).double()
    whole = layer(x, x, x, causal_mask(sum(sizes)))
    assert_close(in_chunks(layer, x, sizes), whole)


def test_gradients_reach_earlier_tokens_through_the_cache():
    layer, x = attention(MultiHeadAttention), drawn(2, 5, 24).double().requires_grad_()
    right = torch.autograd.grad(layer(x, x, x, causal_mask(5)).square().sum(), x)[0]
    assert_close(torch.autograd.grad(in_chunks(layer, x, [2, 1, 2]).square().sum(), x)[0], right)


@pytest.mark.parametrize("make", LAYERS, ids=NAMES)
def test_reordered_texts_go_on_as_if_they_had_been_so_from_the_start(make):
    layer, x, rows = attention(make), drawn(3, 7, 24).double(), torch.tensor([2, 0, 2, 1])
    cache = KVCache()
    in_chunks(layer, x[:, :5], [3, 2], cache)
    cache.reorder(rows)
    rest = drawn(4, 2, 24, seed=3).double()
    text = torch.cat([x[rows, :5], rest], dim=1)
    assert_close(in_chunks(layer, rest, [1, 1], cache), layer(text, text, text, causal_mask(7))[:, 5:])


@pytest.mark.parametrize("make", LAYERS, ids=NAMES)
def test_a_layer_remembers_nothing_that_it_was_not_given_a_cache_for(make):
    layer, other = attention(make), attention(make)
    x, y = drawn(2, 5, 24).double(), drawn(2, 3, 24, seed=3).double()
    right = other(y, y, y)
    layer(x, x, x, None, KVCache())
    layer(x, x, x)
    assert torch.equal(layer(y, y, y), right)
    assert torch.equal(layer(y, y, y, None, KVCache()), right)
    assert torch.equal(other(y, y, y), right)


def test_a_cache_holds_one_set_a_group_and_not_one_a_head():
    layer, cache, x = attention(LAYERS[2]), KVCache(), drawn(3, 5, 24).double()
    layer(x, x, x, None, cache)
    assert cache.keys.shape == cache.values.shape == (3, 2, 5, 6)


def test_a_memory_is_read_once_and_only_looked_up_later():
    layer, cache = attention(MultiHeadAttention), KVCache(once=True)
    calls = []
    for part in (layer.k_proj, layer.v_proj):
        part.register_forward_hook(lambda *_: calls.append(1))
    query, memory = drawn(2, 3, 24).double(), drawn(2, 7, 24, seed=3).double()
    right = layer(query, memory, memory)
    calls.clear()
    assert_close(layer(query[:, :2], memory, memory, None, cache), right[:, :2])
    assert_close(layer(query[:, 2:], memory, memory, None, cache), right[:, 2:])
    assert len(calls) == 2
    assert cache.length == 7
    assert_close(layer(query, memory * 9, memory * 9, None, cache), right)
