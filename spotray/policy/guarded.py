"""What launch policies share: markets that rest, a limit of refusals, no way round in circles.

Which market is best is each policy's own; see `Guarded`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.policy.decision import Attempt, Decision, Launch, Wait
from spotray.policy.evidence import Block, CoolDowns, Told, blocks_of
from spotray.policy.view import LaunchView


@dataclass(frozen=True, kw_only=True)
class GuardConfig(CoolDowns):
    """The numbers of `Guarded`, beside its cool-downs."""

    max_refusals: int = 3  # spot markets that one launch asks before it takes on-demand
    guard_preemptions: int = 3  # that many rounds of young nodes taken ...
    guard_window_s: float = 1800.0  # ... within that time are a loop
    retry_s: float = 5.0  # a launch that asked enough goes on after that, seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_refusals", "guard_preemptions"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}: give a whole number of at least 1")


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The markets that may be asked now, best first."""

    spot: list[Attempt]
    on_demand: list[Market]
    dear: list[Attempt] = field(default_factory=list)  # spot, if on-demand gives none
    why_on_demand: str = ""  # comes before the markets that are out


class Guarded:
    """The frame of a launch policy: who ranks the markets, only ranks.

    - A market that refused or lost a node rests, longer each time (`CoolDowns`).
    - One launch asks at most ``max_refusals`` spot markets, then goes on with on-demand: a
      full outage costs seconds.
    - Young nodes taken again and again are a loop: on-demand is forced, or a zone that lost
      none, until the preemptions are ``guard_window_s`` old or the job tells of progress.
    """

    config: GuardConfig

    def ranking(self, view: LaunchView, told: Told, free: list[Market]) -> Ranking:
        """How the policy ranks the markets that do not rest."""
        raise NotImplementedError

    def decide(self, view: LaunchView) -> Decision:
        told = Told.of(view.facts)
        blocks = blocks_of(view.candidates, view, told, self.config)
        ranked = self.ranking(view, told, [one for one in view.left if blocks[one] is None])
        spot, dear, on_demand = ranked.spot, ranked.dear, ranked.on_demand
        rounds = self._rounds(view, told)
        looping = len(rounds) >= self.config.guard_preemptions
        if looping:
            spot = [one for one in spot if not self._took(one.market, view, told)]
            dear = [one for one in dear if not self._took(one.market, view, told)]
        if not on_demand:
            spot, dear = spot + dear, []
        allowed = max(0, self.config.max_refusals - sum(m.spot for m in view.tried))
        limited = bool(on_demand) and len(spot) > allowed
        attempts = spot[:allowed] if on_demand else spot
        why = self._why_loop(rounds, view) if looping else _why_on_demand(view, blocks, ranked)
        falls_back = [Attempt(market=market, why=why) for market in on_demand]
        attempts = falls_back + attempts if looping else attempts + falls_back
        if limited and not looping:
            attempts += [
                Attempt(market=one.market, why="on-demand gave none: spot again")
                for one in spot[allowed:]
            ]
        attempts += dear
        if attempts:
            return Launch(attempts=tuple(attempts))
        return self._wait(view, blocks, rounds if looping else [])

    def _rounds(self, view: LaunchView, told: Told) -> list[float]:
        return told.rounds_lost(
            since_s=view.now_s - self.config.guard_window_s, progress_s=self.config.progress_s
        )

    def _took(self, market: Market, view: LaunchView, told: Told) -> bool:
        since_s = view.now_s - self.config.guard_window_s
        return bool(
            told.rounds_lost(since_s=since_s, progress_s=self.config.progress_s, market=market)
        )

    def _why_loop(self, rounds: list[float], view: LaunchView) -> str:
        span = length(view.now_s - rounds[0])
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
            why = f"spot only for {length(view.spot_only_until_s - view.now_s)}; {why}"
        return Wait(until_s=min(ends, default=view.now_s + self.config.retry_s), why=why)


def _why_on_demand(view: LaunchView, blocks: dict[Market, Block | None], ranked: Ranking) -> str:
    if not any(market.spot for market in view.candidates):
        return "only on-demand is allowed"
    if not ranked.why_on_demand:
        return f"on-demand: {_list(view, blocks, of_spot=True)}"
    out = any(market.spot and block is not None for market, block in blocks.items())
    told = f"; {_list(view, blocks, of_spot=True)}" if out else ""
    return f"{ranked.why_on_demand}{told}"


def _list(view: LaunchView, blocks: dict[Market, Block | None], *, of_spot: bool = False) -> str:
    """Which markets are out, why and for how long, in one line."""
    told = [
        f"{market.zone} {market.instance_type}{'' if market.spot else ' on-demand'}"
        f" out for {length(block.until_s - view.now_s)} ({block.why})"
        for market in view.candidates
        if (block := blocks[market]) is not None and (market.spot or not of_spot)
    ]
    return "; ".join(told) or "the markets asked gave too few"


def length(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> length(119.0), length(7100.0)
    ('119 s', '118 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
