from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ray.autoscaler.node_launch_exception import NodeLaunchException

from spotray.cluster.aws import MARKET_TAG, SpotNodeProvider
from spotray.cluster.ray_autoscaler.seams import UpRefused
from spotray.errors import ConfigError
from spotray.events import InstanceVanished, LaunchTried, LaunchWaited
from spotray.ledger.journal import read_journal
from spotray.market.offer import Market
from spotray.policy.view import Launched, Preempted
from spotray.storage import Store
from tests.cluster.emulated_ec2 import (
    EmulatedEC2,
    emulated_ec2,
    head_tags,
    provider_config,
    worker_tags,
)


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    monkeypatch.delenv("SPOTRAY_JOURNAL", raising=False)
    with emulated_ec2(monkeypatch) as emulated:
        yield emulated


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "launches.jsonl"


def provider_of(ec2: EmulatedEC2, memory: Path, **more: Any) -> SpotNodeProvider:
    provider = SpotNodeProvider(provider_config(memory, **more), "test", clock=ec2.clock)
    ec2.listen_to(provider.ec2_fail_fast.meta.client)
    return provider


def launch(provider: SpotNodeProvider, ec2: EmulatedEC2, count: int = 1, **more: Any) -> list[str]:
    made = provider.create_node(ec2.node_config(**more), worker_tags(), count)
    return sorted(made)


def markets_of(provider: SpotNodeProvider, names: list[str]) -> list[str]:
    provider.non_terminated_nodes({})
    return [str(provider.market_of(name)) for name in names]


# -- what the market does, and what a launch makes of it -----------------------


