"""What makes a folder of files a checkpoint: a manifest, written last and removed first.

A checkpoint of step 120 is the folder ``step-00000120``. As long as it has no
manifest nobody reads it; with one, sizes and checksums tell whether all of it is there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spotray.errors import CheckpointCorrupt, ConfigError
from spotray.storage import Store

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-(\d{8,})")
_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds, and the proof that it is whole."""

    run_id: str
    step: int  # optimizer steps in the state
    epoch: int
    world_size: int  # of the group that wrote it; any other may read it
    created_at_s: float  # Unix seconds
    files: Mapping[str, tuple[int, str]]  # name -> (size in bytes, SHA-256 in hex)
    global_batch_size: int | None = None  # samples per step; None: the loop has its own way
    micro_batch_size: int | None = None
    state: Mapping[str, str] = field(default_factory=dict)  # name -> type and shape
    extra: Mapping[str, Any] = field(default_factory=dict)  # the writer's own, as JSON

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(size for size, _ in self.files.values())


def folder_name(step: int) -> str:
    """The folder of a step's checkpoint.

    >>> folder_name(120)
    'step-00000120'
    """
    return f"step-{step:08d}"


def write(store: Store, manifest: Manifest) -> None:
    """Commit a checkpoint: all its files are in ``store`` already.

    Raises:
        OSError: storage failed; the checkpoint is not committed.
    """
    fields = asdict(manifest)
    document = {"format": FORMAT, "digest": _digest(fields), **fields}
    store.write(MANIFEST, json.dumps(document, indent=1, sort_keys=True).encode())


def read(store: Store) -> Manifest:
    """The manifest of the checkpoint in ``store``.

    Raises:
        CheckpointCorrupt: there is none, or it is not as it was written.
        OSError: storage failed, which says nothing about the checkpoint.
    """
    try:
        data = store.read(MANIFEST)
    except FileNotFoundError as exc:
        raise CheckpointCorrupt(f"{store.url} has no {MANIFEST}: it was never finished") from exc
    try:
        document = json.loads(data)
        version, digest = document.pop("format"), document.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as exc:
        raise CheckpointCorrupt(f"{store.url}/{MANIFEST} is damaged: {exc}") from exc
    if version != FORMAT:
        raise CheckpointCorrupt(
            f"{store.url}/{MANIFEST} has format {version!r}, this spotray reads {FORMAT}"
        )
    if digest != _digest(document):
        raise CheckpointCorrupt(f"{store.url}/{MANIFEST} is damaged: its digest disagrees")
    try:
        return _manifest(document)
    except (TypeError, ValueError, KeyError, AttributeError) as exc:
        raise CheckpointCorrupt(f"{store.url}/{MANIFEST} is not understood: {exc}") from exc


def verify(store: Store, manifest: Manifest, *, checksums: bool = True) -> None:
    """Check that the files of a checkpoint are those of its manifest.

    Args:
        checksums: read every byte; otherwise names and sizes alone, from a listing.

    Raises:
        CheckpointCorrupt: a file is missing or differs; the message names it.
        OSError: storage failed, which says nothing about the checkpoint.
    """
    sizes = dict(store.list())
    for name, (size, sha256) in sorted(manifest.files.items()):
        if name not in sizes:
            raise CheckpointCorrupt(f"{store.url}/{name} is missing")
        if sizes[name] != size:
            raise CheckpointCorrupt(f"{store.url}/{name} has {sizes[name]} bytes instead of {size}")
        if checksums and _sha256(store, name) != sha256:
            raise CheckpointCorrupt(f"{store.url}/{name} is damaged: its SHA-256 disagrees")


def list_checkpoints(store: Store) -> list[tuple[int, str]]:
    """Committed checkpoints in a folder as (step, folder's name), newest first.

    That a checkpoint is committed does not say that nothing happened to it since.
    """
    found = []
    for name, _ in store.list():
        folder, _, rest = name.partition("/")
        if rest == MANIFEST and (match := _FOLDER.fullmatch(folder)):
            found.append((int(match[1]), folder))
    return sorted(found, reverse=True)


