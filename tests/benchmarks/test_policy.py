"""The benchmark of policies runs whole on made-up zones and on files; the fit finds a chain."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.policy import fit, run
from spotray.market.zones import generate_zone
from spotray.policy.chain import SpotChain

DAY = 86400.0


def write_zones(folder: Path, count: int, *, days: float, gap_s: float = 600.0) -> Path:
    folder.mkdir(parents=True)
    for seed in range(count):
        zone = generate_zone(seed, duration_s=days * DAY, gap_s=gap_s)
        (folder / f"zone-{seed}.json").write_text(zone.to_json())
    return folder


def test_sets_are_folders_and_half_a_trace_is_half(tmp_path: Path) -> None:
    write_zones(tmp_path / "one", 2, days=1)
    write_zones(tmp_path / "two", 1, days=1)
    whole = run.sets_of([tmp_path], part="all")
    second = run.sets_of([tmp_path], part="second")
    assert {name: sorted(zones) for name, zones in whole.items()} == {
        "one": ["zone-0", "zone-1"],
        "two": ["zone-0"],
    }
    gap_s, up = whole["one"]["zone-1"]
    assert second["one"]["zone-1"] == (gap_s, up[72:])


@pytest.mark.slow
def test_a_quick_run_has_a_row_for_every_job_and_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = write_zones(tmp_path / "zones", 2, days=5)
    rows_file = tmp_path / "rows.json"
    assert run.main(["--quick", "--traces", str(traces), "--json", str(rows_file)]) == 0
    rows = json.loads(rows_file.read_text())
    assert len(rows) == 2 * 3 * 2 * len(run.COMPARED)
    assert {row["set"] for row in rows} == {"zones"}
    assert not any(row["is_late"] for row in rows)
    out = capsys.readouterr().out
    assert "lookahead by deadline, h" in out
    assert "made-up" not in out


def test_traces_that_are_all_too_short_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = write_zones(tmp_path / "zones", 1, days=1)
    with pytest.raises(SystemExit):
        run.main(["--quick", "--traces", str(traces), "--json", str(tmp_path / "rows.json")])
    assert "no trace is as long as 52 h" in capsys.readouterr().err


def test_the_fit_finds_how_long_spot_stays_and_stays_away() -> None:
    chance = np.random.default_rng(1)
    up = np.empty((20, 1500), dtype=np.bool_)
    up[:, 0] = True
    for tick in range(1, 1500):
        leaves, comes = chance.random(20) < 0.02, chance.random(20) < 0.1
        up[:, tick] = np.where(up[:, tick - 1], ~leaves, comes)
    chain = fit.fit(up, gap_s=300.0, states=1, rounds=60, seed=0)
    assert chain.step[0, 1] == pytest.approx(0.02, rel=0.15)
    assert chain.step[1, 0] == pytest.approx(0.1, rel=0.15)
    assert chain.start[0] == pytest.approx(0.9, abs=0.1)


def test_the_fit_writes_what_the_policy_reads(tmp_path: Path) -> None:
    traces = write_zones(tmp_path / "zones", 3, days=2)
    out = tmp_path / "chain.json"
    assert fit.main([str(traces), "--states", "2", "--rounds", "3", "--out", str(out)]) == 0
    raw = json.loads(out.read_text())
    chain = SpotChain.from_json(raw)
    assert (chain.gap_s, list(chain.up)) == (600.0, [True, True, False, False])
    assert "3 traces of 600 s" in raw["source"]
    assert len(out.read_text().splitlines()) < 20


def test_the_chain_of_the_package_is_one_that_the_fit_wrote() -> None:
    text = fit.OUT.read_text()
    raw = json.loads(text)
    assert raw["source"].endswith("fit.py --states 6 --rounds 160 --seed 0")
    assert fit.as_text(raw) == text
    chain = SpotChain.from_json(raw)
    assert list(raw) == list(fit.as_json(chain, ""))
    assert list(chain.up) == [True] * 6 + [False] * 6


def test_more_states_explain_spot_whose_hazard_falls_with_age() -> None:
    zones = [generate_zone(seed, duration_s=6 * DAY, gap_s=600.0).values for seed in range(12)]
    seen = np.array(zones) > 0
    likely = []
    for states in (1, 3):
        chain = fit.fit(seen, gap_s=600.0, states=states, rounds=25, seed=0)
        likely.append(fit.expect(chain, seen)[0])
    assert likely[1] > likely[0] + 50
