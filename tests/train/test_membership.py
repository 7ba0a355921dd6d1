"""The rules of live membership: any order of events, in no time."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spotray.train.membership import Membership, Roster, Timeouts

TIMES = Timeouts(heartbeat_s=2.0, join_s=1.0, newcomer_s=10.0, rejoin_s=30.0, start_s=20.0)
_TICK_S = 0.25


class Job:
    """A membership, its time, and workers that do as they are told."""

    def __init__(self, *, low: int = 1, high: int = 4, idle: int = 5, generation: int = 0) -> None:
        self.now_s = 1000.0
        self.rules = Membership(
            min_workers=low,
            max_workers=high,
            timeouts=TIMES,
            generation=generation,
            max_idle_generations=idle,
        )

    def enter(self, *names: str) -> None:
        for name in names:
            self.rules.expect(name, node(name), self.now_s)
            self.rules.enter(name, node(name), self.now_s)

    def join(self, *names: str, why: str = "", has_state: bool = True) -> Roster | None:
        """As members of the present generation, or as newcomers."""
        roster = self.rules.roster
        for name in names:
            generation = roster.generation if name in roster.members else 0
            self.rules.join(
                name,
                generation,
                self.now_s,
                why=why,
                has_state=has_state and generation > 0,
            )
        return self.rules.tick(self.now_s)

    def begin(self, *names: str) -> Roster:
        """The first generation."""
        self.enter(*names)
        roster = self.join(*names)
        assert roster is not None
        return roster

    def lose(self, *names: str) -> Roster | None:
        for name in names:
            self.rules.lose(name, "killed", self.now_s)
        return self.rules.tick(self.now_s)

    def live(self, seconds: float, *beating: str, made_steps: bool = False) -> Roster | None:
        """Let time pass, with signs of life of some; the generation that was formed."""
        formed = None
        for _ in range(round(seconds / _TICK_S)):
            self.now_s += _TICK_S
            for name in beating:
                self.rules.beat(name, self.now_s, made_steps=made_steps)
            formed = self.rules.tick(self.now_s) or formed
        return formed


def node(name: str) -> str:
    return f"n-{name}"


def test_the_first_generation_waits_for_all_that_were_started() -> None:
    job = Job()
    job.enter("a", "b")
    assert job.join("a") is None
    roster = job.join("b")
    assert roster == Roster(generation=1, members=("a", "b"), node_ids=("n-a", "n-b"))


def test_but_not_for_ever() -> None:
    job = Job()
    job.enter("a", "b")
    job.join("a")
    assert job.live(19.5, "a", "b") is None
    roster = job.live(1.0, "a", "b")
    assert roster is not None
    assert roster.members == ("a",)


def test_the_first_generation_has_no_heirs() -> None:
    assert Job().begin("a", "b").heirs == ()


def test_survivors_form_the_next_generation_and_keep_their_order() -> None:
    job = Job()
    job.begin("a", "b", "c")
    job.lose("b")
    assert job.join("c", why="broke") is None
    roster = job.join("a", why="broke")
    assert roster is not None
    assert (roster.generation, roster.members, roster.heirs) == (2, ("a", "c"), ("a", "c"))


def test_a_loss_tells_the_others_to_leave_their_collectives() -> None:
    job = Job()
    job.begin("a", "b")
    assert job.rules.beat("a", job.now_s).broken == ""
    job.lose("b")
    directive = job.rules.beat("a", job.now_s)
    assert (directive.generation, directive.broken) == (1, "killed")


def test_one_that_cannot_go_on_breaks_the_generation_of_all() -> None:
    job = Job()
    job.begin("a", "b")
    job.join("a", why="gloo failed")
    assert job.rules.beat("b", job.now_s).broken == "gloo failed"


def test_a_silent_member_is_lost() -> None:
    job = Job()
    job.begin("a", "b")
    job.live(1.75, "a")
    assert job.rules.members_alive() == ["a", "b"]
    job.live(0.5, "a")
    assert job.rules.members_alive() == ["a"]
    (loss,) = job.rules.losses
    assert (loss.member, loss.was_member, loss.maybe_alive) == ("b", True, True)


def test_it_is_lost_sooner_while_others_wait_for_it() -> None:
    job = Job()
    job.begin("a", "b")
    job.join("a", why="broke")
    roster = job.live(1.5, "a")
    assert roster is not None
    assert roster.members == ("a",)


def test_one_that_lives_but_does_not_come_is_waited_for_until_its_time_is_over() -> None:
    job = Job()
    job.begin("a", "b")
    job.join("a", why="broke")
    assert job.live(29.5, "a", "b") is None
    roster = job.live(1.0, "a", "b")
    assert roster is not None
    assert roster.members == ("a",)


def test_nobody_is_thrown_out_because_this_side_stood_still() -> None:
    job = Job()
    job.begin("a", "b")
    job.now_s += 60.0
    job.rules.tick(job.now_s)
    assert job.rules.members_alive() == ["a", "b"]


def test_a_worker_that_was_only_started_is_not_expected_to_beat() -> None:
    job = Job()
    job.begin("a")
    job.rules.expect("b", node("b"), job.now_s)
    job.live(60.0, "a")
    assert job.rules.is_known("b")


def test_newcomers_wait_for_a_meeting_and_come_behind_the_survivors() -> None:
    job = Job()
    job.begin("a", "b")
    job.enter("c")
    assert job.join("c") is None
    job.rules.ask_to_meet("c is ready")
    assert job.rules.beat("a", job.now_s).meet == "c is ready"
    job.join("b")
    roster = job.join("a")
    assert roster is not None
    assert (roster.members, roster.heirs) == (("a", "b", "c"), ("a", "b"))
    assert job.rules.beat("a", job.now_s).meet == "", "the meeting took place"


def test_more_newcomers_than_there_is_room_for_wait() -> None:
    job = Job(high=2)
    job.begin("a")
    job.enter("b", "c")
    job.join("c")
    job.join("b")
    roster = job.join("a")
    assert roster is not None
    assert roster.members == ("a", "c"), "who came first"
    assert job.rules.newcomers() == ["b"]


def test_who_finds_no_place_is_told_to_leave_the_last_ones_first() -> None:
    job = Job(high=4)
    job.begin("a", "b")
    job.enter("ready", "loads")
    job.join("ready")
    job.rules.expect("starts", node("starts"), job.now_s)
    job.rules.let_go_of_surplus(())
    assert [m for m in ("ready", "loads", "starts") if not job.rules.is_known(m)] == ["starts"]
    job.rules.max_workers = 3
    job.rules.let_go_of_surplus(())
    assert (job.rules.is_known("ready"), job.rules.is_known("loads")) == (True, False)
    job.rules.max_workers = 1
    job.rules.let_go_of_surplus(())
    assert job.rules.members_alive() == ["a", "b"], "members part at a meeting"
    assert job.rules.is_let_go("ready")
    assert job.rules.why_out("ready") == "its place is needed elsewhere"
    assert job.rules.beat("ready", job.now_s).is_out
    assert not job.rules.losses, "nobody was lost"


def test_newcomers_for_members_that_leave_have_a_place() -> None:
    job = Job(high=2)
    job.begin("a", "b")
    job.enter("c", "d")
    job.rules.let_go_of_surplus({node("b")})
    assert (job.rules.is_known("c"), job.rules.is_known("d")) == (True, False)


def test_a_newcomer_that_died_is_not_let_in() -> None:
    job = Job()
    job.begin("a")
    job.enter("b")
    job.join("b")
    job.lose("b")
    roster = job.join("a")
    assert roster is not None
    assert roster.members == ("a",)
    assert not job.rules.broken


def test_a_newcomer_that_was_not_healed_is_no_heir() -> None:
    job = Job()
    job.begin("a", "b")
    job.enter("c", "d")
    job.join("c", "d")
    job.join("a", "b")
    assert job.rules.roster.members == ("a", "b", "c", "d")
    job.lose("b")
    job.join("a", why="broke")
    job.join("c", "d", why="broke", has_state=False)
    assert job.rules.roster.members == ("a", "c", "d")
    assert job.rules.roster.heirs == ("a",)


def test_a_generation_that_broke_before_it_restored_has_no_heirs() -> None:
    job = Job()
    job.begin("a", "b", "c")
    job.lose("c")
    roster = job.join("a", "b", why="broke", has_state=False)
    assert roster is not None
    assert (roster.members, roster.heirs) == (("a", "b"), ())


def test_fewer_than_the_least_wait_until_another_comes() -> None:
    job = Job(low=2)
    job.begin("a", "b")
    job.lose("b")
    assert job.join("a", why="broke") is None
    assert job.rules.holding()
    assert job.live(300.0, "a") is None
    job.enter("c")
    roster = job.join("c")
    assert roster is not None
    assert (roster.members, roster.heirs) == (("a", "c"), ("a",))


def test_two_losses_one_during_the_meeting_after_the_other() -> None:
    job = Job()
    job.begin("a", "b", "c", "d")
    job.lose("a")
    job.join("b", "c", why="broke")
    assert job.rules.roster.generation == 1
    roster = job.lose("d")
    assert roster is not None
    assert roster.members == ("b", "c")


def test_a_loss_after_the_meeting_breaks_the_new_generation_too() -> None:
    job = Job()
    job.begin("a", "b", "c")
    job.lose("a")
    job.join("b", "c", why="broke")
    assert job.rules.broken == ""
    job.lose("b")
    directive = job.rules.beat("c", job.now_s)
    assert (directive.generation, directive.broken) == (2, "killed")


def test_nodes_that_will_be_taken_are_left_behind() -> None:
    job = Job()
    job.begin("a", "b")
    job.rules.set_leaving({"n-a"})
    roster = job.join("a", "b")
    assert roster is not None
    assert (roster.members, roster.heirs) == (("b",), ("b",))
    assert not job.rules.is_member("a")


def test_where_all_leave_they_hand_the_state_to_those_who_come() -> None:
    job = Job(high=2)
    job.begin("a", "b")
    job.rules.set_leaving({"n-a", "n-b"})
    job.enter("c", "d")
    job.join("c", "d")
    roster = job.join("a", "b")
    assert roster is not None
    assert (roster.members, roster.heirs) == (("a", "b", "c", "d"), ("a", "b"))


def test_one_that_leaves_is_kept_while_it_alone_holds_the_state() -> None:
    job = Job()
    job.begin("a")
    job.enter("b", "c")
    job.join("b", "c")
    job.rules.set_leaving({"n-a"})
    job.join("a")
    assert job.rules.roster.members == ("a", "b", "c")
    job.lose("c")
    job.join("b", why="broke", has_state=False)
    job.join("a", why="broke")
    assert job.rules.roster.members == ("a", "b")
    assert job.rules.roster.heirs == ("a",)


def test_where_all_leave_as_planned_and_nobody_comes_they_wait() -> None:
    job = Job()
    job.begin("a", "b")
    job.rules.set_leaving({"n-a", "n-b"})
    assert job.join("a", "b") is None
    assert job.rules.holding()
    job.rules.set_leaving(())  # the cloud changed its mind
    roster = job.rules.tick(job.now_s)
    assert roster is not None
    assert roster.heirs == ("a", "b")


def test_after_a_loss_nodes_that_will_be_taken_go_on_if_nobody_else_is_there() -> None:
    job = Job()
    job.begin("a", "b")
    job.rules.set_leaving({"n-b"})
    job.lose("a")
    roster = job.join("b", why="broke")
    assert roster is not None, "its state must still be brought to storage"
    assert roster.heirs == ("b",)


def test_when_all_are_lost_the_next_begin_from_what_was_saved() -> None:
    job = Job()
    job.begin("a", "b")
    job.lose("a", "b")
    job.enter("c")
    roster = job.join("c")
    assert roster is not None
    assert (roster.generation, roster.members, roster.heirs) == (2, ("c",), ())


def test_a_late_call_to_join_changes_nothing() -> None:
    job = Job()
    job.begin("a", "b", "c")
    job.lose("c")
    job.join("a", "b", why="broke")
    job.rules.join("a", 1, job.now_s, why="broke", has_state=True)
    assert job.rules.tick(job.now_s) is None
    assert not job.rules.broken
    assert not job.rules.holding()


def test_a_loss_that_is_told_twice_counts_once() -> None:
    job = Job()
    job.begin("a", "b")
    job.lose("b")
    job.join("a", why="broke")
    job.lose("b")
    assert not job.rules.broken
    assert [loss.member for loss in job.rules.losses] == ["b"]


def test_who_was_thrown_out_never_comes_back() -> None:
    job = Job()
    job.begin("a", "b")
    job.live(3.0, "a")
    job.join("a", why="broke")
    job.enter("b")
    assert job.rules.beat("b", job.now_s).is_out
    job.rules.join("b", 1, job.now_s, has_state=True)
    job.rules.join("b", 0, job.now_s)
    job.join("a")
    assert job.rules.roster.members == ("a",)
    assert not job.rules.is_known("b")
    assert job.rules.why_out("b").startswith("no sign of life")


def test_generations_without_a_step_end_live_recovery() -> None:
    job = Job(idle=2)
    job.begin("a", "b", "c")
    job.lose("c")
    assert job.join("a", "b", why="broke") is not None
    job.lose("b")
    assert job.join("a", why="broke") is None
    assert "2 generations" in job.rules.gave_up
    assert job.rules.beat("a", job.now_s).gave_up


def test_a_step_proves_that_a_generation_was_of_use() -> None:
    job = Job(idle=2)
    job.begin("a", "b", "c")
    job.lose("c")
    job.join("a", "b", why="broke")
    job.live(0.5, "a", "b", made_steps=True)
    job.lose("b")
    assert job.join("a", why="broke") is not None
    assert not job.rules.gave_up


def test_at_the_jobs_end_nobody_waits_for_one_that_is_lost() -> None:
    job = Job()
    job.begin("a", "b")
    job.rules.done = True
    job.live(3.0, "a")
    directive = job.rules.beat("a", job.now_s)
    assert directive.done
    assert directive.broken


def test_who_ended_with_the_job_is_no_loss() -> None:
    job = Job()
    job.begin("a", "b")
    job.rules.done = True
    job.lose("b")
    assert not job.rules.beat("a", job.now_s).broken, "its last message is on its way"


def test_after_a_restart_members_are_known_by_what_they_say() -> None:
    job = Job(generation=3)
    roster = Roster(generation=3, members=("a", "b"), node_ids=("n-a", "n-b"))
    job.enter("c")
    job.rules.join("c", 0, job.now_s)
    job.rules.adopt("b", roster, job.now_s)
    assert job.rules.roster == roster
    assert job.rules.newcomers() == ["c"], "who waits is not forgotten"
    formed = job.join("a", "b")
    assert formed is not None
    assert (formed.generation, formed.members) == (4, ("a", "b", "c"))


def test_a_member_of_an_older_generation_is_not_believed() -> None:
    job = Job(generation=3)
    old = Roster(generation=2, members=("x", "a"), node_ids=("n-x", "n-a"))
    job.rules.adopt("x", old, job.now_s)
    assert job.rules.roster.members == ()


def test_the_newest_generation_that_is_told_counts_and_those_it_lacks_are_out() -> None:
    job = Job(generation=2)  # the journal lags
    job.rules.adopt("x", Roster(generation=2, members=("x", "a"), node_ids=("p", "q")), job.now_s)
    job.rules.adopt("a", Roster(generation=3, members=("a",), node_ids=("q",)), job.now_s)
    assert job.rules.is_member("a")
    assert not job.rules.is_known("x")
    job.enter("x")
    assert not job.rules.is_known("x")


def test_a_member_that_is_adopted_after_its_end_was_told_breaks_the_generation() -> None:
    job = Job(generation=1)
    job.rules.lose("b", "killed", job.now_s)
    job.rules.adopt("a", Roster(generation=1, members=("a", "b"), node_ids=("p", "q")), job.now_s)
    assert "killed" in job.rules.beat("a", job.now_s).broken


# -- any order of events -----------------------------------------------------------------


@dataclass
class Process:
    """A worker as it sees itself."""

    name: str
    entered: bool = False
    alive: bool = True
    frozen: bool = False
    roster: Roster | None = None
    joined: bool = False  # waits for an answer
    has_state: bool = False

    @property
    def acts(self) -> bool:
        return self.alive and not self.frozen and self.entered

    @property
    def generation(self) -> int:
        return self.roster.generation if self.roster is not None else 0


class AnyOrder(RuleBasedStateMachine):
    """Workers that come, join, die, freeze and thaw in any order, with calls that come late."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job(low=2, high=4, idle=10**6)
        self.processes: dict[str, Process] = {}
        self.out: set[str] = set()
        self.leaving: set[str] = set()
        self.late: list[tuple[str, int, str, bool]] = []

    # What happens.

    @rule()
    def start(self) -> None:
        if sum(p.alive for p in self.processes.values()) < 6:
            name = f"w{len(self.processes)}"
            self.processes[name] = Process(name)
            self.job.rules.expect(name, node(name), self.job.now_s)

    @rule(pick=st.randoms(use_true_random=False))
    def run(self, pick) -> None:
        if waiting := [p for p in self.processes.values() if p.alive and not p.entered]:
            one = pick.choice(waiting)
            one.entered = True
            self.job.rules.enter(one.name, node(one.name), self.job.now_s)

    @rule(pick=st.randoms(use_true_random=False), why=st.sampled_from(["", "broke"]))
    def join(self, pick, why) -> None:
        if able := [p for p in self.processes.values() if p.acts and not p.joined]:
            self._join(pick.choice(able), why)

    @rule()
    def all_members_join(self) -> None:
        for process in self._running():
            self._join(process, "broke" if process.roster is not None else "")
        self._tick()

    @rule(pick=st.randoms(use_true_random=False))
    def a_call_comes_late(self, pick) -> None:
        if self.late:
            name, generation, why, has_state = pick.choice(self.late)
            if not self.processes[name].joined:
                # Only one that was answered is late; any other is the call itself.
                self.job.rules.join(name, generation, self.job.now_s, why=why, has_state=has_state)

    @rule()
    def all_have_the_state(self) -> None:
        roster = self.job.rules.roster
        members = [self.processes[m] for m in roster.members]
        if members and all(p.acts and p.roster is roster and not p.joined for p in members):
            for process in members:
                process.has_state = True

    @rule(pick=st.randoms(use_true_random=False), told=st.booleans())
    def kill(self, pick, told) -> None:
        if alive := [p for p in self.processes.values() if p.alive]:
            one = pick.choice(alive)
            one.alive = False
            if told:
                self.job.rules.lose(one.name, "killed", self.job.now_s)

    @rule()
    def the_driver_looks(self) -> None:
        for process in self.processes.values():
            if process.alive:
                self.job.rules.expect(process.name, node(process.name), self.job.now_s)
            else:
                self.job.rules.lose(process.name, "killed", self.job.now_s)

    @rule(pick=st.randoms(use_true_random=False))
    def freeze_or_thaw(self, pick) -> None:
        if alive := [p for p in self.processes.values() if p.alive and p.entered]:
            one = pick.choice(alive)
            one.frozen = not one.frozen

    @rule(pick=st.randoms(use_true_random=False))
    def notices(self, pick) -> None:
        self.leaving = {n for n in self.processes if pick.random() < 0.3}
        self.job.rules.set_leaving({node(n) for n in self.leaving})

    @rule(why=st.sampled_from(["", "grow"]), durable=st.booleans())
    def plan(self, why, durable) -> None:
        self.job.rules.ask_to_meet(why, durable=durable)

    @rule(seconds=st.sampled_from([_TICK_S, 1.0, 3.0, 12.0]))
    def time_passes(self, seconds) -> None:
        for _ in range(round(seconds / _TICK_S)):
            self.job.now_s += _TICK_S
            self._beat()
            self._tick()

    @precondition(lambda self: len(self.processes) >= 2)
    @rule()
    def in_the_end_those_who_are_left_step_together(self) -> None:
        self.the_driver_looks()
        self.leaving = set()
        self.job.rules.set_leaving(())
        for process in self.processes.values():
            process.frozen = False
            if process.alive and not process.entered:
                process.entered = True
                self.job.rules.enter(process.name, node(process.name), self.job.now_s)
        self._beat()
        formed = False
        for _ in range(4 * 25):  # the first one may wait 20 s for who was started
            self.job.now_s += _TICK_S
            for process in self._running():
                if not process.joined and not formed:
                    self._join(process, "broke" if process.roster is not None else "")
            self._beat()
            formed |= self._tick()
        able = [p.name for p in self._running()]
        if len(able) >= 2:
            assert formed
            assert set(self.job.rules.roster.members) <= set(able)
            assert len(self.job.rules.roster.members) >= min(len(able), 4)

    # What must hold.

    @invariant()
    def who_is_out_is_no_member(self) -> None:
        self._take_losses()
        for name in self.out:
            assert not self.job.rules.is_member(name)
            assert not self.job.rules.is_known(name)

    # Inside.

    def _running(self) -> list[Process]:
        return [p for p in self.processes.values() if p.acts]

    def _join(self, process: Process, why: str) -> None:
        call = (process.name, process.generation, why, process.has_state)
        process.joined = True
        self.late.append(call)
        self.job.rules.join(call[0], call[1], self.job.now_s, why=why, has_state=process.has_state)

    def _beat(self) -> None:
        for process in self._running():
            if self.job.rules.beat(process.name, self.job.now_s).is_out:
                process.alive = False

    def _take_losses(self) -> None:
        self.out |= {loss.member for loss in self.job.rules.losses}
        self.job.rules.losses.clear()

    def _tick(self) -> bool:
        rules = self.job.rules
        before = rules.roster
        known = {p.name for p in self.processes.values() if rules.is_known(p.name)}
        told = {n for n in known if self.processes[n].joined}
        roster = rules.tick(self.job.now_s)
        self._take_losses()
        known -= self.out
        if roster is None:
            return False
        assert roster.generation == before.generation + 1
        assert len(set(roster.members)) == len(roster.members) >= 2
        assert set(roster.members) <= known, "somebody is in it that was lost before"
        assert set(roster.members) <= told, "somebody is in it that did not join"
        left = [m for m in before.members if m in known]
        assert set(left) <= told, "a member was not waited for"
        stayed = [m for m in left if m in roster.members]
        assert list(roster.members[: len(stayed)]) == stayed, "ranks changed"
        hold = [m for m in left if self.processes[m].has_state]
        assert set(roster.heirs) <= set(hold)
        assert roster.heirs or not hold, "the state was alive, and is not handed on"
        for name in [*left, *roster.members]:
            process = self.processes[name]
            process.joined = False
            if name in roster.members:
                process.roster = roster
            else:  # the answer to its call
                rules.leave(name, "left behind")
                self.out.add(name)
                process.alive = False
        return True


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_order_of_events_keeps_the_rules = AnyOrder.TestCase
