"""A sweep at a glance: where each trial stands, what it cost and how its time went."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import Any

from spotray.events import (
    CheckpointCommitted,
    Event,
    FellBack,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeUp,
    NoticeCancelled,
    NoticeReceived,
    Reported,
    ResizeAgreed,
    Restored,
    SnapshotTaken,
    StepsDone,
    TrainingDone,
    TrialHeldBack,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.ledger.account import Account, account
from spotray.ledger.cost import job_windows, node_facts
from spotray.ledger.goodput import Goodput, goodput
from spotray.ledger.history import Group, groups
from spotray.ledger.occupancy import Hits, RunLife, preemptions, run_lives, stays, trial_of
from spotray.ledger.pricing import Span
from spotray.ledger.sharing import (
    UNKNOWN_MARKET,
    Bill,
    SweepCost,
    market_of,
    share_causes,
    share_cost,
    trial_activities,
)
from spotray.ledger.summary import job_state, warnings_in

_News = NodeDown | NoticeReceived | NoticeCancelled
_OneTrials = (
    JobStarted
    | JobEnded
    | TrainingDone
    | WorkerGroupLost
    | FellBack
    | ResizeAgreed
    | Restored
    | StepsDone
    | Reported
    | SnapshotTaken
    | CheckpointCommitted
)
_MANY = {StepsDone, Reported, SnapshotTaken}  # of which a long sweep has most, about no money


@dataclass(frozen=True, kw_only=True)
class SweepEvents:
    """What the journals of a sweep say, at one time."""

    sweep_dir: str
    name: str = ""
    metric: str | None = None  # what the sweep optimizes
    mode: str | None = None  # min, max
    runs: Mapping[str, Sequence[Event]] = field(default_factory=dict)  # each run's own, by time
    shared: Sequence[Event] = ()  # about the sweep as a whole and its nodes, by time
    journals: tuple[str, ...] = ()  # URLs that were read
    damaged_lines: int = 0
    missing: tuple[str, ...] = ()  # one line for each thing that could not be read


@dataclass(frozen=True, kw_only=True)
class Presence:
    """Where a trial is now, and what happened to it so far."""

    workers: int = 0
    markets: Mapping[str, int] = field(default_factory=dict)  # of its workers -> how many
    preemptions_noticed: int = 0  # of nodes on which it had a worker
    preemptions_silent: int = 0


@dataclass(frozen=True, kw_only=True)
class SweepState:
    """The part of a sweep's ledger that is cheap enough to be watched."""

    until_s: float  # Unix seconds
    cost: SweepCost
    presence: Mapping[str, Presence]  # of every trial that began
    preemptions: Hits  # of nodes on which any trial had a worker, each once


@dataclass(frozen=True, kw_only=True)
class TrialSummary:
    """One trial, over all of its runs."""

    trial: str
    runs: tuple[str, ...]  # folders, in the order of their start; a clone has its own
    state: str  # running, finished, failed, interrupted: as its latest run
    why: str = ""
    started_at_s: float | None = None  # Unix seconds
    step: int = 0
    epoch: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)  # the last that were reported
    metric: float | None = None  # the one that the sweep optimizes
    presence: Presence
    steps_lost: int = 0  # done again, or still to be
    goodput: Goodput
    waited_s: float = 0.0  # part of it: for room, and until its first workers had met
    bill: Bill

    @property
    def goodput_frac(self) -> float | None:
        """Useful part of the time with workers: waiting for its turn, or in a pause that a
        scheduler ordered, a trial loses nothing."""
        return _goodput_frac(self.goodput, self.waited_s)


