"""`ray up` itself, where it cannot work: one line, not a hundred. Nothing is asked of a cloud."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray.autoscaler._private import commands

CONFIGS = Path(__file__).parents[2] / "cluster-configs"


def test_ray_still_swallows_what_a_provider_raises_while_it_fills_out() -> None:
    source = inspect.getsource(commands._bootstrap_config)
    filled = source.index("fillout_available_node_types_resources(config)")
    assert "except Exception as exc" in source[filled : filled + 200], "UpRefused may be an error"


def ray_up(name: str, tmp_path: Path) -> list[str]:
    """What it says beside its log, on a laptop without any credentials."""
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    without_mounts, _, rest = text.partition("file_mounts:")
    file = tmp_path / "cluster.yaml"
    file.write_text(without_mounts + rest.partition("rsync_exclude")[2].partition("\n")[2])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GOOGLE_", "RAY_"))}
    none = str(tmp_path / "none")
    lacking = {
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": none,
        "AWS_SHARED_CREDENTIALS_FILE": none,
        "GOOGLE_APPLICATION_CREDENTIALS": none,
    }
    done = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", "up", "-y", str(file)],
        env=kept | lacking,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    said = (done.stdout + done.stderr).splitlines()
    assert not [line for line in said if line.startswith("Traceback")], said
    return [line for line in said if line and " -- " not in line and "legacy field" not in line]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aws-g5-spot", "no credentials that AWS takes"),
        ("gcp-l4-spot", "gcloud auth application-default login"),
    ],
)
def test_without_credentials_a_cluster_does_not_come_up_and_one_line_says_why(
    name: str, words: str, tmp_path: Path
) -> None:
    assert words in ray_up(name, tmp_path)[-1]
