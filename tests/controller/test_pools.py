from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.controller.pools import ClusterPools
from spotray.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "cluster-configs"


def config(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    return read


def test_a_pool_knows_its_markets_and_its_room() -> None:
    cluster = ClusterPools.of(config("aws-g5-spot"))
    (pool,) = cluster.pools.values()
    assert (cluster.cloud, pool.name, pool.max_workers) == ("aws", "gpu", 5)
    assert str(pool.candidates[0]) == "aws/us-west-2a/g5.xlarge/spot"
    assert {market.spot for market in pool.candidates} == {True, False}
    assert math.isinf(pool.lifetime_s)


def test_a_pool_that_is_on_demand_has_no_spot_to_return_to() -> None:
    pools = ClusterPools.of(config("aws-mixed")).pools
    assert not any(market.spot for market in pools["steady"].candidates)
    assert any(market.spot for market in pools["spot"].candidates)


def test_a_preemptible_pool_has_a_day() -> None:
    cluster = ClusterPools.of(config("gcp-t4-preemptible"))
    (pool,) = cluster.pools.values()
    assert (pool.lifetime_s, pool.candidates) == (86400.0, ())
    assert cluster.instance_types == {"head": "n2-standard-2", "gpu": "n1-standard-8"}
    assert cluster.added == {"head": "", "gpu": "+nvidia-tesla-t4"}
    assert cluster.region == "us-central1"
    assert math.isinf(ClusterPools.of(config("gcp-t4-spot")).pools["gpu"].lifetime_s)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_rendered_cluster_can_be_controlled(name: str) -> None:
    given = config(name)
    given["provider"]["_config_cache_path"] = "as `ray up` adds it"
    cluster = ClusterPools.of(given)
    assert cluster.pools.keys() == given["available_node_types"].keys() - {"head"}


def test_what_it_does_not_know_is_told() -> None:
    given = config("aws-g5-spot")
    given["provider"]["controller"] = {"drain": 3}
    with pytest.raises(ConfigError, match=r"provider\.controller\.drain"):
        ClusterPools.of(given)
    with pytest.raises(ConfigError, match="kuberay"):
        ClusterPools.of({"provider": {"type": "kuberay"}})
