"""A training job of two workers on spotray's clusters, through what befalls its nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import bench
from tests.emulated.cloud import Cloud, emulated_cloud, wait_for
from tests.emulated.cluster import Cluster, Job
from tests.emulated.losses import Loss, lose

NO_CAPACITY = "InsufficientInstanceCapacity"
ZONE = "us-west-2a"
# In the only zone there is, what was taken is asked again at once.
EAGER = "{name: spot-first, cooldown_s: 1, cooldown_max_s: 2}"
STEPS = 100_000  # more than anybody waits for; each takes half a second
NOTICE_S = 30.0
_LIMIT_S = 300.0
_BACK_S = 1200.0  # the default's cool-downs are minutes


def as_configured(folder: Path, *, repeat: int) -> list[dict[str, Any]]:
    """A notice, then all spot out and back: a row for each, with the rendered file as it is."""
    rows = []
    with _job(folder / "log") as (cloud, _, job):
        noticed = lose(cloud, job, notice_s=NOTICE_S, timeout_s=_LIMIT_S)
        rows.append(_row("notice", job, repeat=repeat, losses=[noticed]))
        cloud.do("refuse", code=NO_CAPACITY, spot=True)
        lost = [lose(cloud, job, timeout_s=_LIMIT_S) for _ in range(2)]
        rows.append(_row("outage", job, repeat=repeat, losses=lost[:1]))
        rows.append(_return(cloud, job, repeat=repeat))
    return rows


def in_a_row(folder: Path, *, count: int) -> list[dict[str, Any]]:
    """So many preemptions of one zone, every other one announced: a row for all of them."""
    losses: list[Loss] = []
    new = ("--zones", ZONE)
    with _job(folder / "log", new=new, policy=EAGER) as (cloud, cluster, job):
        calls = len(cloud.launches())
        for number in range(count):
            notice_s = NOTICE_S if number % 2 else 0.0
            losses.append(lose(cloud, job, notice_s=notice_s, timeout_s=_LIMIT_S))
            cluster.wait_for_progress(after_s=losses[-1].at_s)
            bench.say(f"    {number + 1} of {count}: {losses[-1].told()}")
        row = _row("in a row", job, repeat=0, losses=losses)
        made = cloud.launches()[calls:]
    return [row | {"calls": len(made), "refused": sum(bool(one["error"]) for one in made)}]


@contextmanager
def _job(log: Path, **cluster: Any) -> Iterator[tuple[Cloud, Cluster, Job]]:
    """Two workers that step together."""
    with emulated_cloud() as cloud:
        cloud.do("make_bucket", name="emulated")
        made = Cluster(cloud, **cluster)
        made.up()
        job = made.submit("job", steps=STEPS, log=log)
        job.wait_for_hosts(2, after_s=0.0, timeout_s=_LIMIT_S)
        yield cloud, made, job


def _return(cloud: Cloud, job: Job, *, repeat: int) -> dict[str, Any]:
    """Spot is there again: until all workers are on it."""
    cloud.do("allow")
    at_s, calls, step = time.time(), len(cloud.launches()), job.step
    wait_for(
        lambda: [one["spot"] for one in cloud.workers()] == [True, True],
        "spot nodes in the place of the on-demand ones",
        timeout_s=_BACK_S,
    )
    joined_s = job.wait_for_hosts(2, after_s=time.time(), timeout_s=_LIMIT_S)
    made = cloud.launches()[calls:]
    back = Loss(gone={}, at_s=at_s, notice_s=0.0, step=step, calls=made[:1], joined_s=joined_s)
    row = _row("return", job, repeat=repeat, losses=[back])
    return row | {"calls": len(made), "refused": sum(bool(one["error"]) for one in made)}


def _row(event: str, job: Job, *, repeat: int, losses: list[Loss]) -> dict[str, Any]:
    """Medians, if there was more than one loss."""
    launch = bench.spread(one.launch_s for one in losses)
    back = bench.spread(one.back_s for one in losses)
    assert launch is not None
    assert back is not None
    first = losses[0]
    after_s = first.calls[-1]["at_s"] - first.refused[0]["at_s"] if first.refused else None
    steps = [*(one.step for one in losses), job.step]
    row = {
        "system": "spotray",
        "event": f"job, {event}",
        "repeat": repeat,
        "limit_s": _LIMIT_S,
        "notice_s": max(one.notice_s for one in losses),
        "losses": len(losses),
        "calls": sum(len(one.calls) for one in losses),
        "refused": sum(len(one.refused) for one in losses),
        "launch_s": launch.median,
        "after_refusal_s": after_s,
        "back_s": back.median,
        "back_most_s": back.high,
        "on_demand": not losses[-1].calls[-1]["spot"],
        "least_steps": min(later - earlier for earlier, later in pairwise(steps)),
        "steps_back": job.steps_back,
    }
    bench.say(
        f"    job, {event}: {launch.median:.1f} s to the launch, {back.median:.1f} s to the first "
        f"step of both; {row['calls']} calls, {row['refused']} refused, "
        f"{row['steps_back']} steps back"
    )
    return row
