"""Rates of a machine: rounds, scripts, models, and several workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.train.bench import ModelJob, bench_model, bench_script, measure, speed_of

TINY = ModelJob(model="test_resnet", batch_size=2, image_size=32)


class Machine:
    """Steps that take the time that they are told to, on a clock of their own."""

    def __init__(self, *seconds: float, samples: int = 10) -> None:
        self.seconds, self.samples = list(seconds), samples
        self.at_s, self.steps = 0.0, 0

    def step(self) -> int:
        self.at_s += self.seconds[min(self.steps, len(self.seconds) - 1)]
        self.steps += 1
        return self.samples

    def now_s(self) -> float:
        return self.at_s


def test_the_warm_up_counts_for_nothing() -> None:
    one = Machine(50.0, 50.0, 50.0, 0.1)
    rates, steps = measure(one.step, seconds=10.0, warmup_s=1.0, now_s=one.now_s)
    assert rates == pytest.approx([100.0] * 10)
    assert one.steps == steps + 3


def test_the_warm_up_lasts_as_long_as_it_was_told_to() -> None:
    one = Machine(0.5)
    _, steps = measure(one.step, seconds=1.0, warmup_s=5.0, now_s=one.now_s)
    assert one.steps - steps == 10


def test_a_round_has_at_least_one_step() -> None:
    one = Machine(60.0)
    rates, steps = measure(one.step, seconds=1.0, warmup_s=0.0, now_s=one.now_s)
    assert (len(rates), steps) == (10, 10)


def test_the_device_is_waited_for_before_a_round_ends() -> None:
    one = Machine(1.0)

    def wait() -> None:
        one.at_s += 1.0

    rates, _ = measure(one.step, seconds=10.0, warmup_s=0.0, wait=wait, now_s=one.now_s)
    assert rates == pytest.approx([5.0] * 10)


def test_one_slow_round_moves_neither_the_middle_nor_the_spread() -> None:
    found = speed_of([1.0, *[10.0] * 8, 99.0], steps=10, device="cpu", workers=1)
    assert (found.low_samples_per_s, found.samples_per_s, found.high_samples_per_s) == (10, 10, 10)


@pytest.mark.parametrize(("seconds", "warmup_s"), [(0.0, 0.0), (1.0, -1.0), (float("nan"), 0.0)])
def test_a_time_that_is_none_is_refused(seconds: float, warmup_s: float) -> None:
    with pytest.raises(ConfigError, match="give a time above 0"):
        measure(lambda: 1, seconds=seconds, warmup_s=warmup_s)


# -- scripts and models ------------------------------------------------------


def test_a_script_that_steps_is_measured_with_what_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("SAMPLES = 7\n")
    script = tmp_path / "mine.py"
    script.write_text("from beside import SAMPLES\ndef step(): return SAMPLES\n")
    found = bench_script(script, seconds=0.01, warmup_s=0.0)
    assert found.samples_per_s > 7
    assert found.rounds == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", r"has no step\(\)"),
        ("def step(): return 0\n", "answered 0: it returns how many samples"),
        ("def step(): return True\n", "answered True"),
        ("def step(): return 1 / 0\n", r"step\(\): ZeroDivisionError"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("def step(:\n", "SyntaxError"),
    ],
)
def test_a_script_that_cannot_be_measured_says_why(tmp_path: Path, text: str, said: str) -> None:
    script = tmp_path / "mine.py"
    script.write_text(text)
    with pytest.raises(ConfigError, match=said):
        bench_script(script, seconds=0.01, warmup_s=0.0)


def test_a_script_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        bench_script(tmp_path / "none.py", seconds=0.01, warmup_s=0.0)


@pytest.mark.timeout(600)  # torch on a machine that may be busy
def test_a_model_is_trained() -> None:
    found = bench_model(TINY, seconds=0.01, warmup_s=0.0, workers=1)
    assert found.low_samples_per_s <= found.samples_per_s <= found.high_samples_per_s
    assert (found.workers, found.rounds) == (1, 10)


@pytest.mark.slow
@pytest.mark.timeout(600)  # two processes import torch, on a machine that may be busy
def test_two_workers_train_together() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("two workers want two GPUs")
    found = bench_model(TINY, seconds=0.1, warmup_s=0.0, workers=2)
    assert (found.workers, found.rounds) == (2, 10)
    assert found.samples_per_s > 0


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (ModelJob(model="vit_smal_patch16_224"), "did you mean vit_small_patch16_224"),
        (ModelJob(model="test_vit", image_size=33), "test_vit cannot be trained so"),
    ],
)
def test_a_model_that_cannot_be_trained_says_why(job: ModelJob, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench_model(job, seconds=0.01, warmup_s=0.0, workers=1)


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--batch-size 0"):
        ModelJob(model="test_resnet", batch_size=0)
