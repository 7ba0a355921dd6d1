"""Events in a few words."""

from __future__ import annotations

import pytest

from spotray.events import (
    BudgetReached,
    ClusterWentDown,
    DeadlineNear,
    DiskDeleted,
    DiskMounted,
    Event,
    FellBack,
    InstanceEnded,
    InstanceVanished,
    LaunchTried,
    LaunchWaited,
    MemberFencedOut,
    MemberReady,
    NodeReplaced,
    ReplacementAsked,
    ReplacementGivenUp,
    SpotObserved,
    WorkerGroupStarted,
    WorkersHeld,
)
from spotray.ledger.describe import describe

NODE = "0123456789abcdef"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            SpotObserved(
                at_s=0.0,
                cloud="aws",
                region="us-east-1",
                zone="us-east-1a",
                instance_types=("g5.xlarge",),
                nodes=4,
                every_s=600.0,
                likely=0.9,
            ),
            "4 spot nodes in us-east-1a: 90 %",
        ),
        (
            SpotObserved(
                at_s=0.0,
                cloud="aws",
                region="us-east-1",
                zone="us-east-1a",
                instance_types=("g5.xlarge",),
                nodes=4,
                every_s=600.0,
                likely=0.9,
                refused="quota",
            ),
            "4 spot nodes in us-east-1a: refused (quota)",
        ),
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


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            ReplacementAsked(
                at_s=0.0,
                node_id=NODE,
                name="i-1",
                node_type="gpu",
                until_s=60.0,
                spot_only=True,
                why="i-1 can go back to spot",
            ),
            "one more gpu is asked for: i-1 can go back to spot",
        ),
        (
            ReplacementGivenUp(
                at_s=0.0, node_id=NODE, name="i-1", node_type="gpu", why="spot was refused"
            ),
            "i-1 stays: spot was refused",
        ),
        (
            NodeReplaced(at_s=0.0, node_id=NODE, name="i-1", node_type="gpu", seconds=61.4),
            "i-1 was replaced in 61 s",
        ),
        (InstanceEnded(at_s=0.0, name="i-1", why="it stayed"), "i-1 is ended: it stayed"),
        (
            InstanceEnded(at_s=0.0, name="i-1", why="it stayed", failed="no right"),
            "i-1 is ended: no right",
        ),
        (
            WorkersHeld(at_s=10.0, workers=3, until_s=310.0, why="1 busy worker is taken"),
            "3 workers are asked for, for 300 s: 1 busy worker is taken",
        ),
        (DeadlineNear(at_s=0.0, until_s=9.0, why="on-demand first"), "on-demand first"),
        (
            BudgetReached(at_s=0.0, job="vit", spent_usd=5.004, max_cost_usd=5.0),
            "job vit is stopped: $5.00 of $5.00 are spent",
        ),
        (
            BudgetReached(at_s=0.0, job="vit", spent_usd=5.1, max_cost_usd=5.0, failed="no right"),
            "job vit goes on (no right): $5.10 of $5.00 are spent",
        ),
        (
            ClusterWentDown(at_s=0.0, names=("i-1", "i-2"), head=False, why="idle for 30 min"),
            "2 workers go down: idle for 30 min",
        ),
        (
            ClusterWentDown(at_s=0.0, names=("i-1",), head=True, why="idle for 30 min"),
            "all nodes go down: idle for 30 min",
        ),
    ],
)
def test_what_the_controller_does_is_told_in_a_few_words(event: Event, words: str) -> None:
    assert describe(event) == words