@dataclass(frozen=True, kw_only=True)
class SweepAccount(SweepCost):
    """A sweep's whole bill; causes are those of each trial, and idle and head."""

    total: Account


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """Everything that ``spotray status`` shows of a sweep."""

    sweep_dir: str
    name: str = ""
    metric: str | None = None
    mode: str | None = None
    state: str = "no trial"  # no trial, running, ended
    started_at_s: float | None = None  # Unix seconds
    until_s: float = 0.0  # up to when this summary knows, Unix seconds
    trials: tuple[TrialSummary, ...] = ()  # by start
    held_back: Mapping[str, str] = field(default_factory=dict)  # trials that never began, and why
    best: str | None = None  # the trial with the best last metric
    goodput: Goodput  # sums over the trials
    waited_s: float = 0.0
    steps_lost: int = 0
    preemptions_noticed: int = 0  # of nodes on which any trial had a worker, each once
    preemptions_silent: int = 0
    cost: SweepAccount
    warnings: tuple[str, ...] = ()
    damaged_lines: int = 0

    @property
    def goodput_frac(self) -> float | None:
        """Useful part of the time in which trials had workers."""
        return _goodput_frac(self.goodput, self.waited_s)


def watch_sweep(events: SweepEvents, *, until_s: float | None = None) -> SweepState:
    """Cost, workers and preemptions of a sweep: a fold over few of its facts.

    The sweep's time is told by its own `JobStarted` and `JobEnded`; without these it goes
    from the first start of a trial to the last end.

    Args:
        until_s: nodes still up and trials still running count until then, Unix seconds;
            default: the last event's time.
    """
    return _Folded(events, until_s).state()


def summarize_sweep(events: SweepEvents, *, until_s: float | None = None) -> SweepSummary:
    """Fold a sweep's facts into what is worth a look; ``until_s`` as for `watch_sweep`."""
    folded = _Folded(events, until_s)
    state = folded.state()
    trials = [
        _trial_summary(trial, its_lives, folded, state)
        for trial, its_lives in folded.lives.items()
        if its_lives
    ]
    trials.sort(key=lambda trial: (trial.started_at_s or 0.0, trial.trial))
    return SweepSummary(
        sweep_dir=events.sweep_dir,
        name=events.name,
        metric=events.metric,
        mode=events.mode,
        state=_sweep_state(folded, trials),
        started_at_s=folded.windows[0][0] if folded.windows else None,
        until_s=folded.until_s,
        trials=tuple(trials),
        held_back=_held_back(events.shared, until_s) if events.shared else {},
        best=best_trial({t.trial: t.metric for t in trials}, events.mode),
        goodput=_goodput_sum(trial.goodput for trial in trials),
        waited_s=sum(trial.waited_s for trial in trials),
        steps_lost=sum(trial.steps_lost for trial in trials),
        preemptions_noticed=state.preemptions.noticed,
        preemptions_silent=state.preemptions.silent,
        cost=_account(folded, state.cost, damaged_lines=events.damaged_lines),
        warnings=(*events.missing, *warnings_in(folded.everything)),
        damaged_lines=events.damaged_lines,
    )


def plain_events(sweep: SweepEvents) -> list[Event]:
    """A sweep as one job's facts: when it ran, as the sweep or its trials tell, and its nodes.

    What only one trial did is left out: the generations and steps of several do not add up.
    """
    folded = _Folded(sweep, None)
    events = folded.common
    if not any(isinstance(event, JobStarted) for event in folded.jobs):
        events = [event for event in events if not isinstance(event, JobEnded)]
        for low, high in folded.windows:
            events.append(JobStarted(at_s=low, job=sweep.name, run_id=""))
            events.append(JobEnded(at_s=high, job=sweep.name, status="ended"))
    return sorted(events, key=lambda event: event.at_s)


def _held_back(shared: Sequence[Event], until_s: float | None) -> dict[str, str]:
    facts = [e for e in _until(shared, until_s) if isinstance(e, TrialHeldBack)]
    return {fact.trial: fact.why for fact in facts}


def metric_of(metrics: Mapping[str, Any], name: str | None) -> float | None:
    """A metric as a number; None if it is not there or is none. ``a/b`` is ``b`` inside ``a``.

    >>> metric_of({"val": {"loss": 0.5}}, "val/loss")
    0.5
    """
    if name is None:
        return None
    value: Any = metrics.get(name)
    if name not in metrics:
        value = metrics
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return float(value)


