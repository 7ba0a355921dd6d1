from __future__ import annotations

from typing import Any

import pytest

from spotray.cluster.control import ControlConfig
from spotray.cluster.launch_book import LearnedCost
from spotray.cluster.markets import (
    LaunchConfig,
    NodeMarkets,
    check_node_types,
    check_provider,
)
from spotray.errors import ConfigError
from spotray.policy.expected_cost import ExpectedCost
from spotray.policy.spot_first import SpotFirst

AWS: dict[str, Any] = {
    "type": "external",
    "module": "spotray.cluster.aws.SpotNodeProvider",
    "region": "us-west-2",
    "availability_zone": "us-west-2a,us-west-2b",
}
NODE_TYPES: dict[str, Any] = {
    "head": {"node_config": {"InstanceType": "m5.large"}},
    "gpu": {"node_config": {"InstanceType": "g5.xlarge"}},
}


def test_a_provider_without_a_key_of_ours_takes_the_defaults() -> None:
    config = LaunchConfig.parse(AWS, cloud="aws")
    assert config.of("gpu") == NodeMarkets()
    assert config.memory == "~/.spotray/launches.jsonl"
    assert isinstance(config.policy, SpotFirst)


def test_candidates_are_in_the_order_of_the_config_spot_first() -> None:
    markets = NodeMarkets(instance_types=("g6.xlarge", "g5.xlarge"))
    assert [str(one) for one in markets.candidates("aws", ("z1", "z2"), "g5.xlarge")] == [
        f"aws/{zone}/{kind}/{purchase}"
        for purchase in ("spot", "on-demand")
        for kind in ("g6.xlarge", "g5.xlarge")
        for zone in ("z1", "z2")
    ]


@pytest.mark.parametrize(
    ("given", "kinds"),
    [({}, {True, False}), ({"fallback": "wait"}, {True}), ({"spot": False}, {False})],
)
def test_the_purchase_kinds_are_those_that_the_user_allows(
    given: dict[str, Any], kinds: set[bool]
) -> None:
    config = LaunchConfig.parse({**AWS, "markets": {"gpu": given}}, cloud="aws")
    found = config.of("gpu").candidates("aws", ("us-west-2a",), "g5.xlarge")
    assert {market.spot for market in found} == kinds
    assert {market.instance_type for market in found} == {"g5.xlarge"}


def test_the_policy_gets_its_numbers() -> None:
    settings = {"name": "spot-first", "cooldown_s": 60, "guard_preemptions": 5}
    policy = LaunchConfig.parse({**AWS, "launch_policy": settings}, cloud="aws").policy
    assert isinstance(policy, SpotFirst)
    assert (policy.config.cooldown_s, policy.config.guard_preemptions) == (60, 5)


def test_a_policy_that_learns_is_chosen_by_its_name() -> None:
    settings = {"name": "expected-cost", "recovery_s": 600, "max_refusals": 2}
    policy = LaunchConfig.parse({**AWS, "launch_policy": settings}, cloud="aws").policy
    assert isinstance(policy, ExpectedCost)
    assert (policy.config.recovery_s, policy.config.max_refusals) == (600, 2)


def test_a_policy_may_read_a_book_which_the_controller_fills() -> None:
    given = {"name": "expected-cost", "start_s": 300, "book": "s3://bucket/hazards"}
    config = LaunchConfig.parse({**AWS, "launch_policy": given}, cloud="aws")
    assert isinstance(config.policy, LearnedCost)
    assert config.policy.config.start_s == 300
    assert config.book == "s3://bucket/hazards"
    assert LaunchConfig.parse(AWS, cloud="aws").book == ""


