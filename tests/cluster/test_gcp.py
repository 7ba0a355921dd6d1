from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from ray.autoscaler.node_launch_exception import NodeLaunchException

from spotray.cluster.gcp import SpotNodeProvider
from spotray.cluster.ray_autoscaler.seams import UpRefused
from spotray.errors import ConfigError
from spotray.policy.view import Preempted
from tests.cluster.emulated_gce import (
    REGION,
    STOCK_OUT,
    ZONES,
    EmulatedGCE,
    head_labels,
    http_error,
    market,
    worker_labels,
)

NODE_CONFIG: dict[str, Any] = {"machineType": "g2-standard-4", "disks": [{"boot": True}]}


@pytest.fixture
def gce(monkeypatch: pytest.MonkeyPatch) -> EmulatedGCE:
    monkeypatch.delenv("SPOTRAY_JOURNAL", raising=False)
    return EmulatedGCE()


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "launches.jsonl"


def provider_config(memory: Path, **more: Any) -> dict[str, Any]:
    return {
        "type": "external",
        "module": "spotray.cluster.gcp.SpotNodeProvider",
        "region": REGION,
        "availability_zone": ",".join(ZONES),
        "project_id": "p",
        "launch_memory": str(memory),
        **more,
    }


def provider_of(gce: EmulatedGCE, memory: Path, **more: Any) -> SpotNodeProvider:
    return SpotNodeProvider(provider_config(memory, **more), "test", clock=gce.clock, compute=gce)


def launch(provider: SpotNodeProvider, count: int = 1, **more: Any) -> list[str]:
    return sorted(provider.create_node({**NODE_CONFIG, **more}, worker_labels(), count))


