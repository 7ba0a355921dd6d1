"""A nested state as named tensors plus one line of JSON, and back.

What survives a preemption has to be readable by a process that knows nothing but
the bytes, and reading it must never run code. So a state (dicts, lists, numbers,
strings, tensors, arrays, as ``state_dict()`` gives them) is split into

- ``tensors``: name -> tensor, the name being the path in the state, and
- ``skeleton``: JSON of all the rest, with a mark where a tensor was.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spotray.errors import CheckpointCorrupt, CheckpointError

_TENSOR, _ARRAY, _SCALAR = "tensor", "array", "numpy"
_LARGE = 1 << 16  # bytes; smaller tensors are hashed as they are
_ROW = 8 * 61  # bytes; a prime number of words
_ALIGN = 64  # bytes; where a tensor may start, so that a view of any dtype is aligned

ByteIndex = dict[str, tuple[int, str, list[int]]]  # name -> offset, dtype, shape


@dataclass(frozen=True)
class Captured:
    """A state, taken apart. The tensors may still be the live ones."""

    skeleton: str
    tensors: Mapping[str, torch.Tensor]

    @property
    def size_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def take_apart(state: Mapping[str, Any]) -> Captured:
    """Split a state into tensors and skeleton; copies nothing.

    Raises:
        CheckpointError: the state holds an object that cannot be stored without
            running code at the restore; the message names its path and type.
    """
    tensors: dict[str, torch.Tensor] = {}

    def tag(kind: str, value: Any) -> dict[str, Any]:
        return {"~": kind, "v": value}

    def leaf(kind: str, path: str, tensor: torch.Tensor) -> dict[str, Any]:
        name = path
        while name in tensors:  # {1: a, "1": b} and {"a/b": c, "a": {"b": d}} share paths
            name += "'"
        tensors[name] = tensor.detach()
        return tag(kind, name)

    def walk(value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        elif isinstance(value, torch.Tensor):
            if value.layout is torch.strided and not value.is_quantized:
                return leaf(_TENSOR, path, value)
        elif isinstance(value, np.ndarray):
            if _is_plain(value.dtype):
                # reshape, since ascontiguousarray makes one dimension of none
                whole = np.ascontiguousarray(value).reshape(value.shape)
                return leaf(_ARRAY, path, torch.from_numpy(whole))
        elif isinstance(value, np.generic):  # before float: np.float64 is one
            if _is_plain(value.dtype):
                return tag(_SCALAR, [value.dtype.str, value.item()])
        elif isinstance(value, bytes):
            return tag("bytes", base64.b64encode(value).decode("ascii"))
        elif isinstance(value, torch.dtype):
            return tag("dtype", str(value).removeprefix("torch."))
        elif isinstance(value, list):
            return [walk(v, f"{path}/{i}") for i, v in enumerate(value)]
        elif isinstance(value, tuple | set | frozenset | deque):
            name = "tuple" if isinstance(value, tuple) else type(value).__name__
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
            rest = [value.maxlen] if isinstance(value, deque) else []
            return tag(name, [[walk(v, f"{path}/{i}") for i, v in enumerate(items)], *rest])
        elif isinstance(value, Mapping):
            kinds = {Counter: "Counter", OrderedDict: "OrderedDict"}
            name = next((n for cls, n in kinds.items() if isinstance(value, cls)), "dict")
            pairs = [[walk(k, f"{path}/key"), walk(v, f"{path}/{k}")] for k, v in value.items()]
            if name == "dict" and all(isinstance(k, str) and k != "~" for k in value):
                return dict(pairs)
            return tag(name, pairs)
        raise CheckpointError(
            f"{path.strip('/')} is a {type(value).__module__}.{type(value).__qualname__}, which "
            "cannot be stored safely: give numbers, strings, lists, dicts, tensors or arrays"
        )

    return Captured(json.dumps(walk(dict(state), "")), tensors)


def put_together(captured: Captured) -> dict[str, Any]:
    """The state that was taken apart, with copies of the tensors.

    Copies, because some ``load_state_dict`` (torch's optimizers') keep the tensors
    that they are given, and a snapshot's tensors are the snapshot itself.

    Raises:
        CheckpointCorrupt: skeleton and tensors do not fit each other.
    """

    def build(value: Any) -> Any:
        if isinstance(value, list):
            return [build(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "~" not in value:
            return {k: build(v) for k, v in value.items()}
        kind, inner = value["~"], value["v"]
        if kind == _TENSOR:
            return captured.tensors[inner].clone()
        if kind == _ARRAY:
            return captured.tensors[inner].numpy().copy()
        if kind == _SCALAR:
            dtype = np.dtype(inner[0])
            if not _is_plain(dtype):
                raise ValueError(f"{inner[0]!r} is no type of number")
            return dtype.type(inner[1])
        if kind == "bytes":
            return base64.b64decode(inner)
        if kind == "dtype":
            return dtype_named(inner)
        if kind in ("tuple", "set", "frozenset"):
            items = [build(v) for v in inner[0]]
            return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
        if kind == "deque":
            return deque((build(v) for v in inner[0]), maxlen=inner[1])
        made = {build(k): build(v) for k, v in inner}
        return {"Counter": Counter, "OrderedDict": OrderedDict, "dict": dict}[kind](made)

    try:
        state = build(json.loads(captured.skeleton))
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as exc:
        raise CheckpointCorrupt(f"the state's skeleton does not fit its tensors: {exc!r}") from exc
    if not isinstance(state, dict):
        raise CheckpointCorrupt("the state's skeleton is not a dict")
    return state


def digest(captured: Captured) -> str:
    """Tells two states apart, at the speed of memory; no proof against intent."""
    whole = hashlib.sha256(captured.skeleton.encode())
    for name in sorted(captured.tensors):
        tensor = captured.tensors[name].detach().contiguous()
        raw = tensor.reshape(-1).view(torch.uint8)
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if raw.numel() >= _LARGE and raw.data_ptr() % 8 == 0 and raw.storage_offset() % 8 == 0:
            # Column sums of 64-bit words: also words that changed places are seen, as long
            # as they are not a multiple of a row apart.
            rows = raw.numel() // _ROW
            sums = raw[: rows * _ROW].view(torch.int64).view(rows, -1).sum(0)
            whole.update(sums.cpu().numpy().tobytes())
            raw = raw[rows * _ROW :]
        whole.update(raw.cpu().numpy().tobytes())
    return whole.hexdigest()


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether torch and JSON can hold such numbers: in this machine's byte order, no longdouble."""
    return dtype.kind in "biuf" and dtype.isnative and dtype.itemsize <= 8


def byte_index(captured: Captured) -> tuple[ByteIndex, int]:
    """Where each tensor stands in one run of bytes, and how many bytes that is."""
    index: ByteIndex = {}
    offset = 0
    for name, tensor in captured.tensors.items():
        index[name] = (offset, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
    return index, offset


def byte_view(image: torch.Tensor, offset: int, dtype: str, shape: list[int]) -> torch.Tensor:
    """A tensor of that type and shape, over the bytes of ``image`` from ``offset`` on.

    Raises:
        CheckpointCorrupt: there is no such type, or it does not fit in.
    """
    kind = dtype_named(dtype)
    count = 1
    for extent in shape:
        count *= extent
    size = count * kind.itemsize
    if offset < 0 or count < 0 or offset + size > image.numel():
        raise CheckpointCorrupt(f"a tensor lies outside of the data: {offset} + {size}")
    return image[offset : offset + size].view(kind).view(shape)


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of that name.

    Raises:
        CheckpointCorrupt: torch has none of that name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointCorrupt(f"no type {name!r} in this torch")
    return dtype
