"""Spot is taken again and again in the only zone that there is; data disks stay.

The tests build on each other, in their order, on one cluster that `ray up` made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from spotray.events import DiskMounted
from tests.emulated.cloud import Cloud
from tests.emulated.cluster import Cluster, Job
from tests.emulated.losses import lose

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

BUILD_ON_EACH_OTHER = True  # see conftest.py: after a failure the others are skipped
ZONE = "us-west-2a"
# Markets rest for seconds; what is a loop is as the default has it.
POLICY = "{name: spot-first, cooldown_s: 1, cooldown_max_s: 2}"
NOTICES_S = (20.0, 0.0, 20.0, 0.0)  # 0: lost without a word, as the one before them
STEPS = 3000  # more than the tests wait for
Measured = Callable[[str], None]


@pytest.fixture(scope="module")
def cluster(volumes: None, cloud: Cloud) -> Iterator[Cluster]:
    since = len(cloud.launches())
    made = Cluster(cloud, new=("--zones", ZONE, "--data-disk", "20"), policy=POLICY)
    made.up()
    assert {one["zone"] for one in cloud.launches()[since:]} == {ZONE}
    yield made
    if cloud.instances(runs=True):  # else the last test took it down
        made.down()


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    log = tmp_path_factory.mktemp("job") / "log"
    made = cluster.submit("one-zone", steps=STEPS, log=log)
    yield made
    made.process.kill()
    made.process.wait()


def test_each_worker_has_a_disk_of_its_own(cloud: Cloud, job: Job) -> None:
    job.wait_for_hosts(2, after_s=0.0)
    workers = {one["name"] for one in cloud.workers()}
    assert {one["on"] for one in cloud.do("volumes")} == workers
    for name in workers:
        cloud.do("write", name=name, path="/data/written_on", text=name)


def test_a_lost_nodes_disk_is_on_the_next_one_with_what_was_on_it(
    cloud: Cloud, cluster: Cluster, job: Job, measured: Measured
) -> None:
    before = disks(cloud)
    lost = lose(cloud, job)
    after = disks(cloud)
    assert after.keys() == before.keys()
    (moved,) = (disk for disk in before if before[disk] != after[disk])
    assert before[moved] == lost.gone["name"]
    found = {name: cloud.do("read", name=name, path="/data/written_on") for name in after.values()}
    assert found == {after[disk]: before[disk] for disk in before}
    measured(f"silent loss, with a data disk: {lost.told()}")
    cluster.wait_for_progress(after_s=lost.at_s)


def test_a_zone_that_takes_node_after_node_is_asked_once_for_each(
    cloud: Cloud, cluster: Cluster, job: Job, measured: Measured
) -> None:
    start_s, calls = time.time(), len(cloud.launches())
    steps = [job.step]
    for notice_s in NOTICES_S:
        lost = lose(cloud, job, notice_s=notice_s)
        cluster.wait_for_progress(after_s=lost.at_s)
        steps.append(job.step)
    made = cloud.launches()[calls:]
    assert {(one["spot"], one["error"]) for one in made} == {(True, "")}
    # One for each, unless a slow machine's Ray gives a node up before it has come.
    assert len(NOTICES_S) <= len(made) <= 2 * len(NOTICES_S)
    assert all(earlier < later for earlier, later in pairwise(steps))
    assert job.steps_back == 0
    took_s = time.time() - start_s
    measured(
        f"{len(NOTICES_S)} preemptions of one zone in a row: {len(made)} calls, "
        f"{took_s:.0f} s, steps {steps}"
    )


def test_no_two_nodes_ever_had_one_disk(cloud: Cloud, cluster: Cluster) -> None:
    mounted = [event for event in cluster.journal() if isinstance(event, DiskMounted)]
    volumes = disks(cloud)
    # Under notice a node still has its own while its replacement comes up.
    assert 2 <= len(volumes) <= 4
    assert sum(not event.warm for event in mounted) == len(volumes)
    end_s = {one["name"]: one["ended_s"] for one in cloud.instances()}
    for disk in volumes:
        nodes = sorted((e for e in mounted if e.disk == disk), key=lambda e: e.at_s)
        for one, after in pairwise(nodes):
            assert 0.0 < end_s[one.name] <= after.at_s


def test_ray_down_leaves_no_instance_and_no_disk(cloud: Cloud, cluster: Cluster) -> None:
    assert cloud.do("volumes")
    cluster.down()
    assert cloud.instances(runs=True) == []
    assert cloud.do("volumes") == []


def disks(cloud: Cloud) -> dict[str, str]:
    """By volume, the instance that has it; empty: it waits for one."""
    return {one["name"]: one["on"] for one in cloud.do("volumes")}
