"""From what Tune keeps of a checkpoint to the checkpoint itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest
import ray.cloudpickle
from ray.train import Checkpoint
from ray.train._internal.storage import StorageContext
from ray.tune import ExperimentAnalysis
from ray.tune.experiment import Trial
from ray.tune.trainable.trainable import _DICT_CHECKPOINT_FILE_NAME

from spotray.tune.grid import SpotResultGrid, durable, read_pointer
from spotray.tune.messages import Pointer


def kept(folder: Path, url: str | None) -> Checkpoint:
    """A checkpoint as Tune's class trainables write it."""
    pointer = Pointer(run="t1", url=url, step=40, iteration=4, config="ab")
    folder.mkdir()
    (folder / _DICT_CHECKPOINT_FILE_NAME).write_bytes(ray.cloudpickle.dumps(pointer.to_dict()))
    return Checkpoint(str(folder))


def test_a_result_leads_to_the_durable_checkpoint(tmp_path: Path) -> None:
    real = tmp_path / "trials" / "t1" / "step-40"
    found = durable(kept(tmp_path / "checkpoint_000000", str(real)))
    assert found is not None
    assert found.path == str(real)
    assert isinstance(found.filesystem, pafs.LocalFileSystem)


def test_a_bucket_is_found_by_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")  # else it would be asked for
    found = durable(kept(tmp_path / "checkpoint_000000", "s3://bucket/sweep/trials/t1/step-40"))
    assert found is not None
    assert found.path == "bucket/sweep/trials/t1/step-40"
    assert found.filesystem.type_name == "s3"


def test_storage_with_a_filesystem_of_its_own_keeps_it(tmp_path: Path) -> None:
    checkpoint = kept(tmp_path / "checkpoint_000000", "sweeps/t1/step-40")
    own = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    found = durable(Checkpoint("checkpoint_000000", filesystem=own))
    assert found is not None
    assert found.path.endswith("sweeps/t1/step-40")
    assert read_pointer(checkpoint) is not None


def test_a_trial_that_wrote_none_has_none(tmp_path: Path) -> None:
    assert durable(None) is None
    assert durable(kept(tmp_path / "checkpoint_000000", None)) is None
    (tmp_path / "empty").mkdir()
    assert durable(Checkpoint(str(tmp_path / "empty"))) is None


def test_of_several_that_are_best_it_is_the_same_one_in_whatever_order_tune_has_them(
    tmp_path: Path,
) -> None:
    """After a restore Tune has those first that reported last."""

    def best(*order: str) -> str:
        storage = StorageContext(str(tmp_path), "vit", trial_dir_name="one")
        trials = [Trial("vit", trial_id=one, storage=storage, stub=True) for one in order]
        for trial in trials:
            trial.update_last_result({"accuracy": 0.25, "trial_id": trial.trial_id})
        analysis = ExperimentAnalysis(
            str(tmp_path / "state.json"),
            trials=trials,
            default_metric="accuracy",
            default_mode="max",
        )
        return str(SpotResultGrid(analysis).get_best_result().metrics["trial_id"])

    assert best("t_0", "t_1", "t_2") == best("t_2", "t_0", "t_1") == "t_0"
