"""A loop that is written wrongly is told so in one line; an odd one that is right just runs."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spotray.errors import ConfigError
from spotray.events import EpochAudited, Reported
from spotray.storage import Store
from spotray.train import session as session_module
from spotray.train.config import SpotConfig
from spotray.train.order import epoch_order
from spotray.train.run import Run
from spotray.train.session import Session
from spotray.train.world import World
from tests.train.jobs import Memory
from tests.train.workers import WorkerPool


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int = 16) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), 1.0]) / 8


def prepared(count: int = 16, **options: Any) -> tuple[Run, nn.Module, Any, Any]:
    """A run over a small model: batches of 4 in micro-batches of 2."""
    run = Run(global_batch_size=4, micro_batch_size=2, **options)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return run, *run.prepare(net, optimizer, Rows(count))


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (net(x) - 1).square().mean()


def epoch(run: Run, net: nn.Module, optimizer: Any, loader: Any) -> None:
    for x in loader:
        run.backward(loss_of(net, x))
        optimizer.step()
        optimizer.zero_grad()


def told(action: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        action()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# -- misuse ------------------------------------------------------------------------


def test_a_micro_batch_that_does_not_divide_is_told_with_one_that_does() -> None:
    told(
        lambda: Run(global_batch_size=256, micro_batch_size=48),
        "micro_batch_size=48 does not divide global_batch_size=256: use 32",
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reduction": "sum"}, "reduction must be 'ordered' or 'ddp', got 'sum'"),
        ({"seed": -1}, "a seed must be a whole number of at least 0, got -1"),
        ({"seed": None}, "a seed must be a whole number of at least 0, got None"),
        ({"global_batch_size": 8 / 2}, "global_batch_size must be a whole number, got 4.0"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], words: str) -> None:
    sizes = {"global_batch_size": 4, "micro_batch_size": 2}
    told(lambda: Run(**{**sizes, **options}), words)


def model() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        (list, "got no model: training needs both"),
        (lambda: [Rows()], "got no model: training needs both"),
        (lambda: [model()], "got no dataset: training needs both"),
        (lambda: [model(), Rows(), Rows()], "takes one dataset"),
        (lambda: [model(), Rows(), *_scalers(2)], "takes one gradient scaler"),
        (lambda: [model(), Rows(0)], "the dataset has 0 samples"),
        (lambda: [model(), iter([])], "give run.prepare() a map-style dataset"),
    ],
)
def test_what_prepare_cannot_take_is_named(objects: Any, words: str) -> None:
    run = Run(global_batch_size=4, micro_batch_size=2)
    told(lambda: run.prepare(*objects()), words)


def _scalers(count: int) -> list[torch.amp.GradScaler]:
    return [torch.amp.GradScaler("cpu") for _ in range(count)]


def test_prepare_twice_is_told() -> None:
    run, *_ = prepared()
    told(lambda: run.prepare(model(), Rows()), "called twice: give it everything at once")


def test_a_dataset_too_short_for_drop_last_is_told() -> None:
    told(lambda: prepared(3, drop_last=True), "3 samples are fewer than one global batch of 4")


def test_backward_outside_of_the_loop_is_told() -> None:
    run, net, _, _ = prepared()
    told(lambda: run.backward(loss_of(net, torch.ones(2, 2))), "belongs into the loop")


def test_backward_before_prepare_is_told() -> None:
    run = Run(global_batch_size=4, micro_batch_size=2)
    told(lambda: run.backward(torch.ones(())), "run.backward() belongs into the loop")


def test_backward_twice_for_one_batch_is_told() -> None:
    run, net, _, loader = prepared()
    batches = iter(loader)
    x = next(batches)
    run.backward(loss_of(net, x))
    told(lambda: run.backward(loss_of(net, x)), "once for each batch: add up several losses")


def test_a_batch_without_backward_is_told() -> None:
    _, net, _, loader = prepared()

    def plain_loop() -> None:
        for x in loader:
            loss_of(net, x).backward()

    told(plain_loop, "a batch went by without run.backward(loss)")


def test_the_last_batch_without_backward_is_told() -> None:
    run, net, optimizer, loader = prepared(4)

    def loop() -> None:
        for i, x in enumerate(loader):
            if i == 0:
                run.backward(loss_of(net, x))
            optimizer.step()

    told(loop, "a batch went by without run.backward(loss)")


def test_a_closure_is_told() -> None:
    _, _, optimizer, _ = prepared()
    with pytest.raises(TypeError, match="closure"):
        optimizer.step(lambda: 1.0)


# -- a plain process ----------------------------------------------------------------


def test_a_loop_runs_outside_of_a_trainer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="spotray")
    run, net, optimizer, loader = prepared()
    before = [p.detach().clone() for p in net.parameters()]
    assert (run.rank, run.world_size, run.device.type) == (0, 1, "cpu")
    for _ in run.epochs(3):
        epoch(run, net, optimizer, loader)
        run.report({"accuracy": 0.5})
    run.finish()
    assert run.step == 12
    assert run.epoch == 3
    assert run.loss is not None
    after = net.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert "'accuracy': 0.5" in caplog.text


def test_prepare_of_one_of_each_kind_returns_them_in_order() -> None:
    run = Run(global_batch_size=4, micro_batch_size=2)
    one, two = model(), model()
    adam, sgd = (torch.optim.Adam(one.parameters()), torch.optim.SGD(two.parameters()))
    loader, a, b, c, d = run.prepare(Rows(), one, adam, two, sgd)
    assert next(iter(loader)).shape == (2, 2)
    assert (a, c) == (one, two)
    assert (b.inner, d.inner) == (adam, sgd)
    parts = run._stepping.ready.keeper._state.parts
    assert set(parts) == {"model", "model_1", "optimizer", "optimizer_1", "position"}


def test_the_loop_is_that_of_plain_torch_up_to_rounding() -> None:
    run, net, optimizer, loader = prepared()
    net.eval()  # batch statistics would be those of micro-batches
    plain = copy.deepcopy(net)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for number in run.epochs(2):
        epoch(run, net, optimizer, loader)
        order = epoch_order(16, seed=0, epoch=number).tolist()
        for start in range(0, 16, 4):
            sgd.zero_grad()
            loss_of(plain, torch.stack([Rows()[i] for i in order[start : start + 4]])).backward()
            sgd.step()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_order_zero_grad_backward_step_is_as_good() -> None:
    found = []
    for zero_first in (False, True):
        run, net, optimizer, loader = prepared()
        for _ in run.epochs(2):
            for x in loader:
                if zero_first:
                    optimizer.zero_grad()
                run.backward(loss_of(net, x))
                optimizer.step()
                if not zero_first:
                    optimizer.zero_grad()
        found.append([p.tolist() for p in net.parameters()])
    assert found[0] == found[1]


# -- a loop that is left early --------------------------------------------------------


def test_an_epoch_left_after_a_complete_step_counts_the_steps_that_were_done() -> None:
    run, net, optimizer, loader = prepared()
    for number in run.epochs(2):
        for i, x in enumerate(loader):
            run.backward(loss_of(net, x))
            optimizer.step()
            optimizer.zero_grad()
            if number == 0 and i == 3:
                break
    assert (run.step, run.epoch) == (2 + 4, 2)
    assert run.loss is not None


def leave_early(at: int, *, before_backward: bool = False) -> tuple[Run, dict[str, Any]]:
    """Two epochs of 4 steps of 4 micro-batches and one of 2; the first is left at one of them."""
    run = Run(global_batch_size=4, micro_batch_size=1)
    net = nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.Unflatten(0, (2, 1)), nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = run.prepare(net, optimizer, Rows(18))
    for number in run.epochs(2):
        for i, x in enumerate(loader):
            loss = loss_of(net, x)
            if number == 0 and i == at and before_backward:
                break
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if number == 0 and i == at:
                break
    return run, net.state_dict()


@pytest.mark.parametrize(
    ("steps", "at", "before_backward"),
    [(2, 8, False), (2, 9, False), (2, 8, True), (2, 10, True), (4, 16, False), (4, 17, True)],
)
def test_an_epoch_left_within_a_step_forgets_that_step(
    steps: int, at: int, before_backward: bool
) -> None:
    run, state = leave_early(at, before_backward=before_backward)
    reference, expected = leave_early(4 * steps - 1)
    assert run.step == reference.step == steps + 5
    assert run.loss == reference.loss
    for name, value in state.items():
        assert torch.equal(value, expected[name]), f"{name} holds traces of the step that was left"


def test_an_epoch_left_early_does_not_spoil_the_next_ones_audit(journal: Memory) -> None:
    leave_early(7)
    audits = [e for e in journal.events if isinstance(e, EpochAudited)]
    assert [(a.epoch, a.exactly_once) for a in audits] == [(1, True)]


def noisy_steps(world: World) -> list[list[float]]:
    """What the loop's body draws after each step, and after the epoch."""
    run = Run(global_batch_size=8, micro_batch_size=2)
    run._stepping.world = world
    net, loader = run.prepare(model(), Rows(20))
    drawn = []
    for _ in run.epochs(2):
        for x in loader:
            run.backward(loss_of(net, x))
            if run._stepping.is_complete:  # as optimizers that add noise do it
                drawn.append(torch.rand(2).tolist())
        drawn.append(torch.rand(2).tolist())
    return drawn


