"""What a useful hour costs under each launch policy, on spot that comes and goes.

    python benchmarks/policy/launch.py [--traces DIR] [--worlds N] [--quick] [--json FILE]

A job wants one node all the time. The policy says where each comes from, as on a cluster: it is
asked again after every answer, remembers what it was told, and while the node is on-demand it is
asked now and then whether it would take spot again. With ``--traces`` the zones are those of
real traces, a region at a time; without, they are made up, and show that it runs, no more.
"""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import bench
from spotray.market.offer import Market
from spotray.market.prices import PriceTable
from spotray.market.regions import generate_regions
from spotray.market.trace import Trace
from spotray.policy.decision import Decision, Launch, LaunchPolicy
from spotray.policy.expected_cost import ExpectedCost, ExpectedCostConfig
from spotray.policy.spot_first import SpotFirst
from spotray.policy.view import (
    Fact,
    Launched,
    LaunchView,
    Preempted,
    Progressed,
    Refusal,
    Refused,
    SpotOnly,
)

RECOVERY_S = 28.6  # benchmarks/recovery: nobody is left to go on
STARTS_S = (180.0, 600.0, 1200.0)  # from a launch to the node's first step
CALL_S = 3.0  # one answer of a cloud
ASK_S, SETTLE_S = 60.0, 60.0  # the controller's: how long, and how soon, it asks for spot
REST_S, REST_MAX_S = 120.0, 3600.0  # between its attempts in vain
HORIZON_S = 2 * 86400.0  # of the memory
_FIRST_SEED = 2000  # worlds on which nothing was tried out


@dataclass(frozen=True, kw_only=True)
class World:
    """Spot markets of one region with their traces, beside on-demand that always gives."""

    name: str
    markets: dict[Market, Trace]

    @property
    def candidates(self) -> tuple[Market, ...]:
        steady = dict.fromkeys(market.on_demand() for market in self.markets)
        return (*self.markets, *steady)

    @property
    def duration_s(self) -> float:
        return min(trace.duration_s for trace in self.markets.values())


@dataclass(kw_only=True)
class Ran:
    """One policy's way through one world."""

    world: str
    policy: str
    start_s: float
    cost_usd: float = 0.0
    useful_h: float = 0.0
    hours: float = 0.0
    on_demand_h: float = 0.0
    losses: int = 0
    refusals: int = 0
    decide_ms: float = 0.0  # the mean decision

    @property
    def usd_per_useful_hour(self) -> float:
        return self.cost_usd / self.useful_h


