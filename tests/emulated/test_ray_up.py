"""The real `ray up` on an emulated EC2, with one job through all that may befall its nodes.

The tests build on each other, in their order: a cluster takes half a minute to come up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spotray.events import Event, NodeReplaced, ReplacementAsked
from tests.emulated.cloud import Cloud, wait_for
from tests.emulated.cluster import Cluster, Job
from tests.emulated.losses import lose, return_to_spot

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

BUILD_ON_EACH_OTHER = True  # see conftest.py: after a failure the others are skipped
STEPS = 1500  # more than the tests wait for; the last ones are done in no time
# Losses follow each other faster here than in any cloud: no loop for that.
POLICY = "{name: spot-first, cooldown_s: 15, guard_preemptions: 50}"
# Nodes come in seconds here, and what is in vain may be tried again as soon.
CONTROLLER = "{settle_s: 15, rest_s: 10}"
Measured = Callable[[str], None]


@pytest.fixture(scope="module")
def cluster(cloud: Cloud, measured: Measured) -> Cluster:
    made = Cluster(cloud, policy=POLICY, controller=CONTROLLER)
    start_s = time.monotonic()
    made.up()
    measured(f"ray up: {time.monotonic() - start_s:.1f} s")
    return made


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    log = tmp_path_factory.mktemp("job") / "log"
    made = cluster.submit("digits", steps=STEPS, log=log)
    yield made
    made.process.kill()
    made.process.wait()


def test_a_job_gets_two_spot_nodes_from_the_autoscaler(
    cloud: Cloud, job: Job, measured: Measured
) -> None:
    start_s = wait_for(job.told, "the job's driver")[0]["at_s"]
    both_s = job.wait_for_hosts(2, after_s=0.0)
    launch = cloud.launches()[-1]
    assert launch["spot"]
    assert launch["instance_type"] == "g4dn.xlarge"
    assert len(launch["names"]) == 2
    assert launch["by"] != cloud.launches()[0]["by"]  # the head, not the laptop
    measured(
        f"job to two workers: {launch['at_s'] - start_s:.1f} s to the launch, "
        f"{both_s - start_s:.1f} s to the first step of both"
    )


def test_a_noticed_node_is_replaced_before_its_reclaim(
    cloud: Cloud, job: Job, measured: Measured
) -> None:
    # 30 s, or on a machine that is slow or busy as much longer as the first start took there.
    notice_s = max(30.0, 2.0 * (job.steps()[0]["at_s"] - cloud.launches()[-1]["at_s"]))
    lost = lose(cloud, job, notice_s=notice_s)
    assert lost.back_s < notice_s
    measured(f"notice of {notice_s:.0f} s: {lost.told()}")
    assert job.steps_back == 0


def test_a_node_lost_without_a_word_is_replaced(cloud: Cloud, job: Job, measured: Measured) -> None:
    lost = lose(cloud, job)
    measured(f"silent loss: {lost.told()}")
    assert job.steps_back == 0


def test_spot_out_in_one_zone_is_taken_from_another(
    cloud: Cloud, job: Job, measured: Measured
) -> None:
    zone = cloud.workers()[0]["zone"]
    for one in ("us-west-2a", zone):
        cloud.do("refuse", code="InsufficientInstanceCapacity", spot=True, zone=one)
    lost = lose(cloud, job)
    cloud.do("allow")
    assert lost.calls[-1]["spot"]
    assert lost.calls[-1]["zone"] not in ("us-west-2a", zone)
    measured(f"zone out: {lost.told()}")


def test_all_spot_out_is_on_demand_within_a_second(
    cloud: Cloud, job: Job, measured: Measured
) -> None:
    cloud.do("refuse", code="InsufficientInstanceCapacity", spot=True)
    lost = lose(cloud, job)
    assert 1 <= len(lost.refused) <= 3
    assert not lost.calls[-1]["spot"]
    took_s = lost.calls[-1]["at_s"] - lost.refused[0]["at_s"]
    assert took_s < 1.0
    measured(
        f"all spot out: {len(lost.refused)} refused calls, on-demand {took_s * 1000:.0f} ms after "
        f"the first; {lost.told()}"
    )
    lose(cloud, job)
    assert {one["spot"] for one in cloud.workers()} == {False}


def test_spot_that_is_back_replaces_the_on_demand_workers(
    cloud: Cloud, cluster: Cluster, job: Job, measured: Measured
) -> None:
    """By the controller on the head, which the cluster's own start commands started."""
    back = return_to_spot(cloud, job)
    assert job.steps_back == 0
    assert {(one["spot"], one["error"]) for one in back.calls} == {(True, "")}
    # One for each, unless a slow machine's Ray gives a node up before it has come.
    assert 2 <= len(back.calls) <= 4
    wait_for(lambda: back.old <= replaced_in(cluster.journal()), "the controller's last words")
    whys = {
        event.name: event.why for event in cluster.journal() if isinstance(event, ReplacementAsked)
    }
    for name in back.old:
        assert f"{name} can go back to spot in us-west-2" in whys[name]
    measured(
        f"outage over: {back.launch_s:.1f} s to the first launch on spot, "
        f"{back.back_s:.1f} s until both on-demand nodes were replaced"
    )


def test_the_job_ends_with_the_model_of_an_undisturbed_one(cloud: Cloud, job: Job) -> None:
    from spotray.train.state import weights_sha256
    from tests.emulated.job import train_loop

    cloud.do("pace", step_s=0.0)
    done = job.wait()
    cloud.do("pace", step_s=0.5)
    assert done["done"] == STEPS
    runs: list[Any] = []
    train_loop({"name": "alone", "steps": STEPS}, runs)
    assert done["weights"] == weights_sha256(runs[0]._models)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_head_that_was_started_anew_remembers_what_was_refused(
    cloud: Cloud, cluster: Cluster, log: Path
) -> None:
    lose_all(cloud)
    cloud.do("refuse", code="InsufficientInstanceCapacity", spot=True)
    before = len(cloud.launches())
    demand = cluster.demand(1, log=log)
    wait_for(lambda: cloud.workers(spot=False), "a worker on-demand")
    demand.end()
    cloud.do("allow")
    refused = [place_of(one) for one in cloud.launches()[before:] if one["error"]]
    assert refused
    lose_all(cloud)
    # Every setup and start command once more, and a cool-down that is not over yet.
    cluster.up(policy="{name: spot-first, cooldown_s: 600, guard_preemptions: 50}")
    before = len(cloud.launches())
    demand = cluster.demand(1, log=log)
    demand.wait_for_workers(1)
    demand.end()
    asked = [place_of(one) for one in cloud.launches()[before:]]
    assert asked
    assert not set(asked) & set(refused)


def test_ray_down_leaves_no_instance(cloud: Cloud, cluster: Cluster) -> None:
    assert cloud.instances(runs=True)
    cluster.down()
    assert cloud.instances(runs=True) == []
    assert {one["state"] for one in cloud.instances()} == {"terminated"}


def place_of(call: dict[str, Any]) -> tuple[str, str, bool]:
    return call["zone"], call["instance_type"], call["spot"]


def replaced_in(journal: Sequence[Event]) -> set[str]:
    """The instances that the controller replaced."""
    return {event.name for event in journal if isinstance(event, NodeReplaced)}


def lose_all(cloud: Cloud) -> None:
    """Let all workers vanish."""
    for one in cloud.workers():
        cloud.do("kill", name=one["name"])
