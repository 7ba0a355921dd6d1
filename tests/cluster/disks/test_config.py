"""All that is wrong with a ``data_disk`` is told at once, each with its place and its cure."""

from __future__ import annotations

from typing import Any

import pytest

from spotray.cluster.disks.config import DataDisk, check_data_disk
from spotray.cluster.markets import LaunchConfig, check_provider


def paths(given: Any, cloud: str = "aws") -> list[str]:
    return [one.path for one in check_data_disk("d", given, cloud=cloud)]


def test_a_size_is_enough() -> None:
    given = {"size_gb": 200}
    assert paths(given) == []
    assert DataDisk.of(given, cloud="aws") == DataDisk(size_gb=200, type="gp3", mount="/data")
    assert DataDisk.of(given, cloud="gcp").type == "pd-balanced"


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (200, "d"),
        ({}, "d.size_gb"),
        ({"size_gb": 5}, "d.size_gb"),
        ({"size_gb": 99999}, "d.size_gb"),
        ({"size_gb": 200.5}, "d.size_gb"),
        ({"size_gb": True}, "d.size_gb"),
        ({"size_gb": 100, "type": "st1"}, "d.size_gb"),
        ({"size_gb": 200, "type": "pd-ssd"}, "d.type"),
        ({"size_gb": 200, "type": ["gp3"]}, "d.type"),
        ({"size_gb": 200, "type": "io2"}, "d.type"),
        ({"size_gb": 200, "mount": "data"}, "d.mount"),
        ({"size_gb": 200, "mount": "/"}, "d.mount"),
        ({"size_gb": 200, "mount": "/data/../etc"}, "d.mount"),
        ({"size_gb": 200, "mount": "/home/ubuntu"}, "d.mount"),
        ({"size_gb": 200, "mount": "/data; rm -rf /"}, "d.mount"),
        ({"size_gb": 200, "mount": 3}, "d.mount"),
        ({"size_gb": 200, "keep_hours": 0}, "d.keep_hours"),
        ({"size_gb": 200, "keep_hours": float("inf")}, "d.keep_hours"),
        ({"size_gb": 200, "keep_hours": True}, "d.keep_hours"),
        ({"size_gb": 200, "keep_after_down": "no"}, "d.keep_after_down"),
        ({"size_gb": 200, "sise": 1}, "d.sise"),
    ],
)
def test_what_is_wrong_is_told_by_its_place(given: Any, wrong: str) -> None:
    assert paths(given) == [wrong]


def test_all_problems_of_one_disk_come_at_once() -> None:
    assert paths({"type": "x", "mount": "", "y": 1}) == ["d.y", "d.type", "d.size_gb", "d.mount"]


def test_the_disk_of_a_type_of_google_is_checked_by_googles_types() -> None:
    assert paths({"size_gb": 200, "type": "pd-ssd"}, "gcp") == []
    assert paths({"size_gb": 200, "type": "gp3"}, "gcp") == ["d.type"]


def test_the_provider_reads_it_from_its_markets() -> None:
    provider = {"markets": {"gpu": {"data_disk": {"size_gb": 200}}, "cpu": {}}}
    config = LaunchConfig.parse(provider, cloud="aws")
    assert config.data_disks == {"gpu": DataDisk(size_gb=200, type="gp3")}
    provider["markets"]["gpu"]["data_disk"]["sise"] = 1
    (problem,) = check_provider(provider, cloud="aws")
    assert problem.path == "provider.markets.gpu.data_disk.sise"