class Course:
    """A job of one node on one world, from launch to launch."""

    def __init__(self, world: World, policy: LaunchPolicy, ran: Ran) -> None:
        self._world, self._policy, self._ran = world, policy, ran
        self._candidates = world.candidates
        self._facts: list[Fact] = []
        self._now_s = 0.0
        self._ends = {market: _ends(trace) for market, trace in world.markets.items()}
        self._prices = _usd_per_hour(self._candidates)
        self._names = self._decisions = 0
        self._decided_s = 0.0

    def run(self) -> Ran:
        until_s = self._world.duration_s
        ready_s = math.inf  # when the node is of use; inf: it has to start yet
        market: Market | None = None
        while self._now_s < until_s:
            if market is None:
                market = self._launch()
                ready_s = self._now_s + self._ran.start_s
            elif market.spot:
                market = self._on_spot(market, ready_s, until_s)
            else:
                market, ready_s = self._on_demand(market, ready_s, until_s)
        self._ran.hours = self._now_s / 3600
        self._ran.decide_ms = 1e3 * self._decided_s / max(self._decisions, 1)
        return self._ran

    def _on_spot(self, market: Market, ready_s: float, until_s: float) -> None:
        """To the node's end."""
        lost_s = min(self._lost_s(market), until_s)
        self._pay(market, self._now_s, lost_s, ready_s)
        if lost_s < until_s:
            if lost_s > ready_s:
                self._tell(Progressed(at_s=ready_s))
            self._tell(Preempted(at_s=lost_s, market=market, name=self._name()))
            self._ran.losses += 1
        self._now_s = lost_s

    def _on_demand(
        self, market: Market, ready_s: float, until_s: float
    ) -> tuple[Market | None, float]:
        """Until spot takes over: the new node first, then this one leaves."""
        since_s, rest_s, next_s = self._now_s, REST_S, max(self._now_s, ready_s) + SETTLE_S
        while next_s < until_s:
            self._now_s = next_s
            if (came := self._spot_again()) is not None:
                over_s = min(self._now_s + self._ran.start_s, until_s)
                lost_s = self._lost_s(came)
                self._pay(came, self._now_s, min(lost_s, over_s), math.inf)
                if lost_s >= over_s:
                    self._pay(market, since_s, over_s, ready_s)
                    self._now_s = over_s
                    return came, over_s - RECOVERY_S  # nobody was lost
                self._now_s = lost_s
                self._tell(Preempted(at_s=lost_s, market=came, name=self._name()))
                self._ran.losses += 1
            next_s = self._now_s + rest_s
            rest_s = min(2 * rest_s, REST_MAX_S)
        self._pay(market, since_s, until_s, ready_s)
        self._now_s = until_s
        return market, ready_s

    def _spot_again(self) -> Market | None:
        """A spot node, if the policy would have one now and some market gives it."""
        decision = self._decide(())
        if not isinstance(decision, Launch) or not decision.attempts[0].market.spot:
            return None
        end_s = self._now_s + ASK_S
        self._tell(SpotOnly(at_s=self._now_s, until_s=end_s))
        tried: list[Market] = []
        came = None
        while came is None and self._now_s < end_s:
            decision = self._decide(tuple(tried))
            if not isinstance(decision, Launch):
                break
            tried.append(decision.attempts[0].market)
            came = self._ask(tried[-1])
        self._tell(SpotOnly(at_s=self._now_s, until_s=self._now_s))
        return came

    def _launch(self) -> Market | None:
        """One launch: a market that gave a node; None if its time went by in vain."""
        tried: list[Market] = []
        while isinstance(decision := self._decide(tuple(tried)), Launch):
            tried.append(decision.attempts[0].market)
            if (came := self._ask(tried[-1])) is not None:
                return came
        self._now_s = max(decision.until_s, self._now_s + 5.0)
        return None

    def _ask(self, market: Market) -> Market | None:
        self._now_s += CALL_S
        trace = self._world.markets.get(market)
        if trace is not None and not trace.value_at(self._now_s):
            self._tell(Refused(at_s=self._now_s, market=market, kind=Refusal.CAPACITY))
            self._ran.refusals += 1
            return None
        self._tell(Launched(at_s=self._now_s, market=market, names=(self._name(new=True),)))
        return market

    def _decide(self, tried: tuple[Market, ...]) -> Decision:
        while self._facts and self._facts[0].at_s < self._now_s - HORIZON_S:
            self._facts.pop(0)
        view = LaunchView(
            now_s=self._now_s,
            wanted=1,
            candidates=self._candidates,
            facts=tuple(self._facts),
            tried=tried,
        )
        began_s = time.thread_time()
        decision = self._policy.decide(view)
        self._decided_s += time.thread_time() - began_s
        self._decisions += 1
        return decision

    def _tell(self, fact: Fact) -> None:
        self._facts.append(fact)

    def _name(self, *, new: bool = False) -> str:
        self._names += new
        return f"i-{self._names}"

    def _lost_s(self, market: Market) -> float:
        """When the cloud takes a node that is had now."""
        ends = self._ends[market]
        index = bisect_right(ends, self._now_s)
        return ends[index] if index < len(ends) else math.inf

    def _pay(self, market: Market, from_s: float, to_s: float, ready_s: float) -> None:
        hours = (to_s - from_s) / 3600
        # What comes after a loss begins with a recovery; it is part of a start here.
        self._ran.useful_h += max(to_s - max(ready_s + RECOVERY_S, from_s), 0.0) / 3600
        self._ran.cost_usd += hours * self._prices[market]
        self._ran.on_demand_h += 0.0 if market.spot else hours


def _ends(trace: Trace) -> list[float]:
    """When it goes down to no node."""
    return [at_s for at_s, value in trace.changes() if not value]


def _usd_per_hour(markets: Iterable[Market]) -> dict[Market, float]:
    table, found = PriceTable.bundled(), {}
    for market in markets:
        price = table.find(market.cloud, market.region, market.instance_type, spot=market.spot)
        assert price is not None, market
        found[market] = price.middle_usd_per_hour
    return found


