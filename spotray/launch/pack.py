"""The working folder as one archive: what git would see, and no more than Ray takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from spotray.errors import ConfigError

MAX_BYTES = 100 * 1024**2  # Ray's dashboard takes no larger request
_MOMENT = (1980, 1, 1, 0, 0, 0)  # of every file, so that equal folders are equal archives
_MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The files of a working folder that a job gets."""

    path: Path
    files: tuple[str, ...]  # relative, with "/"
    total_bytes: int  # before compression

    @property
    def size_text(self) -> str:
        """How many files, how large.

        >>> Folder(path=Path("."), files=("a.py",), total_bytes=2 * 1024**2).size_text
        '1 file, 2.0 MiB'
        """
        count = len(self.files)
        return f"{count} file{'s' * (count != 1)}, {self.total_bytes / _MIB:.1f} MiB"

    def largest(self, count: int = 3) -> list[str]:
        """The entries of the folder that weigh most, with their size."""
        weights: Counter[str] = Counter()
        for file in self.files:
            weights[PurePosixPath(file).parts[0]] += (self.path / file).stat().st_size
        return [f"{name} {size / _MIB:.0f} MiB" for name, size in weights.most_common(count)]


def look(path: Path) -> Folder:
    """The files of a folder, without those that ``.gitignore`` or ``.rayignore`` names.

    Raises:
        ConfigError: it is no folder, or it has a ``.gitignore`` and git is not installed.
    """
    if not path.is_dir():
        raise ConfigError(f"{path} is no folder: give the one that the script is in")
    files = [name for name in _names(path) if (path / name).is_file()]
    total = sum((path / name).stat().st_size for name in files)
    return Folder(path=path, files=tuple(sorted(files)), total_bytes=total)


def check_script(folder: Folder, script: str) -> None:
    """Refuse a script that the job would not find.

    Raises:
        ConfigError: it is missing, outside the folder, or ignored.
    """
    place = PurePosixPath(os.path.normpath(script))
    if place.is_absolute() or ".." in place.parts:
        raise ConfigError(
            f"{script} is outside the working folder {folder.path}: name it relative to the "
            "folder, or give the folder with --workdir"
        )
    if not (folder.path / place).is_file():
        raise ConfigError(f"there is no {script} in the working folder {folder.path}")
    if str(place) not in folder.files:
        raise ConfigError(f"{script} is ignored by .gitignore or .rayignore: it must be uploaded")


def pack(folder: Folder, archive: Path, *, max_bytes: int = MAX_BYTES) -> int:
    """Write the files as a zip; the same files give the same bytes.

    Returns:
        The archive's size in bytes.

    Raises:
        ConfigError: it is larger than ``max_bytes``; the largest entries are named.
    """
    with zipfile.ZipFile(archive, "w", compression=zipfile.ZIP_DEFLATED) as out:
        for name in folder.files:
            source = folder.path / name
            entry = zipfile.ZipInfo(name, date_time=_MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (source.stat().st_mode & 0xFFFF) << 16
            with source.open("rb") as data, out.open(entry, "w") as packed:
                shutil.copyfileobj(data, packed)
            if out.fp is not None and out.fp.tell() > max_bytes:
                raise _too_large(folder, max_bytes)
    size = archive.stat().st_size
    if size > max_bytes:
        raise _too_large(folder, max_bytes)
    return size


def _too_large(folder: Folder, max_bytes: int) -> ConfigError:
    return ConfigError(
        f"the working folder {folder.path} ({folder.size_text}) is packed larger than the "
        f"{max_bytes / _MIB:.0f} MiB that Ray takes; most weigh "
        f"{', '.join(folder.largest())}: name what is not needed in .gitignore or .rayignore, "
        "and put data into your bucket"
    )


def _names(path: Path) -> Sequence[str]:
    if shutil.which("git") is None:
        if (path / ".gitignore").exists():
            raise ConfigError(f"git is needed to read {path / '.gitignore'}: install it")
        return [
            file.relative_to(path).as_posix()
            for file in path.rglob("*")
            if ".git" not in file.relative_to(path).parts
        ]
    if _git(path, "rev-parse", "--is-inside-work-tree").returncode == 0:
        return _listed(path)
    # git reads .gitignore in repositories only: an empty one that lies elsewhere will do.
    with tempfile.TemporaryDirectory() as empty:
        subprocess.run(["git", "init", "-q", "--bare", empty], check=True, capture_output=True)
        return _listed(path, f"--git-dir={empty}", f"--work-tree={path}")


def _listed(path: Path, *where: str) -> list[str]:
    ignore = path / ".rayignore"
    also = [f"--exclude-from={ignore.resolve()}"] if ignore.is_file() else []
    done = _git(path, *where, "ls-files", "-z", "--others", "--exclude-standard", *also)
    tracked = _git(path, *where, "ls-files", "-z", "--cached")
    for one in (done, tracked):
        if one.returncode:
            raise ConfigError(f"git cannot list {path}: {one.stderr.decode().strip()}")
    names = {os.fsdecode(name) for name in (done.stdout + tracked.stdout).split(b"\0") if name}
    if also:  # it also hides what git tracks
        hidden = _git(path, *where, "ls-files", "-z", "--cached", "--ignored", *also)
        names -= {os.fsdecode(name) for name in hidden.stdout.split(b"\0") if name}
    # A repository inside this one is a folder to git: what it sees there goes, too.
    # A link to a folder is left out: it may lead anywhere, also back here.
    inner = {name for name in names if (path / name).is_dir()}
    for name in (one for one in inner if not (path / one).is_symlink()):
        names |= {f"{name.rstrip('/')}/{one}" for one in _names(path / name)}
    return sorted(names - inner)


def _git(path: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # A hook or an outer command may have set these for another repository.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(
        ["git", *arguments], cwd=path, env=clean, capture_output=True, check=False
    )
