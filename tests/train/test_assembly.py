"""What members may write, what they are told, and when they are asked to meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.clock import SystemClock, wait_until
from spotray.errors import FencedOut
from spotray.events import (
    Event,
    FellBack,
    MemberFencedOut,
    MemberReady,
    StepsDone,
    Warned,
    WorkerGroupLost,
    WorkerGroupStarted,
    encode,
)
from spotray.storage import Store
from spotray.train.assembly import Assembly
from spotray.train.inbox import Inbox
from spotray.train.membership import Membership, Roster, Timeouts
from spotray.train.messages import GO_ON, MEET, SAVE, Answer, Ask, Assignment, Beat, View
from spotray.train.moves import Planner
from spotray.train.session import Progress

_LOOK_S = 0.25  # more than half a second at once would be this side standing still


class Job:
    """An assembly, its time, and what its workers say."""

    def __init__(
        self, *, low: int = 1, high: int = 4, generation: int = 0, adopts: bool = True
    ) -> None:
        self.now_s = 1000.0
        self.events: list[Event] = []
        self.flushed = 0
        self.written: int | None = None  # of the events; None: all
        self.started: dict[str, str] = {}
        self.rosters: dict[str, Roster] = {}
        membership = Membership(
            min_workers=low,
            max_workers=high,
            timeouts=Timeouts(heartbeat_s=2.0, join_s=1.0),
            generation=generation,
        )
        self.assembly = Assembly(
            membership,
            append=self.events.append,
            inbox=Inbox(self.events.append, marks=self._marks),
            flush=self._flush,
            on_formed=lambda roster: None,
            host="127.0.0.1",
            planner=Planner(margin_s=5.0, mtbp_s=3600.0),
            max_workers=high,
            progress=Progress(step=0, epoch=0, loss=None),
            adopts=adopts,
            monotonic_s=lambda: self.now_s,
        )

    def _marks(self) -> tuple[int, int]:
        taken = len(self.events)
        return taken, taken if self.written is None else self.written

    def _flush(self) -> None:
        self.flushed += 1

    # What workers do.

    def enter(self, *names: str) -> None:
        for name in names:
            self.started[name] = node(name)
            self.sync()
            self.assembly.enter(name, node(name))

    def join(self, name: str, why: str = "", *, has_state: bool = True) -> Assignment | None:
        """Ask once, without waiting."""
        roster = self.rosters.get(name)
        generation = roster.generation if roster is not None else 0
        has_state = has_state and roster is not None
        answer = self.assembly.join(name, generation, why, has_state, 0.0)
        if answer is not None and answer.roster is not None:
            self.rosters[name] = answer.roster
        return answer

    def meet(self, *names: str, why: str = "") -> None:
        """All of them join, and hear of their generation."""
        for name in names:
            self.join(name, why)
        roster = self.assembly._membership.roster
        self.rosters.update({name: roster for name in roster.members})

    def beat(self, name: str, *events: Event, first: int = 0, **more: Any) -> Answer:
        beat = Beat(
            node_id=node(name),
            made_steps=more.get("made_steps", False),
            roster=self.rosters.get(name),
            progress=more.get("progress"),
            facts=tuple(encode(e) for e in events),
            first_fact=first,
        )
        return self.assembly.beat(name, beat)

    # What happens around them.

    def sync(self, **gone: str) -> View:
        for name in gone:
            self.started.pop(name, None)
        return self.assembly.sync(self.started, gone)

    def live(self, seconds: float, *beating: str) -> None:
        for _ in range(round(seconds / _LOOK_S)):
            self.now_s += _LOOK_S
            for name in beating:
                self.beat(name)
            self.sync()

    def notice(self, *names: str, left_s: float | None = 3600.0) -> None:
        deadline_s = None if left_s is None else time.time() + left_s
        self.assembly.set_notices({node(name): deadline_s for name in names})
        self.sync()

    def asked_to_meet(self, name: str) -> tuple[str, bool]:
        self.sync()
        directive = self.beat(name).directive
        return directive.meet, directive.durable

    def told(self, kind: type[Event]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


def node(name: str) -> str:
    return f"n-{name}"


def steps(last: int, *, first: int | None = None) -> StepsDone:
    return StepsDone(
        at_s=0.0,
        generation=1,
        first_step=first or last,
        last_step=last,
        seconds=1.0,
        samples=16,
        world_size=2,
        loss=1.0,
        ended_at_s=(0.0,),
    )


def warned(what: str) -> Warned:
    return Warned(at_s=0.0, what=what)


@pytest.fixture
def jobs() -> Iterator[Any]:
    made: list[Job] = []

    def make(**more: Any) -> Job:
        made.append(Job(**more))
        return made[-1]

    yield make
    for job in made:
        job.assembly.close()


@pytest.fixture
def pair(jobs: Any) -> Job:
    """A job of two members, a and b."""
    job: Job = jobs()
    begin(job, "a", "b")
    return job


def begin(job: Job, *names: str) -> None:
    job.enter(*names)
    job.meet(*names)
    assert job.assembly._membership.roster.members == names


# -- meeting -----------------------------------------------------------------------------


def test_all_members_get_the_same_generation_and_store(jobs: Any) -> None:
    job = jobs()
    job.enter("a", "b")
    assert job.join("a") is None
    at_b = job.join("b")
    at_a = job.join("a")
    assert at_a == at_b
    assert at_a.roster.members == ("a", "b")
    assert at_a.store_port > 0


def test_an_assignment_tells_when_the_generation_before_broke(pair: Job) -> None:
    pair.sync(b="killed")
    answer = pair.join("a", "broke")
    assert answer is not None
    assert answer.broke_at_s == pair.told(WorkerGroupLost)[0].at_s
    pair.enter("c")
    pair.join("c")
    agreed = pair.join("a")
    assert agreed is not None
    assert agreed.broke_at_s is None, "nothing broke: they met as agreed"


def test_a_loss_is_told_once_with_its_node(pair: Job) -> None:
    pair.sync(b="killed")
    pair.sync(b="killed")
    pair.join("a", "broke")
    (lost,) = pair.told(WorkerGroupLost)
    assert lost.lost_node_ids == ("n-b",)
    assert [g.generation for g in pair.told(WorkerGroupStarted)] == [1, 2]
    assert pair.told(WorkerGroupStarted)[1].live


def test_one_that_was_left_behind_is_told_so_and_never_comes_back(pair: Job) -> None:
    pair.notice("b", left_s=None)
    pair.join("b")
    pair.join("a")
    answer = pair.join("b")
    assert answer is not None
    assert answer.roster is None
    pair.notice()  # withdrawn, too late
    pair.sync()
    assert pair.beat("b").directive.is_out
    assert "b" not in pair.sync().known


def test_who_waits_when_the_job_is_done_is_told(pair: Job) -> None:
    pair.enter("c")
    assert pair.join("c") is None
    pair.assembly.finish("a", {"loss": 1.0}, "path")
    answer = pair.join("c")
    assert answer is not None
    assert answer.out == "training is done"
    assert pair.sync().done


def test_nothing_is_told_of_who_ends_when_the_job_is_done(pair: Job) -> None:
    pair.assembly.finish("a", {}, None)
    told = len(pair.events)
    pair.sync(a="finished")
    pair.live(5.0)
    assert len(pair.events) == told


def test_the_driver_never_starts_fewer_than_are_needed(jobs: Any) -> None:
    job = jobs(low=3)
    begin(job, "a", "b", "c")
    job.beat("a", progress=Progress(step=1, epoch=0, loss=1.0, useful_workers=2))
    assert job.sync().useful_workers == 3


def test_progress_of_an_older_generation_is_not_believed(pair: Job) -> None:
    old = pair.rosters["a"]
    pair.sync(b="killed")
    pair.meet("a", why="broke")
    late = Beat(
        node_id="n-a",
        made_steps=True,
        roster=old,
        progress=Progress(step=99, epoch=0, loss=None),
    )
    pair.assembly.beat("a", late)
    assert pair.assembly.progress.step == 0


# -- fencing --------------------------------------------------------------------------------


def thrown_out(job: Job, name: str, *others: str) -> None:
    job.live(3.0, *others)
    job.meet(*others, why="broke")
    assert job.told(MemberFencedOut)[-1].node_id == node(name)


def test_a_member_that_was_silent_may_not_commit_when_it_wakes(pair: Job, tmp_path: Path) -> None:
    folder = Store.at(str(tmp_path)).child("step-1")
    manifest = Manifest(
        run_id="r", step=1, epoch=0, world_size=1, created_at_s=0.0, files={}, extra={}
    )
    thrown_out(pair, "b", "a")
    with pytest.raises(FencedOut):
        pair.assembly.commit("b", folder, manifest)
    assert manifests.list_checkpoints(Store.at(str(tmp_path))) == []
    pair.assembly.commit("a", folder, manifest)
    assert manifests.read(folder).step == 1


def test_it_may_not_write_facts(pair: Job) -> None:
    thrown_out(pair, "b", "a")
    before = len(pair.events)
    with pytest.raises(FencedOut):
        pair.assembly.tell("b", [encode(steps(7))], 0)
    answer = pair.beat("b", steps(7))
    assert answer.directive.is_out
    assert answer.facts_kept == 1, "it need not send them again"
    assert len(pair.events) == before


def test_it_may_not_end_the_job(pair: Job) -> None:
    thrown_out(pair, "b", "a")
    with pytest.raises(FencedOut):
        pair.assembly.finish("b", {}, None)
    assert not pair.sync().done


def test_it_gets_no_generation(pair: Job) -> None:
    thrown_out(pair, "b", "a")
    answer = pair.join("b", "broke")
    assert answer is not None
    assert answer.roster is None
    assert "no sign of life" in answer.out
    pair.assembly.enter("b", "n-b")
    assert not pair.assembly._membership.is_known("b")


def test_a_newcomer_may_not_write_before_it_is_let_in(pair: Job) -> None:
    pair.enter("c")
    with pytest.raises(FencedOut):
        pair.assembly.tell("c", [encode(steps(7))], 0)
    pair.beat("c", steps(8))
    assert pair.told(StepsDone) == []


# -- facts ----------------------------------------------------------------------------------


def test_a_fact_is_the_senders_to_keep_until_storage_holds_it(jobs: Any) -> None:
    job = jobs()
    begin(job, "a", "b")
    job.written = 0
    assert job.beat("a", warned("one"), warned("two")).facts_kept == 0
    job.written = None
    assert job.beat("a", warned("one"), warned("two")).facts_kept == 2
    assert [e.what for e in job.told(Warned)] == ["one", "two"]


def test_a_call_that_comes_late_keeps_nothing_twice(pair: Job) -> None:
    pair.beat("a", warned("1"), warned("2"))
    pair.assembly.tell("a", [encode(warned("2")), encode(warned("3"))], 1)
    assert pair.flushed == 1
    assert pair.beat("a", warned("1")).facts_kept == 3
    assert [e.what for e in pair.told(Warned)] == ["1", "2", "3"]


def test_the_next_rank_0_learns_which_steps_were_told(pair: Job) -> None:
    pair.beat("a", steps(4, first=1), steps(5))
    pair.sync(a="killed")
    answer = pair.join("b", "broke")
    assert answer is not None
    assert answer.told_step == 5


# -- plans ----------------------------------------------------------------------------------


def test_a_newcomer_is_let_in_when_nobody_else_is_on_the_way(pair: Job) -> None:
    pair.enter("c")
    assert pair.asked_to_meet("a") == ("", False)
    pair.join("c")
    assert pair.asked_to_meet("a") == ("1 worker(s) are ready", False)
    pair.meet("a", "b")
    assert pair.sync().members == ("a", "b", "c")
    (ready,) = pair.told(MemberReady)
    assert ready.node_id == "n-c"


def test_who_was_there_from_the_start_is_no_newcomer(jobs: Any) -> None:
    job = jobs()
    job.enter("a", "b", "c")
    waiting = [Waiting(job, "a"), Waiting(job, "b"), Waiting(job, "c")]
    for one in waiting:
        assert one.get().roster is not None
    roster = job.assembly._membership.roster
    job.rosters = dict.fromkeys(roster.members, roster)
    job.sync(c="killed")
    job.meet("a", "b", why="broke")
    assert job.told(MemberReady) == []


def test_newcomers_that_come_together_share_a_meeting(pair: Job) -> None:
    pair.enter("c", "d")
    pair.join("c")
    assert pair.asked_to_meet("a") == ("", False)
    pair.live(1.25, "a", "b", "c", "d")
    assert pair.asked_to_meet("a")[0], "but it does not wait for ever"


def test_workers_without_a_shard_are_not_let_in(pair: Job) -> None:
    pair.beat("a", progress=Progress(step=1, epoch=0, loss=1.0, useful_workers=2))
    pair.enter("c")
    pair.join("c")
    assert pair.asked_to_meet("a") == ("", False)


def test_a_node_under_notice_is_used_until_it_must_be_left(pair: Job) -> None:
    pair.notice("b", left_s=120.0)
    assert pair.asked_to_meet("a") == ("", False)
    pair.notice("b", left_s=4.0)
    why, durable = pair.asked_to_meet("a")
    assert why == "1 node(s) are about to be taken"
    assert not durable, "another keeps the state"
    pair.meet("a", "b")
    assert pair.sync().members == ("a",)


def test_it_is_used_also_after_the_loss_of_another(jobs: Any) -> None:
    job = jobs(high=3)
    begin(job, "a", "b", "c")
    job.notice("b", left_s=120.0)
    job.sync(c="killed")
    job.meet("a", "b", why="c is gone")
    assert job.sync().members == ("a", "b")


def test_a_newcomer_under_notice_is_not_let_in(pair: Job) -> None:
    pair.enter("c")
    pair.notice("c", left_s=120.0)
    pair.join("c")
    assert pair.asked_to_meet("a") == ("", False)


def test_a_notice_that_is_withdrawn_is_forgotten(pair: Job) -> None:
    pair.notice("b", left_s=None)
    assert pair.asked_to_meet("a")[0]
    pair.notice()
    assert pair.asked_to_meet("a") == ("", False)


def test_notices_of_one_minute_share_a_move_to_those_who_are_ready(jobs: Any) -> None:
    job = jobs(high=3)
    begin(job, "a", "b", "c")
    job.notice("a")
    job.enter("d")
    job.join("d")
    job.live(30.0, "a", "b", "c", "d")
    job.notice("a", "b")
    job.enter("e")
    job.join("e")
    job.live(29.0, "a", "b", "c", "d", "e")
    assert job.asked_to_meet("a") == ("", False)
    job.live(1.5, "a", "b", "c", "d", "e")
    assert job.asked_to_meet("a") == ("2 node(s) will be taken, others are ready", False)
    job.meet("a", "b", "c")
    assert job.sync().members == ("c", "d", "e")
    assert len(job.told(WorkerGroupStarted)) == 2


def test_too_few_who_wait_and_nobody_left_are_told_once_each(jobs: Any) -> None:
    job = jobs(low=2, high=2)
    begin(job, "a", "b")
    job.sync(b="killed")
    job.join("a", "b is gone")
    job.live(5.0, "a")
    assert [e.to for e in job.told(FellBack)] == ["waiting"]
    assert job.told(FellBack)[0].why.startswith("1 worker(s) of at least 2 are left")
    job.sync(a="killed")
    job.live(1.0)
    assert [e.to for e in job.told(FellBack)] == ["waiting", "snapshot"]


def test_a_second_notice_years_later_is_a_new_one(jobs: Any) -> None:
    job = jobs(high=2)
    begin(job, "a", "b")
    job.enter("c")
    job.join("c")
    job.notice("a")
    job.notice()
    job.live(100.0, "a", "b", "c")
    job.notice("a")
    assert job.asked_to_meet("a") == ("", False)


def test_where_all_leave_the_state_goes_to_storage_in_time(pair: Job) -> None:
    pair.beat("a", progress=Progress(step=9, epoch=0, loss=1.0, checkpoint_s=20.0))
    pair.notice("a", "b", left_s=120.0)
    assert pair.asked_to_meet("a") == ("", False)
    pair.notice("a", "b", left_s=40.0)
    why, durable = pair.asked_to_meet("a")
    assert why
    assert durable


def test_all_who_leave_hand_over_to_those_who_are_ready(jobs: Any) -> None:
    job = jobs(high=2)
    begin(job, "a", "b")
    job.notice("a", "b", left_s=60.0)
    job.enter("c", "d")
    job.join("c")
    job.join("d")
    assert job.asked_to_meet("a") == ("", False)
    job.notice("a", "b", left_s=4.0)
    assert job.asked_to_meet("a") == ("2 node(s) are about to be taken", False)
    job.meet("a", "b")
    assert job.assembly._membership.roster.heirs == ("a", "b")
    assert job.asked_to_meet("a")[0], "the old ones go with the first step"
    for name in ("a", "b", "c", "d"):
        job.join(name)
    assert job.sync().members == ("c", "d")


# -- a restart of this side -------------------------------------------------------------------


def restarted(jobs: Any, old: Job, *, generation: int, **more: Any) -> Job:
    """An assembly that knows no more than a generation's number."""
    job: Job = jobs(generation=generation, **more)
    job.rosters, job.started = dict(old.rosters), dict(old.started)
    return job


