"""Values cross unchanged, and whatever bytes come back, reading them ends in a value or in one kind of error."""

import contextlib
import json
import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mha_course.grader.channel import MESSAGE_LIMIT
from mha_course.grader.wire import DEPTH_LIMIT, HEADER_LIMIT, WireError, decode, encode
from mha_course.grader.worker import DTYPES, Foreign

NO_CLOCK = settings(deadline=None)  # a shared machine may pause at any moment


def same(left, right):
    """Equality of type, value and, of tensors, of every bit and of the order of axes in memory."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*bits)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    return left == right


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    raw = draw(st.binary(min_size=math.prod(shape) * dtype.itemsize, max_size=math.prod(shape) * dtype.itemsize))
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).permute(draw(st.permutations(range(len(shape)))))


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    tensors(),
    st.builds(Foreign, st.text(max_size=9)),
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def reads_or_refuses(data):
    with contextlib.suppress(WireError):
        decode(data)
    return True


def message(header, tail=b""):
    text = json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + tail


@NO_CLOCK
@given(values)
def test_every_plain_value_comes_back_as_it_went(value):
    assert same(decode(encode(value)), value)


@NO_CLOCK
@given(st.binary(max_size=300))
def test_any_bytes_give_a_value_or_one_kind_of_error(data):
    assert reads_or_refuses(data)


@NO_CLOCK
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.just("float32"),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["tuple", "dict", "foreign", "tensor"]), inner, max_size=2)
        ),
        max_leaves=15,
    ),
    st.binary(max_size=40),
)
def test_any_header_gives_a_value_or_one_kind_of_error(header, tail):
    assert reads_or_refuses(message(header, tail))


@NO_CLOCK
@given(
    st.sampled_from(["float32", "bool", "int64", "complex64", ""]),
    st.lists(st.integers(-1, 2**70) | st.integers(0, 3) | st.booleans(), max_size=4),
    st.lists(st.integers(-1, 4), max_size=4),
    st.binary(max_size=64),
)
def test_any_claim_about_a_tensor_gives_a_tensor_or_one_kind_of_error(name, shape, order, tail):
    assert reads_or_refuses(message({"tensor": [name, shape, order]}, tail))


@NO_CLOCK
@given(values, st.data())
def test_a_damaged_message_gives_a_value_or_one_kind_of_error(value, data):
    damaged = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert reads_or_refuses(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


def test_a_transposed_tensor_arrives_transposed_in_memory():
    tensor = torch.randn(2, 3, 5).transpose(0, 2)
    assert decode(encode(tensor)).stride() == tensor.stride()


def test_a_repeated_row_is_sent_as_so_many_rows():
    tensor = torch.randn(1, 3).expand(5, 3)
    assert torch.equal(decode(encode(tensor)), tensor)


def test_a_parameter_arrives_as_a_tensor_without_gradient():
    arrived = decode(encode(nn.Parameter(torch.ones(2))))
    assert type(arrived) is torch.Tensor
    assert not arrived.requires_grad


def test_what_arrives_can_be_written_to():
    arrived = decode(encode(torch.zeros(3)))
    arrived += 1
    assert arrived.tolist() == [1, 1, 1]


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (object(), "type object"),
        (Text("text"), "type Text"),
        (torch.nn.Buffer(torch.ones(2)).as_subclass(type("Equal", (torch.Tensor,), {})), "type Equal"),
        ({1: 2}, "keys of a dict"),
        (torch.ones(2).to_sparse(), "can't be sent"),
        (torch.ones(2, dtype=torch.complex64), "can't be sent"),
        (torch.ones(1, device="meta"), "on meta can't be sent"),
        (torch.ones([1] * 17), "17 axes"),
        (torch.ones(1).expand(2**40), "too large"),
        ([torch.ones(2**22, 3)] * 2, "at most 67,108,864"),
        ("x" * HEADER_LIMIT, "text and numbers take"),
    ],
)
def test_what_is_not_plain_is_refused(value, rule):
    with pytest.raises(WireError, match=rule):
        encode(value)


def test_a_number_of_thousands_of_digits_is_refused():
    with pytest.raises(WireError, match="Exceeds the limit"):
        encode(10**5000)


def test_endless_depth_is_refused_both_ways():
    loop = []
    loop.append(loop)
    with pytest.raises(WireError, match=f"more than {DEPTH_LIMIT} deep"):
        encode(loop)
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(WireError, match="not a message"):
        decode(struct.pack(">I", len(deep)) + deep)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "too short"),
        (bytes(MESSAGE_LIMIT + 1), "too long"),
        (struct.pack(">I", 9) + b"null", "longer than its message"),
        (message(None) + b"x", "left over"),
        (message({"code": "exit()"}), "unknown type"),
        (message({"tensor": ["float32", [2], [0]]}, bytes(7)), "longer than its message"),
        (message({"tensor": ["float32", [2**40], [0]]}), "too large"),
        (message({"tensor": ["bool", [1], [0]]}, b"\x02"), "neither 0 nor 1"),
        (message({"tensor": ["float32", [True], [0]]}, bytes(4)), "unknown type or shape"),
        (message({"tensor": ["float32", [1], [1]]}, bytes(4)), "make no sense"),
        (message({"tuple": [], "dict": {}}), "other than one type"),
    ],
)
def test_what_is_no_message_is_refused(data, rule):
    with pytest.raises(WireError, match=rule):
        decode(data)
