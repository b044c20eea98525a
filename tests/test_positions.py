import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from mha_course.positions import (
    AlibiAttention,
    RotaryAttention,
    SinusoidalTokenEmbedding,
    TokenAndPositionEmbedding,
    _counted,
    add_positions,
    alibi_bias,
    alibi_slopes,
    apply_rope,
    positions_from_mask,
    sinusoidal_positions,
)
from mha_course.self_attention import causal_mask

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=15, deadline=None, derandomize=True)


def drawn(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("d_model", [1, 2, 6, 7])
def test_each_entry_is_that_of_the_papers_formula(d_model):
    table = sinusoidal_positions(5, d_model)
    for position in range(5):
        for column in range(d_model):
            angle = position / 10000 ** ((column - column % 2) / d_model)
            right = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column].item() == pytest.approx(right, abs=1e-6)


def test_far_positions_are_exact():
    angle = torch.tensor(50_000 / 10000 ** (2 / 512), dtype=torch.float64)
    assert_close(sinusoidal_positions(50_001, 512)[-1, 2].double(), angle.sin(), rtol=0.0, atol=1e-7)


def test_no_two_positions_are_alike():
    table = sinusoidal_positions(2048, 64)
    distances = torch.cdist(table, table).fill_diagonal_(torch.inf)
    assert distances.min() > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_the_values_are_rounded_and_not_the_positions(dtype):
    table = sinusoidal_positions(2500, 64, dtype)
    assert table.dtype == dtype
    # Beyond 256 (bfloat16) and 2048 (float16) neighbouring positions are the same number in these types.
    for position in (257, 2049):
        angles = [position / 10000 ** (pair / 64) for pair in range(0, 64, 2)]
        right = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        assert torch.equal(table[position], torch.tensor(right, dtype=torch.float64).to(dtype))
        assert (table[position] - table[position - 1]).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_positions_are_added_to_each_sequence_from_zero_on_and_the_input_stays(dtype):
    x = drawn(3, 5, 7, dtype=dtype)
    before = x.clone()
    y = add_positions(x)
    assert torch.equal(x, before)
    assert y.dtype == dtype
    pattern = [[(math.cos if c % 2 else math.sin)(p / 10000 ** ((c - c % 2) / 7)) for c in range(7)] for p in range(5)]
    assert_close(
        y - x, torch.tensor(pattern).to(dtype).expand(3, 5, 7), rtol=0.0, atol=0.03 if dtype == torch.bfloat16 else 1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_far_positions_are_added_to_half_precision_with_the_patterns_of_their_own(dtype):
    y = add_positions(torch.zeros(2, 2053, 7, dtype=dtype))
    for position in (257, 2049):  # as numbers of these types they are their neighbours
        pattern = [(math.cos if c % 2 else math.sin)(position / 10000 ** ((c - c % 2) / 7)) for c in range(7)]
        assert_close(y[:, position], torch.tensor(pattern).to(dtype).expand(2, 7))


@properties
@given(left=st.integers(0, 4), real=st.integers(1, 5), right=st.integers(0, 4))
def test_positions_are_counted_from_the_first_real_token(left, real, right):
    mask = torch.tensor([[False] * left + [True] * real + [False] * right, [True] * (left + real + right)])
    positions = positions_from_mask(mask)
    assert positions[0, : left + real].tolist() == [0] * left + list(range(real))
    assert positions[1].tolist() == list(range(left + real + right))


def test_a_sequence_of_padding_alone_stands_at_position_zero():
    assert positions_from_mask(torch.zeros(2, 3, dtype=torch.bool)).tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("kind", [TokenAndPositionEmbedding, SinusoidalTokenEmbedding])
def test_an_embedding_is_the_sum_of_the_tokens_row_and_the_positions_row(kind):
    torch.manual_seed(1)
    embedding, ids = kind(11, 7, 5), torch.tensor([[3, 10, 3], [0, 3, 1]])
    rows = embedding.position.weight if kind is TokenAndPositionEmbedding else sinusoidal_positions(7, 5)
    for positions, at in (
        (None, [[0, 1, 2], [0, 1, 2]]),
        (torch.tensor([[4, 0, 6]]), [[4, 0, 6], [4, 0, 6]]),
        (torch.tensor([[0, 0, 1], [4, 5, 6]]), [[0, 0, 1], [4, 5, 6]]),
    ):
        assert_close(embedding(ids, positions), embedding.token.weight[ids] + rows[torch.tensor(at)])


def test_positions_are_counted_where_the_tokens_are():
    ids = torch.zeros(2, 3, dtype=torch.long, device="meta")  # any device that is not the default one
    assert _counted(ids).device.type == "meta"


def test_learned_positions_end_where_their_table_ends():
    embedding = TokenAndPositionEmbedding(11, 3, 5)
    assert embedding(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 5)
    with pytest.raises(ValueError, match=r"has 3 rows, but position 3 is asked for; cut the text to 3 tokens, or use"):
        embedding(torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="position 9 is asked for"):
        embedding(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[9]]))


