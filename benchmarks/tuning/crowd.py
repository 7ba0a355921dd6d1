"""Processes and memory of a sweep while it runs, as the system tells them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotray.lab import processes

_RAY = "ray::"  # how Ray calls its Python processes
# Each node has these anyway, and a sweep those, however many trials it has.
_NODES_OWN = ("DashboardAgent", "RuntimeEnvAgent", "IDLE")
_SWEEPS_OWN = ("SweepActor", "_AutoscalingCoordinatorActor")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process: how it is called, and its part of the memory."""

    title: str
    pss_bytes: int  # what it shares with others is divided among them


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """A sweep's processes at one moment."""

    trials: int  # that made steps then
    processes: int  # of the trials
    pss_bytes: int  # of these
    sweep_pss_bytes: int  # of what all trials have in common

    @property
    def processes_per_trial(self) -> float:
        return self.processes / self.trials if self.trials else 0.0

    @property
    def pss_mib_per_trial(self) -> float:
        return self.pss_bytes / self.trials / 2**20 if self.trials else 0.0


def crowd(found: Iterable[Process], *, trials: int) -> Crowd:
    """Count Ray's Python processes: those of trials, and those of the sweep."""
    of_trials, of_sweep = [], []
    for process in found:
        name = process.title.removeprefix(_RAY)
        if not process.title.startswith(_RAY) or name.startswith(_NODES_OWN):
            continue
        (of_sweep if name.startswith(_SWEEPS_OWN) else of_trials).append(process.pss_bytes)
    return Crowd(
        trials=trials,
        processes=len(of_trials),
        pss_bytes=sum(of_trials),
        sweep_pss_bytes=sum(of_sweep),
    )


def below(root: int) -> list[Process]:
    """All processes below one; who ends meanwhile is left out."""
    found = []
    for pid in processes.descendants(root):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
            memory = _fields(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(Process(title=title, pss_bytes=memory.get("Pss", 0)))
    return found


def now(trials: int) -> Crowd:
    """Of the nodes and the driver that this process started."""
    return crowd(below(os.getpid()), trials=trials)


def _fields(text: str) -> Mapping[str, int]:
    """Bytes by name, from lines such as ``Pss:  12 kB``."""
    told = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        told[name] = int(rest.split()[0]) * 1024
    return told
