"""Files in one folder, wherever it is: a local path or a bucket, through pyarrow.

The journal and the checkpoints stand on `Store` alone. What it promises on every
filesystem: `Store.write` shows a reader the old bytes or the new ones, never a
part of them. Everything else (commits of many files, retries) is its user's.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from spotray.errors import ConfigError, one_line

_TMP = ".tmp"  # an unfinished local file is called ".<name>.<random>.tmp"


class Store:
    """A folder of named byte strings. Cheap to make, picklable, safe to share by threads.

    Names are paths relative to the folder, with ``/``. I/O trouble is an `OSError`,
    a missing file a `FileNotFoundError`, as Python has it; only an address that can
    never work is a `ConfigError`.
    """

    def __init__(self, fs: pafs.FileSystem, root: str, *, url: str) -> None:
        while isinstance(fs, pafs.SubTreeFileSystem):
            root = f"{fs.base_path.rstrip('/')}/{root.lstrip('/')}"
            fs = fs.base_fs
        self.fs = fs
        self.root = root.rstrip("/") or "/"  # path inside ``fs``
        self.url = url  # what `Store.at` takes to come back here, if ``fs`` was not given

    @classmethod
    def at(cls, url: str | os.PathLike[str], *, filesystem: pafs.FileSystem | None = None) -> Store:
        """The store at a local path or a URL: ``file://``, ``s3://``, ``gs://``, ``abfs://``.

        Nothing is created and nothing is asked of the far side, save the region of an
        S3 bucket where no environment variable names it. ``AWS_ENDPOINT_URL_S3`` and
        ``AWS_ENDPOINT_URL`` lead to any S3-compatible server.

        Args:
            url: where; with ``filesystem`` a path inside it, without a scheme.
            filesystem: used as it is, as Ray's ``RunConfig(storage_filesystem=)``.

        Raises:
            ConfigError: no such scheme, no bucket in the URL, or no such bucket.
        """
        text = os.fspath(url)
        if not text:
            raise ConfigError(
                "storage path '' is empty: give a folder or a URL such as s3://b/runs"
            )
        if filesystem is not None:
            if "://" in text:
                raise ConfigError(
                    f"storage path {text!r} has a scheme beside an explicit filesystem: "
                    "give the path inside that filesystem"
                )
            return cls(filesystem, text, url=text)
        if "://" not in text:
            return cls._local(text)
        parts = urlsplit(text)
        if parts.scheme == "file":
            return cls._local(unquote(parts.path))
        if not parts.netloc:
            raise ConfigError(
                f"storage URL {text!r} names no bucket: write {parts.scheme}://BUCKET/PATH"
            )
        try:
            if parts.scheme == "s3" and not parts.query and "@" not in parts.netloc:
                return cls(_s3(parts.netloc), parts.netloc + parts.path, url=text)
            fs, root = pafs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            raise ConfigError(
                f"storage URL {text!r} is not understood ({one_line(exc)}): "
                "use a local path, file://, s3://, gs:// or abfs://"
            ) from exc
        return cls(fs, root, url=text)

    @classmethod
    def _local(cls, path: str) -> Store:
        full = os.path.abspath(os.path.expanduser(path))
        return cls(pafs.LocalFileSystem(), full, url=full)

    def child(self, *parts: str) -> Store:
        """The store of a folder inside this one."""
        below = "/".join(part.strip("/") for part in parts)
        if not below:
            return self
        base, mark, query = self.url.partition("?")
        return Store(self.fs, self._path(below), url=f"{base.rstrip('/')}/{below}{mark}{query}")

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def can_append(self) -> bool:
        """Whether `append` works: on local files, not on objects."""
        return isinstance(self.fs, pafs.LocalFileSystem)

    # -- one file ------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        with self.open_input(name) as stream:
            return stream.read()

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, or in the place of another: a reader sees one or the other."""
        with self.open_output(name) as stream:
            stream.write(data)

    def append(self, name: str, data: bytes) -> None:
        """Add bytes to a file's end and wait until the disk has them; all of them or none.

        One process at a time may append to a file. Raises ValueError where `can_append`
        is false.
        """
        path = self._local_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(fd).st_size
            try:
                _write_all(fd, data)
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)  # the caller will give all of it again
                raise
        finally:
            os.close(fd)

    def open_input(self, name: str) -> BinaryIO:
        """A seekable stream of a file's bytes; close it."""
        return cast(BinaryIO, self.fs.open_input_file(self._path(name)))

    @contextmanager
    def open_output(self, name: str) -> Iterator[BinaryIO]:
        """A stream whose bytes become the file when the ``with`` block ends well.

        A block that raises leaves a local file as it was; of an object nothing remains.
        """
        if not self.can_append:
            stream = cast(BinaryIO, self.fs.open_output_stream(self._path(name)))
            try:
                yield stream
            except BaseException:
                with suppress(OSError):  # the block's own error is the one to tell
                    stream.close()
                    self.delete(name)
                raise
            stream.close()
            return
        path = self._local_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_TMP}")
        try:
            with open(tmp, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(tmp, path)
        except BaseException:
            tmp.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        info = self.fs.get_file_info(self._path(name))
        return bool(info.type == pafs.FileType.File)

    def delete(self, name: str) -> None:
        """Remove a file; a missing one is no error."""
        with suppress(FileNotFoundError):
            self.fs.delete_file(self._path(name))

    # -- folders -------------------------------------------------------------

    def folders(self, name: str = "") -> list[str]:
        """Names of the folders right in the folder ``name`` (default: this one), in order.

        Files are not listed, nor what lies deeper; of a bucket, a folder is what a file's
        name has before a ``/``. A folder that does not exist is empty.
        """
        selector = pafs.FileSelector(self._path(name), allow_not_found=True)
        return sorted(
            str(info.base_name)
            for info in self.fs.get_file_info(selector)
            if info.type == pafs.FileType.Directory
        )

    def list(self, prefix: str = "", *, recursive: bool = True) -> list[tuple[str, int]]:
        """Files in the folder ``prefix`` (default: this one) as (name, bytes), by name.

        Folders are not listed, nor local files that are still being written; a folder
        that does not exist is empty.
        """
        selector = pafs.FileSelector(self._path(prefix), recursive=recursive, allow_not_found=True)
        start = len(self.root.rstrip("/")) + 1
        found = [
            (str(info.path)[start:], int(info.size))
            for info in self.fs.get_file_info(selector)
            if info.type == pafs.FileType.File and not _is_unfinished(info.base_name)
        ]
        return sorted(found)

    def delete_tree(self, name: str = "") -> None:
        """Remove a folder and all in it (default: this one); a missing one is no error."""
        if self.can_append:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._local_path(name) if name else self.root)
            return
        for file, _ in self.list(name):
            self.delete(file)
        with suppress(FileNotFoundError):
            self.fs.delete_dir(self._path(name))

    def check_writable(self) -> None:
        """Write a probe, read it back and remove it.

        Raises:
            ConfigError: it did not work; one line with the URL, the reason and the cure.
        """
        probe = f".spotray-probe-{uuid.uuid4().hex}"
        try:
            self.write(probe, b"spotray")
            if self.read(probe) != b"spotray":
                raise OSError("a file read back differs from what was written")
            self.delete(probe)
        except (OSError, pa.ArrowException) as exc:
            raise ConfigError(
                f"cannot write to {self.url}: {one_line(exc)}; {_cure(self, exc)}"
            ) from exc

    # -- inside --------------------------------------------------------------

    def _path(self, name: str) -> str:
        clean = name.strip("/")
        if ".." in clean.split("/"):
            raise ValueError(f"{name!r} leads out of {self.url}")
        return f"{self.root.rstrip('/')}/{clean}" if clean else self.root

    def _local_path(self, name: str) -> Path:
        if not self.can_append:
            raise ValueError(f"{self.url} holds objects: they cannot be appended to")
        return Path(self._path(name))


