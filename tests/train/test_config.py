"""Every default works, and a wrong value is named with its range."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from spotray.errors import ConfigError
from spotray.train.config import SpotConfig


def test_the_defaults_are_valid_and_cannot_be_changed() -> None:
    spot = SpotConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spot.keep_checkpoints = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("snapshot_interval_s", 0.0, "must be a positive number of seconds, got 0.0"),
        ("snapshot_interval_s", float("nan"), "got nan"),
        ("checkpoint_min_interval_s", -1.0, "got -1.0"),
        ("checkpoint_interval_s", 0, "got 0"),
        ("node_mtbp_s", -5.0, "got -5.0"),
        ("snapshot_cost_frac", 0.0, "must lie between 0 and 1, got 0.0"),
        ("snapshot_cost_frac", 1.5, "got 1.5"),
        ("snapshot_cost_frac", float("nan"), "got nan"),
        ("keep_checkpoints", 0, "must be at least 1, got 0"),
        ("notice_margin_s", -0.1, "must not be negative, got -0.1"),
        ("notice_margin_s", float("nan"), "got nan"),
        ("max_restarts_without_progress", 0, "must be at least 1, got 0"),
    ],
)
def test_a_wrong_value_is_named_with_its_range(field: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpotConfig(**{field: value})
    assert str(caught.value).startswith(field)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [1e-9, 3, float("inf")])
def test_any_positive_interval_is_taken(value: float) -> None:
    assert SpotConfig(snapshot_interval_s=value).snapshot_interval_s == value
