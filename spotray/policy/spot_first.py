"""Spot while it can be had, on-demand when it cannot, and no way to go round in circles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spotray.market.offer import Market
from spotray.policy.decision import Attempt
from spotray.policy.evidence import Told
from spotray.policy.guarded import GuardConfig, Guarded, Ranking, length
from spotray.policy.view import LaunchView


@dataclass(frozen=True, kw_only=True)
class SpotFirstConfig(GuardConfig):
    """The numbers of `SpotFirst`, beside those of its guard."""

    window_s: float = 3600.0  # how far back a market's failures count against it, seconds


class SpotFirst(Guarded):
    """Spot first, in the zones and types that failed least; on-demand after refusals.

    Each market that a launch asks is as unlike the refused ones as can be.
    """

    def __init__(self, config: SpotFirstConfig | None = None) -> None:
        self.config: SpotFirstConfig = config or SpotFirstConfig()

    def ranking(self, view: LaunchView, told: Told, free: list[Market]) -> Ranking:
        failed = {market: self._troubles(market, view, told) for market in free}
        spot = self._ordered((market for market in free if market.spot), view, failed)
        return Ranking(
            spot=[Attempt(market=market, why=self._why(failed[market])) for market in spot],
            on_demand=self._ordered((one for one in free if not one.spot), view, failed),
        )

    def _ordered(
        self, markets: Iterable[Market], view: LaunchView, failed: dict[Market, int]
    ) -> list[Market]:
        """Fewest failures first, then unlike what this launch has tried, then as configured."""
        place = {market: index for index, market in enumerate(view.candidates)}

        def rank(market: Market) -> tuple[int, int, int]:
            alike = sum(
                (tried.zone == market.zone) + (tried.instance_type == market.instance_type)
                for tried in view.tried
                if tried.spot == market.spot
            )
            return failed[market], alike, place[market]

        return sorted(markets, key=rank)

    def _troubles(self, market: Market, view: LaunchView, told: Told) -> int:
        return told.troubles(market, since_s=view.now_s - self.config.window_s)

    def _why(self, count: int) -> str:
        if not count:
            return "spot first: no failure remembered here"
        return f"spot first: {count} failures here in {length(self.config.window_s)}, the fewest"