def worlds_of(folder: Path) -> Iterator[World]:
    """The zones of each region of a folder of traces, as p3.2xlarge; each trace cut in two."""
    regions: dict[str, dict[str, Trace]] = {}
    for path in sorted(folder.rglob("*_v100_1.json")):
        zone = path.name.split("_")[0]
        regions.setdefault(zone[:-1], {})[zone] = Trace.load(path)
    for region, traces in regions.items():
        for part in (0, 1):
            cut = {
                Market(cloud="aws", zone=zone, instance_type="p3.2xlarge", spot=True): replace(
                    trace,
                    values=trace.values[: len(trace.values) // 2]
                    if part == 0
                    else trace.values[len(trace.values) // 2 :],
                )
                for zone, trace in traces.items()
            }
            yield World(name=f"{region}, {('first', 'second')[part]} half", markets=cut)


def made_up(count: int, *, days: float) -> Iterator[World]:
    """Three zones with two types each."""
    kinds = ("g5.xlarge", "g5.2xlarge")
    for index in range(count):
        zones = generate_regions(
            _FIRST_SEED + index, regions=1, zones=6, nodes=1, duration_s=days * 86400
        )
        places = [(f"us-west-2{letter}", kind) for kind in kinds for letter in "abc"]
        markets = {
            Market(cloud="aws", zone=zone, instance_type=kind, spot=True): one.capacity
            for (zone, kind), one in zip(places, zones, strict=True)
        }
        yield World(name=f"made up {index}", markets=markets)


def run_all(worlds: Sequence[World], starts_s: Sequence[float]) -> list[Ran]:
    found = []
    for start_s in starts_s:
        policies: dict[str, LaunchPolicy] = {
            "spot-first": SpotFirst(),
            "expected-cost": ExpectedCost(ExpectedCostConfig(start_s=start_s)),
        }
        for world in worlds:
            for name, policy in policies.items():
                ran = Ran(world=world.name, policy=name, start_s=start_s)
                found.append(Course(world, policy, ran).run())
        bench.say(f"starts of {start_s:.0f} s are done")
    return found


def summary(rows: Sequence[Ran], *, by_world: bool) -> str:
    """Both policies side by side, by start and, if few, by world."""
    lines = [
        "| jobs | spot-first, USD a useful hour | expected-cost | | losses | on-demand hours |",
        "|---|---|---|---|---|---|",
    ]
    names = list(dict.fromkeys(row.world for row in rows)) if by_world else []
    for start_s in dict.fromkeys(row.start_s for row in rows):
        mine = [row for row in rows if row.start_s == start_s]
        lines.append(_line(f"all, starts of {start_s / 60:.0f} min", mine))
        for name in names:
            lines.append(_line(name, [row for row in mine if row.world == name]))
    slowest = max(row.decide_ms for row in rows if row.policy == "expected-cost")
    return "\n".join(
        [
            *lines,
            "",
            f"CPU time of a decision of expected-cost: {slowest:.2f} ms in the slowest world",
        ]
    )


def _line(name: str, rows: Sequence[Ran]) -> str:
    sides = [[row for row in rows if row.policy == one] for one in ("spot-first", "expected-cost")]
    usd = [sum(r.cost_usd for r in side) / sum(r.useful_h for r in side) for side in sides]
    losses = "/".join(str(sum(row.losses for row in side)) for side in sides)
    steady = "/".join(
        f"{100 * sum(r.on_demand_h for r in side) / sum(r.hours for r in side):.0f} %"
        for side in sides
    )
    better = 100 * (usd[1] / usd[0] - 1)
    if len(sides[0]) > 1:
        pairs = zip(*sides, strict=True)
        changes = [b.usd_per_useful_hour / a.usd_per_useful_hour - 1 for a, b in pairs]
        worst = f" (worst {100 * max(changes):+.1f} %)"
    else:
        worst = ""
    return (
        f"| {name} | {usd[0]:.4f} | {usd[1]:.4f} | {better:+.1f} %{worst} | {losses} | {steady} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--traces", type=Path, metavar="DIR", help="a folder of public traces")
    parser.add_argument("--worlds", type=bench.at_least(1), default=20)
    parser.set_defaults(json=Path(__file__).parent / "out" / "launch.json")
    args = parser.parse_args(arguments)
    bench.end_like_ctrl_c()
    if args.traces:
        worlds = list(worlds_of(args.traces))
        if not worlds:
            parser.error(f"no *_v100_1.json under {args.traces}: give a folder of public traces")
    else:
        worlds = list(made_up(2 if args.quick else args.worlds, days=1.0 if args.quick else 10.0))
    rows = run_all(worlds, STARTS_S[:1] if args.quick else STARTS_S)
    print(summary(rows, by_world=bool(args.traces)))
    bench.write_rows(args.json, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
