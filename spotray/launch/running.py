"""Is the cluster that runs the one that a spec describes? Compared with the head's config. Pure.

`ray up` leaves on the head what it made of the spec: all that was written there, with much
that Ray filled in, and a few things that it rewrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Rewritten for the head, or of the laptop alone: keys, paths of files, how to get there.
_NOT_COMPARED = frozenset(
    ("auth", "cluster_synced_files", "file_mounts", "rsync_exclude", "rsync_filter")
)
_OF_ALL = "setup_commands"  # which Ray puts before those of the head and of the workers
_WITH_THEM = ("head_setup_commands", "worker_setup_commands")
_RESOLVED = ("latest_dlami",)  # Ray's words for what it looks up
_SHOWN = 60  # characters of a value


def differences(running: Mapping[str, Any], spec: Mapping[str, Any]) -> list[str]:
    """What a spec says and the head's config does not, each with its place; empty if nothing.

    Args:
        running: what `ray up` left on the head.
        spec: as its user wrote it.

    >>> differences({"max_workers": 2, "upscaling_speed": 1.0}, {"max_workers": 4})
    ['max_workers is 2 there and 4 in yours']
    """
    mine = {key: value for key, value in spec.items() if key not in _NOT_COMPARED}
    for key in _WITH_THEM:
        if key in mine or _OF_ALL in mine:
            mine[key] = [*(mine.get(_OF_ALL) or []), *(mine.get(key) or [])]
    # What only the head knows was taken out of the spec.
    theirs = running.get("available_node_types")
    gone = set(theirs or {}) - set(mine.get("available_node_types") or theirs or {})
    return [
        *_compared(running, mine, ""),
        *(f"available_node_types.{name} is there and not in yours" for name in sorted(gone)),
    ]


def _compared(theirs: Any, mine: Any, path: str) -> Iterator[str]:
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for key, value in mine.items():
            yield from _compared(theirs.get(key), value, f"{path}.{key}" if path else str(key))
    elif _is_list(mine) and _is_list(theirs) and len(mine) == len(theirs):
        for index, (their, own) in enumerate(zip(theirs, mine, strict=True)):
            yield from _compared(their, own, f"{path}[{index}]")
    elif mine != theirs and (mine or theirs) and str(mine).lower() not in _RESOLVED:
        yield f"{path} is {_shown(theirs)} there and {_shown(mine)} in yours"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if _is_list(value):
        return f"a list of {len(value)}"
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