def test_members_go_on_as_if_nothing_was(jobs: Any, pair: Job) -> None:
    job = restarted(jobs, pair, generation=1)
    for name in ("a", "b"):
        directive = job.beat(name).directive
        assert not directive.is_out
        assert not directive.broken
    job.live(3.0, "a", "b")
    assert job.sync().members == ("a", "b")
    assert not job.beat("a").directive.broken


def test_where_members_end_with_this_side_nobody_waits_for_them(jobs: Any, pair: Job) -> None:
    job = jobs(generation=1, adopts=False)
    job.enter("c")
    job.join("c")
    assert job.sync().members == ("c",), "it waited for members of before"
    late = restarted(jobs, pair, generation=1, adopts=False)
    assert late.beat("a").directive.is_out, "one of an ended life came in"


def test_it_waits_until_the_first_worker_is_heard(jobs: Any, pair: Job) -> None:
    job = restarted(jobs, pair, generation=1)
    job.live(30.0)  # only the driver is there
    assert not job.beat("b").directive.is_out
    job.live(0.5, "a", "b")
    assert job.sync().members == ("a", "b")


def test_a_member_that_is_not_heard_after_it_is_lost(jobs: Any, pair: Job) -> None:
    job = restarted(jobs, pair, generation=1)
    job.live(5.0, "a")
    assert "no sign of life" in job.beat("a").directive.broken
    assert job.sync().members == ("a",)