def split(url: str) -> tuple[str, str]:
    """The folder that a folder is in, and the name that it has there.

    >>> split("s3://bucket/sweeps/one?scheme=http")
    ('s3://bucket/sweeps?scheme=http', 'one')
    >>> split("/data/sweeps/one/")
    ('/data/sweeps', 'one')
    """
    # Only a URL has a query: a local folder's name may hold a question mark.
    path, mark, query = url.partition("?") if "://" in url else (url, "", "")
    parent, _, name = path.rstrip("/").rpartition("/")
    return f"{parent}{mark}{query}", name


def _s3(bucket: str) -> pafs.FileSystem:
    """S3 as the environment has it; the bucket's own region if nobody names one."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    # A small object then is one PUT, and one round trip.
    options: dict[str, Any] = {"allow_delayed_open": True}
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                f"AWS_ENDPOINT_URL is {endpoint!r}: write http://HOST:PORT or https://HOST"
            )
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        region = region or "us-east-1"  # S3-compatible servers do not care
    if region is None:
        try:
            region = pafs.resolve_s3_region(bucket)
        except OSError as exc:
            raise ConfigError(
                f"cannot find the region of S3 bucket {bucket!r} ({one_line(exc)}): "
                "set AWS_REGION, or check the bucket's name"
            ) from exc
    return pafs.S3FileSystem(region=region, **options)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_unfinished(base_name: str) -> bool:
    return base_name.startswith(".") and base_name.endswith(_TMP)


def _cure(store: Store, exc: BaseException) -> str:
    words = str(exc)
    if store.can_append:
        return "give a folder that this user may write, on a disk with space left"
    if "NO_SUCH_BUCKET" in words or "does not exist" in words:
        return "create the bucket first, or correct its name"
    if "ACCESS_DENIED" in words or "credential" in words.lower():
        return "give credentials that may read, write and delete there"
    return "check the URL, the credentials and the network"
