"""Who was on which node, and from under whom it was taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotray.ledger.occupancy import Hits, Stay, preemptions, run_lives, stays, trial_of

from .sweep_story import HOUR_S, SweepStory


def stays_of(story: SweepStory, trial: str = "t", *, until_h: float = 9) -> list[Stay]:
    runs = {run: events for run, events in story.runs.items() if trial_of(run) == trial}
    return list(stays(trial, run_lives(runs, until_s=until_h * HOUR_S)))


def in_hours(found: list[Stay]) -> list[tuple[str, int, float, float, str]]:
    return sorted(
        (s.node_id, s.workers, s.start_s / HOUR_S, s.end_s / HOUR_S, s.ended_by) for s in found
    )


def hits(story: SweepStory) -> dict[str, Hits]:
    trials = sorted({trial_of(run) for run in story.runs})
    return preemptions([s for trial in trials for s in stays_of(story, trial)], story.nodes)


@pytest.mark.parametrize(
    ("run", "trial"),
    [
        ("abc_00001", "abc_00001"),
        ("abc_00001-0123abcd", "abc_00001"),
        ("0123abcd", "0123abcd"),
        ("0123abcd-89abcdef", "0123abcd"),
        ("abc-0123ABCD", "abc-0123ABCD"),
        ("abc-0123abc", "abc-0123abc"),
    ],
)
def test_a_clones_run_belongs_to_its_trial(run: str, trial: str) -> None:
    assert trial_of(run) == trial


def test_a_stay_goes_from_meeting_to_meeting() -> None:
    story = SweepStory()
    story.starts("t", "a", "b")
    story.at(1).meet("t", "a", "c")
    story.at(2).meet("t", "a", "a", "c")
    story.at(3).ends("t")
    assert in_hours(stays_of(story)) == [
        ("a", 1, 0, 2, "meeting"),
        ("a", 2, 2, 3, "end"),
        ("b", 1, 0, 1, "meeting"),
        ("c", 1, 1, 3, "end"),
    ]


def test_a_trial_that_waits_for_workers_is_nowhere() -> None:
    story = SweepStory()
    story.starts("t")
    assert stays_of(story) == []
    story.at(2).meet("t", "a")
    assert in_hours(stays_of(story)) == [("a", 1, 2, 9, "")]


def test_a_run_that_pauses_leaves_its_nodes() -> None:
    story = SweepStory()
    story.starts("t", "a")
    story.at(1).ends("t")
    story.at(5).starts("t", "a")
    assert in_hours(stays_of(story)) == [("a", 1, 0, 1, "end"), ("a", 1, 5, 9, "")]


def test_a_killed_driver_left_with_the_last_that_its_run_told() -> None:
    story = SweepStory()
    story.starts("t", "a")
    story.at(2).steps("t", 1, 10)
    story.at(5).starts("t", "b")
    assert in_hours(stays_of(story)) == [("a", 1, 0, 2, "end"), ("b", 1, 5, 9, "")]


def test_a_clone_ends_the_run_before_it() -> None:
    story = SweepStory()
    story.starts("t", "a")
    story.at(2).steps("t", 1, 10)
    story.at(3).starts("t-0123abcd", "a")
    story.at(4).steps("t", 11, 12)  # a line that came late
    assert in_hours(stays_of(story)) == [("a", 1, 0, 3, "end"), ("a", 1, 3, 9, "")]


def test_a_journal_without_its_first_lines_still_counts() -> None:
    story = SweepStory()
    story.starts("t", "a")
    story.at(1).ends("t")
    story.at(2).starts("t", "b")
    del story.runs["t"][0]
    assert in_hours(stays_of(story)) == [("a", 1, 0, 1, "end"), ("b", 1, 2, 9, "")]


def test_a_start_that_another_clock_told_too_late_begins_no_second_life() -> None:
    story = SweepStory()
    story.starts("t", "a")
    story.runs["t"].reverse()
    story.runs["t"][1] = replace(story.runs["t"][1], at_s=1.0)
    assert in_hours(stays_of(story)) == [("a", 1, 0, 9, "")]


def test_what_comes_after_the_look_does_not_count() -> None:
    story = SweepStory()
    story.starts("t", "a")
    story.at(3).ends("t")
    assert in_hours(stays_of(story, until_h=2)) == [("a", 1, 0, 2, "end")]


def test_a_node_that_is_taken_hits_every_trial_on_it() -> None:
    story = SweepStory()
    story.starts("t", "a", "b")
    story.starts("u", "a")
    story.starts("v", "b")
    story.at(1).down("a")
    assert hits(story) == {"t": Hits(silent=1), "u": Hits(silent=1)}


def test_a_trial_that_left_before_the_notice_is_not_hit() -> None:
    story = SweepStory()
    story.starts("t", "a", "b")
    story.starts("u", "b")
    story.at(1).meet("t", "b")
    story.at(1.5).meet("u", "a", "b")
    story.at(2).notice("a")
    story.at(2.1).meet("u", "b")
    story.at(2.2).down("a", noticed=True)
    assert hits(story) == {"u": Hits(noticed=1)}


def test_an_idle_node_that_is_taken_hits_nobody() -> None:
    story = SweepStory()
    story.starts("t", "a", "b")
    story.at(1).meet("t", "b")
    story.at(2).down("a")
    assert hits(story) == {}


def test_a_loss_that_ray_saw_late_hits_who_lost_the_node() -> None:
    story = SweepStory()
    story.starts("t", "a", "b")
    story.at(1).loses("t", "a")
    story.at(1.01).meet("t", "b")
    story.at(1.1).down("a")
    assert hits(story) == {"t": Hits(silent=1)}


def test_a_worker_that_died_long_before_another_trial_came_is_no_hit() -> None:
    story = SweepStory()
    story.starts("t", "a", "b")
    story.at(1).loses("t", "a")
    story.at(1.01).meet("t", "b")
    story.at(2).starts("u", "a")
    story.at(3).down("a")
    assert hits(story) == {"u": Hits(silent=1)}


def test_a_notice_that_only_the_provider_told_hits_who_left_last() -> None:
    story = SweepStory()
    story.starts("t", "a", "b")
    story.at(1).meet("t", "b")
    story.at(1.01).down("a", noticed=True)
    assert hits(story) == {"t": Hits(noticed=1)}


@pytest.mark.parametrize("cause", ["shutdown", "failure"])
def test_other_ends_of_a_node_are_no_preemptions(cause: str) -> None:
    story = SweepStory()
    story.starts("t", "a")
    story.at(1).down("a", cause=cause)
    assert hits(story) == {}
