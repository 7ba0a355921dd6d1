from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.sim.named import POLICIES, policy

MINE = """
from spotray.policy.job import Choice, JobDecision

class Waits:
    def begin(self, job):
        return self
    def decide(self, view):
        return JobDecision(choice=Choice.WAIT, why="mine")

waits = Waits()
number = lambda: 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_own_policies.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_own_policies", raising=False)
    return "my_own_policies"


@pytest.mark.parametrize("name", POLICIES)
def test_each_known_policy_has_a_file_of_its_name(name: str) -> None:
    assert type(policy(name)).__module__ == f"spotray.policy.{name.replace('-', '_')}"


@pytest.mark.parametrize("attribute", ["Waits", "waits"])
def test_a_dotted_name_is_the_users_own_class_or_object(own: str, attribute: str) -> None:
    assert type(policy(f"{own}.{attribute}")).__name__ == "Waits"


def test_a_name_that_is_no_policy_is_one_line_with_the_cure(own: str) -> None:
    with pytest.raises(ConfigError, match="did you mean 'greedy'"):
        policy("gready")
    with pytest.raises(ConfigError, match="has no attribute 'Nobody'"):
        policy(f"{own}.Nobody")
    with pytest.raises(ConfigError, match="No module named 'nowhere'"):
        policy("nowhere.Waits")
    with pytest.raises(ConfigError, match=r"int has no begin\(job\)"):
        policy(f"{own}.number")
