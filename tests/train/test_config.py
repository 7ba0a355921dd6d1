"""Every default works, and a wrong value is named with its range."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from spotray.checkpoint.manifest import Retention
from spotray.errors import ConfigError
from spotray.train.config import SpotConfig


def test_the_defaults_are_valid_and_cannot_be_changed() -> None:
    spot = SpotConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spot.keep_checkpoints = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("snapshot_interval_s", 0.0, "positive number of seconds, got 0.0: leave it out for 3.0"),
        ("snapshot_interval_s", float("nan"), "got nan"),
        ("snapshot_interval_s", float("inf"), "got inf: leave it out for 3.0, or give 86400"),
        ("snapshot_interval_s", "3", "got '3'"),
        ("checkpoint_min_interval_s", -1.0, "got -1.0"),
        ("checkpoint_interval_s", 0, "got 0: leave it out for one from measured cost"),
        ("checkpoint_interval_s", -3.0, "got -3.0"),
        ("checkpoint_interval_s", float("inf"), "got inf"),
        ("checkpoint_interval_s", float("nan"), "got nan"),
        ("checkpoint_bytes_per_s", 0, "positive number of bytes, got 0: leave it out"),
        ("checkpoint_bytes_per_s", float("inf"), "got inf"),
        ("node_mtbp_s", -5.0, "got -5.0"),
        ("max_cost_usd", 0.0, "positive number of dollars, got 0.0: leave it out for no limit"),
        ("max_cost_usd", "5", "got '5'"),
        ("save_cost_frac", 0.0, "must lie between 0 and 1, got 0.0: give 0.01"),
        ("save_cost_frac", 1.5, "got 1.5"),
        ("save_cost_frac", float("nan"), "got nan"),
        ("keep_checkpoints", 0, "must be at least 1, got 0"),
        ("keep_every_steps", 0, "must be at least 1, got 0: leave it out"),
        ("keep_best", "val_loss", "must be a metric's name and 'min' or 'max', got 'val_loss'"),
        ("keep_best", ("val_loss", "low"), 'give ("val_loss", "min")'),
        ("notice_margin_s", -0.1, "must not be negative, got -0.1"),
        ("notice_margin_s", float("nan"), "got nan"),
        ("max_restarts_without_progress", 0, "must be at least 1, got 0"),
        ("tracking", "WandB", "has 'WandB', which is none of tensorboard, mlflow, wandb: did you"),
        ("tracking", ("mlflow", "x"), "has 'x'"),
        ("tracking", ("mlflow", "mlflow"), "names a tracker twice"),
        ("tracking", None, "must be a name or a tuple of names, got None"),
    ],
)
def test_a_wrong_value_is_named_with_its_range(field: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpotConfig(**{field: value})
    assert str(caught.value).startswith(field)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [1e-9, 3, 1e9])
def test_any_positive_interval_is_taken(value: float) -> None:
    assert SpotConfig(snapshot_interval_s=value).snapshot_interval_s == value


def test_what_stays_is_the_users_choice() -> None:
    spot = SpotConfig(keep_checkpoints=5, keep_best=("accuracy", "max"), keep_every_steps=1000)
    assert spot.retention == Retention(last=5, best=("accuracy", "max"), every_steps=1000)


def test_what_a_launch_wishes_is_the_default_and_an_argument_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SpotConfig().max_cost_usd is SpotConfig().deadline_s is None
    monkeypatch.setenv("SPOTRAY_MAX_COST_USD", "20")
    monkeypatch.setenv("SPOTRAY_DEADLINE_S", "1767268800")
    assert SpotConfig().max_cost_usd == 20
    assert SpotConfig().deadline_s == 1767268800
    assert SpotConfig(max_cost_usd=3, deadline_s=5.0).max_cost_usd == 3
    assert SpotConfig(max_cost_usd=None).max_cost_usd is None
    monkeypatch.setenv("SPOTRAY_DEADLINE_S", "soon")
    with pytest.raises(ConfigError, match="SPOTRAY_DEADLINE_S is 'soon'"):
        SpotConfig()


def test_one_tracker_is_named_by_a_plain_word_and_tensorboard_is_the_default() -> None:
    assert SpotConfig().trackers == ("tensorboard",)
    assert SpotConfig(tracking="wandb").trackers == ("wandb",)
    assert SpotConfig(tracking=("tensorboard", "mlflow")).trackers == ("tensorboard", "mlflow")
    assert SpotConfig(tracking=()).trackers == ()
