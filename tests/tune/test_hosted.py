"""A hosted trial: its reports in their turn, and decisions about it. The workers are scripted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spotray.errors import CheckpointError, MetricMissing
from spotray.events import CheckpointCommitted, Event, Reported, TrainingDone
from spotray.ledger.journal import JournalWriter
from spotray.storage import Store
from spotray.train.messages import GO_ON, SAVE, Ask
from spotray.tune.hosted import Finished, Hosted
from spotray.tune.messages import Ended, Pointer, Report
from spotray.tune.runs import RunFolder, open_run

LONG_S = 10.0  # nothing here should take that long
SHORT_S = 0.05


class ScriptedLife:
    """A job whose workers do what the test says."""

    def __init__(self) -> None:
        self.asks: queue.Queue[Ask] = queue.Queue()
        self.decided: queue.Queue[tuple[int, str]] = queue.Queue()
        self.saved: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self.shares: list[int] = []
        self.stopped: list[tuple[str, str]] = []
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.ended: queue.Queue[Finished | Exception | None] = queue.Queue()

    # what the test plays

    def ask(self, *steps: int, **metrics: float) -> None:
        reports = tuple({"step": s, "loss": 1.0 / (s + 1), **metrics} for s in steps)
        self.asks.put(Ask(step=max(steps), epoch=0, reports=reports))

    def finish(self, step: int, checkpoint: str | None = "/end") -> None:
        metrics = {"step": step, "weights_sha256": "ab"}
        self.ended.put(Finished(metrics=metrics, checkpoint=checkpoint))

    def status(self) -> dict[str, Any]:
        return {"step": 10 * len(self.calls), "node_ids": ["n1"]}

    # `Life`

    def run(self) -> Finished | None:
        end = self.ended.get(timeout=LONG_S)
        if isinstance(end, Exception):
            raise end
        return end

    def stop(self, why: str, status: str) -> None:
        self.stopped.append((why, status))
        self.ended.put(None)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        self.calls.append((method, args))
        return "answer"

    def set_share(self, workers: int) -> None:
        self.shares.append(workers)

    def next_ask(self, timeout_s: float) -> Ask | None:
        try:
            return self.asks.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def decide(self, step: int, kind: str) -> None:
        self.decided.put((step, kind))

    def wait_saved(self, timeout_s: float) -> tuple[int, str | None] | None:
        try:
            return self.saved.get(timeout=timeout_s)
        except queue.Empty:
            return None


class Stage:
    """Hosts one trial, and gives it lives and a seat."""

    def __init__(self, home: Store) -> None:
        self.home = home
        self.lives: list[ScriptedLife] = []
        self.born: queue.Queue[ScriptedLife] = queue.Queue()
        self.has_room = threading.Event()
        self.has_room.set()
        self.left = threading.Event()
        self.hosted: Hosted | None = None

    def begin(self) -> ScriptedLife:
        life = ScriptedLife()
        self.lives.append(life)
        self.born.put(life)
        return life

    def wait(self, timeout_s: float) -> bool:
        return self.has_room.wait(timeout_s)

    def leave(self) -> None:
        self.left.set()

    def host(
        self,
        run: RunFolder | None = None,
        *,
        seen: int = 0,
        needs: Mapping[str, str] | None = None,
    ) -> Hosted:
        run = run or open_run(self.home, "t_0", {"lr": 0.1}, None)
        self.hosted = Hosted(run, seen=seen, begin=self.begin, seat=self, needs=needs or {})
        self.hosted.start()
        return self.hosted

    def life(self) -> ScriptedLife:
        """The next life, when the trial's thread runs it."""
        life, hosted = self.born.get(timeout=LONG_S), self.hosted
        assert hosted is not None, "it began it"
        with hosted._changed:
            assert hosted._changed.wait_for(lambda: hosted._latest is life, LONG_S)
        return life


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(Store.at(tmp_path))
    yield stage
    if stage.hosted is not None:
        stage.hosted.stop("the test ends")
        assert stage.hosted.join(LONG_S), "its thread is still there"


def told(run: RunFolder, events: Sequence[Event]) -> None:
    with JournalWriter(run.store.child("journal"), writer="before") as journal:
        for event in events:
            journal.append(event)


