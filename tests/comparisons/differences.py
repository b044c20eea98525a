"""Where the other library does otherwise: what it does, what ours does and why, and code that shows both."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from mha_course import masks
from mha_course.encoder import Encoder, EncoderLayer, layer_norm
from mha_course.multi_head import MultiHeadAttention, split_heads
from mha_course.positions import alibi_bias, apply_rope, sinusoidal_positions
from mha_course.self_attention import attention_weights, causal_mask, padding_mask, scaled_dot_product_attention

from .keras_library import keras
from .pytorch_layers import later
from .transformers_bert import bert
from .transformers_gpt2 import counted, our_gpt2, their_gpt2


@dataclass(frozen=True)
class Difference:
    library: str
    theirs: str
    ours: str
    check: Callable[[], None]


DIFFERENCES: list[Difference] = []


def difference(library: str, theirs: str, ours: str):
    """Register a function that shows what the two sentences say."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        DIFFERENCES.append(Difference(library, theirs, ours, check))
        return check

    return register


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def one_row_hidden(queries: int, keys: int) -> Tensor:
    mask = torch.ones(queries, keys, dtype=torch.bool)
    mask[1] = False
    return mask


def layers(width: int = 6, heads: int = 2, **options) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    torch.manual_seed(5)
    ours = MultiHeadAttention(width, heads, **options)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True, **options)
    with torch.no_grad():
        parts = (ours.q_proj, ours.k_proj, ours.v_proj)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    return ours, theirs


PYTORCH, TRANSFORMERS, KERAS = "PyTorch", "transformers", "Keras"


@difference(
    PYTORCH,
    "`nn.MultiheadAttention` and `nn.Transformer` take True for *may not attend*.",
    "Here, as in `F.scaled_dot_product_attention`, True means *may attend*, so that masks are combined with `&` and a "
    "product with the mask removes what is hidden. `mha_course.masks` converts in both directions.",
)
def polarity():
    ours, theirs = layers()
    x, mask = drawn(2, 5, 6), causal_mask(5)
    assert_close(theirs(x, x, x, attn_mask=~mask)[0], ours(x, x, x, mask))
    assert not torch.allclose(theirs(x, x, x, attn_mask=mask.T)[0], ours(x, x, x, mask))


@difference(
    PYTORCH,
    "`nn.MultiheadAttention` asked for weights returns NaN for a query that may attend to nothing; so does its fast path "
    "(evaluation, no gradients, self-attention) without weights.",
    "The weights are 0 and the output is the bias of the output projection, in every mode and with finite gradients: one "
    "empty row must not make a whole model NaN. PyTorch's layer without weights does the same outside its fast path.",
)
def a_query_that_may_attend_to_nothing():
    ours, theirs = layers()
    x, mask = drawn(2, 5, 6).requires_grad_(), one_row_hidden(5, 5)
    output, weights = ours.with_weights(x, x, x, mask)
    right = ours.out_proj.bias.expand(2, 6)
    assert_close(output[:, 1], right)
    assert (weights[:, :, 1] == 0).all()
    for found in (output, ours(x, x, x, mask)):
        assert torch.autograd.grad(found.sum(), x, retain_graph=True)[0].isfinite().all()
    for training in (True, False):
        assert theirs.train(training)(x, x, x, attn_mask=~mask)[0][:, 1].isnan().all()
        assert_close(theirs(x, x, x, attn_mask=~mask, need_weights=False)[0][:, 1], right)
    with torch.no_grad():
        assert theirs.eval()(x, x, x, attn_mask=~mask, need_weights=False)[0][:, 1].isnan().all()
        assert_close(ours.eval()(x, x, x, mask)[:, 1], right)


@difference(
    PYTORCH,
    "`nn.MultiheadAttention` returns the weights after dropout, and by default their mean over the heads.",
    "`with_weights` returns the weights of each head before dropout: each row sums to 1.",
)
def weights_after_dropout_and_averaged():
    ours, theirs = layers(dropout=0.5)
    x = drawn(2, 5, 6)
    _, weights = ours.with_weights(x, x, x)
    assert_close(weights.sum(dim=-1), torch.ones(2, 2, 5))
    _, dropped = theirs(x, x, x, average_attn_weights=False)
    assert (dropped == 0).any()
    assert_close(theirs.eval()(x, x, x)[1], weights.mean(dim=1))


@difference(
    PYTORCH,
    "`nn.MultiheadAttention` puts the batch second, (length, batch, d_model), unless `batch_first=True` is given.",
    "The batch always comes first.",
)
def batch_second():
    ours, _ = layers()
    theirs = nn.MultiheadAttention(6, 2)
    theirs.load_state_dict(layers()[1].state_dict())
    x = drawn(2, 5, 6)
    assert_close(theirs(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1), ours(x, x, x))
    assert not torch.allclose(theirs(x, x, x)[0], ours(x, x, x))


