"""One job on several nodes over several zones, tick by tick, billed by the second.

Where a zone holds fewer nodes than the job has there, the youngest go first, for the hazard of
a node falls with its age. A node that would reach its place's limit within a tick goes at the
start of the tick, with notice. Most ticks change nothing, and cost a few microseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotray.errors import PolicyError, TraceError
from spotray.policy.fleet import FleetDecision, FleetJob, FleetPolicy, FleetView
from spotray.sim.asked import begun, failed, name_of
from spotray.sim.billing import bill_usd
from spotray.sim.fleet_market import FleetMarket

_DONE_S = 1e-6  # less work than that is rounding


@dataclass(frozen=True, kw_only=True)
class FleetOutcome:
    """How a job went.

    A job that its traces did not see to the end pays for the rest as all nodes on on-demand.
    """

    cost_usd: float
    spot_usd: float
    on_demand_usd: float
    move_usd: float
    free_usd: float  # what nodes would have cost that the cloud took before it bills
    ended_s: float | None  # from the job's start; None if the traces ended before
    is_late: bool
    launches: int  # nodes
    preemptions: int  # nodes
    at_limit: int  # of these, that were as old as their place lets them be
    restarts: int  # times that nobody was left of a group that had trained
    moves: int  # from region to region
    spot_node_s: float
    on_demand_node_s: float
    paused_s: float  # while nodes were there
    redone_s: float  # work that was lost and done again
    trained_s: float  # while any node did work


@dataclass(frozen=True, kw_only=True)
class FleetMoment:
    """One tick of a job, for whoever wants to see why."""

    tick: int
    capacity: tuple[int, ...]
    spot: tuple[int, ...]
    on_demand: tuple[int, ...]
    why: str
    done_s: float  # before this tick
    usd: float  # paid by then, and owed by the nodes that are there


def simulate_fleet(
    policy: FleetPolicy,
    job: FleetJob,
    market: FleetMarket,
    *,
    moments: list[FleetMoment] | None = None,
) -> FleetOutcome:
    """Run a job under a policy.

    Args:
        policy: who decides.
        job: what is to be done; its places are the market's.
        market: from the job's start on.
        moments: gets one entry a tick, if given.

    Raises:
        TraceError: the market ends before the job's deadline, or has other places or ticks.
        PolicyError: the policy raised, or answered what cannot be done; the message names
            the policy and the tick.
        ConfigError: the policy does not serve such a job.
    """
    if market.places != job.places or market.gap_s != job.gap_s:
        raise TraceError("the market is of other places, or of other ticks, than the job")
    if job.has_deadline and market.ticks * job.gap_s < job.deadline_s - _DONE_S:
        raise TraceError(
            f"the traces end after {market.ticks * job.gap_s / 3600:.1f} h, the job's deadline is "
            f"{job.deadline_s / 3600:.1f} h after its start: give longer traces"
        )
    fleet = _Fleet(job, market)
    decide = begun(policy, job).decide
    view = fleet.view
    for tick in range(market.ticks):
        fleet.begin(tick)
        try:
            decision = decide(view)
            wrong = fleet.wrong(decision)
        except Exception as exc:
            raise failed(policy, tick, exc) from exc
        if wrong:
            raise PolicyError(f"policy {name_of(policy)} at tick {tick} {wrong}")
        if moments is not None:
            moments.append(fleet.moment(decision))
        fleet.apply(decision)
        if fleet.train():
            break
    return fleet.outcome()


class _Cohort:
    """Nodes of one place that were launched together."""

    __slots__ = ("count", "is_ready", "launched_s", "ready_s")

    def __init__(self, count: int, launched_s: float, ready_s: float) -> None:
        self.count, self.launched_s, self.ready_s = count, launched_s, ready_s
        self.is_ready = False


class _Fleet:
    """The nodes of a job, its work and its bill."""

    def __init__(self, job: FleetJob, market: FleetMarket) -> None:
        self._job, self._market, self._places = job, market, len(job.places)
        count = self._places
        self._clouds = [place.market.cloud for place in job.places]
        self._limits = [
            (index, place.limit_s)
            for index, place in enumerate(job.places)
            if math.isfinite(place.limit_s)
        ]
        # Spot nodes of each place, then on-demand ones; the youngest last.
        self._cohorts: list[list[_Cohort]] = [[] for _ in range(2 * count)]
        self._held = [0] * (2 * count)
        self._starting: list[_Cohort] = []
        self._meters = [*market.meters, *market.on_demand_meters]
        self._rates = [speed * (1 - job.pauses.save_frac) for speed in job.speeds]
        self._noticed = 0  # nodes lost in this tick that were announced to be
        self._tick = 0
        self._now_s = 0.0
        self._ended_s: float | None = None
        self._pause_s = 0.0
        self._is_cold = True  # nobody has the state in memory: a start is a restart
        self._working = 0
        self._done_s = 0.0
        self._since_saved_s = 0.0  # of that, what no checkpoint holds
        self._lost = [0] * count
        self._region = ""
        self.view = FleetView(
            on_spot=[0] * count,
            on_demand=[0] * count,
            ready_on_spot=[0] * count,
            ready_on_demand=[0] * count,
            lost=[0] * count,
        )
        self._usd = [0.0, 0.0]  # spot, on-demand
        self._node_s = [0.0, 0.0]
        self._free_usd = self._move_usd = 0.0
        self._launches = self._preemptions = self._restarts = self._moves = self._at_limit = 0
        self._paused_s = self._redone_s = self._trained_s = 0.0

    # -- a tick, in this order -------------------------------------------------

    def begin(self, tick: int) -> None:
        """The zones hold what they hold: nodes beyond that are gone."""
        view, market = self.view, self._market
        self._tick, self._now_s = tick, tick * self._job.gap_s
        capacity = market.capacity[tick]
        if any(self._lost):
            self._lost = [0] * self._places
        self._noticed = 0
        working = self._working
        silent = False
        for place, limit_s in self._limits:
            self._end_old(place, limit_s)
        for place in range(self._places):
            gone = self._held[place] - capacity[place]
            if gone > 0:
                self._lost[place] += gone
                self._preemptions += gone
                self._end_nodes(place, gone, taken=True)
                if market.silent[tick][place]:
                    silent = True
                else:
                    self._noticed += gone
        if self._working < working:
            self._group_lost(silent=silent)
        # The view is made anew: what a policy does to it changes nothing here.
        view.tick, view.elapsed_s = tick, self._now_s
        view.done_s, view.working, view.lost = self._done_s, self._working, self._lost.copy()
        view.capacity = capacity.copy()
        view.spot_usd_per_hour = market.usd_per_hour[tick].copy()
        self._count()

    def wrong(self, decision: FleetDecision) -> str | None:
        """What cannot be done in a decision; None if all can."""
        wanted = [*decision.spot, *decision.on_demand]
        if len(decision.spot) != self._places or len(decision.on_demand) != self._places:
            return (
                f"answered for {len(decision.spot)} and {len(decision.on_demand)} places: "
                f"there are {self._places}"
            )
        if not decision.why.strip() or "\n" in decision.why:
            return f"gave the reason {decision.why!r}: give one line"
        capacity = self._market.capacity[self._tick]
        regions = self._job.regions
        home = None
        for index, count in enumerate(wanted):
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                return f"asked for {count!r} nodes: give whole numbers of at least 0"
            if not count:
                continue
            place = index % self._places
            if index < self._places and count > capacity[place]:
                zone = self._job.places[place].market.zone
                return f"asked for {count} spot nodes in {zone}, which holds {capacity[place]}"
            if home is None:
                home = regions[place]
            elif regions[place] != home:
                return f"asked for nodes in {home} and in {regions[place]}: one region at a time"
        if sum(wanted) > 2 * self._job.max_nodes:
            return f"asked for {sum(wanted)} nodes: at most {2 * self._job.max_nodes}, twice max"
        return None

    def apply(self, decision: FleetDecision) -> None:
        """End and launch nodes until all are as decided."""
        held = self._held
        if (*decision.spot, *decision.on_demand) == tuple(held):
            return
        working = self._working
        wanted = (*decision.spot, *decision.on_demand)
        for index, count in enumerate(wanted):
            if count < held[index]:
                self._end_nodes(index, held[index] - count, taken=False)
        if self._working < working:
            # Let go on purpose: those that stay meet anew, and nothing is lost.
            self._pause_s += self._job.pauses.noticed_s
            if not self._working:
                self._is_cold, self._since_saved_s = True, 0.0
        for index, count in enumerate(wanted):
            if count > held[index]:
                self._launch(index, count - held[index])
        region = next((self._job.regions[i % self._places] for i, n in enumerate(wanted) if n), "")
        if region and self._region and region != self._region and self._trained_s:
            self._moves += 1
            self._move_usd += self._job.move_usd
        self._region = region or self._region

    def train(self) -> bool:
        """Work until the tick's end or the job's; whether it is done."""
        job = self._job
        end_s = self._now_s + job.gap_s
        if self._starting and min(one.ready_s for one in self._starting) < end_s:
            joining = sorted(
                (one for one in self._starting if one.ready_s < end_s), key=lambda c: c.ready_s
            )
            self._starting = [one for one in self._starting if one.ready_s >= end_s]
        else:
            joining = []
        at_s = self._now_s
        for cohort in joining:
            if self._work(at_s, cohort.ready_s):
                return True
            at_s = max(at_s, cohort.ready_s)
            self._join(cohort)
        if self._work(at_s, end_s):
            return True
        if self._working and not self._rates[min(self._working, job.max_nodes)]:
            self._paused_s += end_s - at_s  # too few of them
        return False

    # -- its parts -----------------------------------------------------------

    def _count(self) -> None:
        view, count = self.view, self._places
        view.on_spot, view.on_demand = self._held[:count], self._held[count:]
        if self._starting:
            ready = [sum(one.count for one in here if one.is_ready) for here in self._cohorts]
            view.ready_on_spot, view.ready_on_demand = ready[:count], ready[count:]
        else:
            view.ready_on_spot, view.ready_on_demand = self._held[:count], self._held[count:]

    def _launch(self, index: int, count: int) -> None:
        """Launch now, or at the notice of a loss, for as many as were announced to be lost."""
        ahead = min(count, self._noticed)
        self._noticed -= ahead
        early_s = min(self._market.notice_s, self._now_s)
        for part, launched_s in ((ahead, self._now_s - early_s), (count - ahead, self._now_s)):
            if part:
                ready_s = max(self._now_s, launched_s + self._job.pauses.launch_s)
                cohort = _Cohort(part, launched_s, ready_s)
                self._cohorts[index].append(cohort)
                self._starting.append(cohort)
        self._held[index] += count
        self._launches += count

    def _end_nodes(self, index: int, count: int, *, taken: bool) -> None:
        """The youngest go."""
        self._held[index] -= count
        cohorts = self._cohorts[index]
        while count:
            youngest = cohorts[-1]
            part = min(count, youngest.count)
            self._pay(index, youngest.launched_s, part, taken=taken)
            if youngest.is_ready:
                self._working -= part
            youngest.count -= part
            count -= part
            if not youngest.count:
                cohorts.pop()
                if not youngest.is_ready:
                    self._starting.remove(youngest)

    def _end_old(self, place: int, limit_s: float) -> None:
        """Those that would be too old before the next tick go."""
        cohorts = self._cohorts[place]
        while cohorts and cohorts[0].launched_s + limit_s < self._now_s + self._job.gap_s:
            oldest = cohorts.pop(0)
            self._pay(place, oldest.launched_s, oldest.count, taken=True)
            if oldest.is_ready:
                self._working -= oldest.count
            else:
                self._starting.remove(oldest)
            self._held[place] -= oldest.count
            self._lost[place] += oldest.count
            self._noticed += oldest.count
            self._preemptions += oldest.count
            self._at_limit += oldest.count

    def _pay(self, index: int, launched_s: float, count: int, *, taken: bool) -> None:
        end_s = self._now_s if self._ended_s is None else self._ended_s
        end_s = max(end_s, launched_s)
        place, kind = index % self._places, index >= self._places
        meter, cloud = self._meters[index], self._clouds[place]
        usd = bill_usd(meter, cloud, launched_s, end_s, taken=taken)
        if taken and usd == 0:
            self._free_usd += count * meter.usd(launched_s, end_s)
        self._usd[kind] += count * usd
        self._node_s[kind] += count * (end_s - launched_s)

    def _group_lost(self, *, silent: bool) -> None:
        pauses = self._job.pauses
        if self._working:
            self._pause_s += pauses.silent_s if silent else pauses.noticed_s
            return
        self._is_cold, self._pause_s = True, 0.0
        if silent:  # back to the last checkpoint
            back_s = min(self._since_saved_s, self._done_s)
            self._done_s -= back_s
            self._redone_s += back_s
        self._since_saved_s = 0.0

    def _join(self, cohort: _Cohort) -> None:
        cohort.is_ready = True
        self._working += cohort.count
        if self._is_cold:
            if self._rates[min(self._working, self._job.max_nodes)]:
                self._pause_s = self._job.pauses.restart_s
                self._is_cold = False
                self._restarts += self._trained_s > 0
        else:
            self._pause_s += self._job.pauses.joined_s

    def _work(self, from_s: float, to_s: float) -> bool:
        """Train from one time to another with the nodes that work now; whether it is done."""
        job = self._job
        rate = self._rates[min(self._working, job.max_nodes)]
        if not rate or to_s <= from_s:
            return False
        if self._pause_s:
            paused_s = min(self._pause_s, to_s - from_s)
            self._pause_s -= paused_s
            self._paused_s += paused_s
            from_s += paused_s
        left_s = (job.work_s - self._done_s) / rate
        if left_s <= to_s - from_s + _DONE_S:
            self._ended_s = from_s + left_s
            self._trained_s += left_s
            self._done_s = job.work_s
            return True
        trained_s = to_s - from_s
        self._done_s += trained_s * rate
        self._trained_s += trained_s
        # Of what a checkpoint does not hold yet, in work.
        period_s = job.pauses.checkpoint_s
        since_s = self._since_saved_s / rate + trained_s
        self._since_saved_s = (since_s % period_s) * rate
        return False

    # -- what it comes to ------------------------------------------------------

    def moment(self, decision: FleetDecision) -> FleetMoment:
        usd = sum(self._usd) + self._move_usd
        for index, cohorts in enumerate(self._cohorts):
            for one in cohorts:
                usd += one.count * self._meters[index].usd(one.launched_s, self._now_s)
        return FleetMoment(
            tick=self._tick,
            capacity=tuple(self._market.capacity[self._tick]),
            spot=decision.spot,
            on_demand=decision.on_demand,
            why=decision.why,
            done_s=self._done_s,
            usd=usd,
        )

    def outcome(self) -> FleetOutcome:
        job, market = self._job, self._market
        if self._ended_s is None:
            self._now_s = market.ticks * job.gap_s
        for index, cohorts in enumerate(self._cohorts):
            for one in cohorts:
                self._pay(index, one.launched_s, one.count, taken=False)
        if self._ended_s is None:
            rest_s = job.start_s + job.fastest_s(job.work_s - self._done_s)
            cheapest = min(place.on_demand_usd_per_hour for place in job.places)
            self._usd[1] += rest_s / 3600 * cheapest * job.max_nodes
        return FleetOutcome(
            cost_usd=sum(self._usd) + self._move_usd,
            spot_usd=self._usd[0],
            on_demand_usd=self._usd[1],
            move_usd=self._move_usd,
            free_usd=self._free_usd,
            ended_s=self._ended_s,
            is_late=job.has_deadline
            and (self._ended_s is None or self._ended_s > job.deadline_s + _DONE_S),
            launches=self._launches,
            preemptions=self._preemptions,
            at_limit=self._at_limit,
            restarts=self._restarts,
            moves=self._moves,
            spot_node_s=self._node_s[0],
            on_demand_node_s=self._node_s[1],
            paused_s=self._paused_s,
            redone_s=self._redone_s,
            trained_s=self._trained_s,
        )
