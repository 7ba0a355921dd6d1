"""Every second of a job has one cause, and only steps that survive are useful."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.events import Event, JobEnded, JobStarted, StepsDone, TrainingDone
from spotray.ledger.goodput import Goodput, goodput

from .story import STEP_S, Story, four_losses


def parts(result: Goodput) -> float:
    return result.useful_s + sum(result.lost_s.values())


def test_the_parts_of_a_job_add_up_to_its_wall_time() -> None:
    result = goodput(four_losses().events)
    assert parts(result) == pytest.approx(result.wall_s, abs=1e-6)


def test_each_step_is_useful_once() -> None:
    result = goodput(four_losses().events)
    assert result.steps == 80
    assert result.useful_s == pytest.approx(80 * STEP_S)
    assert result.repeated_s == pytest.approx((3 + 7) * STEP_S)


def test_time_goes_to_the_cause_that_took_it() -> None:
    result = goodput(four_losses().events)
    assert result.startup_s == pytest.approx(5 + 3)
    assert result.snapshot_s == pytest.approx(4 * 0.1)
    assert result.checkpoint_s == pytest.approx(2 * 0.2)
    assert result.restart_s == pytest.approx(3 + 3 + 2.1 + 3 + 2)
    assert result.detection_s == pytest.approx(4 + 4)
    assert result.waiting_s == pytest.approx(30)  # all nodes were gone
    assert result.provisioning_s == pytest.approx(0.9 + 1)  # until the new ones joined Ray
    assert result.stopped_s == 0
    assert result.other_s == pytest.approx(0, abs=1e-6)
    assert result.goodput_frac == pytest.approx(result.useful_s / result.wall_s)


def test_an_undisturbed_job_loses_only_its_startup() -> None:
    story = Story()
    story.job_starts()
    story.group("a", restored=0, source="fresh")
    story.steps(100)
    story.done()
    result = goodput(story.events)
    assert result.lost_s == pytest.approx(
        {
            "startup": 3.0,
            "repeated": 0.0,
            "detection": 0.0,
            "waiting": 0.0,
            "provisioning": 0.0,
            "restart": 0.0,
            "snapshot": 0.0,
            "checkpoint": 0.0,
            "stopped": 0.0,
            "other": 0.0,
        },
        abs=1e-6,
    )


def test_steps_rolled_back_and_not_yet_done_again_are_not_useful() -> None:
    story = Story()
    story.job_starts()
    story.group("a", "b", restored=0, source="fresh")
    story.steps(10)
    story.silent_loss("b")
    story.group("a", restored=4, source="snapshot", reached=10)
    result = goodput(story.events)
    assert result.steps == 4
    assert result.repeated_s == pytest.approx(6 * STEP_S)


def test_steps_without_their_own_times_are_spread_over_the_batch() -> None:
    events: list[Event] = [
        JobStarted(at_s=0.0, job="j", run_id="r"),
        StepsDone(
            at_s=20.0,
            generation=1,
            first_step=1,
            last_step=5,
            seconds=10.0,
            samples=5,
            world_size=1,
        ),
        TrainingDone(at_s=21.0, step=5),
    ]
    result = goodput(events)
    assert result.useful_s == pytest.approx(10.0)
    assert result.startup_s == pytest.approx(10.0)
    assert result.other_s == pytest.approx(1.0)


def test_a_job_that_was_stopped_and_resumed_did_not_train_meanwhile() -> None:
    story = Story()
    story.job_starts()
    story.group("a", restored=0, source="fresh")
    story.steps(10)
    story.note(JobEnded(at_s=story.now_s, job="vit", status="interrupted"))
    story.wait(3600)
    story.job_starts()
    story.generation = 0  # a new driver counts anew
    story.group("a", restored=8, source="checkpoint")
    story.steps(12)
    story.done()
    result = goodput(story.events)
    assert result.stopped_s == pytest.approx(3600)
    assert result.repeated_s == pytest.approx(2 * STEP_S)
    assert result.restart_s == pytest.approx(3)
    assert result.useful_s == pytest.approx(20 * STEP_S)
    assert parts(result) == pytest.approx(result.wall_s)


def test_no_job_no_goodput() -> None:
    assert goodput([]) == Goodput()
    assert goodput([]).goodput_frac is None


@given(seed=st.integers(0, 10_000), fraction=st.floats(0.0, 1.0))
def test_the_parts_add_up_at_any_time_of_a_random_job(seed: int, fraction: float) -> None:
    story = random_story(seed)
    start_s, end_s = story.events[0].at_s, story.events[-1].at_s
    result = goodput(story.events, until_s=start_s + fraction * (end_s - start_s))
    assert parts(result) == pytest.approx(result.wall_s, abs=1e-6)
    assert min([result.useful_s, *result.lost_s.values()]) >= 0


def random_story(seed: int) -> Story:
    rng = random.Random(seed)
    story = Story()
    story.job_starts()
    members = [f"n{i}" for i in range(4)]
    story.node_up(*members)
    restored = 0
    for _ in range(rng.randint(1, 6)):
        story.group(*members, restored=restored, source="snapshot", reached=story.step)
        story.steps(rng.randint(0, 9), batch=rng.randint(1, 4))
        what = rng.choice(["noticed", "silent", "grow", "checkpoint"])
        if what == "noticed":
            story.noticed_loss(members[-1])
        elif what == "silent":
            story.silent_loss(members[-1])
        elif what == "checkpoint":
            story.checkpoint(blocked_s=rng.random())
            story.steps(rng.randint(0, 3))
        else:
            story.grow()
        restored = (
            rng.randint(max(0, story.step - 4), story.step) if what == "silent" else story.step
        )
    if rng.random() < 0.5:
        story.done()
    return story