def best_trial(metrics: Mapping[str, float | None], mode: str | None) -> str | None:
    """The trial with the best metric; None if no trial has one, or nobody says what is best.

    >>> best_trial({"a": 0.5, "b": 0.25, "c": None}, "min")
    'b'
    """
    told = {t: m for t, m in metrics.items() if m is not None and not math.isnan(m)}
    if not told or mode not in ("min", "max"):
        return None
    return (min if mode == "min" else max)(told, key=lambda trial: told[trial])


class _Folded:
    """What both folds stand on, made once."""

    def __init__(self, events: SweepEvents, until_s: float | None) -> None:
        runs = {run: _until(own, until_s) for run, own in events.runs.items()}
        shared = _until(events.shared, until_s)
        everyones = [event for own in runs.values() for event in own]
        if until_s is None:
            until_s = max((e.at_s for e in [*everyones, *shared]), default=0.0)
        self.until_s = until_s
        by_trial: dict[str, dict[str, Sequence[Event]]] = defaultdict(dict)
        for run, own in runs.items():
            by_trial[trial_of(run)][run] = own
        self.lives = {t: run_lives(own, until_s=until_s) for t, own in sorted(by_trial.items())}
        self.stays = [s for trial, its in self.lives.items() for s in stays(trial, its)]
        self.metric = events.metric
        # A run tells of nodes too, where the sweep found no cluster that does.
        self.everything = [*everyones, *shared]
        self.common = [*shared, *(e for e in everyones if not isinstance(e, _OneTrials))]
        few = [event for event in self.everything if type(event) not in _MANY]
        self.facts = node_facts(few)
        news = (event for event in few if isinstance(event, _News))
        self.news = sorted(news, key=lambda event: event.at_s)
        jobs = [event for event in shared if isinstance(event, JobStarted | JobEnded)]
        self.jobs = sorted(jobs, key=lambda event: event.at_s)  # the sweep's own
        self.windows = _windows(self.jobs, self.lives.values(), until_s)

    def state(self) -> SweepState:
        hits = preemptions(self.stays, self.news)
        anyones = preemptions((replace(stay, trial="") for stay in self.stays), self.news)
        ups = [event for event in self.facts if isinstance(event, NodeUp)]
        ups.sort(key=lambda up: bool(up.market))  # who knows the market has the last word
        markets = {up.node_id: market_of(up) for up in ups}
        down = {e.node_id for e in self.facts if isinstance(e, NodeDown)}
        workers: dict[str, Counter[str]] = defaultdict(Counter)
        for stay in self.stays:
            if stay.ended_by == "" and stay.node_id not in down:
                workers[stay.trial][markets.get(stay.node_id, UNKNOWN_MARKET)] += stay.workers
        return SweepState(
            until_s=self.until_s,
            cost=share_cost(
                self.facts,
                self.stays,
                self.windows,
                trials=[trial for trial, its_lives in self.lives.items() if its_lives],
                until_s=self.until_s,
            ),
            preemptions=anyones.get("", Hits()),
            presence={
                trial: Presence(
                    workers=workers[trial].total(),
                    markets=dict(sorted(workers[trial].items())),
                    preemptions_noticed=hits.get(trial, Hits()).noticed,
                    preemptions_silent=hits.get(trial, Hits()).silent,
                )
                for trial, its_lives in self.lives.items()
                if its_lives
            },
        )


def _until(events: Sequence[Event], until_s: float | None) -> Sequence[Event]:
    return events if until_s is None else [event for event in events if event.at_s <= until_s]


def _windows(
    jobs: Sequence[Event], its_lives: Iterable[Sequence[RunLife]], until_s: float
) -> list[Span]:
    """When the sweep ran."""
    if any(isinstance(event, JobStarted) for event in jobs):
        return job_windows(jobs, until_s=until_s)
    every_life = [life for lives_of_one in its_lives for life in lives_of_one]
    if not every_life:
        return []
    low = min(life.start_s for life in every_life)
    high = max(life.end_s for life in every_life)
    return [(low, high)] if low < high else []


