"""The running jobs, as their coordinators tell, and this program's own driver in Ray."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from spotray.cluster.job_actors import NAMESPACE, job_of, sweep_of
from spotray.cluster.ray_autoscaler.head import INTERNAL
from spotray.controller.progress import JobSeen
from spotray.errors import ClusterUnreachable

log = logging.getLogger(__name__)

_CALL_S = 2.0


def connect(ray_address: str) -> None:
    """Make this process a driver that counts as none of the applications.

    Raises:
        ClusterUnreachable: Ray does not take it; try again.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(
            address=ray_address,
            namespace=f"{INTERNAL}spotray_controller",
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except (ConnectionError, RayError, RuntimeError, ValueError) as exc:
        raise ClusterUnreachable(f"no driver in the cluster at {ray_address}: {exc}") from exc


def running_jobs() -> list[Mapping[str, Any]]:
    """What each job's coordinator says of it, with its ``name``; who does not answer is left out.

    The trials of a sweep are a job each, ``sweep/trial``.

    Raises:
        ClusterUnreachable: Ray does not answer.
    """
    try:
        actors = cast("list[dict[str, str]]", list_named_actors(all_namespaces=True))
    except RayError as exc:
        raise ClusterUnreachable(f"Ray does not list its actors: {exc}") from exc
    asked: dict[Any, str] = {}
    for actor in actors:
        name = job_of(actor["name"]) or sweep_of(actor["name"])
        if actor["namespace"] != NAMESPACE or name is None:
            continue
        try:
            asked[ray.get_actor(actor["name"], namespace=NAMESPACE).status.remote()] = name
        except (ValueError, RayError) as exc:  # it has just ended
            log.debug("job %s: %s", name, exc)
    if not asked:
        return []
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_CALL_S)
    found: list[Mapping[str, Any]] = []
    for answer in ready:
        try:
            found += jobs_told(asked[answer], ray.get(answer))
        except RayError as exc:
            log.debug("job %s: %s", asked[answer], exc)
    return found


def jobs_told(
    name: str, status: Mapping[str, Any] | Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """A coordinator's answer as jobs: its own, or each of the trials of a sweep."""
    if "step" in status:
        return [{**status, "name": name}]
    return [{**trial, "name": f"{name}/{run}"} for run, trial in status.items()]


def jobs_seen(told: list[Mapping[str, Any]]) -> list[JobSeen]:
    """How far each job is, and where."""
    return [
        JobSeen(name=one["name"], step=one["step"], node_ids=frozenset(one["node_ids"]))
        for one in told
    ]


def stop_job(driver: str) -> str:
    """Have Ray stop the job of a driver, as `ray job stop` does; why it cannot, or nothing."""
    from ray.job_submission import JobSubmissionClient

    try:
        client: Any = JobSubmissionClient("auto")
        submitted = [one for one in client.list_jobs() if driver and one.job_id == driver]
        if not submitted or submitted[0].submission_id is None:
            return "it was not submitted as a job: end its driver yourself"
        client.stop_job(submitted[0].submission_id)
    except (ConnectionError, RuntimeError, ValueError) as exc:  # as that client raises
        return f"Ray's job server does not stop it: {' '.join(str(exc).split())[:200]}"
    return ""
