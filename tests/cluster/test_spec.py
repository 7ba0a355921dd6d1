"""A spec cannot be wrong: everything that would make it so is told, at once."""

from __future__ import annotations

import dataclasses

import pytest

from spotray.cluster.presets import PRESETS, preset
from spotray.cluster.spec import ClusterSpec, WorkerSpec, read_toml
from spotray.errors import ConfigError

GOOD = """
name = "vit"
cloud = "aws"
region = "us-west-2"
zones = ["us-west-2a", "us-west-2b"]
storage = "s3://bucket/runs"

[head]
instance_type = "m6i.large"

[workers.gpu]
instance_types = ["g5.xlarge", "g5.2xlarge"]
"""


def paths(text: str) -> list[str]:
    return [one.path for one in read_toml(text)[1]]


def test_a_document_becomes_a_spec_with_defaults_for_the_rest() -> None:
    spec = ClusterSpec.from_toml(GOOD)
    (gpu,) = spec.workers
    assert (gpu.name, gpu.purchase, gpu.fallback) == ("gpu", "spot", "on-demand")
    assert spec.zones == ("us-west-2a", "us-west-2b")
    assert spec.max_workers == 4


def test_every_preset_has_the_name_that_it_is_listed_under() -> None:
    assert {name: spec.name for name, spec in PRESETS.items()} == {name: name for name in PRESETS}
    from spotray.cluster.presets import _all

    assert [one.name for one in _all()] == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_spec_comes_back_from_its_document(name: str) -> None:
    assert ClusterSpec.from_toml(PRESETS[name].to_toml()) == PRESETS[name]


def test_a_whole_number_is_a_number() -> None:
    assert ClusterSpec.from_toml("idle_minutes = 20\n" + GOOD).idle_minutes == 20.0


def test_a_typo_names_the_key_that_was_meant() -> None:
    _, (problem,) = read_toml(GOOD.replace("[workers.gpu]", "[workers.gpu]\nmax_worker = 3"))
    assert problem.path == "workers.gpu.max_worker"
    assert problem.cure == "did you mean max_workers?"


def test_everything_wrong_is_told_at_once() -> None:
    text = """
name = "VIT"
cloud = "asw"
zone = ["us-west-2a"]
storage = "bucket/runs"
idle_minutes = 0
[workers.gpu]
instance_types = "g5.xlarge"
min_workers = 5
"""
    assert set(paths(text)) == {
        "name",
        "cloud",
        "region",
        "zone",
        "zones",
        "storage",
        "idle_minutes",
        "head.instance_type",
        "workers.gpu.instance_types",
        "workers.gpu.min_workers",
    }


@pytest.mark.parametrize(
    ("change", "path", "cure"),
    [
        (('"us-west-2b"', '"us-east-1b"'), "zones", "us-west-2a"),
        (('"us-west-2b"', '"us-west-2a"'), "zones", "once"),
        (('"g5.xlarge", "g5.2xlarge"', '"m6i.large"'), "workers.gpu.instance_types", "g5.xlarge"),
        (('"g5.2xlarge"', '"g5.12xlarge"'), "workers.gpu.instance_types", "a pool of each"),
        (("m6i.large", "g5.xlarge"), "head.instance_type", "without"),
        (("s3://bucket/runs", "bucket/runs"), "storage", "s3://BUCKET/PATH"),
        (("[workers.gpu]", "[workers.head]"), "workers.head", "another name"),
        (("[workers.gpu]", "[workers.gpu]\ndisk_gib = 10"), "workers.gpu.disk_gib", "50"),
        (("[workers.gpu]", "[workers.gpu]\npreemptible = true"), "workers.gpu.preemptible", "out"),
        (("[head]", 'provider = "ray"\n[head]'), "workers.gpu.instance_types", "spotray"),
    ],
)
def test_a_wrong_value_is_named_with_its_cure(
    change: tuple[str, str], path: str, cure: str
) -> None:
    problems = read_toml(GOOD.replace(*change))[1]
    assert [one for one in problems if one.path == path and cure in one.cure], problems


def test_an_efa_wants_a_large_type_one_zone_and_its_ids() -> None:
    problems = read_toml(GOOD.replace("[workers.gpu]", "[workers.gpu]\nefa = true"))[1]
    told = {one.path: one.cure for one in problems}
    assert set(told) == {
        "zones",
        "workers.gpu.instance_types",
        "workers.gpu.subnet_id",
        "workers.gpu.security_group_id",
    }
    assert "g5.8xlarge" in told["workers.gpu.instance_types"]


def test_a_gcp_machine_without_a_gpu_of_its_own_takes_an_accelerator() -> None:
    spec = preset("gcp-t4-spot")
    bare = dataclasses.replace(spec.workers[0], accelerator="")
    with pytest.raises(ConfigError, match="nvidia-tesla-t4"):
        dataclasses.replace(spec, workers=(bare,))


def test_rays_provider_for_gcp_is_given_one_zone() -> None:
    with pytest.raises(ConfigError, match="one zone"):
        dataclasses.replace(preset("gcp-l4-spot"), provider="ray")


def test_a_word_that_the_types_forbid_is_refused_at_run_time_too() -> None:
    worker = WorkerSpec(name="gpu", instance_types=("g5.xlarge",), purchase="sopt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"workers\.gpu\.purchase"):
        dataclasses.replace(preset("aws-g5-spot"), workers=(worker,))


def test_what_is_no_toml_is_one_problem() -> None:
    assert paths("name = ") == ["(file)"]
    assert paths("workers = 3") != []


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("data_disk_gb = 200", []),
        ("data_disk_gb = 5", ["workers.gpu.data_disk_gb"]),
        ('data_disk_gb = 200\ndata_disk_type = "pd-ssd"', ["workers.gpu.data_disk_type"]),
        ('data_disk_gb = 200\nmount = "data"', ["workers.gpu.mount"]),
    ],
)
def test_a_data_disk_is_checked_with_the_pool(lines: str, wrong: list[str]) -> None:
    assert paths(GOOD + lines) == wrong


def test_only_googles_spot_nodes_are_started_again() -> None:
    assert paths(GOOD + 'reuse = "boot"') == ["workers.gpu.reuse"]
    assert paths(GOOD + 'reuse = "disk"') == ["workers.gpu.reuse"]
    spec = preset("gcp-l4-spot")
    (gpu,) = spec.workers
    again = dataclasses.replace(spec, workers=(dataclasses.replace(gpu, reuse="boot"),))
    assert ClusterSpec.from_toml(again.to_toml()) == again


def test_rays_own_provider_has_no_data_disks() -> None:
    text = GOOD.replace('"g5.xlarge", "g5.2xlarge"', '"g5.xlarge"') + "data_disk_gb = 200\n"
    assert paths('provider = "ray"\n' + text) == ["workers.gpu.data_disk_gb"]


def test_data_disks_of_all_pools_are_in_one_place() -> None:
    pools = [
        WorkerSpec(name=name, instance_types=("g5.xlarge",), data_disk_gb=200, mount=f"/{name}")
        for name in ("gpu", "other")
    ]
    with pytest.raises(ConfigError, match="/gpu and /other"):
        dataclasses.replace(preset("aws-g5-spot"), workers=tuple(pools))