@pytest.mark.parametrize("positions", [None, torch.tensor([[2, 3, 4, 5]]), torch.tensor([[0, 1, 2, 3]])])
def test_computed_positions_go_on_where_their_table_ends(positions):
    embedding = SinusoidalTokenEmbedding(11, 3, 5)
    nn.init.zeros_(embedding.token.weight)
    at = torch.arange(4) if positions is None else positions[0]
    assert_close(
        embedding(torch.zeros(2, 4, dtype=torch.long), positions), sinusoidal_positions(6, 5)[at].expand(2, 4, 5)
    )


@pytest.mark.parametrize("kind", [TokenAndPositionEmbedding, SinusoidalTokenEmbedding])
def test_an_empty_text_is_embedded_as_nothing(kind):
    assert kind(11, 3, 5)(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 5)


def test_the_parameters_are_the_tables_that_are_learned_and_no_others():
    learned, computed = TokenAndPositionEmbedding(11, 7, 5), SinusoidalTokenEmbedding(11, 7, 5)
    assert {name: tuple(p.shape) for name, p in learned.named_parameters()} == {
        "token.weight": (11, 5),
        "position.weight": (7, 5),
    }
    assert {name: tuple(p.shape) for name, p in computed.named_parameters()} == {"token.weight": (11, 5)}
    assert list(computed.state_dict()) == ["token.weight"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [3, 9])
def test_the_table_of_computed_positions_moves_with_the_module(dtype, length):
    embedding = SinusoidalTokenEmbedding(11, 7, 5).to(dtype)
    assert embedding(torch.zeros(2, length, dtype=torch.long)).dtype == dtype
    assert embedding.to("meta").table.device.type == "meta"


def turned(x, position):
    """Return a vector whose halves are the real and the imaginary parts of numbers, each turned by its angle."""
    half = x.size(-1) // 2
    angle = torch.tensor([position / 10000 ** (2 * i / x.size(-1)) for i in range(half)], dtype=torch.float64)
    numbers = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([numbers.real, numbers.imag], dim=-1)


def test_rotary_positions_multiply_by_complex_numbers_of_length_one():
    x = drawn(2, 3, 7, 10)
    before, y, given = x.clone(), apply_rope(x), torch.tensor([[0, 5, 1, 1, 50_000, 2, 3], [3, 4, 5, 6, 7, 8, 9]])
    assert torch.equal(x, before)
    chosen = apply_rope(x, given)
    for position in range(7):
        assert_close(y[:, :, position], turned(x[:, :, position], position))
        for b in range(2):
            assert_close(chosen[b, :, position], turned(x[b, :, position], given[b, position].item()))
    assert_close(apply_rope(x, given[:1])[1], apply_rope(x[1:], given[:1])[0])
    assert apply_rope(x.to("meta")).device.type == "meta"  # any device that is not the default one


