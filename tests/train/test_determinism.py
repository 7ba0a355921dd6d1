"""Deterministic kernels are a state of the whole process: it is put back as it was."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from spotray.events import Warned
from spotray.train import session as session_module
from spotray.train.config import SpotConfig
from spotray.train.determinism import use_deterministic_kernels
from spotray.train.run import Run
from spotray.train.session import Session
from spotray.train.world import World
from tests.train.jobs import Memory

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def switches() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get(WORKSPACE),
        warnings.showwarning,
    )


@pytest.fixture(autouse=True)
def _quick_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """cuDNN's benchmark mode on before, so that putting back is more than switching off."""
    monkeypatch.delenv(WORKSPACE, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = switches()
    yield
    assert switches() == before, "a test left the process changed"


def without_form() -> None:
    """An operator that has no deterministic kernel on any device."""
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def test_all_switches_are_set_and_put_back() -> None:
    before = switches()
    put_back = use_deterministic_kernels(lambda what: None)
    assert switches()[:5] == (True, True, True, False, ":4096:8")
    put_back()
    assert switches() == before


def test_a_workspace_that_the_user_chose_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":16:8")
    put_back = use_deterministic_kernels(lambda what: None)
    assert os.environ[WORKSPACE] == ":16:8"
    put_back()
    assert os.environ[WORKSPACE] == ":16:8"
    monkeypatch.delenv(WORKSPACE)


def test_nested_uses_end_with_the_last_one() -> None:
    first = use_deterministic_kernels(lambda what: None)
    second = use_deterministic_kernels(lambda what: None)
    first()
    first()  # once more does nothing
    assert torch.are_deterministic_algorithms_enabled()
    second()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_kernel_without_such_a_form_is_told_once_and_other_warnings_pass() -> None:
    told: list[str] = []
    with warnings.catch_warnings(record=True) as passed:
        warnings.simplefilter("always")
        put_back = use_deterministic_kernels(told.append)
        for _ in range(2):
            without_form()
        warnings.warn("something else", stacklevel=1)
        put_back()
    assert len(told) == 1
    assert told[0].startswith("put_ has no deterministic form")
    assert [str(w.message) for w in passed] == ["something else"]


class Scattering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        without_form()
        return (x * self.weight).mean()


def train(*, kernels: bool) -> list[str]:
    """One epoch; what was warned of among the facts."""
    journal = Memory()
    session = Session(
        run_id="r1",
        world=World(),
        spot=SpotConfig(),
        store=None,
        shm_dir=None,
        node_id="n0",
        link=None,
        journal=journal,
    )
    session_module.enter(session)
    try:
        run = Run(global_batch_size=2, micro_batch_size=1, deterministic_kernels=kernels)
        net, optimizer, loader = run.prepare(
            net := Scattering(), torch.optim.SGD(net.parameters(), lr=0.1), list(torch.ones(4, 2))
        )
        for _ in run.epochs(1):
            for x in loader:
                assert torch.are_deterministic_algorithms_enabled() == kernels
                run.backward(net(x))
                optimizer.step()
        run.finish()
    finally:
        session_module.enter(None)
    return [e.what for e in journal.events if isinstance(e, Warned) and "form" in e.what]


@pytest.mark.filterwarnings("always")
def test_a_run_uses_them_to_its_end_and_warns_among_the_facts() -> None:
    before = switches()
    assert train(kernels=False) == []
    (what,) = train(kernels=True)
    assert what.startswith("put_ has no deterministic form")
    assert switches() == before


def test_a_run_that_nobody_finishes_puts_them_back_when_it_is_gone() -> None:
    run = Run(global_batch_size=2, micro_batch_size=1, deterministic_kernels=True)
    assert torch.are_deterministic_algorithms_enabled()
    del run
    gc.collect()
    assert not torch.are_deterministic_algorithms_enabled()
