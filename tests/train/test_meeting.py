"""What a worker does when its workers change; whom it meets is scripted, the state is real."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from spotray.checkpoint import manifest as manifests
from spotray.errors import ConfigError, WorldBroken
from spotray.events import Reported, Restored
from spotray.storage import Store
from spotray.train.config import SpotConfig
from spotray.train.keeper import Keeper
from spotray.train.meeting import Meetings
from spotray.train.member import LeftJob, Member, Reenter
from spotray.train.membership import Roster
from spotray.train.messages import GO_ON, MEET, SAVE, STOP, Ask, Assignment
from spotray.train.reporting import Reports
from spotray.train.riders import Wish
from spotray.train.session import Session
from spotray.train.state import Position, TrainState
from spotray.train.world import World
from tests.train.jobs import Memory
from tests.train.scripted_calls import Scripted


class Breaking(World):
    """A world of which another worker is lost at once."""

    def gather_objects(self, mine: Any, *, for_io: bool = False) -> NoReturn:
        raise WorldBroken("w2 is silent")


class Meeter(Member):
    """Joins what a script says: worlds to go on in, or errors."""

    def __init__(self, diary: list[str], script: list[World | BaseException], heirs: str) -> None:
        self.decisions: list[str] = []  # to come, one for each question
        calls = Scripted()
        calls.answers["ask"] = self._decide
        calls.answers["saved"] = lambda name, step, url: diary.append(f"saved {step} {url}")
        calls.answers["commit"] = lambda name, folder, manifest: manifests.write(folder, manifest)
        super().__init__(calls, name="w1", node_id="n1", device=torch.device("cpu"))
        self._diary, self._script, self._heirs = diary, script, tuple(heirs.split())

    def join(self, why: str, *, is_busy: bool = False) -> World:
        self._diary.append(f"join {why}".strip())
        one = self._script.pop(0)
        if isinstance(one, BaseException):
            raise one
        self._roster = Roster(
            generation=one.generation, members=("w1",), node_ids=("n1",), heirs=self._heirs
        )
        self.assignment = Assignment(roster=self._roster, reached_step=7)
        return one

    def _decide(self, name: str, ask: Ask, timeout_s: float) -> str:
        seen = [report["seen"] for report in ask.reports]
        self._diary.append(f"ask {ask.step} {seen}")
        return self.decisions.pop(0)


class Box:
    """A state that a test can look into."""

    def __init__(self) -> None:
        self.value = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


class Scene:
    """One worker; ``script``: what it is given when it joins."""

    def __init__(
        self, folder: Path, *script: World | BaseException, heirs: str = "w1", live: bool = True
    ) -> None:
        self.diary: list[str] = []
        self.session = Session(
            run_id="r",
            world=World(),
            spot=SpotConfig(snapshot_interval_s=1e6, checkpoint_interval_s=1e6),
            store=Store.at(str(folder / "store")),
            shm_dir=None,
            node_id="n1",
            link=None,
            journal=Memory(),
            member=Meeter(self.diary, list(script), heirs) if live else None,
        )
        self.box = Box()
        self.position = Position(global_batch_size=8, micro_batch_size=2, seed=0, samples=40)
        state = TrainState({"position": self.position, "box": self.box})
        self.keeper = Keeper(self.session, self.session.world, state)
        self.reports = Reports(self.session, self.position)
        self.meetings = Meetings(
            self.session,
            self.keeper,
            self.position,
            tally=None,
            reports=self.reports,
            drop_step=lambda: self.diary.append("drop"),
        )

    def be_at(self, epoch: int, step: int) -> None:
        self.position.epoch, self.position.step = epoch, step
        self.box.value.fill_(step)

    def report(self, *decisions: str) -> None:
        """Report something, about which ``decisions`` will come."""
        assert isinstance(self.session.member, Meeter)
        self.session.member.decisions.extend(decisions)
        self.session.asks = True
        self.reports.report({"seen": self.position.step}, asks=True)
        self.meetings.ask_before_next_step()

    def save(self) -> None:
        step, epoch = self.position.step, self.position.epoch
        self.keeper.step_done(step, epoch, None, Wish(checkpoint=1.0))
        assert self.keeper.saver.checkpoints is not None
        self.keeper.saver.checkpoints.wait()

    @property
    def restored(self) -> list[tuple[str, int]]:
        assert isinstance(self.session.journal, Memory)
        events = self.session.journal.events
        return [(e.source, e.step) for e in events if isinstance(e, Restored)]


def test_without_live_recovery_a_loss_is_told_to_the_loop(tmp_path: Path) -> None:
    scene, lost = Scene(tmp_path, live=False), WorldBroken("w2 is gone")
    world = World()
    assert scene.meetings.begin(world) is world
    assert scene.restored == [("fresh", 0)]
    scene.meetings.check()
    with pytest.raises(WorldBroken) as caught:
        scene.meetings.meet(lost)
    assert caught.value is lost
    with pytest.raises(ConfigError, match=r"caught WorldBroken \(w2 is gone\).* let it pass"):
        scene.meetings.check()


def test_the_step_is_dropped_before_its_world_is_left_and_the_state_kept(tmp_path: Path) -> None:
    world = World(generation=2)
    scene = Scene(tmp_path, world)
    scene.be_at(epoch=1, step=5)
    assert scene.meetings.meet(WorldBroken("w2 is gone")) is world
    assert scene.diary == ["drop", "join w2 is gone", "drop"]
    assert scene.session.world is world
    assert scene.session.reached_step == 7
    assert (scene.position.step, scene.box.value[0]) == (5, 5)
    assert scene.restored == [("kept", 5)]
    scene.meetings.check()


def test_a_world_that_breaks_while_they_meet_is_left_for_the_next(tmp_path: Path) -> None:
    last = World(generation=4)
    scene = Scene(tmp_path, Breaking(generation=2), Breaking(generation=3), last)
    assert scene.meetings.meet() is last
    assert scene.diary == ["drop", "join", "join w2 is silent", "join w2 is silent", "drop"]


def test_where_nobody_has_the_state_the_saved_one_counts(tmp_path: Path) -> None:
    before = Scene(tmp_path)
    before.be_at(epoch=0, step=3)
    before.save()
    scene = Scene(tmp_path, World(generation=2), heirs="")
    scene.meetings.begin(World())
    assert (scene.position.step, scene.box.value[0]) == (3, 3)
    assert scene.restored == [("checkpoint", 3)]


def test_a_state_of_an_earlier_epoch_sends_the_loop_to_its_top(tmp_path: Path) -> None:
    scene = Scene(tmp_path, World(generation=2), heirs="")
    scene.be_at(epoch=0, step=3)
    scene.save()
    scene.be_at(epoch=1, step=6)
    with pytest.raises(Reenter, match="the state is of epoch 0, this loop is in epoch 1"):
        scene.meetings.meet(WorldBroken("all others are gone"))
    with pytest.raises(ConfigError, match="caught Reenter"):
        scene.meetings.check()
    handed_over = scene.keeper.take_over()
    assert handed_over is not None

    again = Scene(tmp_path)
    again.session.handed_over = handed_over
    world = World()
    assert again.meetings.begin(world) is world
    assert (again.position.epoch, again.position.step, again.box.value[0]) == (0, 3, 3)
    assert again.session.handed_over is None
    assert again.diary == [], "the others know nothing of it"


def test_a_newcomer_runs_one_pass_before_it_meets_the_others(tmp_path: Path) -> None:
    world = World(generation=3)
    scene = Scene(tmp_path, world)
    scene.session.warm_up_from = (2, 30)
    scene.meetings.begin(World())
    assert scene.meetings.warming_up
    assert (scene.position.epoch, scene.position.step) == (2, 30)
    assert scene.diary == []
    assert scene.meetings.meet() is world
    assert not scene.meetings.warming_up
    assert scene.diary == ["drop", "join", "drop"]


def test_a_worker_that_is_not_wanted_leaves_and_a_loop_must_not_hide_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, LeftJob("its node will be taken"))
    with pytest.raises(LeftJob):
        scene.meetings.meet()
    with pytest.raises(ConfigError, match=r"caught LeftJob \(its node will be taken\)"):
        scene.meetings.check()


# -- whether to go on -----------------------------------------------------------------


def test_without_a_report_nobody_asks(tmp_path: Path) -> None:
    scene, world = Scene(tmp_path), World()
    scene.meetings.ask_before_next_step()
    assert scene.meetings.decided(world) is world
    assert scene.diary == []


def test_a_report_is_asked_about_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.be_at(epoch=1, step=5)
    scene.report(GO_ON)
    for _ in range(2):
        scene.meetings.ask_before_next_step()
        assert scene.meetings.decided(scene.session.world) is scene.session.world
    assert scene.diary == ["ask 5 [5]"]


def test_nobody_hears_of_a_report_before_it_is_in_storage(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    class Noting(Memory):
        def flush(self) -> None:
            seen = [e.metrics["seen"] for e in self.events if isinstance(e, Reported)]
            scene.diary.append(f"stored {seen}")

    scene.session.journal = Noting()
    scene.be_at(epoch=1, step=5)
    scene.report(GO_ON)
    scene.meetings.decided(scene.session.world)
    assert scene.diary == ["stored [5]", "ask 5 [5]"]


def test_after_a_save_they_ask_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.be_at(epoch=1, step=5)
    scene.report(SAVE, GO_ON)
    scene.meetings.decided(scene.session.world)
    asked, saved, again = scene.diary
    assert asked == again == "ask 5 [5]"
    assert saved.startswith("saved 5 ")
    (name,) = [path.name for path in (tmp_path / "store" / "checkpoints").iterdir()]
    assert saved.endswith(name)


def test_a_loss_while_they_wait_changes_no_question(tmp_path: Path) -> None:
    world = World(generation=2)
    scene = Scene(tmp_path, world)
    scene.be_at(epoch=1, step=5)
    scene.report(MEET, GO_ON)
    assert scene.meetings.decided(scene.session.world) is world
    meeting = ["drop", "join the workers changed", "drop"]
    assert scene.diary == ["ask 5 [5]", *meeting, "ask 5 [5]"]


def test_a_loop_must_not_hide_that_the_job_is_to_stop(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.report(STOP)
    with pytest.raises(LeftJob):
        scene.meetings.decided(scene.session.world)
    with pytest.raises(ConfigError, match="caught LeftJob"):
        scene.meetings.check()


def test_a_newcomer_does_not_ask_before_it_is_let_in(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.session.warm_up_from = (2, 30)
    scene.meetings.begin(scene.session.world)
    scene.report()
    scene.meetings.decided(scene.session.world)
    assert scene.diary == []
