"""What makes a folder of files a checkpoint: a manifest, written last and removed first.

A checkpoint of step 120, written by the workers of generation 3, is the folder
``step-00000120-g3``. As long as it has no manifest nobody reads it; with one, sizes and
checksums tell whether all of it is there. The generation keeps apart what old workers,
which may not know yet that they were replaced, and new ones write for the same step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from spotray.errors import CheckpointCorrupt, ConfigError
from spotray.storage import Store

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-(\d{8,})(?:-g(\d+)(?:\.(\d+))?)?")
_CHUNK_BYTES = 8 * 1024 * 1024
_ASKED_FOR = 8  # checkpoints that were asked for: so many stay beside the others


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


class _Key(NamedTuple):
    """What a folder's name says; the order is that of age."""

    step: int
    generation: int
    attempt: int


def folder_name(step: int, generation: int = 0, attempt: int = 1) -> str:
    """The folder of a step's checkpoint.

    Args:
        step: Optimizer steps in it.
        generation: Of the workers that write it; 0 outside of a job.
        attempt: Counts the checkpoints of one step in one generation, from 1.

    >>> folder_name(120), folder_name(120, 3), folder_name(120, 3, attempt=2)
    ('step-00000120', 'step-00000120-g3', 'step-00000120-g3.2')
    """
    name = f"step-{step:08d}"
    if generation or attempt > 1:
        name += f"-g{generation}"
    return name if attempt == 1 else f"{name}.{attempt}"


def _key(folder: str) -> _Key | None:
    match = _FOLDER.fullmatch(folder)
    return _Key(int(match[1]), int(match[2] or 0), int(match[3] or 1)) if match else None


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

    Of one step, that of the newest workers comes first. That a checkpoint is committed
    does not say that nothing happened to it since.
    """
    found = []
    for name, _ in store.list():
        folder, _, rest = name.partition("/")
        if rest == MANIFEST and (key := _key(folder)):
            found.append((key, folder))
    return [(key.step, folder) for key, folder in sorted(found, reverse=True)]


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


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints stay.

    Raises:
        ConfigError: a value is out of its range.
    """

    last: int = 2  # so many of the newest whole ones
    best: tuple[str, Literal["min", "max"]] | None = None  # and the best by this metric
    every_steps: int | None = None  # and the first at or after each multiple of it

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ConfigError(f"keep_last is {self.last}: keep at least 1 checkpoint")
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"every_steps is {self.every_steps}: give 1 or more, or None")

    def outlasting(self, manifests: Mapping[str, Manifest]) -> set[str]:
        """Names of those that stay although they are not among the newest.

        Some of the newest that somebody asked for stay, since he may be about to read them.

        A checkpoint counts with the metrics in its manifest: those of the newest
        report at or before it. Of equal ones the oldest is the best, since it stands
        nearest after the report. One without that metric, or with NaN, is never the best.
        """
        by_age = sorted(manifests, key=lambda name: _key(name) or _Key(0, 0, 0))
        stay = {name for name in by_age if manifests[name].extra.get("final")}
        stay |= set([n for n in by_age if manifests[n].extra.get("asked_for")][-_ASKED_FOR:])
        if self.every_steps is not None:
            firsts: dict[int, str] = {}
            for name in by_age:
                if (passed := manifests[name].step // self.every_steps) > 0:
                    firsts.setdefault(passed, name)
            stay |= set(firsts.values())
        if self.best is not None:
            metric, direction = self.best
            found = {name: _metric(manifests[name], metric) for name in by_age}
            values = {name: value for name, value in found.items() if value is not None}
            if values:
                stay.add((min if direction == "min" else max)(values, key=values.__getitem__))
        return stay


def _metric(manifest: Manifest, name: str) -> float | None:
    metrics = manifest.extra.get("metrics")
    value = metrics.get(name) if isinstance(metrics, dict) else None
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def retain(store: Store, keep: Retention, *, generation: int = 0) -> list[str]:
    """Remove old checkpoints, and what writers that died left behind.

    The newest ones stay if they are whole by names and sizes: reading every byte
    back would cost as much as writing it. Damaged ones do not count, so older ones
    stay in their place; of two of the same step the newer counts. Those that end a
    training (``extra["final"]``) stay always, since Ray Train refuses a job whose
    checkpoint went. A folder without a manifest goes if older workers wrote it, or if
    it is older than the newest whole one: nobody can commit it any more.

    Args:
        store: The folder of all checkpoints.
        keep: Which ones stay.
        generation: Of the workers that ask; what newer ones write is not touched.

    Returns:
        Names of the removed folders.

    Raises:
        OSError: storage failed; what is removed already stays removed.
    """
    committed = list_checkpoints(store)
    whole: dict[int, str] = {}  # step -> name, the newest first
    sound: dict[str, Manifest] = {}
    damaged: dict[str, str] = {}
    for step, name in committed:
        try:
            manifest = _read_of(store, step, name)
            if len(whole) < keep.last and step not in whole:
                verify(store.child(name), manifest, checksums=False)
                whole[step] = name
            sound[name] = manifest
        except CheckpointCorrupt as exc:
            if len(whole) < keep.last:
                continue  # newer than one that we need: left for whoever looks into it
            damaged[name] = str(exc)
    stay = {*whole.values(), *keep.outlasting(sound)}
    removed = []
    for name in [*sound, *damaged]:
        if name in stay:
            continue
        if name in damaged:
            log.info("remove damaged checkpoint %s: %s", name, damaged[name])
        remove(store.child(name))
        removed.append(name)
    newest = _key(next(iter(whole.values()), ""))
    if newest is not None:
        names = {name for _, name in committed}
        for name in sorted(_folders(store) - names):
            key = _key(name)
            if key is None or key.generation > generation:
                continue
            if key.generation < generation or key < newest:
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
