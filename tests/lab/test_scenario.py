from pathlib import Path

import pytest

from spotray.errors import ConfigError, TraceError
from spotray.lab.scenario import Capacity, LabMarket, Scenario, ScriptedEvent


def load(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    return Scenario.load(path)


def test_a_file_is_the_scenario_built_in_python(tmp_path: Path) -> None:
    text = """
        workers = 3
        provisioning_s = 1
        [market]
        zone = "us-west-2b"
        spot_usd_per_hour = 0.36
        [capacity]
        nodes = 3
        [[events]]
        at_step = 40
        action = "notice"
        node = "spot-2"
        notice_s = 20
        [[events]]
        at_s = 60
        action = "kill_all"
    """
    assert load(tmp_path, text) == Scenario(
        workers=3,
        provisioning_s=1.0,
        market=LabMarket(zone="us-west-2b", spot_usd_per_hour=0.36),
        capacity=Capacity(nodes=3),
        events=(
            ScriptedEvent(at_step=40, action="notice", node="spot-2", notice_s=20.0),
            ScriptedEvent(at_s=60.0, action="kill_all"),
        ),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("wrokers = 4", "unknown key 'wrokers': did you mean 'workers'"),
        ("[market]\nregion = 'x'", "unknown key 'market.region': did you mean 'market"),
        (
            "[[events]]\naction = 'kill'\nat_stpe = 4",
            r"'events\[0\].at_stpe'.*'events\[0\].at_step'",
        ),
        ("workers = 'four'", "workers is 'four': give int"),
        ("workers = true", "workers is True: give int"),
        ("workers = -1", "workers is -1"),
        ("cpus_per_worker = 0", "cpus_per_worker is 0"),
        ("notice_s = nan", "notice_s is nan"),
        ("market = 5", r"market is 5: write a table, \[market\]"),
        ("events = 5", "events is 5: write tables"),
        ("[market]\nspot_usd_per_hour = -1", "market: spot_usd_per_hour is -1"),
        ("[market]\nzone = 'a/b'", "zone 'a/b'"),
        ("[capacity]\nnodes = 2\nseed = 1", "capacity has nodes and seed: give one"),
        ("[capacity]\ntime_scale = 0", "time_scale is 0"),
        ("[[events]]\nat_s = 1", "action"),
        ("[[events]]\nat_s = 1\naction = 'kil'\nnode = 'x'", "'kil': did you mean 'kill"),
        ("[[events]]\naction = 'kill_all'", "give either at_step or at_s"),
        ("[[events]]\nat_s = 1\nat_step = 1\naction = 'kill_all'", "give either at_step or at_s"),
        ("[[events]]\nat_s = 1\naction = 'kill'", "give one of node, rank and count"),
        ("[[events]]\nat_s = 1\naction = 'kill'\nrank = 0\ncount = 1", "give one of"),
        ("[[events]]\nat_s = 1\naction = 'kill'\nrank = -1", "rank is -1"),
        ("[[events]]\nat_s = 1\naction = 'kill'\nrank = 1\nnotice_s = 3", "only notice and"),
        ("[[events]]\nat_s = 1\naction = 'capacity'", "give count"),
        ("[[events]]\nat_s = 1\naction = 'kill_all'\ncount = 2", "takes no target"),
        ("workers = ", "not TOML"),
    ],
)
def test_a_wrong_scenario_is_refused_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"scenario.toml: .*{named}") as error:
        load(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/none\.toml: cannot be read"):
        Scenario.load("/none.toml")


def test_a_trace_is_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"metadata": {"gap_seconds": 60}, "data": [2, 1]}')
    trace = load(tmp_path, "[capacity]\ntrace = 't.json'").capacity.load(4)
    assert trace is not None
    assert trace.values == (2, 1)


def test_a_damaged_trace_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"metadata": {"gap_seconds": 60}, "data": [2, -1]}')
    scenario = load(tmp_path, "[capacity]\ntrace = 't.json'")
    with pytest.raises(TraceError, match=r"t\.json.*data\[1\] is -1"):
        scenario.capacity.load(4)


def test_a_generated_capacity_never_exceeds_the_workers() -> None:
    trace = Capacity(seed=3, mean_up_s=600, mean_down_s=300).load(4)
    assert trace is not None
    assert set(trace.values) == {0, 1, 2, 3, 4}


def test_without_a_capacity_there_is_always_room() -> None:
    assert Capacity().load(4) is None
