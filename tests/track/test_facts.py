"""What of a run's facts a tracker is told."""

from __future__ import annotations

import math

import pytest

from spotray.events import (
    Event,
    NodeDown,
    NoticeCancelled,
    NoticeReceived,
    Reported,
    StepsDone,
    Warned,
)
from spotray.ledger.goodput import goodput
from spotray.ledger.rundir import RunEvents
from spotray.ledger.summary import summarize
from spotray.track.facts import Kept, Notes, points, standing
from tests.ledger.story import Story, four_losses


def test_a_users_metrics_keep_their_names_and_only_numbers_are_told() -> None:
    metrics = {
        "accuracy": 0.5,
        "epoch": 3,
        "step": 10,
        "loss": 9.0,  # stands beside every report, as those two
        "classes": [1, 2],
        "best": True,
        "name": "vit",
        "huge": 10**400,
        "val/loss": math.nan,
    }
    told = {
        p.series: p.value for p in points([Reported(at_s=5.0, step=10, epoch=3, metrics=metrics)])
    }
    assert told.pop("val/loss") != 0
    assert told == {"train/epoch": 3.0, "accuracy": 0.5}


def test_steps_are_told_with_loss_speed_and_workers() -> None:
    done = StepsDone(
        at_s=9.0,
        generation=1,
        first_step=5,
        last_step=8,
        seconds=2.0,
        samples=64,
        world_size=3,
        loss=0.25,
    )
    found = list(points([done]))
    assert {p.series: p.value for p in found} == {
        "spotray/workers": 3.0,
        "train/loss": 0.25,
        "train/samples_per_s": 32.0,
    }
    assert {(p.step, p.at_s) for p in found} == {(8, 9.0)}


def test_a_loss_is_one_mark_whoever_tells_of_it_and_a_shutdown_none() -> None:
    events: list[Event] = [
        NoticeReceived(at_s=1.0, node_id="n1", deadline_s=121.0),
        NoticeReceived(at_s=1.5, node_id="n1", deadline_s=121.0, source="gcs"),
        NodeDown(at_s=9.0, node_id="n1", cause="preemption", noticed=True),
        NodeDown(at_s=9.5, node_id="n1", cause="preemption"),
        NodeDown(at_s=20.0, node_id="n2", cause="shutdown"),
        NodeDown(at_s=21.0, node_id="n3", cause="failure"),
    ]
    assert [note.kind for note in Notes().of(events)] == ["notice", "preemption", "failure"]


def test_a_notice_after_one_that_was_taken_back_is_a_new_mark() -> None:
    events: list[Event] = [
        NoticeReceived(at_s=1.0, node_id="n1", deadline_s=121.0),
        NoticeCancelled(at_s=2.0, node_id="n1"),
        NoticeReceived(at_s=3.0, node_id="n1", deadline_s=123.0),
    ]
    assert [note.kind for note in Notes().of(events)] == ["notice"] * 3


def test_a_mark_stands_at_the_furthest_step_and_is_the_same_at_the_next_start() -> None:
    story = Story()
    story.job_starts()
    story.group("n1", restored=0, source="fresh")
    story.steps(8)
    story.note(Warned(at_s=story.now_s, what="no disk"))
    first, second = list(Notes().of(story.events)), Notes()
    again = [note for event in story.events for note in second.of([event])]  # one at a time
    assert first == again
    assert (first[-1].step, first[-1].text) == (8, "no disk")


def test_what_a_run_has_come_to_is_what_the_ledger_says() -> None:
    story = four_losses()
    summary = summarize(RunEvents(run_dir="", events=tuple(story.events), journals=()))
    told = {point.series: point.value for point in standing(summary)}
    assert told["spotray/preemptions"] == 5
    assert told["spotray/goodput"] == summary.goodput.goodput_frac
    assert told["spotray/cost_usd"] == summary.cost.total.cost_usd
    assert {point.step for point in standing(summary)} == {summary.step}


def test_thinning_a_long_run_keeps_its_seconds() -> None:
    story = Story()
    story.job_starts()
    story.group("n1", "n2", restored=0, source="fresh")
    story.steps(4000)
    story.silent_loss("n2")
    story.group("n1", restored=3990, source="snapshot", reached=4000)
    story.steps(4000)
    kept = Kept(most=50)
    for start in range(0, len(story.events), 7):
        kept.add(story.events[start : start + 7])
    thinned = kept.events()
    assert len(thinned) < 150 < len(story.events)
    exact, rough = goodput(story.events), goodput(thinned)
    assert rough.useful_s == pytest.approx(exact.useful_s, abs=2.0)
    assert rough.repeated_s == pytest.approx(exact.repeated_s, abs=2.0)
    assert rough.wall_s == exact.wall_s
