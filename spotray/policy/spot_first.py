"""Spot while it can be had, on-demand when it cannot, and no way to go round in circles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.policy.decision import Attempt, Decision, Launch, Wait
from spotray.policy.evidence import Block, CoolDowns, block_of, rounds_lost, troubles
from spotray.policy.view import LaunchView


@dataclass(frozen=True, kw_only=True)
class SpotFirstConfig(CoolDowns):
    """The numbers of `SpotFirst`, beside its cool-downs."""

    max_refusals: int = 3  # spot markets that one launch asks before it takes on-demand
    window_s: float = 3600.0  # how far back a market's failures count against it, seconds
    guard_preemptions: int = 3  # that many rounds of young nodes taken ...
    guard_window_s: float = 1800.0  # ... within that time are a loop
    retry_s: float = 5.0  # a launch that asked enough goes on after that, seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_refusals", "guard_preemptions"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}: give a whole number of at least 1")


class SpotFirst:
    """Spot first, in the zones and types that failed least; on-demand after refusals.

    - A market that refused or lost a node rests, longer each time (`CoolDowns`).
    - One launch asks at most ``max_refusals`` spot markets, each as unlike the refused ones
      as can be, then goes on with on-demand: a full outage costs seconds.
    - Young nodes taken again and again are a loop: on-demand is forced, or a zone that lost
      none, until the preemptions are ``guard_window_s`` old or the job tells of progress.
    """

    def __init__(self, config: SpotFirstConfig | None = None) -> None:
        self.config = config or SpotFirstConfig()

    def decide(self, view: LaunchView) -> Decision:
        blocks = {market: block_of(market, view, self.config) for market in view.candidates}
        free = [market for market in view.left if blocks[market] is None]
        spot = self._ordered((market for market in free if market.spot), view)
        on_demand = self._ordered((market for market in free if not market.spot), view)
        rounds = self._rounds(view)
        looping = len(rounds) >= self.config.guard_preemptions
        if looping:
            spot = [market for market in spot if not self._took(market, view)]
        allowed = max(0, self.config.max_refusals - sum(m.spot for m in view.tried))
        limited = bool(on_demand) and len(spot) > allowed
        attempts = [
            Attempt(market=market, why=self._why_spot(market, view))
            for market in (spot[:allowed] if on_demand else spot)
        ]
        why = self._why_loop(rounds, view) if looping else self._why_on_demand(view, blocks)
        falls_back = [Attempt(market=market, why=why) for market in on_demand]
        attempts = falls_back + attempts if looping else attempts + falls_back
        if limited and not looping:
            attempts += [
                Attempt(market=market, why="on-demand gave none: spot again")
                for market in spot[allowed:]
            ]
        if attempts:
            return Launch(attempts=tuple(attempts))
        return self._wait(view, blocks, rounds if looping else [])

    def _ordered(self, markets: Iterable[Market], view: LaunchView) -> list[Market]:
        """Fewest failures first, then unlike what this launch has tried, then as configured."""
        since_s = view.now_s - self.config.window_s
        place = {market: index for index, market in enumerate(view.candidates)}

        def rank(market: Market) -> tuple[int, int, int]:
            alike = sum(
                (tried.zone == market.zone) + (tried.instance_type == market.instance_type)
                for tried in view.tried
                if tried.spot == market.spot
            )
            return troubles(market, view.facts, since_s=since_s), alike, place[market]

        return sorted(markets, key=rank)

    def _rounds(self, view: LaunchView) -> list[float]:
        return rounds_lost(
            view.facts,
            since_s=view.now_s - self.config.guard_window_s,
            progress_s=self.config.progress_s,
        )

    def _took(self, market: Market, view: LaunchView) -> bool:
        since_s = view.now_s - self.config.guard_window_s
        mine = [f for f in view.facts if getattr(f, "market", None) == market]
        return bool(rounds_lost(mine, since_s=since_s, progress_s=self.config.progress_s))

    def _why_spot(self, market: Market, view: LaunchView) -> str:
        count = troubles(market, view.facts, since_s=view.now_s - self.config.window_s)
        if not count:
            return "spot first: no failure remembered here"
        return f"spot first: {count} failures here in {_length(self.config.window_s)}, the fewest"

    def _why_on_demand(self, view: LaunchView, blocks: dict[Market, Block | None]) -> str:
        if not any(market.spot for market in view.candidates):
            return "only on-demand is allowed"
        return f"on-demand: {_list(view, blocks, of_spot=True)}"

    def _why_loop(self, rounds: list[float], view: LaunchView) -> str:
        span = _length(view.now_s - rounds[0])
        return f"loop guard: {len(rounds)} rounds of young spot nodes taken in {span}"

    def _wait(
        self, view: LaunchView, blocks: dict[Market, Block | None], rounds: list[float]
    ) -> Wait:
        probing = view.spot_only_until_s > view.now_s
        allowed = [market for market in view.candidates if market.spot or not probing]
        ends = [block.until_s for market in allowed if (block := blocks[market]) is not None]
        if any(blocks[market] is None for market in view.tried):
            ends.append(view.now_s + self.config.retry_s)
        why = _list(view, blocks)
        if rounds:
            ends.append(rounds[-self.config.guard_preemptions] + self.config.guard_window_s)
            why = f"{self._why_loop(rounds, view)}; {why}"
        if probing:
            ends.append(view.spot_only_until_s)
            why = f"spot only for {_length(view.spot_only_until_s - view.now_s)}; {why}"
        return Wait(until_s=min(ends, default=view.now_s + self.config.retry_s), why=why)


def _list(view: LaunchView, blocks: dict[Market, Block | None], *, of_spot: bool = False) -> str:
    """Which markets are out, why and for how long, in one line."""
    told = [
        f"{market.zone} {market.instance_type}{'' if market.spot else ' on-demand'}"
        f" out for {_length(block.until_s - view.now_s)} ({block.why})"
        for market in view.candidates
        if (block := blocks[market]) is not None and (market.spot or not of_spot)
    ]
    return "; ".join(told) or "the markets asked gave too few"


def _length(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
