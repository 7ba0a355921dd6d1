"""Which trackers there are, and what is said where one cannot be."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from spotray.errors import ConfigError
from spotray.storage import Store
from spotray.track.tracker import TRACKERS, RunAbout, check_installed, flat, tracker


def test_a_library_that_is_missing_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mlflow" else find(name)
    )
    check_installed([name for name in TRACKERS if name != "mlflow"])
    with pytest.raises(ConfigError, match=r"needs mlflow.*pip install 'spotray\[mlflow\]'") as said:
        check_installed(TRACKERS)
    assert "\n" not in str(said.value)


def test_a_folder_of_the_librarys_name_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="needs wandb"):
        check_installed(["wandb"])


def test_weights_and_biases_without_a_key_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    about = RunAbout(run_id="1", name="vit", url="/runs/vit")
    with pytest.raises(ConfigError, match="no key.*WANDB_MODE=offline"):
        tracker("wandb", about, run_dir=Store.at(tmp_path))


def test_a_loops_config_is_told_on_one_level() -> None:
    config = {"lr": 0.1, "model": {"layers": 2, "act": None}, "sizes": [1, 2], "device": object}
    assert flat(config) == {
        "lr": 0.1,
        "model.layers": 2,
        "model.act": None,
        "sizes": "[1, 2]",
        "device": "<class 'object'>",
    }
