"""`SpotTuner` before anything runs: what it refuses, and how it finds a sweep again. No cluster."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.train import ScalingConfig
from ray.tune import RunConfig, TuneConfig
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining

from spotray import ConfigError, SpotConfig, SpotTuner
from spotray.storage import Store
from spotray.tune.about import class_name


def train_loop(config: dict[str, Any]) -> None:
    raise AssertionError("nothing is trained here")


def other_loop(config: dict[str, Any]) -> None:
    raise AssertionError("nothing is trained here")


def tuner_in(folder: Path, name: str = "sweep", **settings: Any) -> SpotTuner:
    run_config = RunConfig(name=name, storage_path=str(folder))
    return SpotTuner(train_loop, run_config=run_config, **settings)


def begun(folder: Path, **settings: Any) -> Path:
    """A sweep's folder as a driver that died left it."""
    tuner = tuner_in(folder, **settings)
    home = Store.at(tuner.sweep_dir)
    tuner._describe(home.child("spotray"))
    home.write("tuner.pkl", b"Ray Tune's own")
    home.write("experiment_state-2026-11-22_10-00-00.json", b"likewise")
    return Path(tuner.sweep_dir)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scaling_config": ScalingConfig(num_workers=0)}, r"num_workers=\(0, 0\)"),
        (
            {
                "tune_config": TuneConfig(
                    scheduler=PopulationBasedTraining(hyperparam_mutations={"lr": [0.1]})
                )
            },
            "time_total_s",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        tuner_in(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train_loop": "train.py"}, "train_loop is 'train.py': give the training function"),
        ({"param_space": [{"lr": 0.1}]}, "param_space is a builtins.list: give a dict"),
        ({"tune_config": {"metric": "val"}}, "give a ray.tune.TuneConfig"),
        ({"run_config": ray.train.RunConfig()}, "give a ray.tune.RunConfig"),
        ({"scaling_config": 4}, "scaling_config is a builtins.int: give a ray.train.ScalingConfig"),
    ],
)
def test_a_setting_of_another_kind_is_one_clear_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SpotTuner(**{"train_loop": train_loop, **settings})


def test_a_sweep_without_a_name_gets_one(tmp_path: Path) -> None:
    first = SpotTuner(train_loop, run_config=RunConfig(storage_path=str(tmp_path)))
    second = SpotTuner(train_loop, run_config=RunConfig(storage_path=str(tmp_path)))
    assert first.sweep_dir != second.sweep_dir
    assert Path(first.sweep_dir).parent == tmp_path


def test_the_folder_says_what_the_sweep_is(tmp_path: Path) -> None:
    folder = begun(tmp_path, tune_config=TuneConfig(metric="val", mode="min", num_samples=8))
    about = json.loads((folder / "spotray" / "sweep.json").read_text())
    assert (about["name"], about["metric"], about["mode"]) == ("sweep", "val", "min")
    assert (about["loop"], about["num_samples"]) == ("train_loop", 8)


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_folder_without_a_sweep_is_one_clear_line(tmp_path: Path, path: str) -> None:
    assert not SpotTuner.can_restore(tmp_path / path)
    with pytest.raises(ConfigError, match=r"holds no sweep .* give the folder storage_path/name"):
        SpotTuner.restore(tmp_path / path, train_loop)


