"""The actor that stands for a sweep's coordinator."""

from __future__ import annotations

import inspect

from spotray.tune.actor import SweepActor
from spotray.tune.sweep import SweepCoordinator


def public(cls: type[object]) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if name[0] != "_"}


def test_it_can_do_what_the_coordinator_can() -> None:
    assert public(SweepActor) == public(SweepCoordinator)
