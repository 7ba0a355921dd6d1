"""Text that YAML reads back as the value it was written for."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from spotray.cluster.yamltext import command, flow, scalar

VALUES = st.recursive(
    st.one_of(st.text(), st.integers(), st.booleans(), st.sampled_from(["no", "1.5", "~", "a b"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=8,
)


@given(VALUES)
def test_a_flow_value_is_read_back(value: Any) -> None:
    assert yaml.safe_load(flow(value)) == value


@given(st.from_regex(r"[a-z0-9.:#{}\[\]'\" $&|>~=-]+", fullmatch=True))
def test_a_command_is_read_back(text: str) -> None:
    assert yaml.safe_load("\n".join(command(text)))[0] == text


def test_a_folded_command_is_one_line_for_the_shell() -> None:
    assert yaml.safe_load("\n".join(command("a\n-b\n> c", "Why.")))[0] == "a -b > c"


def test_what_needs_no_quotes_has_none() -> None:
    assert [scalar(one) for one in ("g5.xlarge", "us-west-2a,us-west-2b", 4.0)] == [
        "g5.xlarge",
        '"us-west-2a,us-west-2b"',
        "4",
    ]
