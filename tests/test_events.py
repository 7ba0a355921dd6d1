from __future__ import annotations

import contextlib
import dataclasses
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.errors import JournalError
from spotray.events import Event, NodeDown, NodeUp, StepsDone, Unknown, decode, encode

KINDS = sorted(
    (cls for cls in Event.__subclasses__() if cls is not Unknown), key=lambda cls: cls.__name__
)
NAMES = {cls.__name__ for cls in KINDS}
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def value_of(name: str, hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Values of a field's type, built from its parts: JSON has no NaN and no bytes."""
    if hint is float:
        return finite
    if typing.get_origin(hint) is tuple:
        return st.lists(value_of(name, typing.get_args(hint)[0]), max_size=4).map(tuple)
    if typing.get_args(hint) and type(None) in typing.get_args(hint):
        some = [value_of(name, one) for one in typing.get_args(hint) if one is not type(None)]
        return st.none() | st.one_of(some)
    if "Mapping" in str(hint):
        inner = st.text() if typing.get_args(hint)[1] is str else json_values
        return st.dictionaries(st.text(), inner, max_size=3)
    return st.from_type(hint)


def events_of(cls: type[Event]) -> st.SearchStrategy[Event]:
    hints = typing.get_type_hints(cls)
    fields = {f.name: value_of(f.name, hints[f.name]) for f in dataclasses.fields(cls)}
    return st.builds(cls, **fields)


unknown = st.builds(
    Unknown,
    at_s=finite,
    kind=st.text(min_size=1).filter(lambda kind: kind not in NAMES),
    fields=st.dictionaries(
        st.text().filter(lambda name: name not in ("kind", "at_s")), json_values, max_size=3
    ),
)
any_event = st.one_of(*(events_of(cls) for cls in KINDS), unknown)


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_an_event_survives_the_journal(cls: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(cls))
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


@given(event=unknown)
def test_an_event_of_a_newer_version_is_kept_as_it_was(event: Unknown) -> None:
    assert decode(encode(event)) == event


@given(event=any_event, name=st.text(), value=json_values)
def test_a_field_of_a_newer_version_is_ignored(event: Event, name: str, value: typing.Any) -> None:
    raw = json.loads(encode(event))
    if name not in raw and not isinstance(event, Unknown) and name not in vars(event):
        assert decode(json.dumps(raw | {name: value})) == event


@given(line=st.text() | json_values.map(json.dumps))
def test_garbage_is_a_journal_error_and_nothing_else(line: str) -> None:
    with contextlib.suppress(JournalError):
        decode(line)


@given(event=any_event, data=st.data())
def test_a_damaged_line_is_an_event_or_a_journal_error(event: Event, data: st.DataObject) -> None:
    line = encode(event)
    cut = data.draw(st.integers(0, len(line)))
    with contextlib.suppress(JournalError):
        decode(line[:cut])
    raw = json.loads(line)
    raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(json_values)
    with contextlib.suppress(JournalError):
        assert isinstance(decode(json.dumps(raw)), Event)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "null",
        "[1]",
        "{}",
        '{"kind": 3, "at_s": 1.0}',
        '{"kind": "NodeDown", "node_id": "n", "cause": "failure"}',
        '{"kind": "NodeDown", "at_s": true, "node_id": "n", "cause": "failure"}',
        '{"kind": "NodeDown", "at_s": 1.0, "cause": "failure"}',
        '{"kind": "NodeDown", "at_s": 1.0, "node_id": 7, "cause": "failure"}',
        '{"kind": "NodeDown", "at_s": 1.0, "node_id": "n", "cause": ["failure"]}',
        '{"kind": "Restored", "at_s": 1.0, "generation": 1, "step": 1.5, "source": "fresh"}',
        "[" * 100_000,
        '{"kind": "NodeReady", "at_s": 1' + "0" * 400 + ', "node_id": "n"}',
        '{"kind": "NodeReady", "at_s": 1' + "0" * 5000 + ', "node_id": "n"}',
    ],
)
def test_a_line_that_is_no_event_is_a_journal_error(line: str) -> None:
    with pytest.raises(JournalError) as caught:
        decode(line)
    assert len(str(caught.value)) < 400


def test_whole_numbers_are_times_too() -> None:
    line = '{"kind": "NodeUp", "at_s": 5, "node_id": "n", "usd_per_hour": 1}'
    event = decode(line)
    assert event == NodeUp(at_s=5.0, node_id="n", usd_per_hour=1.0)
    assert isinstance(event.at_s, float)


def test_lists_come_back_as_tuples() -> None:
    event = StepsDone(
        at_s=1.0,
        generation=1,
        first_step=1,
        last_step=2,
        seconds=0.5,
        samples=64,
        world_size=2,
        ended_at_s=(0.5, 1.0),
    )
    assert decode(encode(event)) == event


def test_an_event_cannot_be_changed() -> None:
    event = NodeDown(at_s=1.0, node_id="n", cause="failure")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.cause = "shutdown"  # type: ignore[misc]