def test_those_who_wait_to_meet_need_not_ask_again(jobs: Any, pair: Job) -> None:
    """A call to join may reach this side before the sign of life that says who asks."""
    job = restarted(jobs, pair, generation=1)
    answers = Waiting(job, "a"), Waiting(job, "b")
    for name in ("a", "b"):
        job.beat(name)
    job.live(2.5, "a", "b")
    for answer in answers:
        roster = answer.get().roster
        assert roster is not None
        assert (roster.generation, roster.members, roster.heirs) == (2, ("a", "b"), ("a", "b"))


def test_who_was_thrown_out_before_stays_out(jobs: Any) -> None:
    old = jobs()
    begin(old, "a", "b", "x")
    thrown_out(old, "x", "a", "b")
    job = restarted(jobs, old, generation=2)
    assert old.rosters["x"].generation == 1
    for name in ("x", "a", "b"):
        job.beat(name)
    job.live(3.0, "x", "a", "b")
    assert job.sync().members == ("a", "b")
    assert job.beat("x").directive.is_out
    answer = job.join("x", "broke")
    assert answer is not None
    assert answer.roster is None
    with pytest.raises(FencedOut):
        job.assembly.tell("x", [encode(steps(7))], 0)


def test_what_a_member_writes_may_come_before_its_first_sign_of_life(jobs: Any, pair: Job) -> None:
    """The end of training may fall into a restart, and is not to be refused for that."""
    job = restarted(jobs, pair, generation=1)
    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(job.assembly.tell, "a", [encode(steps(7))], 0)
        assert wait_until(lambda: job.assembly.hearing.has_begun, timeout_s=10, clock=SystemClock())
        job.live(1.75)  # a busy machine: nearly as long as a member may ever be silent
        assert not told.done()
        job.beat("a")
        assert told.result(timeout=10) == 1
    assert [e.last_step for e in job.told(StepsDone)] == [7]


