"""Policies by name: those that come with the package, and the user's own."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable

from spotray.errors import ConfigError
from spotray.policy.greedy import Greedy
from spotray.policy.job import JobPolicy
from spotray.policy.lookahead import Lookahead
from spotray.policy.loop_guard import LoopGuard
from spotray.policy.on_demand_only import OnDemandOnly
from spotray.policy.spot_only import SpotOnly
from spotray.policy.uniform_progress import UniformProgress

POLICIES: dict[str, Callable[[], JobPolicy]] = {
    "on-demand-only": OnDemandOnly,
    "spot-only": SpotOnly,
    "greedy": Greedy,
    "loop-guard": LoopGuard,
    "uniform-progress": UniformProgress,
    "lookahead": Lookahead,
}
DEFAULT = "lookahead"


def policy(name: str) -> JobPolicy:
    """The policy of that name; a name with a dot is looked up in the user's own modules.

    ``package.module.Name`` is imported, from the working directory too, and called without
    arguments if it is a class or a function.

    Raises:
        ConfigError: no such policy, or it is not one; the message says what was missing.
    """
    if name in POLICIES:
        return POLICIES[name]()
    if "." not in name:
        near = difflib.get_close_matches(name, POLICIES, n=1, cutoff=0.0)
        raise ConfigError(
            f"unknown policy {name!r}: did you mean {near[0]!r}? "
            "Your own is given as package.module.Name"
        )
    module, _, attribute = name.rpartition(".")
    here = os.getcwd()
    if here not in sys.path:  # a console script does not look there by itself
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
        made = found if hasattr(found, "begin") and not isinstance(found, type) else found()
    except Exception as exc:  # whatever the user's module does when it is imported
        raise ConfigError(f"policy {name}: {type(exc).__name__}: {exc}") from exc
    if not callable(getattr(made, "begin", None)):
        raise ConfigError(
            f"policy {name}: {type(made).__qualname__} has no begin(job): see "
            "spotray.policy.job.JobPolicy"
        )
    checked: JobPolicy = made
    return checked
