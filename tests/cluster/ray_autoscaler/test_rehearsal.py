"""The rehearsal leans on private parts of Ray, and stays in a process of its own."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from spotray.cluster.ray_autoscaler.rehearsal import is_possible, rehearse
from spotray.cluster.ray_autoscaler.schema import schema_errors


def test_ray_still_has_what_the_rehearsal_leans_on() -> None:
    from ray.autoscaler._private import providers, util
    from ray.autoscaler._private.aws import config, node_provider, utils

    assert list(inspect.signature(util.prepare_config).parameters) == ["config"]
    assert list(inspect.signature(util.validate_config).parameters) == ["config"]
    assert callable(providers._get_node_provider_cls)
    assert callable(providers._get_node_provider)
    for cached in (utils.resource_cache, utils.client_cache, config._get_subnets_or_die):
        assert callable(cached.cache_clear)
    assert list(inspect.signature(node_provider.list_ec2_instances).parameters) == [
        "region",
        "aws_credentials",
    ]
    assert config.time.sleep  # what waits for IAM


@pytest.mark.slow
def test_nothing_is_left_in_the_home_folder_nor_asked_of_a_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # would fail if it were asked
    node = {"node_config": {"InstanceType": "m6i.large", "ImageId": "ami-12345678"}}
    (outcome,) = rehearse(
        [
            {
                "cluster_name": "x",
                "provider": {"type": "aws", "region": "us-east-2"},
                "head_node_type": "head",
                "available_node_types": {"head": node},
            }
        ]
    )
    assert outcome.failed_at == "", outcome.why
    assert outcome.launched["head"].endswith("/m6i.large/on-demand")
    assert list(tmp_path.iterdir()) == []


def test_what_it_needs_is_installed_where_tests_run() -> None:
    assert is_possible()


def test_rays_schema_is_asked_for_all_errors_at_once() -> None:
    found = {
        path: rule
        for path, rule, _, _ in schema_errors(
            {
                "cluster_name": 3,
                "provider": {"type": "aws"},
                "nonsense": 1,
                "available_node_types": {"a": {"node_config": {}, "max_worker": 1}},
            }
        )
    }
    assert found == {
        "cluster_name": "type",
        "nonsense": "additionalProperties",
        "available_node_types.a.max_worker": "additionalProperties",
    }