def test_nobody_else_writes_after_a_restart_however_long_it_waits(jobs: Any, pair: Job) -> None:
    job = restarted(jobs, pair, generation=1)
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(job.assembly.finish, "x", {}, None)
        job.live(3.0, "a", "b")
        with pytest.raises(FencedOut):
            ended.result(timeout=10)
    assert not job.sync().done


@pytest.mark.parametrize("order", [("x", "a", "b"), ("a", "x", "b")])
def test_also_where_the_journal_had_not_heard_of_the_newest_generation(
    jobs: Any, order: tuple[str, ...]
) -> None:
    old = jobs()
    begin(old, "a", "b", "x")
    thrown_out(old, "x", "a", "b")
    job = restarted(jobs, old, generation=1)
    for name in order:
        job.beat(name)
    job.live(3.0, *order)
    view = job.sync()
    assert (view.generation, view.members) == (2, ("a", "b"))
    assert job.beat("x").directive.is_out
    assert "x" not in job.sync().known


def test_a_newcomer_under_way_is_not_forgotten(jobs: Any, pair: Job) -> None:
    pair.enter("c")
    job = restarted(jobs, pair, generation=1)
    waits = Waiting(job, "c")
    for name in ("a", "b", "c"):
        job.beat(name)
    job.live(2.5, "a", "b", "c")
    newcomers = job.assembly._membership.newcomers
    assert wait_until(lambda: newcomers() == ["c"], timeout_s=10, clock=SystemClock())
    assert job.asked_to_meet("a")[0] == "1 worker(s) are ready"
    job.meet("a", "b")
    roster = waits.get().roster
    assert roster is not None
    assert roster.members == ("a", "b", "c")


