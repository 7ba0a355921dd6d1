"""Events in a few words."""

from __future__ import annotations

import pytest

from spotray.events import Event, FellBack, MemberFencedOut, MemberReady, WorkerGroupStarted
from spotray.ledger.describe import describe

NODE = "0123456789abcdef"


@pytest.mark.parametrize(
    ("event", "words"),
    [
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
