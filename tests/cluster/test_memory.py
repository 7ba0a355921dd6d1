from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.clock import FakeClock
from spotray.cluster.memory import HORIZON_S, LaunchMemory, decode, encode
from spotray.market.offer import Market
from spotray.policy.view import Fact, Launched, Preempted, Progressed, Refusal, Refused, SpotOnly

SPOT = Market.parse("aws/us-west-2a/g5.xlarge/spot")
FACTS: tuple[Fact, ...] = (
    Launched(at_s=1.0, market=SPOT, names=("i-1", "i-2")),
    Refused(at_s=2.0, market=SPOT, kind=Refusal.QUOTA, code="Max", node_type="gpu"),
    Refused(at_s=3.0, market=SPOT, kind=Refusal.THROTTLED, retry_after_s=60.0),
    Preempted(at_s=4.0, market=SPOT, name="i-1", lived_s=3.0),
    Progressed(at_s=5.0),
    SpotOnly(at_s=6.0, until_s=66.0),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "launches.jsonl"


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_survives_the_file(fact: Fact) -> None:
    assert decode(encode(fact)) == fact
    assert "\n" not in encode(fact)


@given(
    line=st.text()
    | st.builds(lambda i, cut: encode(FACTS[i])[:cut], st.integers(0, 5), st.integers(0, 99))
)
def test_garbage_is_a_value_error_and_nothing_else(line: str) -> None:
    try:
        decode(line)
    except ValueError:
        return


def test_what_one_process_learnt_the_next_one_knows(path: Path) -> None:
    first = LaunchMemory(path)
    assert first.facts() == ()
    for fact in reversed(FACTS):
        first.add(fact)
    assert first.facts() == LaunchMemory(path).facts() == FACTS


def test_a_reader_sees_what_another_one_adds_later(path: Path) -> None:
    watcher, monitor = LaunchMemory(path), LaunchMemory(path)
    assert monitor.facts() == ()
    watcher.add(FACTS[0])
    assert monitor.facts() == FACTS[:1]
    monitor.add(FACTS[1])
    assert watcher.facts() == FACTS[:2]


def test_a_damaged_line_is_passed_over_with_a_warning_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = LaunchMemory(path)
    memory.add(FACTS[0])
    with open(path, "ab") as file:
        file.write(b'{"kind": "Launched", "at_s": "soon"}\n\xff\xfe\n{"kind": "Prog')
    memory.add(FACTS[3])
    with caplog.at_level(logging.WARNING):
        assert memory.facts() == (FACTS[0], FACTS[3])
        memory.add(FACTS[4])
        assert memory.facts() == (FACTS[0], FACTS[3], FACTS[4])
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 3 damaged lines are passed over"
    ]


def test_a_disk_that_fails_loses_nothing_while_the_process_lives(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.parent.mkdir(exist_ok=True)
    path.parent.write_text("a file where the folder should be")
    memory = LaunchMemory(path)
    memory.add(FACTS[0])
    assert memory.facts() == FACTS[:1]
    assert "kept in memory only" in caplog.text
    os.remove(path.parent)
    memory.add(FACTS[1])
    assert LaunchMemory(path).facts() == FACTS[:2]


def test_two_processes_that_write_at_once_lose_no_fact(path: Path) -> None:
    code = (
        "import sys; from spotray.cluster.memory import LaunchMemory;"
        "from spotray.market.offer import Market;"
        f"memory = LaunchMemory({str(path)!r}, max_bytes=20_000);"
        f"market = Market.parse({str(SPOT)!r});"
        "[memory.preempted(market, f'{sys.argv[1]}-{i}') for i in range(40)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    names = {fact.name for fact in LaunchMemory(path).facts() if isinstance(fact, Preempted)}
    assert names == {f"{writer}-{i}" for writer in "ab" for i in range(40)}


def test_a_long_file_forgets_what_no_rule_looks_back_to(path: Path) -> None:
    clock = FakeClock()
    memory = LaunchMemory(path, clock=clock, max_bytes=2_000)
    memory.preempted(SPOT, "old")
    clock.advance(HORIZON_S + 1)
    for i in range(30):
        memory.preempted(SPOT, f"i-{i}")
    names = [fact.name for fact in memory.facts() if isinstance(fact, Preempted)]
    assert "old" not in names
    assert names[-1] == "i-29"
    assert path.stat().st_size <= 2_200


def test_a_burst_that_fills_the_file_does_not_rewrite_it_at_every_fact(path: Path) -> None:
    memory = LaunchMemory(path, clock=FakeClock(), max_bytes=2_000)
    rewritten = set()
    for i in range(100):
        memory.preempted(SPOT, f"i-{i}")
        rewritten.add(path.stat().st_ino)
    assert len(rewritten) < 20
    assert [f.name for f in memory.facts() if isinstance(f, Preempted)][-1] == "i-99"


def test_a_probe_is_a_fact_that_can_be_called_off(path: Path) -> None:
    clock = FakeClock(start_s=100.0)
    memory = LaunchMemory(path, clock=clock)
    memory.spot_only(160.0)
    memory.spot_only(0.0)
    assert LaunchMemory(path).facts() == (
        SpotOnly(at_s=100.0, until_s=160.0),
        SpotOnly(at_s=100.0, until_s=0.0),
    )