class Waiting:
    """A call to join that waits for its answer in a thread of its own."""

    def __init__(self, job: Job, name: str) -> None:
        roster = job.rosters.get(name)
        generation = roster.generation if roster is not None else 0
        self._answer: Assignment | None = None
        asked = threading.Event()

        def ask() -> None:
            asked.set()
            self._answer = job.assembly.join(name, generation, "", generation > 0, 20.0)

        self._thread = threading.Thread(target=ask, daemon=True)
        self._thread.start()
        assert asked.wait(10)

    def get(self) -> Assignment:
        self._thread.join(timeout=10)
        assert self._answer is not None, "it still waits"
        return self._answer


# -- whether to go on, and the job's share of the workers --------------------------------


def ask(step: int, **metrics: float) -> Ask:
    return Ask(step=step, epoch=1, reports=(metrics,))


def test_all_members_hear_one_decision_and_rank_0_brings_the_reports(jobs: Any) -> None:
    job = jobs()
    begin(job, "a", "b")
    assert job.assembly.ask("b", ask(5, loss=9.0), 0.0) is None
    assert job.assembly.next_ask(0.0) is None
    assert job.assembly.ask("a", ask(5, loss=1.0), 0.0) is None
    assert job.assembly.next_ask(0.0) == ask(5, loss=1.0)
    job.assembly.decide(5, GO_ON)
    assert job.assembly.ask("a", ask(5), 0.0) == GO_ON
    assert job.assembly.ask("b", ask(5), 0.0) == GO_ON


