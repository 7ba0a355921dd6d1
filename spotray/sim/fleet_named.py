"""Policies for jobs on several nodes, by name: those of the package, and the user's own."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import cast

from spotray.errors import ConfigError
from spotray.market.hazards import Hazards
from spotray.policy.elastic import Elastic
from spotray.policy.fleet import FleetPolicy
from spotray.policy.fleet_on_demand import FleetOnDemand
from spotray.policy.multi_zone import MultiZone
from spotray.policy.one_zone import OneZone
from spotray.sim import named

FLEET_POLICIES: dict[str, Callable[[Hazards | None], FleetPolicy]] = {
    "on-demand-fleet": lambda hazards: FleetOnDemand(),
    "one-zone": lambda hazards: OneZone(),
    "multi-zone": MultiZone,
    "elastic-one-zone": partial(Elastic, one_zone=True),
    "elastic": Elastic,
}
FLEET_BASELINE = "one-zone"


def fleet_policy(name: str, hazards: Hazards | None = None) -> FleetPolicy:
    """The policy of that name; a name with a dot is looked up in the user's own modules.

    ``hazards``: what one's own nodes taught, for those that look at it.

    Raises:
        ConfigError: no such policy, or it is not one; the message says what was missing.
    """
    if name in FLEET_POLICIES:
        return FLEET_POLICIES[name](hazards)
    if "." not in name:
        near = difflib.get_close_matches(name, FLEET_POLICIES, n=1, cutoff=0.0)
        raise ConfigError(
            f"unknown policy {name!r} for several nodes: did you mean {near[0]!r}? "
            "Your own is given as package.module.Name"
        )
    return cast(FleetPolicy, named.policy(name))  # both kinds have `begin`
