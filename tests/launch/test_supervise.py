from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotray.clock import FakeClock
from spotray.launch.supervise import (
    STOPPED_CODE,
    Bill,
    Limits,
    NodeTime,
    Rates,
    spent_usd,
    supervise,
    take_down,
)

RATES = Rates(spot={"gpu": 0.5}, on_demand={"head": 0.1, "gpu": 1.0})
FOREVER = (sys.executable, "-c", "import time; time.sleep(600)")


def test_each_node_costs_its_kind_while_it_runs_and_since_the_job_began() -> None:
    nodes = [
        NodeTime(node_type="head", spot=False, start_s=0),  # long before the job
        NodeTime(node_type="gpu", spot=True, start_s=3600, end_s=7200),
        NodeTime(node_type="gpu", spot=False, start_s=7200),
        NodeTime(node_type="gpu", spot=True, start_s=0, end_s=1800),  # gone before it
    ]
    spent = spent_usd(nodes, RATES, from_s=3600, now_s=10800)
    assert spent == pytest.approx(2 * 0.1 + 1 * 0.5 + 1 * 1.0)


def test_a_node_that_nobody_can_price_counts_as_the_dearest() -> None:
    stranger = NodeTime(node_type="", spot=False, start_s=0)
    assert spent_usd([stranger], RATES, from_s=0, now_s=3600) == pytest.approx(1.0)
    spot_head = NodeTime(node_type="head", spot=True, start_s=0)
    assert spent_usd([spot_head], RATES, from_s=0, now_s=3600) == pytest.approx(0.1)


def test_a_head_that_does_not_answer_stops_no_job_and_its_nodes_go_on_costing() -> None:
    clock = FakeClock(0)
    answers = iter([[NodeTime(node_type="gpu", spot=False, start_s=0)]])

    def nodes() -> list[NodeTime]:
        try:
            return next(answers)
        except StopIteration as exc:
            raise RuntimeError("the head is busy") from exc

    bill = Bill(RATES, nodes=nodes, clock=clock)
    clock.advance(3600)
    assert bill.spent_usd() == pytest.approx(1.0)
    clock.advance(3600)
    assert bill.spent_usd() == pytest.approx(2.0)


def test_a_limit_is_broken_when_it_is_reached_and_says_which() -> None:
    both = Limits(deadline_s=100, max_cost_usd=2)
    assert both.broken(now_s=99, spent=lambda: 1.99) == ""
    assert "deadline" in both.broken(now_s=100, spent=lambda: 0)
    assert "$2.00 of $2.00" in both.broken(now_s=0, spent=lambda: 2.0)
    assert Limits().broken(now_s=1e12, spent=lambda: 1e12) == ""


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("pass", 0), ("import os; os.abort()", 134)]
)
def test_the_command_s_code_is_passed_on(code: str, expected: int) -> None:
    command = (sys.executable, "-c", code)
    assert supervise(command, Limits(), spent=lambda: 0.0, clock=FakeClock()) == expected


def test_a_command_past_its_deadline_is_asked_to_stop_first(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = (
        "import pathlib, signal, sys, time\n"
        f"place = pathlib.Path({str(said)!r})\n"
        "def bye(*_):\n    place.write_text('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\nplace.write_text('ready')\ntime.sleep(600)"
    )

    def spent() -> float:  # it is asked each time: over when the command listens
        return 5.0 if said.exists() and said.read_text() == "ready" else 0.0

    limits = Limits(max_cost_usd=5.0)
    done = supervise(
        (sys.executable, "-c", code), limits, spent=spent, clock=FakeClock(), look_s=0.05
    )
    assert done == STOPPED_CODE
    assert said.read_text() == "saved"


def test_a_command_that_does_not_listen_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    limits = Limits(deadline_s=0)
    done = supervise(
        (sys.executable, "-c", deaf),
        limits,
        spent=lambda: 0.0,
        clock=FakeClock(),
        look_s=0.3,
        grace_s=0.3,
    )
    assert done == STOPPED_CODE


def test_a_stop_of_the_supervisor_stops_the_command() -> None:
    words = (sys.executable, "-m", "spotray.launch.supervise", "--", *FOREVER)
    process = subprocess.Popen(words, start_new_session=True)
    child = 0
    while not child:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        child = int(listed[0]) if listed else 0
        assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 143
    assert not Path(f"/proc/{child}").exists()


def test_the_head_waits_for_other_jobs_and_ends_the_workers_first() -> None:
    clock, ran = FakeClock(0), []
    busy = iter([True, True, False])

    def run(words: Sequence[str]) -> int:
        ran.append((clock.now_s(), tuple(words[4:])))
        return 0

    take_down(Path("/c.yaml"), after_s=600, jobs_running=lambda: next(busy), run=run, clock=clock)
    assert ran == [(1800, ("-y", "--workers-only", "/c.yaml")), (1800, ("-y", "/c.yaml"))]
