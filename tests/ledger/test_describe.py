"""Events in a few words."""

from __future__ import annotations

import pytest

from spotray.events import (
    DiskDeleted,
    DiskMounted,
    Event,
    FellBack,
    InstanceVanished,
    LaunchTried,
    LaunchWaited,
    MemberFencedOut,
    MemberReady,
    WorkerGroupStarted,
)
from spotray.ledger.describe import describe

NODE = "0123456789abcdef"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            DiskMounted(at_s=0.0, name="i-1", disk="vol-1", zone="a", size_gib=200, warm=True),
            "i-1 has disk vol-1 (200 GiB), as another node left it",
        ),
        (
            DiskMounted(at_s=0.0, name="i-1", disk="vol-1", zone="a", size_gib=200, warm=False),
            "i-1 has disk vol-1 (200 GiB), empty",
        ),
        (
            DiskDeleted(at_s=0.0, disk="vol-1", zone="us-west-2a", why="no node had it for 24 h"),
            "disk vol-1 in us-west-2a deleted: no node had it for 24 h",
        ),
        (
            WorkerGroupStarted(at_s=0.0, generation=2, world_size=3),
            "3 workers met (generation 2)",
        ),
        (
            WorkerGroupStarted(at_s=0.0, generation=2, world_size=3, live=True),
            "3 workers met (generation 2, live)",
        ),
        (
            MemberReady(at_s=0.0, node_id=NODE, seconds=4.26),
            "a worker on node 01234567 is ready to join after 4.3 s",
        ),
        (
            MemberFencedOut(at_s=0.0, generation=2, node_id=NODE, why="no heartbeat"),
            "generation 2 goes on without node 01234567: no heartbeat",
        ),
        (
            FellBack(at_s=0.0, generation=2, why="one worker is left", to="snapshot"),
            "generation 2 fell back (snapshot): one worker is left",
        ),
    ],
)
def test_live_recovery_is_told_in_a_few_words(event: Event, words: str) -> None:
    assert describe(event) == words


MARKET = "aws/us-west-2a/g5.xlarge/spot"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            LaunchTried(
                at_s=0.0, market=MARKET, node_type="gpu", wanted=2, names=("i-1",), why="spot first"
            ),
            f"1 of 2 gpu launched in {MARKET}: spot first",
        ),
        (
            LaunchTried(
                at_s=0.0, market=MARKET, node_type="gpu", wanted=1, refused="quota", code="Max"
            ),
            f"0 of 1 gpu refused (quota Max) in {MARKET}:",
        ),
        (
            LaunchWaited(at_s=5.0, node_type="gpu", wanted=1, until_s=65.0, why="all out"),
            "no gpu for 60 s: all out",
        ),
        (
            InstanceVanished(at_s=0.0, name="i-1", market=MARKET, preempted=True, lived_s=61.0),
            f"i-1 in {MARKET} was taken after 61 s",
        ),
    ],
)
def test_a_launch_is_told_in_a_few_words(event: Event, words: str) -> None:
    assert describe(event) == words
