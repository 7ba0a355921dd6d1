"""All processes below one process, on Linux: list, freeze, thaw and kill them together.

Reads ``/proc`` and nothing else, so that a supervisor stays small.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36
_PPID, _SESSION = 1, 3  # fields of /proc/PID/stat, counted behind the command's bracket


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends.

    So no descendant gets away from `descendants`, also one with a session of its own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(root: int) -> set[int]:
    """Ids of all processes below ``root``, without it."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, parent in _field_of_all(_PPID):
        children[parent].append(pid)
    found: set[int] = set()
    todo = list(children[root])
    while todo:
        pid = todo.pop()
        found.add(pid)
        todo += children[pid]
    return found


def freeze(root: int) -> int:
    """Stop all processes below ``root``; how many. Their sockets stay open."""
    return len(_freeze(root))


def thaw(root: int) -> int:
    """Let all processes below ``root`` go on; how many."""
    return sum(_signal(pid, signal.SIGCONT) for pid in descendants(root))


def kill(root: int) -> set[int]:
    """Kill all processes below ``root`` as if they ended in one instant; their ids.

    They are frozen first: no survivor of the first moment can tell the world
    about the others, as no process of a machine that lost its power can.
    """
    frozen = _freeze(root)
    for pid in frozen:
        _signal(pid, signal.SIGKILL)
    return frozen


def kill_session(session: int) -> set[int]:
    """Kill all processes of a session, whosever children they are now; their ids."""
    killed: set[int] = set()
    while fresh := {pid for pid, sid in _field_of_all(_SESSION) if sid == session} - killed:
        for pid in fresh:
            _signal(pid, signal.SIGKILL)
        killed |= fresh
    return killed


def _field_of_all(field: int) -> Iterator[tuple[int, int]]:
    """(id, value of one field of its ``stat``) of every process there is."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        yield int(name), int(fields[field])


def _freeze(root: int) -> set[int]:
    frozen: set[int] = set()
    while fresh := descendants(root) - frozen:  # one may fork while we walk
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        frozen |= fresh
    return frozen


def _signal(pid: int, number: signal.Signals) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
