"""Parquet as a map-style dataset: any row by its index, files read by row groups, lazily."""

from __future__ import annotations

import bisect
import difflib
import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import torch

from spotray.errors import ConfigError, one_line
from spotray.storage import Store
from spotray.train.columns import Column, column_of

log = logging.getLogger(__name__)

_SUFFIXES = (".parquet", ".pq")
_FOOTER_THREADS = 8  # footers are small reads that mostly wait for the network
_OPEN_GROUPS = 4  # row groups that a shuffled pass mixes at one time


@dataclass(frozen=True, kw_only=True)
class _RowGroup:
    file: str  # name inside the dataset's folder
    index: int  # inside the file
    rows: int
    size_bytes: int  # of the columns that are read, decompressed, as the footer has it


class ParquetDataset(torch.utils.data.Dataset[Any]):
    """The rows of a Parquet file, or of all Parquet files below a folder.

    Files are taken in the order of their names, so the index of a row does not change
    as long as the files do not. At the start only footers are read. A row group is read
    when one of its rows is asked for and stays in memory until `cache_bytes` are
    exceeded; `row_groups` lets a sampler shuffle in such a way that each is read about
    once in a pass. Every process that uses the dataset has a cache of its own.

    Files and folders whose names begin with ``_`` or ``.`` are left out. Folder names
    of the form ``column=value`` are not read as columns.

    Args:
        path: A file or a folder: a local path or a URL (``s3://``, ``gs://``, ...), as
            `spotray.storage.Store.at` takes it.
        columns: Those to read, default all.
        transform: Called with each row, a dict of column to value; what it returns is
            the sample. Default: the dict. Numbers and lists of numbers arrive as tensors,
            anything else as Python objects.
        cache_bytes: Host memory for decoded row groups, bytes, per process.
        filesystem: Used as it is; ``path`` is then a path inside it.

    Raises:
        ConfigError: nothing to read there, no such column, files that do not fit
            together, or no rows.
    """

    _opened: tuple[int, Store] | None  # with the process that opened it
    _footers: dict[str, pq.FileMetaData]
    _cache: OrderedDict[int, list[Column]]  # by row group; the newest stands last

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        cache_bytes: int = 512 * 2**20,
        filesystem: pafs.FileSystem | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError(f"columns={columns!r} is one string: write [{columns!r}]")
        if cache_bytes < 0:
            raise ConfigError(f"cache_bytes={cache_bytes} is negative: give a size in bytes")
        self.url = os.fspath(path)
        self.transform = transform
        self._cache_bytes = cache_bytes
        self._filesystem = filesystem
        self._forget()
        files = self._find_files()
        footers = self._read_footers(files)
        self.columns = _check_columns(columns, footers)
        self._groups = [
            group for file in files for group in _groups(file, footers[file], self.columns)
        ]
        if not self._groups:
            raise ConfigError(f"dataset {self.url} has no rows: training needs at least one sample")
        self._ends = list(itertools.accumulate(group.rows for group in self._groups))
        self._footers = footers
        self._warn_if_cramped()

    @property
    def row_groups(self) -> list[int]:
        """Rows in each row group, in the order of the indices."""
        return [group.rows for group in self._groups]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of many indices at once: each row group is looked up once."""
        wanted: dict[int, list[tuple[int, int]]] = {}  # group -> [(place in answer, row)]
        for place, index in enumerate(indices):
            group, row = self._locate(index)
            wanted.setdefault(group, []).append((place, row))
        samples: list[Any] = [None] * len(indices)
        for group, asked in wanted.items():
            rows = [row for _, row in asked]
            taken = [column.take(rows) for column in self._columns_of(group)]
            for (place, _), values in zip(asked, zip(*taken, strict=True), strict=True):
                sample = dict(zip(self.columns, values, strict=True))
                samples[place] = sample if self.transform is None else self.transform(sample)
        return samples

    def __repr__(self) -> str:
        return f"ParquetDataset({self.url!r}, {len(self)} rows in {len(self._groups)} row groups)"

    # -- row groups ----------------------------------------------------------

    def _locate(self, index: int) -> tuple[int, int]:
        """Row group of an index, and the row inside it."""
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"row {index} of a dataset of {len(self)} rows")
        group = bisect.bisect_right(self._ends, at)
        return group, at - (self._ends[group] - self._groups[group].rows)

    def _columns_of(self, group: int) -> list[Column]:
        with self._lock:
            found = self._cache.pop(group, None)
            if found is None:
                found = self._load(self._groups[group])
                self._cached_bytes += _size(found)
            self._cache[group] = found
            while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
                _, oldest = self._cache.popitem(last=False)
                self._cached_bytes -= _size(oldest)
            return found

    def _load(self, group: _RowGroup) -> list[Column]:
        store = self._store()
        remote = not store.can_append
        with store.fs.open_input_file(_full_path(store, group.file)) as stream:
            file = pq.ParquetFile(stream, metadata=self._footers.get(group.file), pre_buffer=remote)
            self._footers[group.file] = file.metadata
            if group.index >= file.metadata.num_row_groups:
                raise _changed(self.url, group)
            table = file.read_row_group(group.index, columns=list(self.columns))
        if table.num_rows != group.rows:
            raise _changed(self.url, group)
        columns = []
        for name in self.columns:
            chunks = table.column(name).chunks
            array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
            columns.append(column_of(array, name=name, file=group.file or self.url))
        return columns

    # -- the files -----------------------------------------------------------

    def _store(self) -> Store:
        # A filesystem's connections and threads do not survive a fork, and torch forks
        # its loader processes: each process makes its own.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), Store.at(self.url, filesystem=self._filesystem))
        return self._opened[1]

    def _find_files(self) -> list[str]:
        """Names of the files, relative to the dataset's folder; [""] if it is one file."""
        store = self._store()
        try:
            kind = store.fs.get_file_info(store.root).type
            names = [""] if kind == pafs.FileType.File else [name for name, _ in store.list()]
        except (OSError, pa.ArrowException) as exc:
            raise ConfigError(f"cannot read dataset {self.url}: {one_line(exc)}") from exc
        if names == [""]:
            return names
        if kind == pafs.FileType.NotFound:
            raise ConfigError(f"dataset {self.url} does not exist: give a Parquet file or a folder")
        files = [name for name in names if name.endswith(_SUFFIXES) and not _is_hidden(name)]
        if not files:
            raise ConfigError(
                f"dataset {self.url} has no Parquet files: none of its {len(names)} files is "
                f"named *{_SUFFIXES[0]} or *{_SUFFIXES[1]}"
            )
        return files

    def _read_footers(self, files: list[str]) -> dict[str, pq.FileMetaData]:
        store = self._store()

        def footer(file: str) -> pq.FileMetaData:
            try:
                with store.fs.open_input_file(_full_path(store, file)) as stream:
                    return pq.read_metadata(stream)
            except (OSError, pa.ArrowException) as exc:
                where = file or self.url
                raise ConfigError(f"cannot read {where} as Parquet: {one_line(exc)}") from exc

        with ThreadPoolExecutor(max_workers=min(_FOOTER_THREADS, len(files))) as threads:
            return dict(zip(files, threads.map(footer, files), strict=True))

    def _warn_if_cramped(self) -> None:
        need = sum(sorted(group.size_bytes for group in self._groups)[-_OPEN_GROUPS:])
        if need > self._cache_bytes:
            log.warning(
                "%s: %d row groups take %.0f MiB and cache_bytes is %.0f MiB, so a shuffled pass "
                "reads them again and again: raise cache_bytes, or write smaller row groups",
                self.url,
                min(_OPEN_GROUPS, len(self._groups)),
                need / 2**20,
                self._cache_bytes / 2**20,
            )

    # -- pickling: no connection, lock or data travels -------------------------

    def _forget(self) -> None:
        self._opened = None
        self._footers = {}
        self._cache = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        left_behind = ("_opened", "_footers", "_cache", "_cached_bytes", "_lock")
        return {name: value for name, value in vars(self).items() if name not in left_behind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


def _groups(file: str, footer: pq.FileMetaData, columns: Sequence[str]) -> list[_RowGroup]:
    prefixes = tuple(f"{name}." for name in columns)
    found = []
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        chunks = (group.column(i) for i in range(group.num_columns))
        size = sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if f"{chunk.path_in_schema}.".startswith(prefixes)
        )
        found.append(_RowGroup(file=file, index=index, rows=group.num_rows, size_bytes=size))
    return [group for group in found if group.rows]