def _account(folded: _Folded, cost: SweepCost, *, damaged_lines: int) -> SweepAccount:
    bill = account(
        folded.common,
        until_s=folded.until_s,
        damaged_lines=damaged_lines,
        windows=folded.windows,
    )
    causes = share_causes(
        folded.facts,
        folded.stays,
        folded.windows,
        does={trial: trial_activities(its_lives) for trial, its_lives in folded.lives.items()},
        until_s=folded.until_s,
    )
    for name, money in (("idle", cost.idle), ("head", cost.head)):
        if money.seconds:
            causes[name] = money
    return SweepAccount(
        total=replace(bill, by_cause=causes), trials=cost.trials, idle=cost.idle, head=cost.head
    )


def _trial_summary(
    trial: str, its_lives: Sequence[RunLife], folded: _Folded, state: SweepState
) -> TrialSummary:
    runs: dict[str, list[Event]] = {}
    ended_s: dict[str, float] = {}
    for life in its_lives:
        runs.setdefault(life.run, []).extend(life.events)
        ended_s[life.run] = life.end_s
    latest = its_lives[-1]
    job, why = job_state(latest.events)
    histories = {run: groups(own) for run, own in runs.items()}
    reported = [e for life in its_lives for e in life.events if isinstance(e, Reported)]
    last = reported[-1] if reported else None
    metrics = last.metrics if last is not None else {}
    return TrialSummary(
        trial=trial,
        runs=tuple(runs),
        state=job,
        why=why,
        started_at_s=its_lives[0].start_s,
        step=_step(histories[latest.run]),
        epoch=last.epoch if last is not None else None,
        metrics=metrics,
        metric=metric_of(metrics, folded.metric),
        presence=state.presence[trial],
        steps_lost=sum(_steps_lost(history) for history in histories.values()),
        goodput=_goodput_sum(goodput(own, until_s=ended_s[run]) for run, own in runs.items()),
        waited_s=sum(map(_waited_s, its_lives)),
        bill=state.cost.trials[trial],
    )


def _step(history: Sequence[Group]) -> int:
    return next((g.reached_step for g in reversed(history) if g.steps or g.restored), 0)


def _steps_lost(history: Sequence[Group]) -> int:
    """Steps that a group had to do again, or the driver that was started again."""
    lost = 0
    for old, new in pairwise(history):
        reached = old.reached_step
        if new.restored is not None and new.restored.reached_step is not None:
            reached = max(reached, new.restored.reached_step)  # survivors know of the last steps
        if new.restored_step is not None:
            lost += max(0, reached - new.restored_step)
    return lost


def _goodput_sum(parts: Iterable[Goodput]) -> Goodput:
    total = Goodput()
    for part in parts:
        total = Goodput(
            **{
                f.name: getattr(total, f.name) + getattr(part, f.name)
                for f in dataclasses.fields(Goodput)
            }
        )
    return total


def _waited_s(life: RunLife) -> float:
    met = (e.at_s for e in life.events if isinstance(e, WorkerGroupStarted | StepsDone))
    return max(0.0, min(next(met, life.end_s), life.end_s) - life.start_s)


def _goodput_frac(spent: Goodput, waited_s: float) -> float | None:
    ran_s = spent.wall_s - spent.stopped_s - waited_s
    return min(1.0, spent.useful_s / ran_s) if ran_s > 0 else None


def _sweep_state(folded: _Folded, trials: Sequence[TrialSummary]) -> str:
    if not trials:
        return "no trial"
    if folded.jobs:
        return "running" if isinstance(folded.jobs[-1], JobStarted) else "ended"
    goes_on = any(life.is_open for its_lives in folded.lives.values() for life in its_lives)
    return "running" if goes_on else "ended"
