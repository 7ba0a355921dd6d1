"""A saved state goes back into the job that saved it, and into no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spotray.errors import CheckpointCorrupt, StateMismatch
from spotray.train.capture import Captured
from spotray.train.run import Run
from spotray.train.state import TrainState, weights_sha256
from tests.train.jobs import Counter


def parts(*, out: int = 2, depth: int = 1) -> dict[str, Any]:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(depth)], nn.Linear(3, out))
    optimizer = torch.optim.AdamW(model.parameters())
    return {"model": model, "optimizer": optimizer, "state": Counter()}


def mismatch(state: TrainState, saved: Captured) -> str:
    with pytest.raises(StateMismatch) as caught:
        state.restore(saved, whence="s3://b/step-7")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("s3://b/step-7 ")
    assert "give this job another name" in text
    return text


def test_a_state_goes_back_into_its_job() -> None:
    saved, fresh = parts(), parts()
    saved["model"](torch.ones(1, 3)).sum().backward()
    saved["optimizer"].step()
    saved["state"].batches = 5
    TrainState(fresh).restore(TrainState(saved).capture(), whence="memory")
    assert weights_sha256({"m": fresh["model"]}) == weights_sha256({"m": saved["model"]})
    assert fresh["state"].batches == 5
    (first, *_) = fresh["optimizer"].state.values()
    assert first["step"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out": 5}, "this job's model: .*size mismatch for 1.weight.*[23], 3"),
        ({"depth": 2}, "this job's model: .*Missing key.*2.weight"),
    ],
)
def test_the_state_of_another_model_is_refused(change: dict[str, int], words: str) -> None:
    text = mismatch(TrainState(parts(**change)), TrainState(parts()).capture())
    assert re.search(words, text), text


def test_the_state_of_an_optimizer_over_other_parameters_is_refused() -> None:
    saved, now = parts(), parts()
    now["optimizer"] = torch.optim.AdamW([{"params": [p]} for p in now["model"].parameters()])
    text = mismatch(TrainState(now), TrainState(saved).capture())
    assert "this job's optimizer: " in text
    assert "different number of parameter groups" in text


def test_a_part_that_was_not_saved_is_named() -> None:
    saved, now = parts(), parts()
    del saved["state"]
    now["scaler"] = Counter()
    assert "no state for scaler, state" in mismatch(TrainState(now), TrainState(saved).capture())


def test_a_saved_part_that_nobody_wants_is_named() -> None:
    saved, now = parts(), parts()
    saved["scheduler"] = Counter()
    text = mismatch(TrainState(now), TrainState(saved).capture())
    assert "holds a state of scheduler, which this training loop does not prepare" in text


def test_a_missing_entry_of_a_users_own_state_is_named() -> None:
    saved, now = parts(), parts()
    saved["state"].state_dict = lambda: {"history": 1}
    text = mismatch(TrainState(now), TrainState(saved).capture())
    assert "this job's state: it lacks 'batches'" in text


@pytest.mark.parametrize("error", [AttributeError("no x"), AssertionError("odd"), IndexError("3")])
def test_whatever_a_users_own_state_complains_of_is_a_mismatch(error: Exception) -> None:
    def refuse(state_dict: dict[str, Any]) -> None:
        raise error

    now = parts()
    now["state"].load_state_dict = refuse
    text = mismatch(TrainState(now), TrainState(parts()).capture())
    assert f"this job's state: {error}" in text


def test_a_damaged_state_is_corrupt_and_not_another_jobs() -> None:
    saved = TrainState(parts()).capture()
    with pytest.raises(CheckpointCorrupt):
        TrainState(parts()).restore(Captured(saved.skeleton, {}), whence="memory")


def position(
    *, count: int = 20, global_batch_size: int = 8, micro_batch_size: int = 2, seed: int = 0
) -> TrainState:
    """The position of a run as it is after ``prepare``."""
    run = Run(global_batch_size=global_batch_size, micro_batch_size=micro_batch_size, seed=seed)
    run.prepare(nn.Linear(1, 1), list(range(count)))
    return TrainState({"position": run._stepping.ready.keeper._state.parts["position"]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"global_batch_size": 4}, "global_batch_size was 8 and is 4 now"),
        ({"micro_batch_size": 4}, "micro_batch_size was 2 and is 4 now"),
        ({"seed": 1}, "seed was 0 and is 1 now"),
        ({"count": 21}, "samples was 20 and is 21 now"),
    ],
)
def test_another_batch_size_seed_or_dataset_is_refused(change: dict[str, int], words: str) -> None:
    text = mismatch(position(**change), position().capture())
    assert f"this job's position: {words}" in text
    assert "go back to the model and the settings that saved it" in text


def test_the_same_settings_are_taken() -> None:
    position().restore(position().capture(), whence="memory")


def nudge(module: nn.Module) -> None:
    with torch.no_grad():
        next(module.parameters()).view(-1)[0].nextafter_(torch.tensor(9.0))


def drop_sign(module: nn.Module) -> None:
    with torch.no_grad():
        module.get_buffer("zero").neg_()


def count(module: nn.Module) -> None:
    module.get_buffer("count").add_(1)


@pytest.mark.parametrize("change", [nudge, drop_sign, count])
def test_one_bit_changes_the_hash_of_the_weights(change: Callable[[nn.Module], None]) -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 3)
    module.register_buffer("zero", torch.tensor(0.0))
    module.register_buffer("count", torch.tensor(2**40))
    module.register_buffer("empty", torch.empty(0, 3))
    module.register_buffer("brief", torch.ones(3, dtype=torch.bfloat16))
    before = weights_sha256({"model": module})
    assert weights_sha256({"model": module}) == before
    change(module)
    assert weights_sha256({"model": module}) != before


def test_where_tensors_lie_in_memory_does_not_change_the_hash() -> None:
    module = nn.Conv2d(2, 3, 3)
    before = weights_sha256({"model": module})
    assert weights_sha256({"model": module.to(memory_format=torch.channels_last)}) == before
