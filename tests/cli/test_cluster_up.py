"""`spotray cluster up` and `down` say what they must to a child that is called ray."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from spotray.cli.main import main
from spotray.cloud.aws.disks import EbsDisks
from spotray.cloud.disks import DiskWish
from tests.cluster.emulated_ec2 import REGION, EmulatedEC2, emulated_ec2

ROOT = Path(__file__).parents[2]
RAY = """
import json, os, sys
from pathlib import Path
folder = Path(__file__).parents[2]
print("this is ray", sys.argv[1], flush=True)
(folder / "said.json").write_text(json.dumps(sys.argv[1:]))
sys.exit(int((folder / "code").read_text()))
"""


class FakeRay:
    """What `python -m ray.scripts.scripts` is for children; it ends with ``code``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        scripts = folder / "ray" / "scripts"
        scripts.mkdir(parents=True)
        for package in (scripts.parent, scripts):
            (package / "__init__.py").touch()
        (scripts / "scripts.py").write_text(RAY)
        self.code(0)

    def code(self, code: int) -> None:
        (self._folder / "code").write_text(str(code))

    @property
    def said(self) -> list[str] | None:
        """What the last child was told; None: there was none."""
        file = self._folder / "said.json"
        found: list[str] | None = json.loads(file.read_text()) if file.exists() else None
        return found


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    folder = tmp_path / "path"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    return FakeRay(folder)


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    monkeypatch.chdir(ROOT)
    with emulated_ec2(monkeypatch) as emulated:
        yield emulated


@pytest.fixture
def file(tmp_path: Path, ec2: EmulatedEC2) -> str:
    made = str(tmp_path / "x.yaml")
    words = ["aws", "g5", "spot", "--storage", "s3://runs/vit", "--data-disk", "20"]
    assert main(["cluster", "new", *words, "-o", made]) == 0
    return made


def changed(file: str, **more: Any) -> None:
    config = yaml.safe_load(Path(file).read_text())
    Path(file).write_text(yaml.safe_dump(config | more))


def roles() -> set[str]:
    return {one["RoleName"] for one in boto3.client("iam").list_roles()["Roles"]}


def test_up_prepares_the_account_and_ends_as_ray_up_does(
    file: str, ray: FakeRay, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "up", "-y", file]) == 0
    assert ray.said == ["up", "-y", file]
    assert {"spotray-head", "spotray-worker"} <= roles()
    out = capfd.readouterr().out
    assert out.index("role spotray-head made") < out.index("this is ray up")

    ray.code(3)
    assert main(["cluster", "up", file]) == 3
    assert ray.said == ["up", file]
    assert f"spotray cluster down {file}" in capfd.readouterr().err


def test_up_refuses_a_wrong_file_before_anything_is_made(
    file: str, ray: FakeRay, capfd: pytest.CaptureFixture[str]
) -> None:
    changed(file, head_node_type="haed")
    assert main(["cluster", "up", "-y", file]) == 1
    assert f"{file}: head_node_type: 'haed' is none of" in capfd.readouterr().err
    assert ray.said is None
    assert roles() == set()
    assert main(["cluster", "up", "-y", "--no-check", file]) == 0
    assert ray.said == ["up", "-y", file]


def test_up_for_another_cloud_has_nothing_to_prepare(tmp_path: Path, ray: FakeRay) -> None:
    made = str(tmp_path / "x.yaml")
    assert main(["cluster", "new", "gcp-l4-spot", "--project", "p", "-o", made]) == 0
    assert main(["cluster", "up", "-y", made]) == 0
    assert ray.said == ["up", "-y", made]


def test_down_deletes_what_ray_down_leaves(
    file: str, ray: FakeRay, capfd: pytest.CaptureFixture[str]
) -> None:
    wish = DiskWish(cluster="aws-g5-spot", zone=f"{REGION}a", slot="gpu-0", size_gib=20, type="gp3")
    disk = EbsDisks(REGION).make(wish)
    ray.code(1)
    assert main(["cluster", "down", file]) == 1
    assert EbsDisks(REGION).listed("aws-g5-spot")
    assert "nothing else was deleted" in capfd.readouterr().err

    ray.code(0)
    assert main(["cluster", "down", "-y", file]) == 0
    assert ray.said == ["down", "-y", file]
    assert EbsDisks(REGION).listed("aws-g5-spot") == []
    assert f"disk {disk.disk_id} deleted" in capfd.readouterr().out


def test_a_file_that_is_not_there_is_one_line_and_no_child(
    ray: FakeRay, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in ("up", "down"):
        assert main(["cluster", command, "/no/such/file"]) == 1
        assert "/no/such/file" in capfd.readouterr().err
    assert ray.said is None
