"""How a running job's coordinator is found in Ray, by whoever runs on the cluster."""

from __future__ import annotations

NAMESPACE = "spotray"
_PREFIX = "spotray-coordinator-"


def actor_name(job: str) -> str:
    """The name of the coordinator of a job.

    >>> job_of(actor_name("vit"))
    'vit'
    """
    return f"{_PREFIX}{job}"


def job_of(actor: str) -> str | None:
    """The job whose coordinator that is; None: it is another actor."""
    return actor.removeprefix(_PREFIX) if actor.startswith(_PREFIX) else None
