"""Turn plain values into bytes and back, so that nothing but values crosses from the process that is not trusted.

A message is the length of its header, the header as JSON, and the tensors' bytes one after the other. Reading one never
runs anything, and whatever bytes come, the result is a value or a `WireError`.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from typing import Any

import torch
from torch import Tensor, nn

from mha_course.grader.channel import MESSAGE_LIMIT
from mha_course.grader.worker import DTYPES, Foreign

HEADER_LIMIT = 4 * 2**20  # bytes of its JSON, and so the number of values and the memory that reading it takes
DEPTH_LIMIT = 32
AXIS_LIMIT = 16

_LENGTH = struct.Struct(">I")
_DTYPE_OF = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_NAME_OF = {dtype: name for name, dtype in _DTYPE_OF.items()}


class WireError(ValueError):
    """A value that can't be sent, or bytes that are no message."""


def encode(value: Any) -> bytes:
    """Write a plain value as bytes.

    Args:
        value: None, a bool, int, float or str, a dense CPU tensor, a `Foreign`, or a list, tuple or dict (of str keys)
            of these. Types count exactly: a subclass is refused.

    Returns:
        The message. Of a tensor it holds type, shape, every bit, and which axis lies innermost in memory.

    Raises:
        WireError: if a value is of another type, or if the whole is too deep or too large.

    >>> decode(encode({"weights": (0.5, None)}))
    {'weights': (0.5, None)}
    """
    tensors: list[bytes] = []
    try:
        header = json.dumps(_pack(value, tensors, 0), separators=(",", ":")).encode("ascii")
    except ValueError as error:  # an int of thousands of digits, or our own refusal
        raise WireError(str(error)) from error
    if len(header) > HEADER_LIMIT:
        raise WireError(f"text and numbers take {len(header):,} bytes; at most {HEADER_LIMIT:,} can be sent")
    message = b"".join((_LENGTH.pack(len(header)), header, *tensors))
    if len(message) > MESSAGE_LIMIT:
        raise WireError(f"the value takes {len(message):,} bytes; at most {MESSAGE_LIMIT:,} can be sent")
    return message


def decode(message: bytes) -> Any:
    """Read a plain value back, whoever wrote the bytes.

    Args:
        message: bytes, meant to come from `encode`.

    Returns:
        A value of the types that `encode` takes; tensors own their memory.

    Raises:
        WireError: if the bytes are anything but one well-formed message.
    """
    if not _LENGTH.size <= len(message) <= MESSAGE_LIMIT:
        raise WireError("a message is too short or too long")
    (length,) = _LENGTH.unpack_from(message)
    end = _LENGTH.size + length
    if length > HEADER_LIMIT or end > len(message):
        raise WireError("a header is longer than its message or than the limit")
    try:
        header = json.loads(message[_LENGTH.size : end].decode("ascii"))
        reader = _Reader(message, end)
        value = reader.unpack(header, 0)
    except (ValueError, RecursionError) as error:  # JSON's and Unicode's errors are ValueErrors
        raise WireError(f"not a message: {error}") from error
    if reader.position != len(message):
        raise WireError("bytes are left over at the end of a message")
    return value


def _pack(value: Any, tensors: list[bytes], depth: int) -> Any:
    """Make JSON of a value: what JSON lacks becomes an object whose one key names the type."""
    if depth > DEPTH_LIMIT:
        raise WireError(f"values lie more than {DEPTH_LIMIT} deep")
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_pack(item, tensors, depth + 1) for item in value]
    if kind is tuple:
        return {"tuple": [_pack(item, tensors, depth + 1) for item in value]}
    if kind is dict:
        if any(type(key) is not str for key in value):
            raise WireError("the keys of a dict must be strings")
        return {"dict": {key: _pack(item, tensors, depth + 1) for key, item in value.items()}}
    if kind is Foreign:
        return {"foreign": str(value.type_name)}
    if kind in (Tensor, nn.Parameter):
        return {"tensor": _pack_tensor(value, tensors)}
    raise WireError(f"a value of type {kind.__name__} can't be sent")


def _pack_tensor(tensor: Tensor, tensors: list[bytes]) -> list[Any]:
    tensor = tensor.detach()
    shape = list(tensor.shape)
    if tensor.dtype not in _NAME_OF or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise WireError(f"a {tensor.dtype} {tensor.layout} tensor on {tensor.device} can't be sent")
    if tensor.dim() > AXIS_LIMIT:
        raise WireError(f"a tensor has {tensor.dim()} axes; at most {AXIS_LIMIT} can be sent")
    if tensor.numel() * tensor.element_size() > MESSAGE_LIMIT:
        raise WireError(f"a tensor of shape {tuple(tensor.shape)} is too large to be sent")
    order = list(range(tensor.dim()))
    if not tensor.is_contiguous():
        order.sort(key=tensor.stride().__getitem__, reverse=True)
        tensor = tensor.permute(order).contiguous()
    tensor = tensor.resolve_neg()
    # Of all ways to get at the bytes this one is the fastest by far, and there are dozens of tensors in a case.
    tensors.append(ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b"")
    return [_NAME_OF[tensor.dtype], shape, order]


class _Reader:
    """Rebuilds a value from its header, taking the tensors' bytes in the order in which they are named."""

    def __init__(self, message: bytes, position: int) -> None:
        self.message = message
        self.position = position

    def unpack(self, node: Any, depth: int) -> Any:
        if depth > DEPTH_LIMIT:
            raise WireError(f"values lie more than {DEPTH_LIMIT} deep")
        if type(node) is list:
            return [self.unpack(item, depth + 1) for item in node]
        if type(node) is not dict:
            return node
        if len(node) != 1:
            raise WireError("a typed value has other than one type")
        (kind, body), *_ = node.items()
        match kind, body:
            case "tuple", list():
                return tuple(self.unpack(item, depth + 1) for item in body)
            case "dict", dict():
                return {key: self.unpack(item, depth + 1) for key, item in body.items()}
            case "foreign", str():
                return Foreign(body)
            case "tensor", [str(name), list(shape), list(order)]:
                return self.tensor(name, shape, order)
        raise WireError("a value is of an unknown type")

    def tensor(self, name: str, shape: list[Any], order: list[Any]) -> Tensor:
        dtype = _DTYPE_OF.get(name)
        if dtype is None or len(shape) > AXIS_LIMIT or any(type(n) is not int for n in (*shape, *order)):
            raise WireError("a tensor has an unknown type or shape")
        if sorted(order) != list(range(len(shape))) or any(n < 0 for n in shape):
            raise WireError("a tensor's axes make no sense")
        if math.prod(max(n, 1) for n in shape) > MESSAGE_LIMIT:  # an empty tensor may still claim endless axes
            raise WireError("a tensor is too large")
        start, self.position = self.position, self.position + math.prod(shape) * dtype.itemsize
        if self.position > len(self.message):
            raise WireError("a tensor is longer than its message")
        raw = bytearray(self.message[start : self.position])
        if dtype is torch.bool and raw.translate(None, b"\0\1"):
            raise WireError("a truth value is neither 0 nor 1")
        flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        tensor = flat.view([shape[axis] for axis in order])
        return tensor if order == sorted(order) else tensor.permute([order.index(axis) for axis in range(len(order))])
