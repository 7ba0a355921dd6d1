"""`ray up` and `ray down` for Compute Engine, against Google's API on loopback.

Only the way onto a machine is another: `ssh` and `rsync` on the PATH write down what they
were asked, and keep the files.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.cluster.presets import preset
from spotray.cluster.render import render
from tests.cluster.emulated_gce import REGION, STOCK_OUT, market, worker_labels
from tests.cluster.gce_server import PROJECT, GceServer

ROOT = Path(__file__).parents[2]
ACCOUNT = f"ray-autoscaler-sa-v1@{PROJECT}.iam.gserviceaccount.com"

_STAND_IN = """#!{python}
import json, pathlib, shutil, sys
home = pathlib.Path(__file__).parent
with (home / "said.jsonl").open("a") as said:
    said.write(json.dumps(sys.argv) + "\\n")
if sys.argv[0].endswith("rsync"):
    source, target = sys.argv[-2:]
    if ":" in target and pathlib.Path(source).is_file():
        shutil.copy(source, home / target.rpartition("/")[2])
"""


class Laptop:
    """A home, and ways onto the machines that lead nowhere."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.bin = folder / "home", folder / "bin"
        self.home.mkdir()
        self.bin.mkdir()
        for name in ("ssh", "rsync"):
            file = self.bin / name
            file.write_text(_STAND_IN.format(python=sys.executable))
            file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.chdir(ROOT)

    def said(self) -> list[list[str]]:
        """What `ssh` and `rsync` were asked since the last look."""
        file = self.bin / "said.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GceServer]:
    from ray.autoscaler._private import providers

    with GceServer() as server:
        server.serve_google(monkeypatch)
        yield server
    providers._clear_provider_cache()


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    return Laptop(tmp_path, monkeypatch)


def written(tmp_path: Path, **provider: Any) -> Path:
    text = render(preset("gcp-l4-spot"), made_by="a test", file="x.yaml")
    config = yaml.safe_load(text.replace("my-project", PROJECT).replace(",us-central1-f", ""))
    config["provider"] |= {
        "gcp_credentials": {"type": "credentials_token", "credentials": "x"},
        "launch_memory": str(tmp_path / "launches.jsonl"),
        **provider,
    }
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def ray_up(file: Path) -> None:
    from ray.autoscaler._private.commands import create_or_update_cluster

    create_or_update_cluster(
        config_file=str(file),
        override_min_workers=None,
        override_max_workers=None,
        no_restart=False,
        restart_only=False,
        yes=True,
        no_config_cache=True,
        redirect_command_output=False,
        use_login_shells=True,
    )


def ray_down(file: Path) -> None:
    from ray.autoscaler._private.commands import teardown_cluster

    teardown_cluster(
        config_file=str(file),
        yes=True,
        workers_only=False,
        override_cluster_name=None,
        keep_min_workers=False,
    )


def on_the_head(laptop: Laptop) -> dict[str, Any]:
    """The config that the head's autoscaler would read."""
    (file,) = laptop.bin.glob("ray_bootstrap_config*")
    config: dict[str, Any] = json.loads(file.read_text())
    return config


def provider_of(config: dict[str, Any]) -> Any:
    from ray.autoscaler._private.providers import _get_node_provider

    return _get_node_provider(config["provider"], config["cluster_name"], use_cache=False)


@pytest.mark.slow
def test_a_cluster_comes_up_takes_workers_and_goes_down_without_a_trace(
    google: GceServer, laptop: Laptop, tmp_path: Path
) -> None:
    file = written(tmp_path)
    google.gce.refuses[market("a", kind="n2-standard-2", spot=False)] = STOCK_OUT
    ray_up(file)

    (name,) = google.gce.machines
    head = google.gce.machines[name]
    assert head["zone"].endswith("/us-central1-b"), "the first zone with room for it"
    assert head["labels"]["ray-node-status"] == "up-to-date"
    assert head["serviceAccounts"][0]["email"] == ACCOUNT
    assert head["networkInterfaces"][0]["subnetwork"].endswith(f"{REGION}/subnetworks/default")
    assert head["scheduling"].get("provisioningModel") is None
    roles = {
        one["role"] for one in google.bindings if f"serviceAccount:{ACCOUNT}" in one["members"]
    }
    assert "roles/compute.admin" in roles
    (keys,) = (one["value"] for one in google.metadata["items"] if one["key"] == "ssh-keys")
    assert keys.startswith("ubuntu:ssh-rsa ")
    commands = [argv[-1] for argv in laptop.said() if argv[0].endswith("ssh")]
    (start,) = (one for one in commands if "ray start --head" in one)
    assert "ray.io/market-type" in start
    assert "on-demand" in start

    # What the head's autoscaler does with the config that it was given.
    config = on_the_head(laptop)
    provider = provider_of(config)
    labels = {**worker_labels(), "ray-launch-config": "x"}
    gpu = config["available_node_types"]["gpu"]["node_config"]
    google.gce.refuses[market("a")] = STOCK_OUT
    google.gce.asked()
    made = provider.create_node(gpu, labels, 2)
    assert google.gce.asked() == [market("a")] * 2 + [market("b")] * 2
    assert len(made) == 2
    provider.set_node_tags(next(iter(made)), {"ray-node-status": "setting-up"})
    assert google.gce.machines[next(iter(made))]["labels"]["ray-node-status"] == "setting-up"
    assert set(provider.non_terminated_nodes({})) == {name, *made}
    assert provider.non_terminated_nodes({"ray-node-type": "head"}) == [name]
    taken = next(iter(made))
    google.gce.take(taken)
    assert taken not in provider.non_terminated_nodes({})

    ray_up(file)  # again: nothing new, nothing ended
    assert set(google.gce.machines) == {name, *made} - {taken}
    ray_down(file)
    assert google.gce.machines == {}
    assert any("ray stop" in argv[-1] for argv in laptop.said())
    assert google.unanswered == []


@pytest.mark.slow
def test_a_head_that_no_zone_has_is_one_line_and_leaves_nothing(
    google: GceServer, laptop: Laptop, tmp_path: Path
) -> None:
    import click

    for zone in "abc":
        google.gce.refuses[market(zone, kind="n2-standard-2", spot=False)] = STOCK_OUT
    with pytest.raises(click.ClickException, match="the head cannot be launched") as caught:
        ray_up(written(tmp_path))
    assert len(caught.value.message.splitlines()) == 1
    assert all(f"us-central1-{zone}" in caught.value.message for zone in "abc")
    assert google.gce.machines == {}
    assert laptop.said() == []
