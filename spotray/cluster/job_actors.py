"""How the coordinators of running jobs and sweeps are found in Ray, by who runs on the cluster."""

from __future__ import annotations

NAMESPACE = "spotray"
_PREFIX = "spotray-coordinator-"
_SWEEP = "spotray-sweep-"


def actor_name(job: str) -> str:
    """The name of the coordinator of a job.

    >>> job_of(actor_name("vit"))
    'vit'
    """
    return f"{_PREFIX}{job}"


def job_of(actor: str) -> str | None:
    """The job whose coordinator that is; None: it is another actor."""
    return actor.removeprefix(_PREFIX) if actor.startswith(_PREFIX) else None


def sweep_actor_name(sweep: str) -> str:
    """The name of the coordinator of a sweep.

    >>> sweep_of(sweep_actor_name("lr")), job_of(sweep_actor_name("lr"))
    ('lr', None)
    """
    return f"{_SWEEP}{sweep}"


def sweep_of(actor: str) -> str | None:
    """The sweep whose coordinator that is; None: it is another actor."""
    return actor.removeprefix(_SWEEP) if actor.startswith(_SWEEP) else None