@difference(
    PYTORCH,
    "`F.scaled_dot_product_attention` adds a mask of decimal numbers to the scores: one of zeros and ones hides nothing, and "
    "nothing is reported.",
    "A mask that is not boolean is refused with a sentence that says how to convert it. What is to be added is a `bias`.",
)
def a_float_mask_is_added():
    query, key = drawn(2, 3, 5, 7), drawn(2, 3, 11, 7)
    mask = (drawn(5, 11) > 0).float()
    identity = torch.eye(11).expand(2, 3, -1, -1)
    theirs = F.scaled_dot_product_attention(query, key, identity, attn_mask=mask)
    assert (theirs > 0).all()
    assert_close(theirs, attention_weights(query, key, bias=mask))
    refused(query, key, mask)


@difference(
    PYTORCH,
    "`F.scaled_dot_product_attention` refuses a mask of whole numbers, as tokenizers give them.",
    "So does ours; `masks.from_tokenizer` reads such a mask.",
)
def a_mask_of_whole_numbers_is_refused():
    query, key = drawn(2, 3, 5, 7), drawn(2, 3, 11, 7)
    mask = torch.ones(5, 11, dtype=torch.long)
    with pytest.raises(RuntimeError, match="Expected attn_mask dtype to be bool or float"):
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    refused(query, key, mask)


def refused(query: Tensor, key: Tensor, mask: Tensor) -> None:
    unchecked = inspect.unwrap(attention_weights)  # as users have it, without the tests' check of types
    with pytest.raises(
        ValueError, match=r"the mask must be boolean, .* convert one of zeros and ones with mask.bool\(\)"
    ):
        unchecked(query, key, mask)


@difference(
    PYTORCH,
    "`is_causal=True` starts the diagonal in the upper left corner, also where there are fewer queries than keys: the first "
    "query sees the first key alone.",
    "`causal_mask(length, total)` ends the diagonal in the lower right corner: the queries are the last of the positions, as "
    "they are with a cache. For as many queries as keys both are the same.",
)
def causal_masks_are_aligned_otherwise():
    query, key = drawn(2, 3, 5, 7), drawn(2, 3, 11, 7)
    theirs = F.scaled_dot_product_attention(query, key, key, is_causal=True)
    assert_close(theirs[:, :, 0], key[:, :, 0])
    upper_left = torch.ones(5, 11, dtype=torch.bool).tril()
    assert_close(theirs, scaled_dot_product_attention(query, key, key, upper_left)[0])
    assert not torch.allclose(theirs, scaled_dot_product_attention(query, key, key, causal_mask(5, 11))[0])
    square = F.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert_close(square, scaled_dot_product_attention(query, query, query, causal_mask(5))[0])


@difference(
    PYTORCH,
    "`dropout_p` of `F.scaled_dot_product_attention` acts in evaluation too: a function does not know the mode.",
    "`MultiHeadAttention` hands it over in training alone.",
)
def dropout_of_the_function_acts_always():
    query, layer = drawn(2, 3, 5, 7), MultiHeadAttention(6, 2, dropout=0.5).eval()
    dropped = F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
    assert not torch.allclose(dropped, F.scaled_dot_product_attention(query, query, query))
    x = drawn(2, 5, 6)
    assert torch.equal(layer(x, x, x), layer(x, x, x))


@difference(
    PYTORCH,
    "`nn.TransformerEncoder` in evaluation without gradients returns zeros in place of padding, and otherwise numbers.",
    "`Encoder` returns numbers at padding in every mode. They mean nothing, and a mask must keep them out of what follows.",
)
def padding_becomes_zeros():
    torch.manual_seed(5)
    ours = Encoder(6, 2, 11, num_layers=2, norm_first=False).eval()
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 11, batch_first=True), num_layers=2).eval()
    x, mask = drawn(2, 5, 6), padding_mask(torch.tensor([3, 2]), 5)
    hidden = masks.to_key_padding_mask(mask)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")
        assert (theirs(x, src_key_padding_mask=hidden)[hidden] == 0).all()
        assert (ours(x, mask)[hidden] != 0).all()
    assert (theirs(x, src_key_padding_mask=hidden)[hidden] != 0).all()