@properties
@given(query=st.integers(0, 30), key=st.integers(0, 30), shift=st.integers(0, 5000))
def test_rotary_positions_keep_lengths_and_turn_products_by_the_distance_alone(query, key, shift):
    q, k = drawn(1, 1, 1, 6), drawn(1, 1, 1, 6, seed=2)
    at = [apply_rope(x, torch.tensor([[p]])) for x, p in ((q, query), (k, key), (q, query + shift), (k, key + shift))]
    assert_close((at[0] * at[1]).sum(), (at[2] * at[3]).sum())
    assert_close(at[2].norm(), q.norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_far_rotary_positions_are_as_exact_as_near_ones(dtype):
    x = drawn(1, 1, 1, 8).to(dtype)
    y = apply_rope(x, torch.tensor([[60_001]]))
    assert y.dtype == dtype
    assert_close(
        y[0, 0].double(), turned(x[0, 0].double(), 60_001), rtol=0.0, atol=1e-6 if dtype == torch.float32 else 0.03
    )


def test_features_that_do_not_come_in_pairs_are_not_turned():
    with pytest.raises(ValueError, match="7 features leave one over; use an even d_head"):
        apply_rope(torch.ones(1, 1, 3, 7))
    attention, x = RotaryAttention(21, 3), torch.ones(1, 5, 21)
    with pytest.raises(ValueError, match="use an even d_head"):
        attention(x, x, x)


def layer(make, d_model=24, num_heads=4, dropout=0.0):
    torch.manual_seed(2)
    attention = make(d_model, num_heads, dropout).double()
    for parameter in attention.parameters():  # larger than the default, so that the weights are far from even
        nn.init.normal_(parameter, std=0.4)
    return attention


def slopes_of(num_heads):
    return {3: [1 / 16, 1 / 256, 1 / 4], 4: [1 / 4, 1 / 16, 1 / 64, 1 / 256]}[num_heads]


@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
@pytest.mark.parametrize("num_heads", [3, 4])
@pytest.mark.parametrize("shape", [None, (7, 7), (2, 1, 1, 7), (2, 1, 7, 7), (2, "head", 7, 7)])
def test_attention_with_positions_is_that_of_the_definition(make, num_heads, shape):
    attention, x = layer(make, num_heads=num_heads), drawn(2, 7, 24)
    mask = None
    if shape is not None:
        shape = tuple(num_heads if size == "head" else size for size in shape)
        mask = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.6
    d_head = 24 // num_heads
    with torch.no_grad():
        q, k, v = (
            p(x).unflatten(-1, (num_heads, d_head)) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        seen = (
            torch.ones(2, num_heads, 7, 7, dtype=torch.bool) if mask is None else mask.broadcast_to(2, num_heads, 7, 7)
        )
        right_weights, mixed = torch.zeros(2, num_heads, 7, 7).double(), torch.zeros(2, 7, num_heads, d_head).double()
        for b in range(2):
            for head in range(num_heads):
                for i in range(7):
                    keys = seen[b, head, i].nonzero().flatten().tolist()
                    scores = []
                    for j in keys:
                        if make is RotaryAttention:
                            scores.append(turned(q[b, i, head], i) @ turned(k[b, j, head], j) / d_head**0.5)
                        else:
                            near = slopes_of(num_heads)[head] * abs(i - j)
                            scores.append(q[b, i, head] @ k[b, j, head] / d_head**0.5 - near)
                    if keys:
                        right_weights[b, head, i, keys] = torch.stack(scores).softmax(dim=0)
                    mixed[b, i, head] = right_weights[b, head, i] @ v[b, :, head]  # the values are not turned
        right = attention.out_proj(mixed.flatten(-2))
        output, weights = attention.with_weights(x, x, x, mask)
        assert_close(weights, right_weights)
        assert_close(output, right)
        assert_close(attention(x, x, x, mask), right)


@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
def test_attention_with_positions_sees_distances_and_not_places(make):
    attention, x = layer(make), drawn(2, 5, 24)
    padded = torch.cat([torch.full((2, 3, 24), 9.0).double(), x], dim=1)
    real = torch.tensor([False] * 3 + [True] * 5)
    output = attention(padded, padded, padded, causal_mask(8) & real)
    assert output.isfinite().all()
    assert_close(output[:, 3:], attention(x, x, x, causal_mask(5)))


@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
def test_attention_with_positions_tells_orders_apart(make):
    attention, x = layer(make), drawn(2, 5, 24)
    swapped = x[:, [0, 2, 1, 3, 4]]
    assert (attention(swapped, swapped, swapped)[:, 0] - attention(x, x, x)[:, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
def test_attention_with_positions_refuses_two_texts_between_which_there_is_no_distance(make):
    attention, x, memory = layer(make), drawn(2, 5, 24), drawn(2, 5, 24)
    for way in (attention, attention.with_weights):
        with pytest.raises(ValueError, match="for cross-attention use MultiHeadAttention"):
            way(x, memory, memory)


@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
def test_attention_with_positions_refuses_a_mask_of_three_axes(make):
    attention, x = layer(make), drawn(2, 5, 24)
    for way in (attention, attention.with_weights):
        with pytest.raises(ValueError, match=r"its shape is \(2, 5, 5\); mask\[:, None\] is the same for all heads"):
            way(x, x, x, torch.ones(2, 5, 5, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
def test_a_query_that_may_attend_to_nothing_gets_the_bias_alone_and_finite_gradients(make, dtype):
    attention, x = layer(make).to(dtype), drawn(2, 5, 24).to(dtype).requires_grad_()
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[0, :, 2] = False
    for output in (attention(x, x, x, mask), attention.with_weights(x, x, x, mask)[0]):
        assert output.dtype == dtype
        assert_close(output[0, 2], attention.out_proj.bias)
        assert torch.autograd.grad(output.float().square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
def test_dropout_acts_on_the_weights_in_training_only(make):
    attention, x = layer(make, dropout=0.5), drawn(2, 5, 24)
    for way in (attention, lambda *given: attention.with_weights(*given)[0]):
        attention.train()
        assert not torch.equal(way(x, x, x), way(x, x, x))
        attention.eval()
        assert torch.equal(way(x, x, x), way(x, x, x))


@pytest.mark.parametrize("make", [RotaryAttention, AlibiAttention])
def test_attention_with_positions_passes_gradcheck_and_runs_where_its_input_is(make):
    attention, x = layer(make, 4, 2), drawn(2, 3, 4).requires_grad_()
    mask = causal_mask(3)
    for way in (attention, lambda *given: attention.with_weights(*given)[0]):
        assert torch.autograd.gradcheck(lambda x, way=way: way(x, x, x, mask), x)
    attention, x = attention.to("meta"), x.to("meta")  # any device that is not the default one
    assert attention(x, x, x, mask.to("meta")).device.type == "meta"
    assert attention.with_weights(x, x, x, mask.to("meta"))[1].device.type == "meta"


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [0.5 * head for head in range(1, 17)]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_the_slopes_are_those_of_the_paper_and_of_its_code(num_heads, exponents):
    assert_close(alibi_slopes(num_heads), torch.tensor([2.0**-exponent for exponent in exponents]))


@properties
@given(num_heads=st.integers(1, 9), length=st.integers(1, 5), earlier=st.integers(0, 4))
def test_scores_fall_with_the_distance_from_the_querys_own_key(num_heads, length, earlier):
    bias, slopes = alibi_bias(num_heads, length, length + earlier), alibi_slopes(num_heads)
    for head in range(num_heads):
        right = [[-slopes[head].item() * abs(i + earlier - j) for j in range(length + earlier)] for i in range(length)]
        assert_close(bias[head], torch.tensor(right))
    assert torch.equal(alibi_bias(num_heads, length), alibi_bias(num_heads, length, length))
