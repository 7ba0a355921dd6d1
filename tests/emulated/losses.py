"""A worker of a job is taken, or lost without a word, and what that leads to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tests.emulated.cloud import Cloud, wait_for
from tests.emulated.cluster import PATIENCE_S, Job, host_of


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One loss, from the event until two workers step together again. Unix seconds.

    ``calls``: RunInstances from the event up to the one that launched another node.
    ``step``: the job's at the event.
    """

    gone: dict[str, Any]
    at_s: float
    notice_s: float
    step: int
    calls: list[dict[str, Any]]
    joined_s: float

    @property
    def launch_s(self) -> float:
        """Seconds until another node was launched."""
        return float(self.calls[-1]["at_s"] - self.at_s)

    @property
    def back_s(self) -> float:
        """Seconds until its first step together with the other worker."""
        return self.joined_s - self.at_s

    @property
    def refused(self) -> list[dict[str, Any]]:
        return [one for one in self.calls if one["error"]]

    def told(self) -> str:
        return f"{self.launch_s:.1f} s to the launch, {self.back_s:.1f} s to the first step of both"


@dataclass(frozen=True, kw_only=True)
class Return:
    """Spot is back, until the job runs on it alone. Unix seconds.

    ``old``: the on-demand workers that were replaced; ``calls``: RunInstances meanwhile.
    ``step``: the job's when spot came back.
    """

    old: set[str]
    at_s: float
    end_s: float
    step: int
    calls: list[dict[str, Any]]

    @property
    def launch_s(self) -> float:
        """Seconds until the first launch."""
        return float(self.calls[0]["at_s"] - self.at_s)

    @property
    def back_s(self) -> float:
        """Seconds until all workers were on spot."""
        return self.end_s - self.at_s


def lose(
    cloud: Cloud,
    job: Job,
    *,
    spot: bool = True,
    notice_s: float = 0.0,
    timeout_s: float = PATIENCE_S,
) -> Loss:
    """Take the oldest worker of a market kind, and wait until there are two again.

    Of those that the job runs on: a slow machine's Ray may have launched one more, left idle.

    ``notice_s``: it is told before, and its reclaim is waited for; 0: it vanishes.
    """
    gone = wait_for(
        lambda: [one for one in cloud.workers(spot=spot) if host_of(one) in job.hosts],
        "a worker to be lost",
        timeout_s=timeout_s,
    )[0]
    at_s, calls, step = time.time(), len(cloud.launches()), job.step
    if notice_s:
        cloud.do("notice", name=gone["name"], seconds=notice_s)
    else:
        cloud.do("kill", name=gone["name"])
    joined_s = job.wait_for_hosts(2, after_s=at_s, without=host_of(gone), timeout_s=timeout_s)
    if notice_s:
        wait_for(
            lambda: cloud.instances(name=gone["name"], runs=False),
            "the reclaim",
            timeout_s=notice_s + 10.0,
        )
    made = cloud.launches()[calls:]
    last = next(index for index, one in enumerate(made) if not one["error"])
    return Loss(
        gone=gone,
        at_s=at_s,
        notice_s=notice_s,
        step=step,
        calls=made[: last + 1],
        joined_s=joined_s,
    )


def return_to_spot(cloud: Cloud, job: Job, *, timeout_s: float = 2 * PATIENCE_S) -> Return:
    """Let spot be had again, and wait until the job's on-demand workers are replaced.

    Those are two; how many launches that took is for the caller to look at.
    """
    old = {one["name"] for one in cloud.workers(spot=False) if host_of(one) in job.hosts}
    assert len(old) == 2
    cloud.do("allow")
    at_s, calls, step = time.time(), len(cloud.launches()), job.step

    def is_on_spot() -> bool:
        there = {one["name"]: one for one in cloud.workers()}
        spot = {host_of(one) for one in there.values() if one["spot"]}
        return not old & there.keys() and len(job.hosts & spot) == 2

    wait_for(is_on_spot, "spot nodes in the place of the on-demand ones", timeout_s=timeout_s)
    end_s = time.time()
    return Return(old=old, at_s=at_s, end_s=end_s, step=step, calls=cloud.launches()[calls:])
