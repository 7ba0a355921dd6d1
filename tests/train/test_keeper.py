"""What is saved when, and that all workers do the same at the same step."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spotray.errors import CheckpointError
from spotray.events import (
    CheckpointCommitted,
    CheckpointRejected,
    Event,
    ResizeAgreed,
    Restored,
    SnapshotTaken,
    StepsDone,
    Warned,
)
from spotray.storage import Store
from spotray.train import session as session_module
from spotray.train.config import SpotConfig
from spotray.train.keeper import Keeper
from spotray.train.riders import Wish
from spotray.train.run import Run
from spotray.train.session import Progress, Session, StopRequest
from spotray.train.state import TrainState
from spotray.train.world import World
from tests.train.jobs import Memory
from tests.train.test_checkpointer import FailingStore
from tests.train.workers import WorkerPool

NEVER_S = 1e6


class Script:
    """A link to a coordinator that follows a script by steps, and remembers what it heard."""

    def __init__(
        self,
        *,
        stop_after: Mapping[int, StopRequest] | None = None,
        notices: Mapping[int, float] | None = None,
        losses: tuple[int, float] = (0, 0.0),
    ) -> None:
        self.step = 0
        self.heard: list[tuple[str, Any]] = []
        self._stops = dict(stop_after or {})
        self._notices = dict(notices or {})  # from that step on -> deadline, Unix seconds
        self._losses = losses

    def notice_deadline_s(self) -> float | None:
        given = [s for s in self._notices if s <= self.step]
        return self._notices[max(given)] if given else None

    def asks_to_stop(self) -> StopRequest | None:
        return self._stops.get(self.step)

    def progress(self, progress: Progress) -> None:
        self.step = progress.step
        assert min(progress.epoch, progress.step_s, progress.snapshot_s) >= 0

    def held(self, *, step: int, why: str) -> None:
        self.heard.append(("held", (step, why)))

    def wait_for_end(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self.heard.append(("wait", None))
        self._stops.clear()

    def losses(self) -> tuple[int, float]:
        return self._losses

    def report(self, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        self.heard.append(("report", checkpoint))


class Box:
    """A state that a test can look into."""

    def __init__(self) -> None:
        self.value = torch.zeros(1000)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


def session_in(
    folder: str | Path,
    world: World,
    *,
    link: Script | None = None,
    store: Store | None = None,
    **spot: Any,
) -> Session:
    rare = {"snapshot_interval_s": NEVER_S, "checkpoint_interval_s": NEVER_S}
    return Session(
        run_id="r",
        world=world,
        spot=SpotConfig(**{**rare, **spot}),
        store=store or Store.at(f"{folder}/store"),
        shm_dir=Path(folder) / f"shm-{world.rank}",
        node_id=f"n{world.rank}",
        link=link,
        journal=Memory(),
    )


def kept(session: Session) -> tuple[Keeper, Box]:
    box = Box()
    keeper = Keeper(session, session.world, TrainState({"box": box}))
    keeper.restore()
    return keeper, box


def events(session: Session, kind: type[Event]) -> list[Any]:
    assert isinstance(session.journal, Memory)
    return [e for e in session.journal.events if isinstance(e, kind)]


# -- wishes ---------------------------------------------------------------------------


def test_rank_0_alone_wishes(tmp_path: Path) -> None:
    link = Script(stop_after={0: StopRequest("room", durable=True)}, notices={0: 1e9})
    (first, _), (second, _) = (
        kept_alone(session_in(tmp_path / str(rank), World(rank=rank, size=2), link=link))
        for rank in (0, 1)
    )
    wish = first.wish()
    assert (wish.stop, wish.durable, wish.notice) == (1.0, 1.0, 1.0)
    assert second.wish() == Wish()


def kept_alone(session: Session) -> tuple[Keeper, Box]:
    box = Box()
    return Keeper(session, session.world, TrainState({"box": box})), box


# -- going on -----------------------------------------------------------------------


def test_the_newer_of_snapshot_and_checkpoint_is_taken(tmp_path: Path) -> None:
    session = session_in(tmp_path, World())
    keeper, box = kept(session)
    box.value.fill_(3)
    keeper.step_done(3, 0, None, Wish(checkpoint=1.0))
    box.value.fill_(5)
    keeper.step_done(5, 0, None, Wish(snapshot=1.0))
    keeper.step_done(6, 0, None, Wish())
    _end_threads(keeper)
    again = session_in(tmp_path, World())
    _, restored = kept(again)
    assert restored.value[0] == 5
    (event,) = events(again, Restored)
    assert (event.step, event.source, event.reached_step) == (5, "snapshot", 6)
    shutil.rmtree(tmp_path / "shm-0")
    last = session_in(tmp_path, World())
    last.reached_step = 6
    _, restored = kept(last)
    assert restored.value[0] == 3
    (event,) = events(last, Restored)
    assert (event.step, event.source, event.reached_step) == (3, "checkpoint", 6)


def test_a_damaged_snapshot_is_told_and_the_one_before_taken(tmp_path: Path) -> None:
    keeper, box = kept(session_in(tmp_path, World()))
    for step in (1, 2):
        box.value.fill_(step)
        keeper.step_done(step, 0, None, Wish(snapshot=1.0))
        _end_threads(keeper)
    data = tmp_path / "shm-0" / "r" / "slot-1.bin"
    data.write_bytes(b"\x00" * data.stat().st_size)
    again = session_in(tmp_path, World())
    _, restored = kept(again)
    assert restored.value[0] == 1
    (rejected,) = events(again, CheckpointRejected)
    assert "slot-1" in rejected.path
    assert "checksum" in rejected.why


def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(tmp_path: Path) -> None:
    keeper, box = kept(session_in(tmp_path, World()))
    for step in (1, 2):
        box.value.fill_(step)
        keeper.step_done(step, 0, None, Wish(checkpoint=1.0))
        _end_threads(keeper)
    shutil.rmtree(tmp_path / "shm-0")
    damaged = next((tmp_path / "store" / "checkpoints" / "step-00000002").glob("*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = session_in(tmp_path, World())
    _, restored = kept(again)
    assert restored.value[0] == 1
    assert [e.path for e in events(again, CheckpointRejected)] == ["step-00000002"]
    assert [e.source for e in events(again, Restored)] == ["checkpoint"]


# -- storage and memory that fail ------------------------------------------------------


def test_a_checkpoint_that_fails_is_told_and_the_next_one_is_tried(tmp_path: Path) -> None:
    failing: list[str] = []
    store = FailingStore(f"{tmp_path}/store", failing)
    session = session_in(tmp_path, World(), store=store, checkpoint_interval_s=1e-9)
    keeper, _ = kept(session)
    failing.append("write __0_")
    assert keeper.wish().checkpoint == 1.0
    keeper.step_done(1, 0, None, Wish(checkpoint=1.0))
    _end_threads(keeper)
    failing.clear()
    keeper.step_done(2, 0, None, Wish())
    (warned,) = events(session, Warned)
    assert "No space left on device" in warned.what
    assert "\n" not in warned.what
    assert keeper.wish().checkpoint == 1.0
    keeper.step_done(3, 0, None, Wish(checkpoint=1.0))
    _end_threads(keeper)
    keeper.step_done(4, 0, None, Wish())
    assert [e.step for e in events(session, CheckpointCommitted)] == [3]


def test_a_last_checkpoint_that_fails_is_an_error(tmp_path: Path) -> None:
    failing: list[str] = []
    store = FailingStore(f"{tmp_path}/store", failing)
    keeper, _ = kept(session_in(tmp_path, World(), store=store))
    failing.append("write")
    with pytest.raises(CheckpointError, match="No space left"):
        keeper.final_checkpoint(4, 1)


def test_a_snapshot_that_fails_is_told_and_training_goes_on(tmp_path: Path) -> None:
    session = session_in(tmp_path, World())
    keeper, _ = kept(session)
    (tmp_path / "shm-0" / "r").rmdir()
    (tmp_path / "shm-0" / "r").write_text("in the way")
    keeper.step_done(1, 0, None, Wish(snapshot=1.0))
    keeper.step_done(2, 0, None, Wish(notice=1.0))
    (warned,) = events(session, Warned)
    assert "no snapshots on this node, the state goes to storage alone" in warned.what
    assert events(session, SnapshotTaken) == []


def _end_threads(keeper: Keeper) -> None:
    assert keeper.saver.slots is not None
    assert keeper.saver.checkpoints is not None
    keeper.saver.slots.wait()
    keeper.saver.checkpoints.wait()


# -- in a real loop -------------------------------------------------------------------


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), 1.0]) / 8


def train(world: World, folder: str, script: dict[str, Any], spot: dict[str, Any]) -> Any:
    """Two epochs of ten steps under a scripted coordinator."""
    link = Script(**script)
    session = session_in(folder, world, link=link, **spot)
    session_module.enter(session)
    try:
        run = Run(global_batch_size=4, micro_batch_size=1)
        net = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        net, optimizer, loader = run.prepare(net, optimizer, Rows())
        for _ in run.epochs(2):
            for x in loader:
                run.backward(net(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        run.finish()
        assert isinstance(session.journal, Memory)
        return {"events": session.journal.events, "heard": link.heard, "sha256": run._weights}
    finally:
        session_module.enter(None)


def of(result: dict[str, Any], *kinds: type[Event]) -> list[Any]:
    return [e for e in result["events"] if isinstance(e, kinds)]


@pytest.fixture(scope="module")
def undisturbed(workers: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("undisturbed"))
    return str(workers.run(1, train, folder, {}, {})[0]["sha256"])


@pytest.mark.parametrize("durable", [False, True])
def test_all_workers_stand_still_after_one_step_and_go_on_if_nobody_replaces_them(
    workers: WorkerPool, tmp_path: Path, undisturbed: str, durable: bool
) -> None:
    script = {"stop_after": {4: StopRequest("room for 4 workers", durable=durable)}}
    results = workers.run(3, train, str(tmp_path), script, {})
    for result in results:
        (agreed,) = of(result, ResizeAgreed)
        assert agreed.step == 5
        assert result["sha256"] == undisturbed
        story = [
            (type(e).__name__, e.step)
            for e in of(result, SnapshotTaken, CheckpointCommitted, ResizeAgreed)
        ]
        saved = [("SnapshotTaken", 5), *([("CheckpointCommitted", 5)] if durable else [])]
        assert story == [*saved, ("ResizeAgreed", 5), ("CheckpointCommitted", 20)]
        assert [e.why for e in of(result, SnapshotTaken)] == ["resize"]
    assert of(results[0], ResizeAgreed)[0].why == "room for 4 workers"
    held = [[h for h in r["heard"] if h[0] == "held"] for r in results]
    assert held == [[("held", (5, "room for 4 workers"))], [], []], "rank 0 alone tells"


def test_one_notice_leads_to_exactly_one_snapshot_on_every_node(
    workers: WorkerPool, tmp_path: Path, undisturbed: str
) -> None:
    script = {"notices": {3: 2e9, 11: 2e9 + 60}}
    for result in workers.run(2, train, str(tmp_path), script, {}):
        taken = [(e.step, e.why) for e in of(result, SnapshotTaken)]
        assert taken == [(4, "notice"), (12, "notice")]
        assert result["sha256"] == undisturbed


def test_the_story_of_the_steps_has_no_gap_and_no_overlap(
    workers: WorkerPool, tmp_path: Path
) -> None:
    for result in workers.run(2, train, str(tmp_path), {}, {"snapshot_interval_s": 1e-9}):
        told = of(result, StepsDone)
        assert told[0].first_step == 1
        assert told[-1].last_step == 20
        for before, after in itertools.pairwise(told):
            assert after.first_step == before.last_step + 1
        assert sum(e.samples for e in told) == 80
        for event in told:
            assert len(event.ended_at_s) == event.last_step - event.first_step + 1
            assert list(event.ended_at_s) == sorted(event.ended_at_s)
        assert result["heard"] == [("report", f"{tmp_path}/store/checkpoints/step-00000020")]


def test_nothing_is_left_in_memory_after_the_end(workers: WorkerPool, tmp_path: Path) -> None:
    workers.run(2, train, str(tmp_path), {}, {"snapshot_interval_s": 1e-9})
    assert [p for p in tmp_path.rglob("shm-*/*")] == []