def test_it_is_spot_in_the_first_zone_when_there_is_spot(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    (name,) = launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a")]
    assert markets_of(provider, [name]) == [str(ec2.market("a"))]
    assert provider.node_tags(name)[MARKET_TAG] == str(ec2.market("a"))


def test_in_a_full_spot_outage_the_fourth_call_is_on_demand(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market(zone): "InsufficientInstanceCapacity" for zone in "abc"}
    (name,) = launch(provider, ec2)
    asked = ec2.asked()
    assert asked == [*(ec2.market(zone) for zone in "abc"), ec2.market("a", spot=False)]
    assert markets_of(provider, [name]) == [str(ec2.market("a", spot=False))]
    # The next launch within the cool-down makes one call, and that is on-demand.
    launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a", spot=False)]


def test_when_the_outage_is_over_the_first_launch_after_the_cool_down_is_spot(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market(zone): "InsufficientInstanceCapacity" for zone in "abc"}
    launch(provider, ec2)
    ec2.refuses = {}
    ec2.asked()
    ec2.clock.advance(119)
    launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a", spot=False)]
    ec2.clock.advance(2)
    (name,) = launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a")]
    assert markets_of(provider, [name]) == [str(ec2.market("a"))]


def test_the_floor_is_on_demand_and_lost_ones_are_replaced_on_demand(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory, markets={"gpu": {"on_demand_floor": 1}})
    names = launch(provider, ec2, 2)
    assert ec2.asked() == [ec2.market("a", spot=False), ec2.market("a")]
    steady = next(name for name in names if not provider.market_of(name).spot)
    launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a")]
    provider.terminate_node(steady)
    launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a", spot=False)]


def test_one_zone_out_costs_one_call(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market("a"): "InsufficientInstanceCapacity"}
    launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a"), ec2.market("b")]
    launch(provider, ec2)
    assert ec2.asked() == [ec2.market("b")]


def test_everything_out_is_asked_once_then_left_alone_for_the_cool_down(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses_all_but = set()
    with pytest.raises(NodeLaunchException, match="InsufficientInstanceCapacity") as caught:
        launch(provider, ec2)
    assert caught.value.category == "InsufficientInstanceCapacity"
    assert len(ec2.asked()) == 6
    for _ in range(23):  # as often as Ray asks in two minutes
        ec2.clock.advance(5)
        with pytest.raises(NodeLaunchException) as caught:
            launch(provider, ec2)
    assert caught.value.category == "waiting"
    assert ec2.asked() == []


def test_a_partial_fill_is_topped_up_in_the_same_launch(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    ec2.holds = {ec2.market("a"): 2, ec2.market("b"): 1}
    names = launch(provider, ec2, count=4)
    assert len(names) == 4
    assert ec2.asked() == [ec2.market("a"), ec2.market("b"), ec2.market("c")]
    found = markets_of(provider, names)
    assert sorted(found) == sorted(str(ec2.market(zone)) for zone in ("a", "a", "b", "c"))


def test_another_instance_type_is_asked_before_on_demand(ec2: EmulatedEC2, memory: Path) -> None:
    types = ["g5.xlarge", "g6.xlarge"]
    provider = provider_of(ec2, memory, markets={"gpu": {"instance_types": types}})
    ec2.refuses = {ec2.market(zone): "InsufficientInstanceCapacity" for zone in "abc"}
    (name,) = launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a"), ec2.market("b", kind="g6.xlarge")]
    assert markets_of(provider, [name]) == [str(ec2.market("b", kind="g6.xlarge"))]


def test_a_quota_error_skips_the_other_zones_and_is_not_repeated(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market(zone): "MaxSpotInstanceCountExceeded" for zone in "abc"}
    for _ in range(60):
        launch(provider, ec2)
        ec2.clock.advance(55)
    asked = ec2.asked()
    assert [one for one in asked if one.spot] == [ec2.market("a")], "once in an hour"
    assert len(asked) == 61


def test_a_permission_error_is_asked_once_until_ray_starts_anew(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    both = [ec2.market("a"), ec2.market("a", spot=False)]
    ec2.refuses = {
        one: "UnauthorizedOperation"
        for zone in "abc"
        for one in (ec2.market(zone), ec2.market(zone, spot=False))
    }
    for _ in range(50):
        with pytest.raises(NodeLaunchException, match="UnauthorizedOperation"):
            launch(provider, ec2)
        ec2.clock.advance(3000)
    assert ec2.asked() == both
    provider = provider_of(ec2, memory)
    ec2.asked()  # two listeners hear the same client: look from here on
    ec2.refuses = {}
    assert launch(provider, ec2)


def test_a_word_of_ec2_that_nobody_knows_is_told_and_the_next_zone_asked(
    ec2: EmulatedEC2, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market("a"): "BrandNewCode"}
    with caplog.at_level("INFO"):
        launch(provider, ec2)
    assert ec2.asked() == [ec2.market("a"), ec2.market("b")]
    assert "BrandNewCode" in caplog.text


def test_fallback_wait_never_buys_on_demand(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory, markets={"gpu": {"fallback": "wait"}})
    ec2.refuses_all_but = {ec2.market(zone, spot=False) for zone in "abc"}
    with pytest.raises(NodeLaunchException):
        launch(provider, ec2)
    assert ec2.asked() == [ec2.market(zone) for zone in "abc"]


def test_a_type_with_spot_false_is_on_demand_without_a_call_for_spot(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory, markets={"gpu": {"spot": False}})
    launch(provider, ec2, InstanceMarketOptions={"MarketType": "spot"})
    assert ec2.asked() == [ec2.market("a", spot=False)]


def test_the_yamls_price_limit_goes_with_spot_and_not_with_on_demand(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market(zone): "SpotMaxPriceTooLow" for zone in "abc"}
    limit = {"SpotOptions": {"MaxPrice": "0.2"}}
    launch(provider, ec2, InstanceMarketOptions=limit)
    assert [one.get("InstanceMarketOptions") for one in ec2.sent] == [
        {**limit, "MarketType": "spot"}
    ] * 3 + [None]


# -- the head ----------------------------------------------------------------


def test_the_head_is_never_spot_whatever_the_yaml_says(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    conf = ec2.node_config(InstanceMarketOptions={"MarketType": "spot"})
    (name,) = provider.create_node(conf, head_tags(), 1)
    assert ec2.asked() == [ec2.market("a", spot=False)]
    assert markets_of(provider, [name]) == [str(ec2.market("a", spot=False))]


def test_the_head_goes_to_the_next_zone_and_its_failure_is_one_line(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market("a", spot=False): "InsufficientInstanceCapacity"}
    provider.create_node(ec2.node_config(), head_tags(), 1)
    assert ec2.asked() == [ec2.market(zone, spot=False) for zone in "ab"]
    ec2.refuses = {ec2.market("a", spot=False): "InvalidAMIID.NotFound"}
    with pytest.raises(click.ClickException) as caught:
        provider.create_node(ec2.node_config(), head_tags(), 1)
    assert "InvalidAMIID.NotFound" in caught.value.message
    assert len(ec2.asked()) == 1, "a wrong image is wrong in every zone"


# -- what became of the nodes --------------------------------------------------


def test_a_taken_node_is_remembered_and_the_next_one_is_in_another_zone(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    (name,) = launch(provider, ec2)
    assert name in provider.non_terminated_nodes({})
    ec2.clock.advance(77)
    ec2.take(name)
    assert name not in provider.non_terminated_nodes({})
    (fact,) = (fact for fact in provider.memory.facts() if isinstance(fact, Preempted))
    assert (fact.name, fact.market, fact.lived_s) == (name, ec2.market("a"), 77.0)
    ec2.asked()
    launch(provider, ec2)
    assert ec2.asked() == [ec2.market("b")]


@pytest.mark.parametrize("by", ["ray", "the user"])
def test_a_node_that_was_ended_on_purpose_is_no_preemption(
    ec2: EmulatedEC2, memory: Path, by: str
) -> None:
    provider = provider_of(ec2, memory)
    (name,) = launch(provider, ec2)
    provider.non_terminated_nodes({})
    if by == "ray":
        provider.terminate_nodes([name])
    else:
        ec2.take(name, "Client.UserInitiatedShutdown")
    assert provider.non_terminated_nodes({}) == []
    assert not any(isinstance(fact, Preempted) for fact in provider.memory.facts())


def test_a_node_that_one_listing_left_out_has_not_vanished(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    (name,) = launch(provider, ec2)
    provider.non_terminated_nodes({})
    tag = {"Resources": [name], "Tags": [{"Key": "ray-cluster-name", "Value": "hidden"}]}
    provider.ec2.meta.client.create_tags(**tag)
    assert provider.non_terminated_nodes({}) == []
    assert not any(isinstance(fact, Preempted) for fact in provider.memory.facts())
    ec2.take(name)
    provider.non_terminated_nodes({})
    assert sum(isinstance(fact, Preempted) for fact in provider.memory.facts()) == 1


def test_a_node_that_was_taken_before_any_listing_had_it_was_preempted(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    (name,) = launch(provider, ec2)
    ec2.take(name)
    assert provider.non_terminated_nodes({}) == []
    (fact,) = (one for one in provider.memory.facts() if isinstance(one, Preempted))
    assert fact.name == name


def test_twenty_preemptions_of_one_zone_end_in_work_not_in_a_loop(
    ec2: EmulatedEC2, memory: Path
) -> None:
    """One zone, whose spot nodes are all taken after a minute; on-demand stays for an hour."""
    provider = provider_of(ec2, memory)
    start_s, taken, worked_s = ec2.clock.now_s(), 0, 0.0
    rounds_between_work, longest = 0, 0
    while taken < 20:
        (name,) = launch(provider, ec2, zones=("us-west-2a",))
        provider.non_terminated_nodes({})
        (asked,) = ec2.asked()  # one call a launch: nothing is refused here
        if asked.spot:
            taken, rounds_between_work = taken + 1, rounds_between_work + 1
            longest = max(longest, rounds_between_work)
            ec2.clock.advance(60)
            ec2.take(name)
        else:
            rounds_between_work = 0
            ec2.clock.advance(3600)
            worked_s += 3600
            provider.terminate_nodes([name])
        provider.non_terminated_nodes({})
    spent_s = ec2.clock.now_s() - start_s
    assert longest == 1, "each preemption is followed by work"
    assert worked_s / spent_s > 0.9


def test_a_loop_is_broken_even_if_demand_comes_just_when_the_zone_is_free_again(
    ec2: EmulatedEC2, memory: Path
) -> None:
    provider = provider_of(ec2, memory)
    for _ in range(3):
        (name,) = launch(provider, ec2, zones=("us-west-2a",))
        provider.non_terminated_nodes({})
        ec2.clock.advance(30)
        ec2.take(name)
        provider.non_terminated_nodes({})
        ec2.clock.advance(481)  # past each cool-down so far
    assert [one.spot for one in ec2.asked()] == [True, True, True]
    launch(provider, ec2, zones=("us-west-2a",))
    assert [one.spot for one in ec2.asked()] == [False]


# -- restarts, the journal, labels ---------------------------------------------


def test_a_restart_of_the_head_keeps_what_was_learnt(ec2: EmulatedEC2, memory: Path) -> None:
    ec2.refuses = {ec2.market(zone): "InsufficientInstanceCapacity" for zone in "abc"}
    launch(provider_of(ec2, memory), ec2)
    again = SpotNodeProvider(provider_config(memory), "test", clock=ec2.clock)
    ec2.asked()
    launch(again, ec2)  # the client is the same, and listened to
    assert ec2.asked() == [ec2.market("a", spot=False)]


def test_a_probe_for_spot_does_not_buy_on_demand(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    ec2.refuses_all_but = {ec2.market("a", spot=False)}
    provider.memory.spot_only(ec2.clock.now_s() + 60)
    with pytest.raises(NodeLaunchException, match="spot only"):
        launch(provider, ec2)
    assert ec2.asked() == [ec2.market(zone) for zone in "abc"]
    provider.memory.spot_only(0.0)
    assert launch(provider, ec2)


def test_the_journal_tells_each_choice_with_its_reason(
    ec2: EmulatedEC2, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTRAY_JOURNAL", str(tmp_path / "journal"))
    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market("a"): "InsufficientInstanceCapacity"}
    (name,) = launch(provider, ec2)
    provider.non_terminated_nodes({})
    ec2.take(name)
    provider.non_terminated_nodes({})
    ec2.refuses_all_but = set()
    with pytest.raises(NodeLaunchException):
        launch(provider, ec2)
    provider.close()
    events = read_journal(Store.at(tmp_path / "journal"))
    tried = [event for event in events if isinstance(event, LaunchTried)]
    assert [(event.market, event.code, event.names) for event in tried[:2]] == [
        (str(ec2.market("a")), "InsufficientInstanceCapacity", ()),
        (str(ec2.market("b")), "", (name,)),
    ]
    assert all(event.why for event in tried)
    (vanished,) = (event for event in events if isinstance(event, InstanceVanished))
    assert (vanished.name, vanished.preempted) == (name, True)
    assert vanished.why == "Server.SpotInstanceTermination"
    assert sum(isinstance(event, LaunchWaited) for event in events) == 1


class Runner:
    """Stands where Ray's SSH runner stands."""

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, Any]] = []

    def run(self, cmd: str | None = None, *_: Any, **kwargs: Any) -> str:
        self.seen.append((cmd, kwargs.get("environment_variables")))
        return ""


def test_a_node_is_told_what_it_is_and_the_truth_beats_the_yaml(
    ec2: EmulatedEC2, memory: Path
) -> None:
    from spotray.cluster.ray_autoscaler.seams import labels_of, with_true_labels

    provider = provider_of(ec2, memory)
    ec2.refuses = {ec2.market(zone): "InsufficientInstanceCapacity" for zone in "abc"}
    (name,) = launch(provider, ec2)
    runner = Runner()
    told = with_true_labels(runner, lambda: labels_of(provider.market_of(name)))
    yaml_labels = {"ray.io/market-type": "spot", "team": "vision"}
    told.run("ray start --address=x", environment_variables={"RAY_OVERRIDE_LABELS": yaml_labels})
    told.run("ray stop", environment_variables={})
    told.run("uptime")
    assert runner.seen == [
        (
            "ray start --address=x",
            {
                "RAY_OVERRIDE_LABELS": {
                    "ray.io/market-type": "on-demand",
                    "team": "vision",
                    "ray.io/availability-zone": "us-west-2a",
                    "ray.io/availability-region": "us-west-2",
                    "spotray/instance-type": "g5.xlarge",
                }
            },
        ),
        ("ray stop", {}),
        ("uptime", None),
    ]


# -- the YAML ------------------------------------------------------------------


def test_a_typo_among_the_providers_keys_stops_it_before_anything_is_asked(
    ec2: EmulatedEC2, memory: Path
) -> None:
    with pytest.raises(ConfigError, match=r"provider\.market"):
        SpotNodeProvider(provider_config(memory, market={}), "test")


def cluster_config(memory: Path, **provider: Any) -> dict[str, Any]:
    return {
        "cluster_name": "test",
        "provider": provider_config(memory, **provider),
        "head_node_type": "head",
        "available_node_types": {
            "head": {"node_config": {"InstanceType": "m5.large"}, "resources": {"CPU": 0}},
            "gpu": {"node_config": {"InstanceType": "g5.xlarge"}, "max_workers": 3},
        },
    }


@pytest.mark.slow  # moto lists all instance types of a region
def test_a_type_of_several_instance_types_promises_what_each_of_them_has(
    ec2: EmulatedEC2, memory: Path
) -> None:
    fill = SpotNodeProvider.fillout_available_node_types_resources
    types = ["g5.xlarge", "g4dn.2xlarge"]
    config = fill(cluster_config(memory, markets={"gpu": {"instance_types": types}}))
    assert set(config["available_node_types"]) == {"head", "gpu"}
    gpu = config["available_node_types"]["gpu"]
    assert gpu["node_config"]["InstanceType"] == "g5.xlarge"
    assert (gpu["resources"]["CPU"], gpu["resources"]["GPU"]) == (4, 1)
    assert not any(key.startswith("accelerator_type") for key in gpu["resources"])
    assert config["available_node_types"]["head"]["resources"]["CPU"] == 0
    assert config["auth"] == {"ssh_user": "ubuntu"}
    assert config["worker_start_ray_commands"]
    with pytest.raises(UpRefused, match="numbers of GPUs differ"):
        fill(
            cluster_config(
                memory, markets={"gpu": {"instance_types": ["g5.xlarge", "g5.12xlarge"]}}
            )
        )


def test_all_problems_of_our_keys_are_told_at_once(ec2: EmulatedEC2, memory: Path) -> None:
    wrong = cluster_config(memory, markets={"gpus": {"fallback": "od"}}, zone="a")
    with pytest.raises(UpRefused) as caught:
        SpotNodeProvider.fillout_available_node_types_resources(wrong)
    assert len(str(caught.value).splitlines()) == 3


def test_launches_of_other_clusters_are_not_ours(ec2: EmulatedEC2, memory: Path) -> None:
    provider = provider_of(ec2, memory)
    (name,) = launch(provider, ec2)
    other = SpotNodeProvider(provider_config(memory), "other", clock=ec2.clock)
    assert other.non_terminated_nodes({}) == []
    assert provider.non_terminated_nodes({}) == [name]
    (fact,) = (fact for fact in provider.memory.facts() if isinstance(fact, Launched))
    assert isinstance(fact.market, Market)
