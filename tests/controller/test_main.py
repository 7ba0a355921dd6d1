from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotray.controller.__main__ import main

ADDRESS = ["--ray-address", "127.0.0.1:6379"]


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [*ADDRESS, "--down-when-idle", "0"],
        [*ADDRESS, "--down-when-idle", "soon"],
        [*ADDRESS, "--with-head"],
    ],
)
def test_wrong_usage_ends_with_2_so_that_nothing_starts_it_anew(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "No such file"), ("[1]", "no config of a cluster"), ("{", "ray up")],
)
def test_a_config_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    path = tmp_path / "cluster.yaml"
    if text is not None:
        path.write_text(text)
    assert main([*ADDRESS, "--config", str(path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("spotray.controller: ")
    assert words in told


def test_it_tells_what_it_takes() -> None:
    command = [sys.executable, "-m", "spotray.controller", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--down-when-idle MIN" in shown


_BREAKS = """
import sys
from spotray.controller import __main__ as controller

def work(self):
    raise KeyError("no credentials")

controller._Service._work = work
sys.exit(controller.main(sys.argv[1:]))
"""


def test_a_controller_that_breaks_ends_with_1_so_that_it_is_started_anew(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("provider: {type: aws, region: us-west-2}\navailable_node_types: {}\n")
    command = [sys.executable, "-c", _BREAKS, *ADDRESS, "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "the controller ended" in done.stderr
    assert "no credentials" in done.stderr
