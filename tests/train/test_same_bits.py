"""The result does not depend on the workers: bit for bit, through every resize."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotray.events import CheckpointCommitted, EpochAudited, Restored, TrainingDone
from tests.train.jobs import train
from tests.train.workers import WorkerPool


def assert_same_bits(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), f"{name} differs: {a[name]} {b[name]}"


def job(world: Any, folder: str | None, options: dict[str, Any]) -> dict[str, Any]:
    return train(world, folder, **options)


@pytest.mark.parametrize("model", ["vit", "conv"])
@pytest.mark.parametrize("amp", ["", "bf16", "scaler"])
def test_any_number_of_workers_ends_with_the_same_bits(
    workers: WorkerPool, model: str, amp: str
) -> None:
    # 70 samples in batches of 16: the last batch has 3 shards, fewer than 4 workers.
    options = {"model": model, "amp": amp}
    reference = workers.run(1, job, None, options)[0]
    assert any(v.any() for k, v in reference["state"].items() if k.endswith("exp_avg_sq"))
    for size in (2, 3, 4):
        for result in workers.run(size, job, None, options):
            assert_same_bits(result["state"], reference["state"])
            assert result["losses"] == reference["losses"]


@pytest.mark.parametrize("model", ["vit", "conv"])
def test_resizes_4_3_1_2_4_end_with_the_bits_of_an_undisturbed_run(
    workers: WorkerPool, tmp_path: Path, model: str
) -> None:
    undisturbed = workers.run(2, job, str(tmp_path / "u"), {"model": model, "epochs": 4})[0]
    steps_per_epoch = 5
    assert undisturbed["step"] == 4 * steps_per_epoch
    folder = str(tmp_path / "d")
    spot = {"audit_samples": True}
    for size, stop_at in ((4, 3), (3, 5), (1, 9), (2, 14), (4, None)):
        options = {"model": model, "epochs": 4, "stop_at": stop_at, "spot": spot}
        results = workers.run(size, job, folder, options)
    for result in results:
        assert_same_bits(result["state"], undisturbed["state"])
        assert result["sha256"] == undisturbed["sha256"]
        assert result["counter"] == undisturbed["counter"]
    restored = [e for e in results[0]["events"] if isinstance(e, Restored)]
    assert [(e.step, e.source) for e in restored] == [(14, "snapshot")]
    audits = [e for e in results[0]["events"] if isinstance(e, EpochAudited)]
    # Also those of the worker groups before it, which may have been lost untold.
    assert [(e.epoch, e.exactly_once) for e in audits] == [(n, True) for n in range(4)]


def test_memory_lost_on_all_nodes_goes_on_from_the_checkpoint(
    workers: WorkerPool, tmp_path: Path
) -> None:
    reference = workers.run(1, job, None, {"epochs": 3})[0]
    folder = str(tmp_path)
    spot = {"checkpoint_interval_s": 1e-9}
    first = workers.run(3, job, folder, {"epochs": 3, "stop_at": 8, "spot": spot})
    committed = [e.step for e in first[0]["events"] if isinstance(e, CheckpointCommitted)]
    assert committed, "no checkpoint was committed in 8 steps"
    for shm in tmp_path.glob("shm-*"):
        shutil.rmtree(shm)
    second = workers.run(2, job, folder, {"epochs": 3, "spot": spot})
    restored = [e for e in second[0]["events"] if isinstance(e, Restored)]
    assert restored[0].source == "checkpoint"
    assert restored[0].step >= committed[-1]
    assert_same_bits(second[0]["state"], reference["state"])


def test_a_snapshot_on_one_node_is_enough(workers: WorkerPool, tmp_path: Path) -> None:
    reference = workers.run(1, job, None, {})[0]
    folder = str(tmp_path)
    workers.run(4, job, folder, {"stop_at": 6})
    for rank in (0, 1, 3):
        shutil.rmtree(tmp_path / f"shm-{rank}")
    results = workers.run(4, job, folder, {})
    for result in results:
        assert_same_bits(result["state"], reference["state"])
    assert [e.source for e in results[0]["events"] if isinstance(e, Restored)] == ["snapshot"]


def test_a_finished_job_that_is_started_again_does_no_step(
    workers: WorkerPool, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    first = workers.run(2, job, folder, {})
    again = workers.run(3, job, folder, {})
    assert again[0]["losses"] == []
    assert again[0]["sha256"] == first[0]["sha256"]
    assert not list(tmp_path.glob("shm-*/r1")), "snapshots outlived the job"
    assert isinstance(again[0]["events"][-1], TrainingDone)


def test_ddp_reduction_agrees_up_to_rounding(workers: WorkerPool) -> None:
    for model in ("vit", "conv"):
        unused = {"find_unused_parameters": model == "conv"}
        options = {"model": model, "epochs": 1, "run_args": unused}
        ordered = workers.run(1, job, None, options)[0]["losses"]
        expected = [loss for _, loss in ordered]
        for size in (2, 3):
            for result in workers.run(size, job, None, {**options, "reduction": "ddp"}):
                steps, losses = zip(*result["losses"], strict=True)
                assert list(steps) == [step for step, _ in ordered]
                np.testing.assert_allclose(losses[:2], expected[:2], rtol=1e-5)
                # AdamW turns the rounding of a zero gradient into a real step, so
                # the weights drift apart where the losses hardly do.
                np.testing.assert_allclose(losses, expected, rtol=1e-2)
