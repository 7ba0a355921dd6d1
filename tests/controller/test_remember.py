from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.controller.remember import StateFile, decode, encode
from spotray.controller.view import Hold, Rest, State, Swap

finite = st.floats(allow_nan=False, allow_infinity=False)
states = st.builds(
    State,
    swap=st.none()
    | st.builds(Swap, until_s=finite, began_s=finite, leaves_by_s=st.none() | finite),
    rests=st.dictionaries(st.text(), st.builds(Rest, until_s=finite)),
    hold=st.none() | st.builds(Hold, until_s=finite),
    hurry_until_s=finite,
)


@given(state=states)
def test_a_state_survives_the_file(state: State) -> None:
    assert decode(encode(state)) == state


@pytest.mark.parametrize("text", ["", "[]", "{", '{"swap": {"node_id": 1}}', '{"rests": 3}'])
def test_a_damaged_file_begins_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "controller.json"
    path.write_text(text)
    assert StateFile(path).load() == State()


def test_what_was_saved_is_loaded_by_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "controller.json"
    state = State(hold=Hold(workers=3, until_s=5.0))
    assert StateFile(path).load() == State()
    StateFile(path).save(state)
    assert StateFile(path).load() == state


def test_a_disk_that_fails_costs_no_decision(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    StateFile(tmp_path / "file" / "controller.json").save(State())