def test_who_waits_for_a_decision_hears_it_at_once(jobs: Any) -> None:
    job = jobs()
    begin(job, "a")
    heard: list[str | None] = []
    waits = threading.Thread(target=lambda: heard.append(job.assembly.ask("a", ask(5), 30.0)))
    waits.start()
    assert job.assembly.next_ask(10.0) == ask(5)
    job.assembly.decide(5, SAVE)
    waits.join(timeout=10)
    assert heard == [SAVE]
    job.assembly.saved("a", 5, "/checkpoints/step-5")
    assert job.assembly.wait_saved(0.0) == (5, "/checkpoints/step-5")


def test_a_loss_while_all_wait_makes_them_meet_first(jobs: Any) -> None:
    job = jobs()
    begin(job, "a", "b")
    job.assembly.ask("a", ask(5, loss=1.0), 0.0)
    job.sync(a="its process ended")
    assert job.assembly.ask("b", ask(5, loss=1.0), 0.0) == MEET
    job.meet("b", why="a is gone")
    assert job.assembly.ask("b", ask(5, loss=1.0), 0.0) is None
    assert job.assembly.next_ask(0.0) == ask(5, loss=1.0)
    assert job.assembly.next_ask(0.0) is None


def test_who_was_thrown_out_may_not_ask(jobs: Any) -> None:
    job = jobs()
    begin(job, "a", "b")
    job.sync(b="its process ended")
    with pytest.raises(FencedOut, match="its process ended"):
        job.assembly.ask("b", ask(5), 0.0)


