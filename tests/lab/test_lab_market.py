"""Labs whose market is told by a scenario, from its first node on."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotray.clock import SystemClock, wait_until
from spotray.errors import LabError
from spotray.events import CapacityChanged, NodeDown, NodeUp, PriceChanged
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario
from spotray.ledger.journal import read_journal
from spotray.storage import Store

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SCENARIO = """
workers = 2
provisioning_s = 0.1
notice_s = 0

[market]
spot_price_trace = "price.json"

[capacity]
trace = "capacity.json"
time_scale = 20
"""


def test_capacity_and_price_follow_their_traces(tmp_path: Path) -> None:
    trace = '{"metadata": {"gap_seconds": 60}, "data": %s}'
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    (tmp_path / "capacity.json").write_text(trace % "[1, 1, 2, 2, 2, 2, 2, 0, 1]")
    (tmp_path / "price.json").write_text(trace % "[0.25, 0.5]")
    with Lab(scenario=Scenario.load(tmp_path / "scenario.toml"), journal=tmp_path / "j") as lab:
        assert [n.name for n in lab.nodes() if n.spot] == ["spot-1"]  # no room for a second one
        lab.wait_for_workers(2, timeout_s=30)
        assert wait_until(
            lambda: not any(n.name in ("spot-1", "spot-2") for n in lab.nodes()),
            timeout_s=30,
            clock=SystemClock(),
        )
        lab.wait_for_workers(1, timeout_s=30)
        with pytest.raises(LabError, match="2 workers are ready"):
            lab.wait_for_workers(2, timeout_s=0.5)
    events = read_journal(Store.at(tmp_path / "j"))
    assert [e.capacity for e in events if isinstance(e, CapacityChanged)] == [1, 2, 0, 1]
    assert [e.usd_per_hour for e in events if isinstance(e, PriceChanged)] == [0.5]
    ups = [e.usd_per_hour for e in events if isinstance(e, NodeUp) and e.spot]
    assert ups == [0.25, 0.5, 0.5]
    causes = [e.cause for e in events if isinstance(e, NodeDown)]
    assert sorted(causes) == ["preemption"] * 2 + ["shutdown"] * 2  # the head is one
