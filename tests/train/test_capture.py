"""A state taken apart and put together is the same state; what cannot be stored is named."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spotray.errors import CheckpointCorrupt, CheckpointError
from spotray.train.capture import (
    Captured,
    byte_index,
    byte_view,
    dtype_named,
    put_together,
    take_apart,
)

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
shapes = st.sampled_from([(), (0,), (1,), (3,), (2, 3), (0, 4), (2, 1, 2)])


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    values = draw(st.lists(st.integers(0, 100), min_size=12, max_size=12))
    count = math.prod(shape)
    return torch.tensor(values[:count]).reshape(shape).to(dtype)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from(DTYPES),
)
arrays = hnp.arrays(
    dtype=st.sampled_from(["<f4", "<f8", "<i8", "|u1", "<i2", "|b1"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3),
)
numpy_scalars = st.one_of(
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.integers(0, 255).map(np.uint8),
    st.integers(-(2**60), 2**60).map(np.int64),
    st.booleans().map(np.bool_),
)
# "~" marks a tag in the skeleton, "/" parts a path.
keys = st.one_of(
    st.sampled_from(["~", "v", "a/b", "a", "b", "1", ""]), st.text(max_size=4), st.integers()
)
leaves = st.one_of(scalars, tensors(), arrays, numpy_scalars)
hashable = st.one_of(st.integers(), st.text(max_size=3))
sets = st.one_of(st.sets(hashable), st.frozensets(hashable))
counters = st.dictionaries(hashable, st.integers(0, 9), max_size=3).map(Counter)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=3)
    return st.one_of(
        items,
        items.map(tuple),
        st.builds(deque, items, st.sampled_from([None, 5])),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.tuples(st.integers(), st.booleans()), inner, max_size=2),
    )


states = st.dictionaries(
    st.text(max_size=4), st.recursive(leaves | sets | counters, nested, max_leaves=12), max_size=4
)


def same(a: Any, b: Any) -> bool:
    """Same types and same bits, at any depth, in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [t.reshape(-1).view(torch.uint8).tolist() if t.numel() else [] for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and raw[0] == raw[1]
    if isinstance(a, np.floating) and np.isnan(a):
        return bool(np.isnan(b))  # which NaN it was, JSON does not keep
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(same(x, y) for x, y in pairs)
    if isinstance(a, deque):
        return a.maxlen == b.maxlen and same(list(a), list(b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=False))
    if isinstance(a, float):
        return math.isnan(a) and math.isnan(b) or (a, str(a)) == (b, str(b))
    return bool(a == b)


@given(states)
def test_a_state_comes_back_as_it_was(state: dict[str, Any]) -> None:
    captured = take_apart(state)
    assert same(put_together(captured), state)


@given(states)
def test_a_state_comes_back_from_its_bytes(state: dict[str, Any]) -> None:
    captured = take_apart(state)
    index, size = byte_index(captured)
    image = torch.full((size,), 0xAB, dtype=torch.uint8)
    for name, place in index.items():
        byte_view(image, *place).copy_(captured.tensors[name])
    index = json.loads(json.dumps(index))  # as a snapshot keeps it
    views = {name: byte_view(image, *place) for name, place in index.items()}
    assert same(put_together(Captured(captured.skeleton, views)), state)


def test_what_is_taken_apart_is_not_copied_and_what_is_put_together_is() -> None:
    weight = torch.ones(3)
    captured = take_apart({"w": weight})
    weight.fill_(2)
    restored = put_together(captured)["w"]
    assert restored.tolist() == [2, 2, 2]
    weight.fill_(3)
    assert restored.tolist() == [2, 2, 2]
    assert captured.size_bytes == 12


@pytest.mark.parametrize(
    "state",
    [
        {"a": {1: torch.ones(1), "1": torch.zeros(1)}},
        {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}},
        {"a": {(1, 2): torch.ones(1), "(1, 2)": torch.zeros(1)}},
    ],
)
def test_two_tensors_whose_paths_look_alike_stay_two(state: dict[str, Any]) -> None:
    assert same(put_together(take_apart(state)), state)


def test_a_view_with_strides_comes_back_with_its_values() -> None:
    state = {"t": torch.arange(6.0).reshape(2, 3).t(), "n": np.arange(6).reshape(2, 3).T[:, ::-1]}
    restored = put_together(take_apart(state))
    assert torch.equal(restored["t"], state["t"])
    np.testing.assert_array_equal(restored["n"], state["n"])