def test_another_training_loop_is_one_clear_line(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    with pytest.raises(ConfigError, match="trains 'train_loop' and not 'other_loop'"):
        SpotTuner.restore(folder, other_loop)


def test_a_sweep_that_ended_before_tune_wrote_anything_down_is_one_clear_line(
    tmp_path: Path,
) -> None:
    folder = begun(tmp_path)
    (state,) = folder.glob("experiment_state-*")
    state.unlink()
    assert not SpotTuner.can_restore(folder)
    with pytest.raises(ConfigError, match="before Ray Tune wrote down how far it was: remove"):
        SpotTuner.restore(folder, train_loop)
    (folder / "trials" / "a_00000").mkdir(parents=True)
    (folder / "trials" / "a_00000" / "trial.json").write_text("{}")
    with pytest.raises(ConfigError, match="before there was anything to go on with: remove"):
        tuner_in(tmp_path).fit()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"sweep\.pkl is not there"),
        (b"", r"sweep\.pkl is damaged"),
        (b"cnot_a_module_of_anybody\nThing\n.", "not_a_module_of_anybody.* can be imported"),
    ],
)
def test_settings_that_cannot_be_read_are_one_clear_line(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = begun(tmp_path) / "spotray" / "sweep.pkl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as error:
        SpotTuner.restore(path.parents[1], train_loop)
    assert "\n" not in str(error.value)


def test_a_damaged_description_is_one_clear_line(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    (folder / "spotray" / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match=r"sweep\.json is damaged"):
        SpotTuner.restore(folder, train_loop)


def test_a_sweep_is_found_again_with_its_settings(tmp_path: Path) -> None:
    scaling_config = ScalingConfig(num_workers=(2, 3), resources_per_worker={"CPU": 2})
    scheduler = HyperBandScheduler(time_attr="samples")
    folder = begun(
        tmp_path,
        scaling_config=scaling_config,
        spot=SpotConfig(keep_checkpoints=7),
        tune_config=TuneConfig(metric="val", mode="max", scheduler=scheduler),
    )
    assert SpotTuner.can_restore(folder)
    again = SpotTuner.restore(f"{folder}/", train_loop)
    assert again.sweep_dir == str(folder)
    assert again.scaling_config == scaling_config
    assert again.spot.keep_checkpoints == 7
    assert (again.tune_config.metric, again.tune_config.mode) == ("val", "max")
    assert again._needs.keys() == {"val", "samples"}
    assert again._pauses


def test_a_restored_sweep_may_have_other_workers(tmp_path: Path) -> None:
    folder = begun(tmp_path, scaling_config=ScalingConfig(num_workers=4))
    again = SpotTuner.restore(folder, train_loop, scaling_config=ScalingConfig(num_workers=(1, 8)))
    assert again.scaling_config.num_workers == (1, 8)


def test_a_sweep_that_was_moved_keeps_the_name_that_its_state_has(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    moved = folder.rename(tmp_path / "elsewhere")
    again = SpotTuner.restore(moved, train_loop)
    assert again.sweep_dir == str(moved)
    assert again._actor_name == tuner_in(tmp_path)._actor_name


def test_a_second_sweep_in_a_folder_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    trial = folder / "trials" / "a_00000" / "spotray" / "trial.json"
    trial.parent.mkdir(parents=True)
    trial.write_text("{}")
    before = (folder / "spotray" / "sweep.json").read_bytes()
    had_ray = ray.is_initialized()  # by the lab of other tests
    with pytest.raises(ConfigError, match=r"holds a sweep: go on with it by SpotTuner\.restore"):
        tuner_in(tmp_path).fit()
    assert (folder / "spotray" / "sweep.json").read_bytes() == before
    assert ray.is_initialized() == had_ray


def test_storage_that_cannot_be_written_is_found_before_a_cluster_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    had_ray = ray.is_initialized()  # by the lab of other tests
    with pytest.raises(ConfigError, match="cannot write to"):
        tuner_in(tmp_path / "file").fit()
    assert ray.is_initialized() == had_ray


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (train_loop, "train_loop"),
        (functools.partial(train_loop, {}), "train_loop"),
        (lambda config: None, "lambda"),
        (functools.partial(functools.partial(other_loop)), "other_loop"),
    ],
)
def test_trials_are_named_by_the_training_loop(loop: Any, name: str) -> None:
    assert class_name(loop) == name


def test_metrics_that_the_scheduler_wants_are_known(tmp_path: Path) -> None:
    scheduler = ASHAScheduler(metric="val", mode="min")
    assert tuner_in(tmp_path, tune_config=TuneConfig(scheduler=scheduler))._needs == {
        "val": "AsyncHyperBandScheduler"
    }