def reported(*steps: int) -> list[Event]:
    return [Reported(at_s=float(s), step=s, epoch=0, metrics={"step": s}) for s in steps]


def given(hosted: Hosted) -> tuple[int, int]:
    report = hosted.next(LONG_S)
    assert isinstance(report, Report)
    return report.iteration, report.step


def test_the_workers_go_on_only_when_the_next_report_is_asked_for(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(10, val=0.5)
    report = hosted.next(LONG_S)
    assert isinstance(report, Report)
    assert (report.iteration, report.step, report.metrics["val"]) == (1, 10, 0.5)
    assert report.run_dir == hosted.run.url
    assert life.decided.empty()
    assert hosted.next(SHORT_S) is None
    assert life.decided.get(timeout=LONG_S) == (10, GO_ON)


def test_two_steps_in_one_question_are_two_reports(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(9, 10)
    assert given(hosted) == (1, 9)
    assert given(hosted) == (2, 10)
    assert life.decided.empty()


def test_a_step_that_is_done_again_is_not_reported_again(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(10)
    assert given(hosted) == (1, 10)
    hosted.next(SHORT_S)
    life.ask(10)  # after a loss of all workers
    life.ask(20)
    assert given(hosted) == (2, 20)
    assert [life.decided.get(timeout=LONG_S) for _ in range(2)] == [(10, GO_ON), (10, GO_ON)]


def test_after_a_restart_reports_go_on_behind_those_that_tune_has(stage: Stage) -> None:
    run = open_run(stage.home, "t_0", {}, None)
    told(run, reported(10, 20, 30))
    hosted = stage.host(run, seen=1)
    assert given(hosted) == (2, 20)
    assert given(hosted) == (3, 30)
    life = stage.life()
    life.ask(20)  # the state that was restored is older than the last report
    life.ask(30)
    life.ask(40)
    assert given(hosted) == (4, 40)


def test_a_clones_reports_are_counted_from_the_donors(stage: Stage) -> None:
    donor = Pointer(run="t_9", url="/c", step=40, iteration=4, config="x")
    hosted = stage.host(open_run(stage.home, "t_0", {}, donor), seen=4)
    stage.life().ask(50)
    assert given(hosted) == (5, 50)


def test_a_trial_that_is_through_ends_after_its_last_report(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(10)
    life.finish(10)
    assert given(hosted) == (1, 10)
    assert hosted.next(LONG_S) == Ended()
    assert hosted.final() == {
        "step": 10,
        "loss": 1 / 11,
        "weights_sha256": "ab",
        "training_iteration": 1,
        "run_dir": hosted.run.url,
    }
    assert hosted.is_through
    assert stage.left.is_set()


def test_a_report_behind_the_last_step_is_found_in_the_journal(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    told(hosted.run, reported(10))
    life.finish(10)
    assert given(hosted) == (1, 10)
    assert hosted.next(LONG_S) == Ended()


def test_a_trial_whose_end_tune_did_not_hear_of_trains_no_more(stage: Stage) -> None:
    run = open_run(stage.home, "t_0", {}, None)
    done = TrainingDone(at_s=30.0, step=20, weights_sha256="ab", metrics={"step": 20})
    commit = CheckpointCommitted(
        at_s=29.0, step=20, path="/end", seconds=1.0, blocked_s=0.0, size_bytes=1
    )
    told(run, [*reported(10, 20), commit, done])
    hosted = stage.host(run, seen=1)
    assert given(hosted) == (2, 20)
    assert hosted.next(LONG_S) == Ended()
    pointer = hosted.save(LONG_S)
    assert pointer is not None
    assert (pointer.url, pointer.step, pointer.iteration) == ("/end", 20, 2)
    assert stage.lives == []


def test_the_end_is_known_with_its_last_report_to_a_driver_that_had_all_of_them(
    stage: Stage,
) -> None:
    run = open_run(stage.home, "t_0", {}, None)
    done = TrainingDone(at_s=30.0, step=20, metrics={"step": 20, "weights_sha256": "ab"})
    commit = CheckpointCommitted(
        at_s=29.0, step=20, path="/end", seconds=1.0, blocked_s=0.0, size_bytes=1
    )
    told(run, [*reported(10, 20), commit, done])
    hosted = stage.host(run, seen=2)
    assert hosted.next(LONG_S) == Ended()
    final = hosted.final()
    assert (final["training_iteration"], final["weights_sha256"]) == (2, "ab")


def test_a_bug_of_the_loop_reaches_tune_as_it_is(stage: Stage) -> None:
    hosted = stage.host()
    stage.life().ended.put(ZeroDivisionError("a bug of the user's"))
    with pytest.raises(ZeroDivisionError, match="a bug of the user's"):
        hosted.next(LONG_S)
    with pytest.raises(ZeroDivisionError):
        hosted.save(LONG_S)
    assert not hosted.is_through


def test_a_checkpoint_is_of_the_step_that_was_reported(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(10)
    given(hosted)
    assert hosted.save(SHORT_S) is None
    assert life.decided.get(timeout=LONG_S) == (10, SAVE)
    life.saved.put((10, "/c10"))
    pointer = hosted.save(LONG_S)
    assert pointer is not None
    assert (pointer.run, pointer.url, pointer.step, pointer.iteration) == ("t_0", "/c10", 10, 1)
    assert life.decided.empty(), "asked twice, or went on"
    hosted.next(SHORT_S)
    assert life.decided.get(timeout=LONG_S) == (10, GO_ON)


def test_a_checkpoint_waits_until_the_workers_are_at_that_step_again(stage: Stage) -> None:
    run = open_run(stage.home, "t_0", {}, None)
    told(run, reported(10, 20))
    hosted = stage.host(run)
    assert [given(hosted), given(hosted)] == [(1, 10), (2, 20)]
    life = stage.life()
    life.ask(10)
    life.ask(20)
    life.saved.put((20, "/c20"))
    pointer = hosted.save(LONG_S)
    assert pointer is not None
    assert (pointer.step, pointer.iteration) == (20, 2)
    assert life.decided.get(timeout=LONG_S) == (10, GO_ON)
    assert life.decided.get(timeout=LONG_S) == (20, SAVE)


def test_a_clone_of_a_trial_that_ends_before_it_saved_begins_at_its_end(stage: Stage) -> None:
    donor = stage.host()
    life = stage.life()
    life.ask(10)
    given(donor)
    assert donor.save(SHORT_S) is None
    assert life.decided.get(timeout=LONG_S) == (10, SAVE)
    told(donor.run, reported(10, 20))
    life.finish(20)
    raw = donor.save(LONG_S)
    assert raw is not None
    pointer = Pointer.from_dict(raw.to_dict())
    assert (pointer.url, pointer.step, pointer.iteration) == ("/end", 20, 2)
    run = open_run(stage.home, "t_1", {"lr": 0.3}, pointer)
    assert (run.begins_from, run.begins_at, run.base) == ("/end", 20, 2)
    clone = stage.host(run, seen=2, needs={"val": "PopulationBasedTraining"})
    stage.life().finish(20)
    # All epochs are done there: it ends with its donor's reports, and is no error.
    assert clone.next(LONG_S) == Ended()


def test_a_checkpoint_that_failed_is_an_error(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(10)
    given(hosted)
    life.saved.put((10, None))
    with pytest.raises(CheckpointError, match="checkpoint of step 10 could not be written"):
        hosted.save(LONG_S)


def test_a_metric_that_is_not_reported_is_one_clear_line(stage: Stage) -> None:
    hosted = stage.host(needs={"accuracy": "TuneConfig(metric=)"})
    stage.life().ask(10, acc=0.5)
    with pytest.raises(MetricMissing) as error:
        hosted.next(LONG_S)
    text = str(error.value)
    assert "TuneConfig(metric=) needs the metric 'accuracy'" in text
    assert "step 10 (it has: acc, and step, epoch and loss)" in text
    assert "\n" not in text


def test_a_loop_that_never_reports_is_one_clear_line(stage: Stage) -> None:
    hosted = stage.host(needs={"accuracy": "TuneConfig(metric=)"})
    stage.life().finish(20)
    with pytest.raises(MetricMissing, match=r"'accuracy', and trial t_0 ended without any report"):
        hosted.next(LONG_S)


def test_one_that_is_stopped_before_its_first_report_says_what_that_lacked(stage: Stage) -> None:
    hosted = stage.host(needs={"accuracy": "TuneConfig(metric=)"})
    stage.life()
    hosted.stop("the budget", status="stopped")
    assert hosted.join(LONG_S)
    assert hosted.next(LONG_S) == Ended(why="the budget", lacking=("accuracy",))


def test_a_metric_inside_of_another_is_found_by_its_path(stage: Stage) -> None:
    hosted = stage.host(needs={"val/loss": "ASHAScheduler"})
    life = stage.life()
    life.asks.put(Ask(step=5, epoch=0, reports=({"step": 5, "val": {"loss": 0.5}},)))
    assert given(hosted) == (1, 5)


def test_a_stopped_trial_points_to_its_run_alone(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(10)
    given(hosted)
    hosted.stop("the scheduler lets it pause", status="paused")
    hosted.stop("once more")
    assert hosted.join(LONG_S)
    assert life.stopped[0] == ("the scheduler lets it pause", "paused")
    assert hosted.next(LONG_S) == Ended(why="the scheduler lets it pause")
    pointer = hosted.save(LONG_S)
    assert pointer is not None
    assert (pointer.run, pointer.url, pointer.iteration) == ("t_0", None, 1)
    assert not hosted.is_through


def test_a_trial_without_room_starts_no_job_and_can_be_stopped(stage: Stage) -> None:
    stage.has_room.clear()
    hosted = stage.host()
    assert hosted.next(SHORT_S) is None
    hosted.stop("not wanted any more")
    assert hosted.join(LONG_S)
    assert stage.lives == []


def test_a_trial_that_gave_up_its_workers_goes_on_when_there_is_room_again(stage: Stage) -> None:
    hosted = stage.host()
    first = stage.life()
    first.ask(10)
    assert given(hosted) == (1, 10)
    hosted.limit(2)
    assert first.shares == [2]
    stage.has_room.clear()
    hosted.limit(0)
    assert hosted.next(SHORT_S) is None
    assert not hosted.is_over
    stage.has_room.set()
    second = stage.life()
    second.ask(10)
    second.ask(20)
    assert given(hosted) == (2, 20)


def test_a_save_goes_on_in_the_next_life(stage: Stage) -> None:
    hosted = stage.host()
    first = stage.life()
    first.ask(10)
    given(hosted)
    assert hosted.save(SHORT_S) is None
    hosted.limit(0)
    second = stage.life()
    second.ask(10)
    second.saved.put((10, "/c10"))
    pointer = hosted.save(LONG_S)
    assert pointer is not None
    assert pointer.url == "/c10"
    assert second.decided.get(timeout=LONG_S) == (10, SAVE)


def test_another_tune_process_goes_on_without_a_word_to_the_workers(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    life.ask(10)
    assert given(hosted) == (1, 10)
    assert hosted.take_over(seen=1)
    assert life.decided.empty()
    life.ask(20)
    assert given(hosted) == (2, 20)
    assert len(stage.lives) == 1


def test_a_report_that_the_last_process_took_away_with_it_is_given_again(stage: Stage) -> None:
    hosted = stage.host()
    stage.life().ask(10)
    assert given(hosted) == (1, 10)
    assert hosted.take_over(seen=0)
    assert given(hosted) == (1, 10)


def test_a_stopped_trial_cannot_be_taken_over(stage: Stage) -> None:
    hosted = stage.host()
    stage.life()
    hosted.stop("the scheduler lets it pause")
    assert not hosted.take_over(seen=0)


def test_a_trial_tells_how_far_it_is_while_it_has_workers(stage: Stage) -> None:
    stage.has_room.clear()
    hosted = stage.host()
    assert hosted.status() is None
    stage.has_room.set()
    life = stage.life()
    hosted.call("beat", ("w0",))
    assert hosted.status() == {"step": 10, "node_ids": ["n1"]}
    life.finish(10)
    assert hosted.join(LONG_S)
    assert hosted.status() is None


def test_workers_reach_their_coordinator_also_to_say_goodbye(stage: Stage) -> None:
    hosted = stage.host()
    life = stage.life()
    assert hosted.call("beat", ("w0",)) == "answer"
    life.finish(0)
    assert hosted.join(LONG_S)
    assert hosted.call("beat", ("w0",)) == "answer"
    assert life.calls == [("beat", ("w0",))] * 2