def test_a_smaller_share_lets_the_last_ones_go_and_a_larger_one_takes_more(jobs: Any) -> None:
    job = jobs()
    begin(job, "a", "b", "c")
    job.assembly.set_share(1)
    assert job.asked_to_meet("a") == ("2 worker(s) are needed elsewhere", False)
    job.meet("a", "b", "c")
    assert job.sync().members == ("a",)
    for name in ("b", "c"):
        left = job.join(name)
        assert left is not None
        assert left.roster is None
    job.assembly.set_share(0)
    assert job.asked_to_meet("a") == ("", False)
    job.assembly.set_share(2)
    job.enter("d")
    job.join("d")
    assert job.asked_to_meet("a") == ("1 worker(s) are ready", False)


def test_a_job_that_is_stopped_lets_everybody_go(jobs: Any) -> None:
    job = jobs()
    begin(job, "a", "b")
    job.assembly.stop("the trial is over")
    assert job.beat("a").directive.broken == "the trial is over"
    left = job.join("a", "the trial is over")
    assert left is not None
    assert left.out == "the trial is over"
    with pytest.raises(FencedOut):
        job.assembly.finish("b", {}, None)


def test_the_driver_hears_whose_process_runs(jobs: Any) -> None:
    job = jobs()
    job.enter("a")
    job.started["b"] = node("b")
    view = job.sync()
    assert view.known == ("a", "b")
    assert view.entered == ("a",)