@pytest.mark.parametrize(
    ("wrong", "path", "words"),
    [
        ({"regoin": "us-west-2"}, "provider.regoin", "region"),
        ({"project_id": "p"}, "provider.project_id", "availability_zone"),
        ({"market": {}}, "provider.market", "markets"),
        ({"cache_stopped_nodes": True}, "provider.cache_stopped_nodes", "false"),
        ({"launch_memory": 3}, "provider.launch_memory", "file"),
        ({"markets": ["gpu"]}, "provider.markets", "write {NODE_TYPE"),
        ({"markets": {"gpu": "spot"}}, "provider.markets.gpu", "write {instance_types"),
        ({"markets": {"gpu": {"fallbck": "wait"}}}, "provider.markets.gpu.fallbck", "fallback"),
        ({"markets": {"gpu": {"fallback": "od"}}}, "provider.markets.gpu.fallback", "on-demand"),
        ({"markets": {"gpu": {"spot": "yes"}}}, "provider.markets.gpu.spot", "true or false"),
        (
            {"markets": {"gpu": {"spot": False, "fallback": "wait"}}},
            "provider.markets.gpu.fallback",
            "leave one",
        ),
        (
            {"markets": {"gpu": {"instance_types": "g5.xlarge"}}},
            "provider.markets.gpu.instance_types",
            "write [",
        ),
        (
            {"markets": {"gpu": {"instance_types": ["a", "a"]}}},
            "provider.markets.gpu.instance_types",
            "once",
        ),
        (
            {"markets": {"gpu": {"on_demand_floor": -1}}},
            "provider.markets.gpu.on_demand_floor",
            "whole",
        ),
        (
            {"markets": {"gpu": {"on_demand_floor": 1, "fallback": "wait"}}},
            "provider.markets.gpu.on_demand_floor",
            "leave one",
        ),
        ({"controller": "off"}, "provider.controller", "write {return_to_spot"),
        ({"controller": {"drain": 9}}, "provider.controller.drain", "drain_s"),
        ({"controller": {"drain_s": "9"}}, "provider.controller.drain_s", "write one"),
        ({"controller": {"drain_s": 0}}, "provider.controller.drain_s", "above 0"),
        ({"controller": {"return_to_spot": 1}}, "provider.controller.return_to_spot", "true"),
        ({"launch_policy": {"name": "greedy"}}, "provider.launch_policy", "spot-first"),
        ({"launch_policy": {"cooldwn_s": 1}}, "provider.launch_policy", "cooldown_s"),
        ({"launch_policy": {"cooldown_s": "1"}}, "provider.launch_policy", "above 0"),
        ({"launch_policy": "spot-first"}, "provider.launch_policy", "write {name"),
        (
            {"launch_policy": {"name": "expected-cost", "recovry_s": 1}},
            "provider.launch_policy",
            "recovery_s",
        ),
        (
            {"launch_policy": {"name": "expected-cost", "book": 3}},
            "provider.launch_policy",
            "write a path or a URL",
        ),
        (
            {"launch_policy": {"name": "spot-first", "book": "s3://b/hazards"}},
            "provider.launch_policy",
            "known are",
        ),
        (
            {"launch_policy": {"name": "expected-cost", "half_life_s": 0}},
            "provider.launch_policy",
            "above 0",
        ),
        (
            {"launch_policy": {"name": "expected-cost", "spot_price_frac": 1.5}},
            "provider.launch_policy",
            "at most 1",
        ),
    ],
)
def test_a_wrong_key_or_value_is_told_with_its_place_and_its_cure(
    wrong: dict[str, Any], path: str, words: str
) -> None:
    (problem,) = check_provider({**AWS, **wrong}, cloud="aws")
    assert problem.path == path
    assert words in problem.cure
    with pytest.raises(ConfigError, match=path.replace(".", r"\.")):
        LaunchConfig.parse({**AWS, **wrong}, cloud="aws")


def test_the_controller_gets_its_numbers_and_a_pool_its_floor() -> None:
    given = {"controller": {"drain_s": 60}, "markets": {"gpu": {"on_demand_floor": 2}}}
    config = LaunchConfig.parse({**AWS, **given}, cloud="aws")
    assert config.control == ControlConfig(drain_s=60)
    assert (config.of("gpu").on_demand_floor, config.of("other").on_demand_floor) == (2, 0)


def test_all_problems_are_told_at_once() -> None:
    wrong = {"zone": "a", "markets": {"gpu": {"typo": 1, "fallback": 2}}, "launch_policy": 3}
    with pytest.raises(ConfigError) as caught:
        LaunchConfig.parse({**AWS, **wrong}, cloud="aws")
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("markets", "words"),
    [
        ({"gpus": {}}, "worker types: gpu"),
        ({"head": {}}, "name worker types only"),
        ({"gpu": {"instance_types": ["g6.xlarge"]}}, "list it too"),
    ],
)
def test_markets_fit_the_node_types(markets: dict[str, Any], words: str) -> None:
    provider = {**AWS, "markets": markets}
    (problem,) = check_node_types(provider, NODE_TYPES, head_node_type="head")
    assert words in problem.cure


def test_markets_that_fit_are_no_problem() -> None:
    provider = {**AWS, "markets": {"gpu": {"instance_types": ["g6.xlarge", "g5.xlarge"]}}}
    assert not list(check_provider(provider, cloud="aws"))
    assert not list(check_node_types(provider, NODE_TYPES, head_node_type="head"))


def test_keys_that_ray_adds_for_itself_are_no_problem() -> None:
    told = {**AWS, "_config_cache_path": "/tmp/ray-config-0123"}
    assert list(check_provider(told, cloud="aws")) == []
