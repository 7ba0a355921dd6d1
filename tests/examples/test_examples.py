"""The examples run on a laptop as they stand, and stay short."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotray.ledger.sweep import SweepSummary, summarize_sweep
from spotray.ledger.sweepdir import load_sweep

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MOST_LINES = 80


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_it_is_run(example: Path) -> None:
    text = example.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    told = ast.get_docstring(ast.parse(text)) or ""
    assert f"python examples/{example.name}" in told


def run(example: str, *arguments: str) -> str:
    """What an example prints, in a process of its own, on a Ray of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SPOTRAY_"))}
    ended = subprocess.run(
        [sys.executable, f"examples/{example}", *arguments],
        cwd=ROOT,
        env=kept | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def sweep(folder: Path) -> SweepSummary:
    return summarize_sweep(load_sweep(folder))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tune_vit_finds_a_learning_rate_and_resumes_what_has_ended(tmp_path: Path) -> None:
    small = ("--trials", "3", "--epochs", "2", "--storage", str(tmp_path))
    told = run("tune_vit.py", *small)
    found = re.search(r"best accuracy (\d\.\d+) with .*\nweights: (\S+)", told)
    assert found is not None, told
    first = sweep(tmp_path / "vit")
    assert len(first.trials) == 3
    assert not {trial.state for trial in first.trials} & {"running", "failed"}
    best = max(trial.metric or 0.0 for trial in first.trials)
    assert float(found[1]) == pytest.approx(best, abs=0.001)
    assert Path(found[2]).is_dir()
    # Nothing is left to do: the same answer comes at once, and no trial is trained again.
    assert run("tune_vit.py", *small, "--resume").endswith(found[0] + "\n")
    again = sweep(tmp_path / "vit")
    assert [trial.goodput.useful_s for trial in again.trials] == [
        trial.goodput.useful_s for trial in first.trials
    ]
