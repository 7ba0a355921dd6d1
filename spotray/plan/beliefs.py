"""What a plan believes of spot nodes: public traces, or how long one's own have lived."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from spotray.market.hazards import GOOGLE_LIMIT_S, Hazard, Hazards
from spotray.market.sale import ForSale
from spotray.market.survival import PRIOR, Weibull

_WITHIN_S = 4 * 3600.0  # the losses by that age are compared with those of the traces
_MOST = 20.0  # times as often lost, or as seldom: beyond, the made-up markets make no sense


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """How long nodes live.

    Args:
        hazards: of one's own nodes; None: none were seen.
        preemptible: Google's are of the older kind, which ends after 24 hours.
    """

    hazards: Hazards | None = None
    preemptible: bool = False

    def survival(self, offer: ForSale) -> Weibull:
        """How long a spot node of an offer lives."""
        seen = self._seen(offer)
        fit = PRIOR if seen is None else seen.fit
        if self.preemptible and offer.cloud == "gcp":
            return dataclasses.replace(fit, limit_s=min(fit.limit_s, GOOGLE_LIMIT_S))
        return fit

    def losses(self, offer: ForSale) -> float:
        """How many times as often its nodes are lost as those of the public traces."""
        seen = self.survival(offer).cumulative(_WITHIN_S) / PRIOR.cumulative(_WITHIN_S)
        return min(max(seen, 1 / _MOST), _MOST)

    def notes(self, offers: Iterable[ForSale]) -> Iterable[str]:
        """What is assumed of the spot nodes of some offers, one line each."""
        told: dict[str, ForSale] = {}
        for one in offers:
            told.setdefault(f"{one.cloud}/{one.type.name}", one)
        for name, offer in told.items():
            seen = self._seen(offer)
            if seen is not None and seen.lives:
                yield (
                    f"{name}: lost {self.losses(offer):.1f} times as often as in public traces, by "
                    f"{seen.lives} lives of your own nodes ({seen.name}, {seen.losses} lost)"
                )
            limit_s = self.survival(offer).limit_s
            if limit_s < math.inf:
                yield f"{name}: Google ends each spot node after {limit_s / 3600:g} h"
            elif offer.cloud == "gcp":
                yield f"{name}: Spot VMs, not ended after 24 h as preemptible ones (--preemptible)"

    def _seen(self, offer: ForSale) -> Hazard | None:
        return None if self.hazards is None else self.hazards.of_type(offer.cloud, offer.type.name)
