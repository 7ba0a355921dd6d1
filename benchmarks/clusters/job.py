"""A training job of two workers on spotray's clusters, through what befalls its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench
from tests.emulated.cloud import Cloud, emulated_cloud
from tests.emulated.cluster import Cluster, Job
from tests.emulated.losses import Loss, Return, lose, return_to_spot

NO_CAPACITY = "InsufficientInstanceCapacity"
ZONE = "us-west-2a"
# In the only zone there is, what was taken is asked again at once.
EAGER = "{name: spot-first, cooldown_s: 1, cooldown_max_s: 2}"
STEPS = 100_000  # more than anybody waits for; each takes half a second
NOTICE_S = 30.0
TAKEN_AFTER_S = 6.0  # Ray has listed it by then; of one that it never listed it waits 10 min
_LIMIT_S = 300.0
_BACK_S = 1200.0  # the default's cool-downs are minutes


def as_configured(folder: Path, *, repeat: int) -> Iterator[dict[str, Any]]:
    """A notice, then all spot out and back: a row for each, with the rendered file as it is."""
    with _job(folder / "log") as (cloud, _, job):
        before = _Before.now(cloud, job)
        noticed = lose(cloud, job, notice_s=NOTICE_S, timeout_s=_LIMIT_S)
        yield _row("notice", cloud, job, noticed, before, repeat=repeat)
        cloud.do("refuse", code=NO_CAPACITY, spot=True)
        for event in ("outage", "outage, the other"):
            before = _Before.now(cloud, job)
            lost = lose(cloud, job, timeout_s=_LIMIT_S)
            yield _row(event, cloud, job, lost, before, repeat=repeat)
        before = _Before.now(cloud, job)
        back = return_to_spot(cloud, job, timeout_s=_BACK_S)
        yield _row("return", cloud, job, back, before, repeat=repeat)


def in_a_row(folder: Path, *, count: int) -> Iterator[dict[str, Any]]:
    """So many preemptions of one zone, every other one announced, then spot that never lasts.

    A row for each.
    """
    new = ("--zones", ZONE)
    with _job(folder / "log", new=new, policy=EAGER) as (cloud, cluster, job):
        for number in range(count):
            before = _Before.now(cloud, job)
            notice_s = NOTICE_S if number % 2 else 0.0
            lost = lose(cloud, job, notice_s=notice_s, timeout_s=_LIMIT_S)
            cluster.wait_for_progress(after_s=lost.at_s)
            event = f"in a row, {'notice' if notice_s else 'silent'}"
            yield _row(event, cloud, job, lost, before, repeat=number)
        before = _Before.now(cloud, job)
        cloud.do("take", after_s=TAKEN_AFTER_S)
        lost = lose(cloud, job, timeout_s=_LIMIT_S)
        yield _row("taken", cloud, job, lost, before, repeat=0)


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


@dataclass(frozen=True)
class _Before:
    """Where things stood before an event."""

    calls: int
    step: int

    @classmethod
    def now(cls, cloud: Cloud, job: Job) -> _Before:
        return cls(calls=len(cloud.launches()), step=job.step)


def _row(
    event: str, cloud: Cloud, job: Job, what: Loss | Return, before: _Before, *, repeat: int
) -> dict[str, Any]:
    """What an event led to, up to now."""
    made = cloud.launches()[before.calls :]
    refused = [one for one in made if one["error"]]
    launched = [one for one in made if not one["error"]]
    row = {
        "system": "spotray",
        "event": f"job, {event}",
        "repeat": repeat,
        "limit_s": _LIMIT_S if isinstance(what, Loss) else _BACK_S,
        "notice_s": what.notice_s if isinstance(what, Loss) else 0.0,
        "calls": len(made),
        "refused": len(refused),
        "launch_s": what.launch_s,
        "after_refusal_s": launched[0]["at_s"] - refused[0]["at_s"] if refused else None,
        "back_s": what.back_s,
        "on_demand": not launched[-1]["spot"],
        "steps": job.step - before.step,
        "steps_back": job.steps_back,
    }
    bench.say(
        f"    job, {event}: {what.launch_s:.1f} s to the launch, {what.back_s:.1f} s until both "
        f"step; {row['calls']} calls, {row['refused']} refused, {row['steps']} steps, "
        f"{row['steps_back']} back"
    )
    return row
