"""What the catalog says of AWS is what EC2 says, as moto has it stored."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest

from spotray.market import catalog


@pytest.fixture(scope="module")
def ec2() -> dict[str, Any]:
    stored = files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    types: dict[str, Any] = json.loads(gzip.decompress(stored))
    return types


def test_every_type_of_aws_is_as_ec2_describes_it(ec2: dict[str, Any]) -> None:
    compared = 0
    for name in catalog.names("aws"):
        if name not in ec2:  # retired, or newer than moto
            continue
        ours, theirs = catalog.find("aws", name), ec2[name]
        assert ours is not None
        gpus = theirs.get("GpuInfo", {}).get("Gpus", [])
        assert (ours.cpus, ours.memory_gib * 1024, ours.gpus, ours.gpu, ours.efa) == (
            theirs["VCpuInfo"]["DefaultVCpus"],
            theirs["MemoryInfo"]["SizeInMiB"],
            sum(one["Count"] for one in gpus),
            gpus[0]["Name"] if gpus else "",
            bool(theirs["NetworkInfo"].get("EfaSupported")) and bool(gpus),
        ), name
        compared += 1
    assert compared > 30


@pytest.mark.parametrize("family", ["g4dn", "g5", "g6", "g6e"])
def test_no_size_of_a_usual_family_is_left_out(ec2: dict[str, Any], family: str) -> None:
    sold = {name for name in ec2 if name.startswith(f"{family}.")}
    assert sold <= set(catalog.names("aws"))


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("T4", "g4dn.8xlarge"), ("A10G", "g5.8xlarge"), ("L4", "g6.8xlarge"), ("L40S", "g6e.8xlarge")],
)
def test_single_gpu_types_with_an_efa_begin_at_8xlarge(gpu: str, name: str) -> None:
    smallest = catalog.smallest_with_efa(gpu)
    assert smallest is not None
    assert smallest.name == name


def test_a_type_that_is_not_known_is_no_error() -> None:
    assert catalog.find("aws", "g99.huge") is None
    assert catalog.find("other", "g5.xlarge") is None
