"""The controller's way to end machines on Azure: Ray's own provider over an SDK in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.clock import SystemClock, wait_until
from spotray.cluster.ray_autoscaler.instances import Instances
from spotray.controller.__main__ import main
from tests.cluster.ray_autoscaler.azure_sdk import Azure, stands_for_sdk

FILE = Path(__file__).parents[2] / "cluster-configs" / "azure-nc-t4-spot.yaml"


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Azure:
    made = Azure()
    stands_for_sdk(made, monkeypatch)
    name = config()["cluster_name"]
    made.add("head", cluster=name, kind="head", node_type="head")
    made.add("worker-1", cluster=name, kind="worker", node_type="gpu")
    made.add("worker-2", cluster=name, kind="worker", node_type="gpu")
    made.add("stranger", cluster="other", kind="worker", node_type="gpu")
    return made


def config() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    read["provider"] |= {"subscription_id": "s", "unique_id": "u"}  # as `ray up` fills them in
    return read


def becomes_true(what: Callable[[], bool]) -> bool:
    return wait_until(what, timeout_s=30, clock=SystemClock(), poll_s=0.05)


def test_one_machine_is_ended_with_all_that_was_its_own(azure: Azure) -> None:
    Instances(config()).end("worker-1")
    others = {"head", "worker-2", "stranger"}
    # Ray's provider does it in a thread of its own.
    assert becomes_true(lambda: {one.rpartition("-")[0] for one in azure.left} == others)
    assert set(azure.machines) == others


def test_the_workers_of_this_cluster_go_down_and_nobody_else(azure: Azure) -> None:
    assert sorted(Instances(config()).end_workers()) == ["worker-1", "worker-2"]
    assert becomes_true(lambda: set(azure.machines) == {"head", "stranger"})


def test_a_head_that_would_leave_its_disk_behind_is_not_ended_from_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config()))
    words = ["--ray-address", "127.0.0.1:1", "--config", str(file), "--down-when-idle", "30"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--with-head"])
    assert ended.value.code == 2, "nothing starts it anew"
    assert "ray down" in capsys.readouterr().err
