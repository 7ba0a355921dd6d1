"""What is shown of a sweep follows from Tune's trials and the ledger alone."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spotray.errors import JournalError
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import job_journal
from spotray.ledger.sweep import SweepState, watch_sweep
from spotray.storage import Store
from spotray.tune.progress import (
    JournalStatus,
    Progress,
    Standing,
    frame,
    headline,
    news,
    quiet_ray,
    rows,
    standing_of,
)
from tests.ledger.sweep_story import HOUR_S, SPOT, SweepStory, two_trials


@dataclass
class FakeTrial:
    """The part of Tune's `Trial` that is looked at."""

    trial_id: str
    status: str
    last_result: dict[str, Any] | None = field(default_factory=dict)


STANDINGS = [
    Standing(trial="one", status="TERMINATED", step=40, metric=0.25),
    Standing(trial="two", status="RUNNING", step=30, metric=0.75),
    Standing(trial="three", status="PENDING"),
]


def state(at_h: float = 3.5) -> SweepState:
    return watch_sweep(two_trials().told(), until_s=at_h * HOUR_S)


def test_a_trial_is_read_as_tune_has_it() -> None:
    trial = FakeTrial("one", "RUNNING", {"step": 7, "val": {"loss": 0.5}})
    assert standing_of(trial, "val/loss") == Standing(
        trial="one", status="RUNNING", step=7, metric=0.5
    )
    assert standing_of(FakeTrial("one", "PENDING", None), None) == Standing(
        trial="one", status="PENDING"
    )


def test_each_trial_is_a_row_and_the_busy_ones_come_first() -> None:
    picture = frame(rows(STANDINGS, state()), state(), metric="val/loss", mode="min")
    names = [column.lstrip(">") for column in picture.columns]
    assert names == [
        "trial",
        "state",
        "step",
        "val/loss",
        "workers",
        "market",
        "preemptions",
        "cost",
    ]
    assert picture.cells == (
        ("two", "running", "30", "0.75 ", "1", SPOT, "1", "$2.00"),
        ("one", "ended", "40", "0.25*", "-", "-", "-", "$2.50"),
        ("three", "pending", "-", "- ", "-", "-", "-", "-"),
    )
    assert picture.styles[0] == "green"
    assert picture.below == ""


def test_the_headline_has_the_sums() -> None:
    text = headline(rows(STANDINGS, state()), state(), metric="val/loss", mode="min")
    assert text == (
        "1 running, 1 ended, 1 pending; best val/loss 0.25 (one); 1 workers; 1 preemptions; "
        "cost $6.25 (head $1.75)"
    )
    assert headline([], None, metric=None, mode=None) == "no trial yet; 0 workers"


def test_trials_for_which_there_is_no_room_are_counted() -> None:
    many = [*STANDINGS, Standing(trial="four", status="PENDING")]
    picture = frame(rows(many, None), None, height=1)
    assert [cells[0] for cells in picture.cells] == ["two"]
    assert picture.below == "and 1 ended, 2 pending"


def test_a_trial_without_workers_waits() -> None:
    story = SweepStory()
    story.starts("one")
    known = watch_sweep(story.told())
    waiting = Standing(trial="one", status="RUNNING", step=3)
    new = Standing(trial="two", status="RUNNING")
    assert [row.state for row in rows([waiting, new], known)] == ["waiting", "starting"]
    assert [row.state for row in rows([waiting, new], None)] == ["running", "running"]


def test_unknown_money_is_told_as_unknown() -> None:
    story = SweepStory()
    story.up("a", usd=None)
    story.up("b")
    story.starts("one", "a")
    story.starts("two", "a", "b")
    story.starts("three", "unseen")
    known = watch_sweep(story.told(), until_s=HOUR_S)
    shown = rows([Standing(trial=t, status="RUNNING") for t in ("one", "two", "three")], known)
    cells = frame(shown, known).cells
    assert [row[-1] for row in cells] == ["unknown", "over $1.00", "unknown"]
    assert "cost over $1.00" in headline(shown, known, metric=None, mode=None)


def test_news_are_starts_ends_and_preemptions() -> None:
    early = [
        Standing(trial="one", status="RUNNING"),
        Standing(trial="two", status="RUNNING"),
        Standing(trial="three", status="PENDING"),
    ]
    before, after = rows(early, state(0.5)), rows(STANDINGS, state())
    assert news([], before, metric="val/loss") == ["trial one runs", "trial two runs"]
    assert news(before, after, metric="val/loss") == [
        "trial one ended after step 40, val/loss 0.25, cost $2.50",
        "trial two: 1 preemptions so far, 1 workers",
    ]
    assert news(after, after, metric="val/loss") == []


# -- with a thread and a console -------------------------------------------------


