"""What the catalog says of AWS is what EC2 says, as moto has it stored."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest

from spotray.errors import ConfigError
from spotray.market import catalog

HEAD = "cloud,name,gpu,gpus,gpu_memory_gib,cpus,memory_gib,network,efa,source,date\n"


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
        if gpus:
            assert ours.gpu_memory_gib is not None
            memory_mib = gpus[0]["MemoryInfo"]["SizeInMiB"]
            assert ours.gpu_memory_gib * 1024 == pytest.approx(memory_mib, rel=0.01), name
        gigabit = theirs["NetworkInfo"]["NetworkPerformance"].replace("4x", "4 x")
        assert ours.network == gigabit.replace("Up", "up").replace("Gigabit", "Gb/s"), name
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


def test_every_type_says_where_it_was_read() -> None:
    for cloud in catalog.CLOUDS:
        for name in catalog.names(cloud):
            found = catalog.find(cloud, name)
            assert found is not None
            assert found.source, name
            assert found.date, name


def test_all_three_clouds_have_machines_with_one_and_with_several_gpus() -> None:
    for cloud in catalog.CLOUDS:
        counts = {catalog.find(cloud, name).gpus for name in catalog.names(cloud)}  # type: ignore[union-attr]
        assert {1, 2, 4} & counts >= {1, 4}, cloud
    assert {"T4", "L4", "A10G", "L40S", "V100", "A100", "H100"} <= set(catalog.gpus())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("ibm,t,T4,1,16,4,16,,no,,", "line 2: cloud is 'ibm'"),
        ("aws,,T4,1,16,4,16,,no,,", "line 2: aws ''"),
        ("aws,t,T4,1,16,4,16,,no,,\naws,t,T4,1,16,4,16,,no,,", "line 3: aws 't'"),
        ("aws,t,T4,1,16,four,16,,no,,", "line 2.*four"),
        ("aws,t,T4,1,16,0,16,,no,,", "line 2: t: 0 vCPUs"),
        ("aws,t,T4,1,-16,4,16,,no,,", "line 2: t: -16.0 GiB of GPU memory"),
        ("aws,t,,1,16,4,16,,no,,", "line 2: t: 1 GPUs of the kind ''"),
        ("aws,t,T4,1,16,4,16,,perhaps,,", "line 2: efa is 'perhaps'"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(row: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        catalog.parse(HEAD + row + "\n", name="types.csv")


def test_what_no_source_says_is_left_open() -> None:
    found = catalog.parse(HEAD + "aws,t,T4,1,,4,16,,no,,\n", name="types.csv")["aws"]["t"]
    assert (found.gpu_memory_gib, found.network) == (None, "")
