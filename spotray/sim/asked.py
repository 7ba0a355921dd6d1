"""A policy that is asked in a simulation: its name, and its failures in our words."""

from __future__ import annotations

from typing import Protocol, TypeVar

from spotray.errors import PolicyError, SpotrayError

_Job = TypeVar("_Job", contravariant=True)
_Course = TypeVar("_Course", covariant=True)


class Beginner(Protocol[_Job, _Course]):
    """What policies for one node and for several have in common."""

    def begin(self, job: _Job) -> _Course:
        """A course for a job that has not started."""
        ...


def name_of(policy: object) -> str:
    """How a policy is called in errors and tables: its own ``name``, or its class."""
    return str(getattr(policy, "name", "") or type(policy).__qualname__)


def begun(policy: Beginner[_Job, _Course], job: _Job) -> _Course:
    """The course that a policy begins.

    Raises:
        PolicyError: it raised what is no error of spotray's.
        ConfigError: it does not serve such a job.
    """
    try:
        return policy.begin(job)
    except SpotrayError:
        raise
    except Exception as exc:
        raise _failed(policy, "before the first tick", exc) from exc


def failed(policy: object, tick: int, exc: Exception) -> PolicyError:
    """The error for a policy that raised ``exc`` at a tick."""
    return _failed(policy, f"at tick {tick}", exc)


def _failed(policy: object, when: str, exc: Exception) -> PolicyError:
    return PolicyError(f"policy {name_of(policy)} failed {when}: {type(exc).__name__}: {exc}")