class Screen(io.StringIO):
    """Text written to a console; lets a test wait for some of it."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            count = super().write(text)
            self._changed.notify_all()
            return count

    def has(self, words: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: words in self.getvalue(), timeout=10.0)


def shown_on(
    screen: Screen, status: Callable[[], SweepState | None], *, terminal: bool = False
) -> Progress:
    console = Console(file=screen, force_terminal=terminal, width=140, height=30)
    return Progress(
        status, metric="val/loss", mode="min", console=console, look_s=0.01, line_s=3600.0
    )


RUNNING = [FakeTrial("one", "RUNNING", {"step": 10, "val/loss": 0.5})]
ENDED = [FakeTrial("one", "TERMINATED", {"step": 40, "val/loss": 0.25})]


def test_lines_tell_what_happens_and_how_it_ended() -> None:
    screen = Screen()
    progress = shown_on(screen, state)
    progress.setup()
    progress.on_step_end(iteration=1, trials=[FakeTrial("one", "PENDING")])
    assert screen.has("1 pending; 0 workers")
    progress.on_experiment_end(trials=ENDED)
    lines = screen.getvalue().splitlines()
    assert "trial one ended after step 40, val/loss 0.25, cost $2.50" in lines
    assert lines[-1].startswith("1 ended; best val/loss 0.25 (one); 0 workers; 1 preemptions")
    assert "\x1b" not in screen.getvalue()
    progress.close()
    assert screen.getvalue().splitlines() == lines


def test_trials_that_ended_before_a_restore_are_no_news() -> None:
    screen = Screen()
    progress = shown_on(screen, state)
    progress.setup()
    progress.on_step_end(iteration=1, trials=ENDED)
    progress.on_experiment_end(trials=ENDED)
    assert "trial one" not in screen.getvalue()


def test_a_terminal_gets_a_table_and_keeps_the_last_one() -> None:
    screen = Screen()
    progress = shown_on(screen, state, terminal=True)
    progress.setup()
    progress.on_step_end(iteration=1, trials=RUNNING)
    assert screen.has("PREEMPTIONS")
    progress.on_experiment_end(trials=ENDED)
    last = screen.getvalue().rpartition("\x1b[?25h")[2]  # after the live view, cursor shown
    assert "0.25*" in last
    assert "$2.50" in last


def test_a_sweep_that_cannot_be_asked_is_shown_without(caplog: pytest.LogCaptureFixture) -> None:
    screen, asked = Screen(), threading.Semaphore(0)

    def fails() -> SweepState:
        asked.release()
        raise JournalError("storage is away")

    progress = shown_on(screen, fails)
    with caplog.at_level(logging.WARNING, "spotray.tune.progress"):
        progress.setup()
        progress.on_step_end(iteration=1, trials=RUNNING)
        for _ in range(3):
            assert asked.acquire(timeout=10.0)
        progress.on_experiment_end(trials=ENDED)
    assert [r.message for r in caplog.records] == [
        "workers and cost of the sweep are not known for now: storage is away"
    ]
    assert screen.getvalue().splitlines()[-1] == "1 ended; best val/loss 0.25 (one); 0 workers"


def test_tune_may_pickle_it_and_the_copy_stays_silent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = shown_on(Screen(), state)
    progress.setup()
    copy = pickle.loads(pickle.dumps(progress))
    progress.close()
    copy.setup()
    copy.on_step_end(iteration=1, trials=RUNNING)
    copy.on_experiment_end(trials=ENDED)
    assert capsys.readouterr().out == ""


# -- the ledger's side -------------------------------------------------------------


def test_the_status_is_read_from_the_journals_now_and_then(tmp_path: Path) -> None:
    story, now_s = two_trials(), [HOUR_S]
    told = iter(story.runs["one"])
    store = job_journal(Store.at(tmp_path / "trials" / "one"))
    status = JournalStatus(tmp_path, every_s=5.0, now_s=lambda: now_s[0])
    with JournalWriter(store, writer="w") as journal:
        journal.append(next(told))
        journal.flush()
        first = status()
        assert first is not None
        assert (first.presence["one"].workers, first.until_s) == (0, HOUR_S)
        journal.append(next(told))
        journal.flush()
        now_s[0] += 4.9
        assert status() is first
        now_s[0] += 0.1
        second = status()
        assert second is not None
        assert second.presence["one"].workers == 1


def test_a_sweep_that_takes_long_to_read_is_read_seldom(tmp_path: Path) -> None:
    times = iter([0.0, 2.0, 39.9, 40.0, 40.0])  # the first look takes two seconds
    status = JournalStatus(tmp_path, every_s=5.0, now_s=lambda: next(times))
    first = status()
    assert status() is first
    assert status() is not first


def test_quiet_ray_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "RAY_AIR_NEW_OUTPUT"
    for before in (None, "1"):
        if before is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, before)
        with quiet_ray():
            assert os.environ[name] == "0"
        assert os.environ.get(name) == before


SCRIPT = """
    import sys
    from ray import tune
    from spotray.tune.progress import Progress, quiet_ray

    class Trainable(tune.Trainable):
        def setup(self, config):
            self.left = 3
        def step(self):
            self.left -= 1
            if self.left == 1 and self.config["x"] == 2:
                raise RuntimeError("a bug")
            loss = self.config["x"] * self.left
            return {"loss": loss, "step": 3 - self.left, "done": not self.left}
        def save_checkpoint(self, folder):
            return {}

    progress = Progress(lambda: None, metric="loss", mode="min", look_s=0.05)
    tuner = tune.Tuner(
        Trainable,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            storage_path=sys.argv[1], name="s", callbacks=[progress], verbose=0
        ),
    )
    with quiet_ray():
        tuner.fit()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_under_tune_nothing_else_is_printed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert sum(" ended after step 3, loss 0, cost -" in line for line in lines) == 1
    assert sum(" failed after step 1, loss 4, cost -" in line for line in lines) == 1
    assert lines[-1].startswith("1 failed, 1 ended; best loss 0 (")
    strangers = [li for li in lines if not li.startswith("trial ") and "workers" not in li]
    assert strangers == [], json.dumps(strangers, indent=2)
