from __future__ import annotations

from spotray.controller.applications import jobs_seen, jobs_told
from spotray.controller.progress import JobSeen, ProgressWatch
from spotray.policy.view import Fact, Preempted, Progressed
from tests.controller.small_cloud import SPOT_A

LOSS = Preempted(at_s=100.0, market=SPOT_A, name="i-1")
BORN = {"old": 50.0, "new": 120.0}


def job(step: int, *node_ids: str) -> JobSeen:
    return JobSeen(name="vit", step=step, node_ids=frozenset(node_ids))


def told(*jobs: JobSeen, facts: tuple[Fact, ...] = (LOSS,)) -> list[bool]:
    watch = ProgressWatch()
    return [
        watch.look([one], facts=facts, born_s=BORN, now_s=200.0 + i) is not None
        for i, one in enumerate(jobs)
    ]


def test_steps_on_the_replacement_are_progress() -> None:
    assert told(job(10, "old"), job(12, "old", "new"), job(13, "old", "new")) == [
        False,
        False,
        True,
    ]


def test_steps_of_the_survivors_alone_are_none() -> None:
    assert told(job(10, "old"), job(90, "old"), job(180, "old")) == [False] * 3


def test_a_replacement_that_does_no_step_is_none() -> None:
    assert told(job(10, "old", "new"), job(10, "old", "new")) == [False, False]


def test_a_trial_of_a_sweep_that_steps_on_the_replacement_is_progress() -> None:
    def sweep(**trials: tuple[int, str]) -> list[JobSeen]:
        status = {
            run: {"step": step, "node_ids": [node], "deadline_s": None}
            for run, (step, node) in trials.items()
        }
        return jobs_seen(jobs_told("lr", status))

    watch = ProgressWatch()

    def progressed(jobs: list[JobSeen]) -> bool:
        return watch.look(jobs, facts=[LOSS], born_s=BORN, now_s=200.0) is not None

    assert [job.name for job in sweep(t0=(1, "old"), t1=(2, "new"))] == ["lr/t0", "lr/t1"]
    assert not progressed(sweep(t0=(10, "old"), t1=(40, "new")))
    # The survivor's steps are none of the replacement's, nor is another trial that begins there.
    assert not progressed(sweep(t0=(90, "old"), t1=(40, "new")))
    assert not progressed(sweep(t0=(90, "old"), t2=(60, "new")))
    assert progressed(sweep(t0=(90, "old"), t2=(61, "new")))


def test_a_sweep_between_two_trials_is_no_job() -> None:
    assert jobs_told("lr", {}) == []


def test_without_a_preemption_or_after_it_was_told_there_is_nothing_to_tell() -> None:
    steps = job(10, "new"), job(20, "new")
    assert told(*steps, facts=()) == [False, False]
    assert told(*steps, facts=(LOSS, Progressed(at_s=150.0))) == [False, False]


def test_a_loss_that_is_told_again_later_is_the_same_loss() -> None:
    """The node provider sees an instance end long before Ray misses the node."""
    again = Preempted(at_s=130.0, market=SPOT_A, name="i-1")
    steps = job(10, "new"), job(20, "new")
    assert told(*steps, facts=(LOSS, again)) == [False, True]
    other = Preempted(at_s=130.0, market=SPOT_A, name="i-2")
    assert told(*steps, facts=(LOSS, other)) == [False, False]


def test_each_preemption_needs_progress_of_its_own() -> None:
    watch = ProgressWatch()
    facts: tuple[Fact, ...] = (LOSS,)
    for step in (1, 2):
        found = watch.look([job(step, "new")], facts=facts, born_s=BORN, now_s=130.0)
    assert found == Progressed(at_s=130.0)
    facts = (LOSS, found, Preempted(at_s=140.0, market=SPOT_A, name="i-2"))
    for step in (3, 4):
        assert watch.look([job(step, "new")], facts=facts, born_s=BORN, now_s=150.0) is None
    later = BORN | {"newer": 145.0}
    for step in (5, 6):
        found = watch.look([job(step, "newer")], facts=facts, born_s=later, now_s=160.0)
    assert found == Progressed(at_s=160.0)
