"""A sweep at a glance: what each trial cost, how its time went, and what nobody used.

A node's price is shared by the workers that are on it, whichever trial they serve. Time
of a node without any worker is no trial's: it is told apart, so that the parts add up to
what the sweep cost.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import Any

from spotray.events import (
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeUp,
    NoticeCancelled,
    NoticeReceived,
    Reported,
)
from spotray.ledger.cost import CostSummary, cost_within, job_windows, node_facts
from spotray.ledger.goodput import Goodput, goodput
from spotray.ledger.history import Group, groups
from spotray.ledger.occupancy import Hits, RunLife, Stay, preemptions, run_lives, stays, trial_of
from spotray.ledger.pricing import Life, Money, Prices, Span, clip, lives, saved_frac
from spotray.ledger.summary import job_state, warnings_in

_News = NodeDown | NoticeReceived | NoticeCancelled
_UNKNOWN = "unknown"


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
class Bill:
    """One trial's part of the node time and its price."""

    money: Money = field(default_factory=Money)
    saved_frac: float | None = None  # of the on-demand cost, where both prices are known
    by_market: Mapping[str, Money] = field(default_factory=dict)
    unseen_nodes: int = 0  # had a worker of it, but nobody saw them come up


@dataclass(frozen=True, kw_only=True)
class SweepCost:
    """What a sweep cost: ``trials``, ``idle`` and ``head`` add up to ``total``."""

    total: CostSummary
    trials: Mapping[str, Bill]
    idle: Money  # of nodes without a worker of any trial
    head: Money  # the same, of the head

    @property
    def overhead_frac(self) -> float | None:
        """What no trial used, as a part of what the trials cost; None if that is unknown."""
        used = sum((bill.money for bill in self.trials.values()), Money()).cost_usd
        rest = (self.idle + self.head).cost_usd
        return None if not used else (rest or 0.0) / used


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
    bill: Bill

    @property
    def goodput_frac(self) -> float | None:
        """Useful part of the time that it ran: a pause that a scheduler ordered is no loss."""
        return _of_the_time_it_ran(self.goodput)


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
    best: str | None = None  # the trial with the best last metric
    goodput: Goodput  # sums over the trials
    steps_lost: int = 0
    preemptions_noticed: int = 0  # of nodes on which any trial had a worker, each once
    preemptions_silent: int = 0
    cost: SweepCost
    warnings: tuple[str, ...] = ()
    damaged_lines: int = 0

    @property
    def goodput_frac(self) -> float | None:
        """Useful part of the time that the trials ran."""
        return _of_the_time_it_ran(self.goodput)


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
        best=best_trial({t.trial: t.metric for t in trials}, events.mode),
        goodput=_goodput_sum(trial.goodput for trial in trials),
        steps_lost=sum(trial.steps_lost for trial in trials),
        preemptions_noticed=state.preemptions.noticed,
        preemptions_silent=state.preemptions.silent,
        cost=state.cost,
        warnings=(*events.missing, *warnings_in(folded.everything)),
        damaged_lines=events.damaged_lines,
    )


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
        self.facts = node_facts(self.everything)
        news = (
            e for e in self.everything if isinstance(e, NodeDown | NoticeReceived | NoticeCancelled)
        )
        self.news = sorted(news, key=lambda event: event.at_s)
        jobs = [event for event in shared if isinstance(event, JobStarted | JobEnded)]
        self.jobs = sorted(jobs, key=lambda event: event.at_s)  # the sweep's own
        self.windows = _windows(self.jobs, self.lives.values(), until_s)

    def state(self) -> SweepState:
        hits = preemptions(self.stays, self.news)
        anyones = preemptions((replace(stay, trial="") for stay in self.stays), self.news)
        markets = {e.node_id: _market(e) for e in self.facts if isinstance(e, NodeUp)}
        down = {e.node_id for e in self.facts if isinstance(e, NodeDown)}
        workers: dict[str, Counter[str]] = defaultdict(Counter)
        for stay in self.stays:
            if stay.ended_by == "" and stay.node_id not in down:
                workers[stay.trial][markets.get(stay.node_id, _UNKNOWN)] += stay.workers
        return SweepState(
            until_s=self.until_s,
            cost=self._cost(),
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

    def _cost(self) -> SweepCost:
        by_node: dict[str, list[Stay]] = defaultdict(list)
        for stay in self.stays:
            by_node[stay.node_id].append(stay)
        prices = Prices(self.facts)
        parts: dict[str, list[tuple[str, Money]]] = defaultdict(list)
        idle = head = Money()
        seen = set()
        for life in lives(self.facts, until_s=self.until_s):
            seen.add(life.up.node_id)
            for span, workers in _shared(life, self.windows, by_node[life.up.node_id]):
                money = prices.money(life, span)
                if not workers and life.up.role == "head":
                    head += money
                elif not workers:
                    idle += money
                for trial, count in workers.items():
                    share = money.share(count / workers.total())
                    parts[trial].append((_market(life.up), share))
        unseen: dict[str, set[str]] = defaultdict(set)
        for stay in self.stays:
            if stay.node_id not in seen:
                unseen[stay.trial].add(stay.node_id)
        return SweepCost(
            total=cost_within(self.facts, self.windows, until_s=self.until_s),
            trials={
                trial: _bill(parts[trial], unseen_nodes=len(unseen[trial]))
                for trial, its_lives in self.lives.items()
                if its_lives
            },
            idle=idle,
            head=head,
        )


def _market(up: NodeUp) -> str:
    return up.market or ("spot" if up.spot else _UNKNOWN)


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


def _shared(
    life: Life, windows: Sequence[Span], here: Iterable[Stay]
) -> Iterator[tuple[Span, Counter[str]]]:
    """A node's time inside the windows, cut where its workers change; by trial, their number."""
    changes: dict[float, Counter[str]] = defaultdict(Counter)
    for stay in here:
        if stay.start_s < stay.end_s:
            changes[stay.start_s][stay.trial] += stay.workers
            changes[stay.end_s][stay.trial] -= stay.workers
    spans = clip((life.start_s, life.end_s), windows)
    edges = sorted({*changes, *(edge for span in spans for edge in span)})
    inside = [any(low <= edge < high for low, high in spans) for edge in edges]
    workers: Counter[str] = Counter()
    for (start_s, end_s), is_inside in zip(pairwise(edges), inside, strict=False):
        for trial, change in changes.get(start_s, {}).items():
            workers[trial] += change
            if not workers[trial]:
                del workers[trial]
        if is_inside:
            yield (start_s, end_s), workers


def _bill(parts: Sequence[tuple[str, Money]], *, unseen_nodes: int) -> Bill:
    by_market: dict[str, Money] = {}
    for market, money in parts:
        by_market[market] = by_market.get(market, Money()) + money
    return Bill(
        money=sum(by_market.values(), Money()),
        saved_frac=saved_frac(money for _, money in parts),
        by_market=dict(sorted(by_market.items())),
        unseen_nodes=unseen_nodes,
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
    histories = [groups(own) for own in runs.values()]
    reported = [e for life in its_lives for e in life.events if isinstance(e, Reported)]
    last = reported[-1] if reported else None
    metrics = last.metrics if last is not None else {}
    return TrialSummary(
        trial=trial,
        runs=tuple(runs),
        state=job,
        why=why,
        started_at_s=its_lives[0].start_s,
        step=_step(groups(runs[latest.run])),
        epoch=last.epoch if last is not None else None,
        metrics=metrics,
        metric=metric_of(metrics, folded.metric),
        presence=state.presence[trial],
        steps_lost=sum(_steps_lost(history) for history in histories),
        goodput=_goodput_sum(goodput(own, until_s=ended_s[run]) for run, own in runs.items()),
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


def _of_the_time_it_ran(spent: Goodput) -> float | None:
    ran_s = spent.wall_s - spent.stopped_s
    return spent.useful_s / ran_s if ran_s > 0 else None


def _sweep_state(folded: _Folded, trials: Sequence[TrialSummary]) -> str:
    if not trials:
        return "no trial"
    if folded.jobs:
        return "running" if isinstance(folded.jobs[-1], JobStarted) else "ended"
    goes_on = any(life.is_open for its_lives in folded.lives.values() for life in its_lives)
    return "running" if goes_on else "ended"
