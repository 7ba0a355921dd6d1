"""What has to be there before `ray up` is read out of the YAML, and made once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from moto import mock_aws

from spotray.cluster.prepare import needs_of, prepare
from spotray.cluster.presets import preset
from spotray.cluster.render import render
from spotray.errors import ConfigError


def config_of(name: str) -> dict[str, Any]:
    spec = preset(name)
    storage = spec.storage.replace("my-bucket", "vit-runs")
    text = render(dataclasses.replace(spec, storage=storage), made_by="a test", file="x.yaml")
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def test_a_cluster_with_an_efa_needs_roles_a_bucket_and_a_group() -> None:
    needs = needs_of(config_of("aws-g6-efa"))
    assert (needs.head_profile, needs.worker_profile) == ("spotray-head", "spotray-worker")
    assert needs.buckets == ("vit-runs",)
    assert needs.placement_groups == ("spotray-aws-g6-efa",)


def test_profiles_of_the_users_own_are_left_alone() -> None:
    config = config_of("aws-g5-spot")
    for one in config["available_node_types"].values():
        one["node_config"]["IamInstanceProfile"] = {"Name": "theirs"}
    needs = needs_of(config)
    assert (needs.head_profile, needs.worker_profile) == (None, None)
    assert list(prepare(needs)) == []


def test_a_placeholder_is_no_bucket() -> None:
    text = render(preset("aws-g5-spot"), made_by="a test", file="x.yaml")
    with pytest.raises(ConfigError, match="--storage"):
        needs_of(yaml.safe_load(text))


def test_a_cluster_with_data_disks_needs_rights_for_them() -> None:
    config = config_of("aws-g5-spot")
    assert not needs_of(config).data_disks
    config["provider"]["markets"]["gpu"]["data_disk"] = {"size_gb": 200}
    assert needs_of(config).data_disks


@pytest.mark.parametrize(
    "config", [{}, [], {"provider": {"type": "gcp"}}, config_of("gcp-l4-spot")]
)
def test_other_clouds_need_nothing(config: Any) -> None:
    with pytest.raises(ConfigError, match="AWS"):
        needs_of(config)


def test_preparing_makes_the_roles_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        told = list(prepare(needs_of(config_of("aws-g5-spot"))))
    assert "role spotray-head made" in told
    assert "role spotray-worker may use s3://vit-runs" in told