def test_it_is_spot_in_the_first_zone_when_there_is_spot(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    names = launch(provider, 2)
    assert gce.asked() == [market("a")] * 2
    assert sorted(provider.non_terminated_nodes({})) == names
    assert {provider.market_of(name) for name in names} == {market("a")}
    assert gce.bodies[0]["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
    }
    assert "zones/us-central1-a/machineTypes/g2-standard-4" in gce.bodies[0]["machineType"]
    assert provider.node_tags(names[0])["ray-user-node-type"] == "gpu"


def test_in_a_full_spot_outage_the_fourth_call_is_on_demand(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    gce.refuses = {market(zone): STOCK_OUT for zone in "abc"}
    (name,) = launch(provider)
    assert gce.asked() == [*(market(zone) for zone in "abc"), market("a", spot=False)]
    assert provider.market_of(name) == market("a", spot=False)
    assert gce.bodies[-1]["scheduling"] == {"onHostMaintenance": "TERMINATE"}
    launch(provider)
    assert gce.asked() == [market("a", spot=False)]
    gce.refuses = {}
    gce.clock.advance(125)
    launch(provider)
    assert gce.asked() == [market("a")]


def test_everything_out_is_asked_once_then_left_alone_for_the_cool_down(
    gce: EmulatedGCE, memory: Path
) -> None:
    provider = provider_of(gce, memory)
    gce.refuses = {market(zone, spot=spot): STOCK_OUT for zone in "abc" for spot in (True, False)}
    with pytest.raises(NodeLaunchException, match=STOCK_OUT) as caught:
        launch(provider)
    assert caught.value.category == STOCK_OUT
    assert len(gce.asked()) == 6
    for _ in range(19):
        gce.clock.advance(5)
        with pytest.raises(NodeLaunchException):
            launch(provider)
    assert gce.asked() == []


def test_what_a_zone_lacks_is_topped_up_from_the_next(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    gce.holds = {market("a"): 2}
    names = launch(provider, 4)
    assert len(names) == 4
    provider.non_terminated_nodes({})
    where = [provider.market_of(name) for name in names]
    assert (where.count(market("a")), where.count(market("b"))) == (2, 2)


def test_a_quota_skips_the_other_zones_and_is_not_repeated(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    gce.denies = {market(zone): http_error(403, "quotaExceeded") for zone in "abc"}
    for _ in range(10):
        launch(provider)
        gce.clock.advance(300)
    asked = gce.asked()
    assert asked.count(market("a")) == 1
    assert {one for one in asked if one.spot} == {market("a")}


def test_a_limit_that_is_met_halfway_loses_no_node(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    real = gce._insert

    def second_is_denied(zone: str, body: dict[str, Any]) -> dict[str, Any]:
        if len(gce.calls) == 1:
            gce.calls.append(market("a"))
            raise http_error(403, "quotaExceeded")
        return real(zone, body)

    gce._insert = second_is_denied  # type: ignore[method-assign]
    names = launch(provider, 2)
    assert len(names) == 2
    assert sorted(gce.machines) == names


def test_missing_rights_are_asked_about_once(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    gce.denies = {
        market(zone, spot=spot): http_error(403, "forbidden", "compute.instances.create")
        for zone in "abc"
        for spot in (True, False)
    }
    for _ in range(30):
        gce.clock.advance(3000)
        with pytest.raises(NodeLaunchException, match="forbidden"):
            launch(provider)
    assert gce.asked() == [market("a"), market("a", spot=False)]


def test_the_head_is_never_spot_and_goes_to_the_next_zone(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    gce.refuses = {market("a", spot=False, kind="n2-standard-2"): STOCK_OUT}
    conf = {"machineType": "n2-standard-2", "scheduling": [{"preemptible": True}]}
    (name,) = provider.create_node(conf, head_labels(), 1)
    assert gce.asked() == [market(zone, spot=False, kind="n2-standard-2") for zone in "ab"]
    provider.non_terminated_nodes({})
    assert not provider.market_of(name).spot
    gce.denies = {
        market(zone, spot=False, kind="n2-standard-2"): http_error(403, "quotaExceeded")
        for zone in "abc"
    }
    with pytest.raises(click.ClickException, match="quotaExceeded"):
        provider.create_node(conf, head_labels(), 1)


def test_the_yamls_scheduling_is_kept_where_it_is_not_about_spot(
    gce: EmulatedGCE, memory: Path
) -> None:
    provider = provider_of(gce, memory, markets={"gpu": {"spot": False}})
    flexible = {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": 3600}}
    ends = {"instanceTerminationAction": "DELETE"}
    launch(provider, scheduling={**flexible, **ends})
    launch(provider, scheduling={"provisioningModel": "SPOT", "preemptible": True, **ends})
    assert [body["scheduling"] for body in gce.bodies] == [
        {**flexible, **ends, "onHostMaintenance": "TERMINATE"},
        {"onHostMaintenance": "TERMINATE"},
    ]


@pytest.mark.parametrize("action", ["DELETE", "STOP"])
def test_a_taken_node_is_remembered_and_the_next_one_is_in_another_zone(
    gce: EmulatedGCE, memory: Path, action: str
) -> None:
    provider = provider_of(gce, memory)
    (name,) = launch(provider, scheduling={"instanceTerminationAction": action})
    provider.non_terminated_nodes({})
    gce.clock.advance(60)
    gce.take(name, action=action)
    assert provider.non_terminated_nodes({}) == []
    (fact,) = (fact for fact in provider.memory.facts() if isinstance(fact, Preempted))
    assert (fact.name, fact.market) == (name, market("a"))
    gce.asked()
    launch(provider)
    assert gce.asked() == [market("b")]


@pytest.mark.parametrize("action", ["DELETE", "STOP"])
def test_a_node_that_was_taken_before_any_listing_had_it_was_preempted(
    gce: EmulatedGCE, memory: Path, action: str
) -> None:
    provider = provider_of(gce, memory)
    (name,) = launch(provider, scheduling={"instanceTerminationAction": action})
    gce.take(name, action=action)
    provider.non_terminated_nodes({})
    gce.clock.advance(61)  # one that left no trace might still come
    assert provider.non_terminated_nodes({}) == []
    (fact,) = (fact for fact in provider.memory.facts() if isinstance(fact, Preempted))
    assert (fact.name, fact.market) == (name, market("a"))


@pytest.mark.parametrize("by", ["ray", "delete"])
def test_a_node_that_was_ended_on_purpose_is_no_preemption(
    gce: EmulatedGCE, memory: Path, by: str
) -> None:
    provider = provider_of(gce, memory)
    (name,) = launch(provider)
    provider.non_terminated_nodes({})
    if by == "ray":
        provider.terminate_nodes([name])
    else:
        gce.take(name, by="delete")
    assert provider.non_terminated_nodes({}) == []
    assert not any(isinstance(fact, Preempted) for fact in provider.memory.facts())


def test_a_node_that_is_gone_can_be_terminated_without_an_error(
    gce: EmulatedGCE, memory: Path
) -> None:
    provider = provider_of(gce, memory)
    (name,) = launch(provider)
    provider.non_terminated_nodes({})
    gce.take(name)
    provider.terminate_nodes([name])
    assert provider.non_terminated_nodes({}) == []


def test_nodes_of_all_zones_are_listed_and_found_in_theirs(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    gce.holds = {market("a"): 1, market("b"): 1}
    names = launch(provider, 3)
    other = provider_of(gce, memory)  # a process that has listed nothing yet
    found = {other.instance(name)["zone"].rpartition("/")[2] for name in names}
    assert found == set(ZONES)
    other.terminate_nodes(names)
    assert gce.machines == {}


def test_an_operation_that_hangs_is_left_to_come_up(gce: EmulatedGCE, memory: Path) -> None:
    provider = provider_of(gce, memory)
    gce.takes_s = 10_000.0
    start_s = gce.clock.now_s()
    (name,) = launch(provider)
    assert 80 < gce.clock.now_s() - start_s < 100
    assert provider.non_terminated_nodes({}) == [name]


def test_a_typo_among_the_providers_keys_stops_it(gce: EmulatedGCE, memory: Path) -> None:
    with pytest.raises(ConfigError, match=r"provider\.security_group"):
        provider_of(gce, memory, security_group={})


def test_the_yaml_is_filled_with_rays_defaults_and_all_problems_told(memory: Path) -> None:
    config = {
        "cluster_name": "test",
        "provider": provider_config(memory),
        "head_node_type": "head",
        "available_node_types": {
            "head": {"node_config": {"machineType": "n2-standard-2"}, "resources": {"CPU": 0}},
            "gpu": {"node_config": dict(NODE_CONFIG), "resources": {"CPU": 4, "GPU": 1}},
        },
    }
    fill = SpotNodeProvider.fillout_available_node_types_resources
    filled = fill(config)
    assert filled["auth"] == {"ssh_user": "ubuntu"}
    assert filled["head_setup_commands"] == []
    assert filled["available_node_types"] == config["available_node_types"]
    wrong = {**provider_config(memory, markets={"gpus": {}}, typo=1), "project_id": None}
    with pytest.raises(UpRefused) as caught:
        fill({**config, "provider": wrong})
    assert len(str(caught.value).splitlines()) == 3
