"""Who may import whom. The same table stands in docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import spotray

ROOT = Path(spotray.__file__).parent

# A row imports from the rows above it; neighbours in a row do not import each other.
ROWS = (
    ("errors",),
    ("clock", "environment", "events", "folders", "storage"),
    ("market",),
    ("policy", "checkpoint", "ledger"),
    ("sim", "cloud"),
    ("report", "cluster", "plan", "track"),
    ("train", "agent", "controller", "launch"),
    ("tune",),
    ("lab",),
    ("cli",),
)
ROW_OF = {part: row for row, parts in enumerate(ROWS) for part in parts}

# Training scripts that ship with the package: written as a user writes them, with torch
# and with the public names of `spotray`.
SCRIPTS: tuple[str, ...] = ("lab/demo_job.py",)

# Which parts may use what is heavy.
ALLOWED = {
    "ray": (
        *("cluster/", "agent/", "controller/", "launch/", "train/", "tune/", "lab/", "cli/"),
        "track/prometheus.py",
    ),
    "torch": ("train/", *SCRIPTS),
    "timm": ("train/", *SCRIPTS),
    "torchvision": ("train/", *SCRIPTS),
    "boto3": ("cloud/aws/",),
    "botocore": ("cloud/aws/",),
    "google": ("cloud/gcp/",),
    "googleapiclient": ("cloud/gcp/", "cluster/ray_autoscaler/"),
    "azure": ("cloud/azure/",),
    "sklearn": ("lab/digits.py",),
    "pyarrow": ("storage.py", "market/table.py", "checkpoint/", "train/", "tune/", "lab/"),
    "matplotlib": ("report/",),
    "tensorboardX": ("track/tensorboard.py",),
    "mlflow": ("track/mlflow.py",),
    "wandb": ("track/wandb.py",),
    "plotly": ("report/",),
    "rich": ("cli/", "lab/", "tune/progress.py"),
}
# Extras: never at module level.
LAZY = (
    *("boto3", "botocore", "google", "googleapiclient", "azure"),
    *("sklearn", "matplotlib", "plotly", "tensorboardX", "mlflow", "wandb"),
)


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import of ``target`` in ``file``."""

    file: str  # "train/loader.py"
    line: int
    target: str  # "spotray.train.order", "torch.distributed"
    inside: bool  # in a function, not at module level


def imports_of(source: str, file: str) -> Iterator[Import]:
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    package = ["spotray", *Path(file).parts[:-1]]
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            # "from spotray import events" means the module, not the package.
            bare = home == "spotray"
            targets = [f"{home}.{alias.name}" for alias in node.names] if bare else [home]
        for target in targets:
            yield Import(file=file, line=node.lineno, target=target, inside=id(node) in inside)


def part_of(file: str) -> str:
    return Path(file).parts[0].removesuffix(".py")


def breach(one: Import) -> str | None:
    """What is wrong with an import, in one line; None if nothing is."""
    where = f"spotray/{one.file}:{one.line} imports {one.target}"
    top, *rest = one.target.split(".")
    if top != "spotray":
        allowed = ALLOWED.get(top)
        if allowed is not None and not one.file.startswith(allowed):
            return f"{where}: only {', '.join(allowed)} may"
        if top in LAZY and not one.inside:
            return f"{where} at module level: an extra is imported where it is used"
        return None
    mine, theirs = part_of(one.file), rest[0] if rest else ""
    if theirs == "__version__" or mine == theirs:
        return None
    if one.file in SCRIPTS and theirs not in ROW_OF:
        return None
    if theirs not in ROW_OF:
        return f"{where}: import from the module that defines it, not from the package"
    if ROW_OF[theirs] >= ROW_OF[mine]:
        return f"{where}: {mine} stands above or beside {theirs}"
    return None


def modules() -> list[str]:
    files = (path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
    return sorted(file for file in files if file != "__init__.py")  # which names all, lazily


def test_every_part_has_its_row() -> None:
    assert {part_of(file) for file in modules()} <= ROW_OF.keys()


def test_imports_point_downwards_only() -> None:
    found = [
        problem
        for file in modules()
        for one in imports_of((ROOT / file).read_text(encoding="utf-8"), file)
        if (problem := breach(one))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("market/offer.py", "from spotray.policy.view import View"),
        ("policy/view.py", "import spotray.ledger.cost"),
        ("train/run.py", "from spotray import lab"),
        ("train/run.py", "from ..agent import agent"),
        ("errors.py", "from spotray.clock import Clock"),
        ("cli/main.py", "from spotray import ElasticTrainer"),
        ("market/offer.py", "import ray"),
        ("agent/agent.py", "def f():\n    import torch.distributed"),
        ("cloud/aws/prices.py", "import boto3"),
        ("cloud/gcp/prices.py", "def f():\n    import boto3"),
        ("lab/digits.py", "from sklearn.datasets import load_digits"),
    ],
)
def test_a_breach_is_seen(file: str, line: str) -> None:
    assert all(breach(one) for one in imports_of(line, file))


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("train/run.py", "from spotray.checkpoint.manifest import Manifest"),
        ("train/run.py", "from .order import epoch_order"),
        ("train/run.py", "from spotray import events"),
        ("cli/main.py", "from spotray import __version__"),
        ("cloud/aws/prices.py", "def f():\n    import boto3"),
        ("market/offer.py", "import numpy as np"),
        ("lab/demo_job.py", "import spotray, torch"),
    ],
)
def test_what_is_allowed_is_no_breach(file: str, line: str) -> None:
    assert not any(breach(one) for one in imports_of(line, file))


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("spotray", ("ray", "torch", "boto3", "pyarrow", "numpy")),
        ("spotray.agent.agent", ("torch", "boto3", "timm")),
        # There is one such process for each trial that runs.
        ("spotray.tune.trial", ("torch", "boto3", "timm")),
        # Ray imports an actor's class where somebody asks for the actor: such a process does.
        ("spotray.tune.actor", ("torch", "boto3", "timm")),
    ],
)
def test_importing_it_loads_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({heavy!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