def test_random_numbers_drawn_between_steps_are_alike_on_all_workers(workers: WorkerPool) -> None:
    (alone,) = workers.run(1, noisy_steps)
    assert len({tuple(two) for two in alone}) == len(alone), "numbers came twice"
    for size in (2, 3):
        for result in workers.run(size, noisy_steps):
            assert result == alone


# -- reports ------------------------------------------------------------------------


def session_in(folder: Path, journal: Memory, **spot: Any) -> Session:
    return Session(
        run_id="r",
        world=World(),
        spot=SpotConfig(**spot),
        store=Store.at(folder / "store"),
        shm_dir=folder / "shm",
        node_id="n",
        link=None,
        journal=journal,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    memory = Memory()
    session_module.enter(session_in(tmp_path, memory, audit_samples=True))
    yield memory
    session_module.enter(None)


def test_the_last_report_is_in_storage_before_the_checkpoint_that_ends_the_job(
    journal: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[tuple[list[int], int]] = []  # at each flush: steps reported, checkpoints there

    def flush() -> None:
        steps = [e.step for e in journal.events if isinstance(e, Reported)]
        folder = Store.at(tmp_path / "store").child("checkpoints")
        stored.append((steps, len(folder.folders())))

    monkeypatch.setattr(journal, "flush", flush)
    run, net, optimizer, loader = prepared()
    for _ in run.epochs(1):
        epoch(run, net, optimizer, loader)
        run.report({"accuracy": 0.5})
    run.finish()
    # A job that goes on from that checkpoint would not make the report again.
    assert stored == [([4], 0), ([4], 1)]


def test_reports_go_to_the_journal_with_the_position(journal: Memory) -> None:
    run, net, optimizer, loader = prepared()
    for _ in run.epochs(2):
        epoch(run, net, optimizer, loader)
        run.report({"accuracy": 0.5})
    run.finish()
    reports = [e for e in journal.events if isinstance(e, Reported)]
    assert [(e.epoch, e.step, e.metrics["accuracy"]) for e in reports] == [(0, 4, 0.5), (1, 8, 0.5)]
    audits = [e for e in journal.events if isinstance(e, EpochAudited)]
    assert [(a.epoch, a.samples, a.exactly_once) for a in audits] == [(0, 16, True), (1, 16, True)]


def test_an_epoch_that_drops_its_last_batch_is_audited_for_what_it_should_use(
    journal: Memory,
) -> None:
    run, net, optimizer, loader = prepared(18, drop_last=True)
    for _ in run.epochs(1):
        epoch(run, net, optimizer, loader)
    (audit,) = [e for e in journal.events if isinstance(e, EpochAudited)]
    assert audit.exactly_once
    assert (audit.fewest, audit.most) == (0, 1)