def newest_valid(
    store: Store, on_rejected: Callable[[str, str], None]
) -> tuple[str, Manifest] | None:
    """The newest checkpoint of which every byte is right; None if there is none.

    Args:
        on_rejected: called with (name, reason) for each damaged one on the way.

    Raises:
        OSError: storage failed.
    """
    for step, name in list_checkpoints(store):
        try:
            manifest = _read_of(store, step, name)
            verify(store.child(name), manifest)
        except CheckpointCorrupt as exc:
            on_rejected(name, str(exc))
        else:
            return name, manifest
    return None


def remove(store: Store) -> None:
    """Remove a checkpoint's folder, the manifest first: half removed is not committed."""
    store.delete(MANIFEST)
    store.delete_tree()


def retain(
    store: Store, keep_last: int, keep: Callable[[Manifest], bool] | None = None
) -> list[str]:
    """Remove old checkpoints, and what writers that died left behind.

    The newest ``keep_last`` whole ones stay, whole by names and sizes: reading every byte
    back would cost as much as writing it. Damaged ones do not count, so older ones
    stay in their place. Folders without a manifest go if they are older than the
    newest whole one, since no writer can be at them any more.

    Args:
        keep_last: how many stay, >= 1.
        keep: others that stay: those for which it is true.

    Returns:
        Names of the removed folders.

    Raises:
        ConfigError: ``keep_last`` is below 1.
        OSError: storage failed; what is removed already stays removed.
    """
    if keep_last < 1:
        raise ConfigError(f"keep_last is {keep_last}: keep at least 1 checkpoint")
    committed = list_checkpoints(store)
    whole: list[int] = []
    removed = []
    for step, name in committed:
        try:
            manifest = _read_of(store, step, name)
            if len(whole) < keep_last:
                verify(store.child(name), manifest, checksums=False)
                whole.append(step)
                continue
            if keep is not None and keep(manifest):
                continue
        except CheckpointCorrupt as exc:
            if len(whole) < keep_last:
                continue  # newer than one that we need: left for whoever looks into it
            log.info("remove damaged checkpoint %s: %s", name, exc)
        remove(store.child(name))
        removed.append(name)
    if whole:
        names = {name for _, name in committed}
        for name in _folders(store) - names:
            match = _FOLDER.fullmatch(name)
            if match and int(match[1]) < whole[0]:
                remove(store.child(name))
                removed.append(name)
    return removed


def _read_of(store: Store, step: int, name: str) -> Manifest:
    manifest = read(store.child(name))
    if manifest.step != step:
        raise CheckpointCorrupt(f"{store.url}/{name} holds the manifest of step {manifest.step}")
    return manifest


def _folders(store: Store) -> set[str]:
    return {name.partition("/")[0] for name, _ in store.list() if "/" in name}


def _manifest(fields: dict[str, Any]) -> Manifest:
    files = {}
    for name, entry in fields.pop("files").items():
        size, sha256 = entry
        if type(size) is not int or not isinstance(sha256, str):
            raise TypeError(f"files: {name} is {entry!r}")
        files[name] = (size, sha256)
    manifest = Manifest(files=files, **fields)
    _check_types(manifest)
    return manifest


_TYPES: dict[str, tuple[type, ...]] = {
    "run_id": (str,),
    "step": (int,),
    "epoch": (int,),
    "world_size": (int,),
    "created_at_s": (int, float),
    "global_batch_size": (int, type(None)),
    "micro_batch_size": (int, type(None)),
    "state": (dict,),
    "extra": (dict,),
}


def _check_types(manifest: Manifest) -> None:
    for name, types in _TYPES.items():
        value = getattr(manifest, name)
        if type(value) not in types:  # exact: a bool is no int here
            raise TypeError(f"{name} is {value!r}")


def _digest(fields: Mapping[str, Any]) -> str:
    """Of the manifest's own fields: a flipped bit in a step number must not pass."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _sha256(store: Store, name: str) -> str:
    digest = hashlib.sha256()
    with store.open_input(name) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
