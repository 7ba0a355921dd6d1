"""`spotray cluster disks` shows what a cluster's disks cost, and deletes no other ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from spotray.cli.main import main
from spotray.cloud.aws.disks import EbsDisks
from spotray.cloud.disks import Disk, DiskWish
from tests.cluster.emulated_ec2 import REGION, EmulatedEC2, emulated_ec2


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    with emulated_ec2(monkeypatch) as emulated:
        yield emulated


def make(slot: str = "gpu-0", cluster: str = "vit") -> Disk:
    wish = DiskWish(cluster=cluster, zone=f"{REGION}a", slot=slot, size_gib=200, type="gp3")
    return EbsDisks(REGION).make(wish)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_list_tells_size_age_and_cost(
    ec2: EmulatedEC2, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = make()
    make(cluster="other")
    assert main(["cluster", "disks", "list", "vit", "--region", REGION]) == 0
    out = told(capsys)
    assert "$16.00 a month in all" in out
    assert f"{disk.disk_id} gpu-0 {REGION}a 200 GiB gp3 unused for 0.0 h $16.00" in out
    assert out.count("vol-") == 1


def test_a_list_can_be_read_by_a_script(
    ec2: EmulatedEC2, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = make()
    assert main(["cluster", "disks", "list", "vit", "--region", REGION, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["disk"]["disk_id"] == disk.disk_id
    assert one["usd_per_month"] == 16.0


def test_a_yaml_says_where_its_disks_are(
    ec2: EmulatedEC2, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = make()
    config = {"cluster_name": "vit", "provider": {"type": "aws", "region": REGION}}
    file = tmp_path / "vit.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main(["cluster", "disks", "list", str(file)]) == 0
    assert disk.disk_id in told(capsys)


def test_the_credentials_of_a_yaml_are_those_that_are_used(
    ec2: EmulatedEC2,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import boto3

    disk = make()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    provider = {"type": "aws", "region": REGION}
    file = tmp_path / "vit.yaml"
    file.write_text(yaml.safe_dump({"cluster_name": "vit", "provider": provider}))
    assert main(["cluster", "disks", "list", str(file)]) == 1
    assert "credentials" in capsys.readouterr().err
    own = {"aws_access_key_id": "of-the-yaml", "aws_secret_access_key": "x"}
    provider |= {"aws_credentials": own}  # type: ignore[dict-item]
    file.write_text(yaml.safe_dump({"cluster_name": "vit", "provider": provider}))
    assert main(["cluster", "disks", "list", str(file)]) == 0
    assert disk.disk_id in told(capsys)


def test_deleting_leaves_the_disks_of_other_clusters_and_of_nodes(
    ec2: EmulatedEC2, capsys: pytest.CaptureFixture[str]
) -> None:
    import boto3

    free, theirs, used = make("gpu-0"), make(cluster="other"), make("gpu-1")
    client = boto3.client("ec2", REGION)
    conf = ec2.node_config(zones=(f"{REGION}a",))
    started = client.run_instances(
        ImageId=conf["ImageId"], SubnetId=conf["SubnetIds"][0], MinCount=1, MaxCount=1
    )
    node = started["Instances"][0]["InstanceId"]
    EbsDisks(REGION).attach(used, node)
    assert main(["cluster", "disks", "delete", "vit", "--region", REGION, "--yes"]) == 0
    out = told(capsys)
    assert f"{free.disk_id} deleted" in out
    assert f"{used.disk_id} stays: {node} has it" in out
    left = {disk.disk_id for name in ("vit", "other") for disk in EbsDisks(REGION).listed(name)}
    assert left == {theirs.disk_id, used.disk_id}


def test_young_disks_can_be_spared(ec2: EmulatedEC2, capsys: pytest.CaptureFixture[str]) -> None:
    make()
    command = ["cluster", "disks", "delete", "vit", "--region", REGION, "--yes"]
    assert main([*command, "--unused-hours", "1"]) == 0
    assert "nothing to delete" in told(capsys)
    assert len(EbsDisks(REGION).listed("vit")) == 1


def test_nothing_is_deleted_where_nobody_can_be_asked(
    ec2: EmulatedEC2, capsys: pytest.CaptureFixture[str]
) -> None:
    make()
    assert main(["cluster", "disks", "delete", "vit", "--region", REGION]) == 1
    assert "--yes" in capsys.readouterr().err
    assert len(EbsDisks(REGION).listed("vit")) == 1


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["vit"], "--region"),
        (["none.yaml"], "there is no none.yaml"),
    ],
)
def test_a_cluster_that_cannot_be_found_is_told_with_a_cure(
    words: list[str], cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "disks", "list", *words]) == 1
    assert cure in capsys.readouterr().err


def test_a_yaml_of_another_cloud_has_no_disks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump({"cluster_name": "x", "provider": {"type": "azure"}}))
    assert main(["cluster", "disks", "list", str(file)]) == 1
    assert "AWS and GCP only" in capsys.readouterr().err
