"""The names that users build on. A change here is a change for them: see CHANGELOG.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spotray

NAMES = [
    "CheckpointCorrupt",
    "CheckpointError",
    "ConfigError",
    "ElasticTrainer",
    "Lab",
    "ParquetDataset",
    "Run",
    "SpotConfig",
    "SpotTuner",
    "SpotrayError",
    "StateMismatch",
    "__version__",
]


def test_the_public_names_are_these() -> None:
    assert spotray.__all__ == NAMES
    assert dir(spotray) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_used(name: str) -> None:
    assert getattr(spotray, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(spotray.__file__).read_text(encoding="utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.asname
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*seen, "__version__"} == set(NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'spotray' has no attribute 'Elastic'"):
        spotray.Elastic  # noqa: B018