def test_states_of_optimizers_and_generators_come_back() -> None:
    import random

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    bits = np.random.PCG64(3).state
    state = {
        "optimizer": optimizer.state_dict(),
        "python": random.getstate(),
        "numpy": bits,
        "torch": torch.get_rng_state(),
        "scheduler": {"milestones": Counter([3, 3, 9]), "best": np.float64("inf")},
    }
    assert same(put_together(take_apart(state)), state)


class Odd:
    pass


@pytest.mark.parametrize(
    ("state", "path", "kind"),
    [
        ({"model": {"layers": [1, Odd()]}}, "model/layers/1", "test_capture.Odd"),
        ({"f": {"go": print}}, "f/go", "builtin_function_or_method"),
        ({"a": np.array(["x"], dtype=object)}, "a", "numpy.ndarray"),
        ({"a": np.array(["x"])}, "a", "numpy.ndarray"),
        ({"a": np.ones(2, dtype=">f4")}, "a", "numpy.ndarray"),
        ({"a": np.longdouble(1)}, "a", "numpy.longdouble"),
        ({"a": np.ones(1, dtype=np.longdouble)}, "a", "numpy.ndarray"),
        ({"a": {"s": torch.eye(2).to_sparse()}}, "a/s", "torch.Tensor"),
        ({"a": 1j}, "a", "complex"),
        ({"a": {Odd(): 1}}, "a/key", "test_capture.Odd"),
        ({"device": torch.device("cpu")}, "device", "torch.device"),
    ],
)
def test_what_cannot_be_stored_is_named_with_path_and_type(
    state: dict[str, Any], path: str, kind: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        take_apart(state)
    text = str(caught.value)
    assert text.startswith(f"{path} is a ")
    assert kind in text
    assert "give numbers, strings, lists, dicts, tensors or arrays" in text
    assert "\n" not in text


TAGS = ["tensor", "array", "numpy", "bytes", "dtype", "tuple", "set", "deque", "Counter", "dict"]
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(["/w", "/half", "<i8", "|i1", "|V8", "|O", "float32", "Tensor", ""]),
        st.text(max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.fixed_dictionaries({"~": st.sampled_from(TAGS) | inner, "v": inner}),
        st.fixed_dictionaries({"~": st.sampled_from(TAGS)}),
    ),
    max_leaves=10,
)
HELD = {"/w": torch.ones(2), "/half": torch.ones(2, dtype=torch.bfloat16)}


@given(st.one_of(json_values, st.dictionaries(st.text(max_size=2), json_values)))
def test_a_skeleton_of_any_json_is_a_state_or_corrupt(document: Any) -> None:
    try:
        state = put_together(Captured(json.dumps(document), HELD))
    except CheckpointCorrupt:
        return
    assert isinstance(state, dict)


@given(states, st.data())
def test_a_cut_or_changed_skeleton_is_a_state_or_corrupt(
    state: dict[str, Any], data: st.DataObject
) -> None:
    captured = take_apart(state)
    text = captured.skeleton
    at = data.draw(st.integers(0, len(text) - 1))
    change = data.draw(st.sampled_from(["", "}", '"', "9", "~", "\x00"]))
    rest = text[at + 1 :] if data.draw(st.booleans()) else ""
    damaged = Captured(text[:at] + change + rest, captured.tensors)
    with contextlib.suppress(CheckpointCorrupt):
        assert isinstance(put_together(damaged), dict)


@pytest.mark.parametrize(
    "skeleton",
    [
        "",
        "[]",
        "nonsense",
        '{"a": {"~": "tensor", "v": "/gone"}}',
        '{"a": {"~": "pickle", "v": []}}',
        '{"a": {"~": "numpy", "v": ["|i1", 300]}}',
        '{"a": {"~": "numpy", "v": ["|V8", 1000000000000]}}',
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_a_damaged_skeleton_is_corrupt(skeleton: str) -> None:
    with pytest.raises(CheckpointCorrupt):
        put_together(Captured(skeleton, HELD))


@pytest.mark.parametrize(
    "place",
    [
        (0, "float32", [5]),
        (-4, "float32", [1]),
        (16, "float32", [1]),
        (0, "float32", [-1]),
        (0, "Tensor", [1]),
        (0, "no_such", [1]),
        (0, "float32", [2**62, 2**62]),
    ],
)
def test_a_tensor_outside_of_its_bytes_is_corrupt(place: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        byte_view(torch.zeros(16, dtype=torch.uint8), *place)


def test_dtype_names_lead_back() -> None:
    for dtype in DTYPES:
        assert dtype_named(str(dtype).removeprefix("torch.")) is dtype