def _check_columns(
    columns: Sequence[str] | None, footers: dict[str, pq.FileMetaData]
) -> tuple[str, ...]:
    """The columns to read: all files must have them, with the same types."""
    schemas = {file: footer.schema.to_arrow_schema() for file, footer in footers.items()}
    first, schema = next(iter(schemas.items()))
    wanted = tuple(schema.names if columns is None else columns)
    if not wanted:
        raise ConfigError("columns=[] leaves nothing to read: name at least one column")
    for name in wanted:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.5)
            cure = f"did you mean {near[0]!r}?" if near else f"there are {schema.names}"
            raise ConfigError(f"no column {name!r} in the dataset: {cure}")
    for file, other in schemas.items():
        if columns is None and (odd := sorted(set(other.names) ^ set(wanted))):
            raise ConfigError(
                f"files {first} and {file} have different columns ({', '.join(odd)}): make them "
                "alike, or name with columns=[...] those that all have"
            )
        for name in wanted:
            theirs = other.field(name).type if name in other.names else None
            if theirs != schema.field(name).type:
                raise ConfigError(
                    f"column {name!r} is {schema.field(name).type} in {first} and "
                    f"{theirs or 'missing'} in {file}: write the files with one schema"
                )
    return wanted


def _size(columns: list[Column]) -> int:
    return sum(column.nbytes for column in columns)


def _full_path(store: Store, file: str) -> str:
    return f"{store.root.rstrip('/')}/{file}" if file else store.root


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _changed(url: str, group: _RowGroup) -> ConfigError:
    return ConfigError(
        f"{group.file or url} is not the file any more that the dataset {url} was opened with: "
        "leave its files alone while a job runs, and start the job anew"
    )