@difference(
    PYTORCH,
    "`nn.Transformer` ends each stack on one norm more even if it is post-norm.",
    "`Encoder` and `Decoder` have this norm for pre-norm alone: post-norm layers already end on one, as in the paper.",
)
def one_norm_more():
    for norm_first, more in ((True, 0), (False, 1)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor is True")  # said of pre-norm layers
            theirs = nn.Transformer(6, 2, 1, 1, 11, batch_first=True, norm_first=norm_first).encoder
        ours = Encoder(6, 2, 11, num_layers=1, norm_first=norm_first)
        counts = [sum(isinstance(part, nn.LayerNorm) for part in model.modules()) for model in (theirs, ours)]
        assert counts[0] - counts[1] == more


@difference(
    PYTORCH,
    "`nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer` drop out 0.1 by default, between the two dense layers too.",
    "The default is no dropout. It acts on what each sublayer adds, as in the paper, and on the weights.",
)
def dropout_by_default():
    theirs, ours = nn.TransformerEncoderLayer(6, 2, 11, batch_first=True), EncoderLayer(6, 2, 11)
    x = drawn(2, 5, 6)
    assert not torch.equal(theirs(x), theirs(x))
    assert torch.equal(ours(x), ours(x))
    assert theirs.dropout.p == 0.1
    theirs.eval()
    theirs.dropout.train()  # the one between the dense layers, alone
    assert not torch.equal(theirs(x), theirs(x))


@difference(
    TRANSFORMERS,
    "BERT adds the lowest number to hidden scores; a query that may attend to nothing then attends to all keys evenly, the "
    "hidden ones too.",
    "The weights are multiplied by the mask after the softmax, which makes that row 0. Nothing else changes.",
)
def a_row_of_nothing_is_even():
    theirs = bert(BertSelfAttention, 6, 2, "eager").eval()
    x, mask = drawn(2, 5, 6), one_row_hidden(5, 5)
    _, weights = theirs(x, masks.to_additive(mask[None, None]))
    assert_close(weights[:, :, 1], torch.full((2, 2, 5), 0.2))
    query, key = (split_heads(projection(x), 2) for projection in (theirs.query, theirs.key))
    assert_close(attention_weights(query, key, mask), weights * mask)


@difference(
    TRANSFORMERS,
    "GPT-2 does not take positions from `attention_mask`: called with a text padded on its left and no `position_ids`, it "
    "counts the padding.",
    "`LanguageModel` counts from the first real token, so that padding changes nothing.",
)
def positions_of_a_padded_text():
    theirs, ours = their_gpt2(6, 2).eval(), our_gpt2(6, 2).eval()
    ids, real = torch.tensor([[0, 0, 5, 3, 11]]), torch.tensor([[False, False, True, True, True]])
    with torch.no_grad():
        alone, padded = theirs(ids[:, 2:]).logits, theirs(ids, attention_mask=real.long()).logits
        assert not torch.allclose(padded[:, 2:], alone, atol=1e-4)
        helped = theirs(ids, attention_mask=real.long(), position_ids=counted(real)).logits
        assert_close(helped[:, 2:], alone)
        assert_close(ours(ids, real)[:, 2:], ours(ids[:, 2:]))


@difference(
    TRANSFORMERS,
    "Llama computes the angles of rotary positions in float32: at position 100,003 they are off by more than 0.001.",
    "`apply_rope` computes them in float64 and rounds once, at the end.",
)
def angles_of_far_positions():
    position, d_head = torch.tensor([[100_003]]), 22
    frequency = torch.tensor([10000.0 ** (-2 * i / d_head) for i in range(d_head // 2)], dtype=torch.float64)
    right = (100_003 * frequency).cos().float()
    theirs, _ = LlamaRotaryEmbedding(LlamaConfig(head_dim=d_head))(torch.zeros(1), position)
    assert (theirs[0, 0, : d_head // 2] - right).abs().max() > 1e-3
    ones = torch.cat([torch.ones(d_head // 2), torch.zeros(d_head // 2)]).view(1, 1, 1, d_head)
    assert_close(apply_rope(ones, position)[0, 0, 0, : d_head // 2], right, rtol=0.0, atol=1e-6)


@difference(
    TRANSFORMERS,
    "BLOOM adds slope times *position* of the key, counted from 0.",
    "`alibi_bias` is minus slope times distance, as in the paper. The two differ by one number in each row of the scores, "
    "which the softmax takes away. Without a causal mask they are not the same: BLOOM's would favour what comes last.",
)
def alibi_counts_from_the_first_key():
    theirs = build_alibi_tensor(torch.ones(1, 5, dtype=torch.long), 3, torch.float32)
    moved = alibi_bias(3, 5) - theirs
    earlier = causal_mask(5).expand(3, -1, -1)
    row = moved[:, :, :1].expand(3, 5, 5)
    assert_close(moved[earlier], row[earlier])
    assert not torch.allclose(moved, row)


@difference(
    TRANSFORMERS,
    "Marian's table of positions holds all sines, then all cosines.",
    "`sinusoidal_positions` has sine and cosine in turn, as in the paper. A layer that learns does not notice.",
)
def sines_first():
    theirs = MarianSinusoidalPositionalEmbedding(7, 6).create_weight()
    ours = sinusoidal_positions(7, 6)
    assert_close(theirs, torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1))


@difference(
    KERAS,
    "`MultiHeadAttention` takes query, *value*, key, in this order, and the value stands for a key that is left out.",
    "Ours takes query, key, value, as the paper and PyTorch do.",
)
def value_before_key():
    theirs = keras.layers.MultiHeadAttention(2, 3)
    query, key, value = drawn(2, 5, 6), drawn(2, 7, 6), 1 + drawn(2, 7, 6).flip(1)
    assert list(inspect.signature(theirs.call).parameters)[:3] == ["query", "value", "key"]
    assert list(inspect.signature(MultiHeadAttention.forward).parameters)[1:4] == ["query", "key", "value"]
    assert_close(theirs(query, value), theirs(query, value=value, key=value))
    assert not torch.allclose(theirs(query, value, key), theirs(query, key, value))


@difference(
    KERAS,
    "`LayerNormalization` adds 1e-3 to the variance.",
    "`layer_norm` adds 1e-5, as PyTorch does; the layers can be given BERT's 1e-12, as `norm_eps`.",
)
def another_epsilon():
    x, ones, zeros = 0.01 * drawn(2, 5, 6), torch.ones(6), torch.zeros(6)
    theirs = keras.layers.LayerNormalization()(x)
    assert_close(theirs, layer_norm(x, ones, zeros, eps=1e-3))
    assert not torch.allclose(theirs, layer_norm(x, ones, zeros), rtol=0.1)


@difference(
    KERAS,
    "`MultiHeadAttention` lets a query that may attend to nothing attend to all keys evenly; asked for scores, it returns zeros.",
    "Zeros in both ways: whether the weights are looked at must not change the result.",
)
def two_answers_for_a_row_of_nothing():
    theirs, x, mask = keras.layers.MultiHeadAttention(2, 3), drawn(2, 5, 6), one_row_hidden(5, 5).expand(2, -1, -1)
    even = theirs(x, x, attention_mask=mask)
    zeros, weights = theirs(x, x, attention_mask=mask, return_attention_scores=True)
    assert (weights[:, :, 1] == 0).all()
    assert_close(zeros[:, 1], torch.zeros(2, 6))  # the bias is 0 in a new layer
    values = theirs.value_dense(x).mean(dim=1, keepdim=True)
    assert_close(even[:, 1], theirs.output_dense(values)[:, 0])
    _, weights = layers()[0].with_weights(x, x, x, mask[:, None])
    assert (weights[:, :, 1] == 0).all()


@difference(
    KERAS,
    "`use_causal_mask` starts the diagonal in the upper left corner.",
    "`causal_mask` ends it in the lower right one: the queries are the last of the positions.",
)
def causal_masks_of_keras():
    theirs, x = keras.layers.MultiHeadAttention(2, 3), drawn(2, 7, 6)
    _, weights = theirs(x[:, :3], x, use_causal_mask=True, return_attention_scores=True)
    assert_close(weights[:, :, 0], F.one_hot(torch.tensor(0), 7).float().expand(2, 2, 7))
    assert not causal_mask(3, 7).equal(~later(7)[:3])


@difference(
    KERAS,
    "With PyTorch underneath, `MultiHeadAttention` without scores and `LayerNormalization` compute in float32 when the layer "
    "and its input are float64, and hand the result on as float64.",
    "What comes in as float64 is computed in float64.",
)
def float64_is_computed_in_float32():
    x = drawn(2, 5, 6).double()
    layer = keras.layers.LayerNormalization(epsilon=1e-5, dtype="float64")
    theirs, right = layer(x), F.layer_norm(x, (6,))
    assert theirs.dtype == torch.float64
    assert 1e-9 < (theirs - right).abs().max() < 1e-5
    assert (layer_norm(x, torch.ones(6).double(), torch.zeros(6).double()) - right).abs().max() < 1e-14
    attention = keras.layers.MultiHeadAttention(2, 3, dtype="float64")
    short = attention(x, x)
    exact, _ = attention(x, x, return_attention_scores=True)
    assert short.dtype == torch.float64
    assert 1e-10 < (short - exact).abs().max() < 1e-5
