"""The archive's files, on this machine, in an object store or in an HDFS, durable across power loss.

On this machine a durable file is written beside its place, synced and renamed, and the directory is synced. For a
store it is written in Spark's scratch directory, then uploaded in one step. Only this module and the manifest's log
(`manifest_storage`) distinguish the two kinds of `Place`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from leveret.model.errors import StorageError
from leveret.model.store_uri import local_path
from leveret.pipeline.files.objects import ObjectPath

Place: TypeAlias = Path | ObjectPath
TEMPORARY: Final = ".tmp"
ORPHAN_AGE_S: Final = 3600.0
"""In a store with other writers, a younger file may be one that will be recorded soon."""
_POLL_S: Final = 0.05
_VHOST: Final = "vhost-"
_DIGEST: Final = "sha256-"
_NAMED_MODE: Final = 0o640
_UNNAMED_MODE: Final = 0o600
"""The permissions of the archive's files, in directories that are for this user alone: see `archive.once_named`."""
_NAME_OCTETS_MAX: Final = 255
"""The limit of any file system. Archives have plans under names as long as that: a name that fits stays unchanged."""


def place_of(name: str) -> Place:
    """The place of a path or a URI.

    Raises:
        StorageError: no archive can be kept there.
    """
    try:
        local = local_path(name)
    except ValueError as error:
        raise StorageError(str(error)) from None
    return ObjectPath(name.rstrip("/")) if local is None else local


def vhost_directory(vhost: str) -> str:
    """A unique directory name for a vhost: readable if it is not too long, never `.`, `..` or empty."""
    quoted = quote(vhost, safe="")
    # A vhost may have the digest of another one's name as its name.
    if len(_VHOST + quoted) <= _NAME_OCTETS_MAX and not quoted.startswith(_DIGEST):
        return _VHOST + quoted
    return _VHOST + _DIGEST + hashlib.sha256(vhost.encode()).hexdigest()


def name_in(above: Place, place: Place) -> str:
    """The name of `place` relative to `above`, a place of the same kind above it."""
    if isinstance(above, ObjectPath):
        assert isinstance(place, ObjectPath)
        return str(place.relative_to(above))
    assert isinstance(place, Path)
    return str(place.relative_to(above))


# -- writing -------------------------------------------------------------------------------------------


def sync_directory(directory: Place) -> None:
    """Make renames, new and removed names in `directory` durable."""
    if isinstance(directory, ObjectPath):
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Place) -> None:
    """Make `directory` and its parents, durable and for this user alone; it may exist."""
    if isinstance(directory, ObjectPath):
        return
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        sync_directory(each.parent)


def sync_file(path: Path) -> int:
    """Make the content of `path` durable; return its octets."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def uncache(place: Place) -> None:
    """Release the page cache of a durable file that is not read soon."""
    if isinstance(place, Path):
        with suppress(OSError):
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextmanager
def written_beside(directory: Place) -> Iterator[Path]:
    """Yield a scratch file for content that `keep` puts into `directory`; it is removed afterwards.

    Concurrent writers get different files.

    Raises:
        StorageError: the disk is full or read-only, or the store refuses.
    """
    scratch = _scratch() if isinstance(directory, ObjectPath) else directory
    beside = scratch / f"{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}"
    try:
        yield beside
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def keep(beside: Path, place: Place) -> int:
    """Put a scratch file at its place, as a whole, replacing an old one; return its octets.

    Durable after `sync_directory` of the directory.
    """
    if isinstance(place, ObjectPath):
        place.upload(beside)
        return beside.stat().st_size
    size = sync_file(beside)
    beside.rename(place)
    return size


def note_named(place: Place, *, is_named: bool) -> None:
    """Note on a file whether an entry of the manifest names it; a file system without permissions notes nothing."""
    if isinstance(place, Path):
        with suppress(OSError):
            place.chmod(_NAMED_MODE if is_named else _UNNAMED_MODE)


def was_named(place: Place) -> bool:
    """Whether an entry of the manifest has named this file, as far as that was noted."""
    with suppress(OSError):
        return isinstance(place, Path) and stat.S_IMODE(place.stat().st_mode) == _NAMED_MODE
    return False


def write_durably(place: Place, octets: bytes) -> None:
    """Put `octets` at `place`: readers find the old content or all of the new one."""
    with written_beside(place.parent) as beside:
        if isinstance(place, ObjectPath):
            place.write_bytes(octets)
            return
        beside.write_bytes(octets)
        keep(beside, place)
        sync_directory(place.parent)


def delete_tree(place: Place) -> None:
    """Delete everything below `place`, which may be missing; errors are ignored."""
    if isinstance(place, ObjectPath):
        with suppress(OSError):
            place.delete_tree()
        return
    shutil.rmtree(place, ignore_errors=True)


def delete(place: Place) -> None:
    """Delete a file, or a directory with everything below it; it may be missing.

    Raises:
        StorageError: some of it stays.
    """
    try:
        if isinstance(place, ObjectPath):
            place.delete_tree()
            place.unlink(missing_ok=True)
        elif place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{place}: cannot be deleted: {error}") from error


def move(place: Place, target: Place) -> None:
    """Move a file, or a directory with everything below it, to a free place; it may be missing.

    Raises:
        StorageError: some of it was not moved.
    """
    try:
        if isinstance(place, ObjectPath):
            assert isinstance(target, ObjectPath)
            place.move(target)
        elif place.exists():
            assert isinstance(target, Path)
            make_directory(target.parent)
            place.rename(target)
            sync_directory(target.parent)
    except OSError as error:
        raise StorageError(f"{place}: cannot be moved to {target}: {error}") from error


def remove_if_empty(directory: Place) -> None:
    """Remove an empty directory; stores have none."""
    if isinstance(directory, Path) and directory.exists() and not any(directory.iterdir()):
        directory.rmdir()


# -- reading -------------------------------------------------------------------------------------------


def opened(place: Place) -> pa.NativeFile:
    """Open a file for random access: a large object is fetched as far as it is read."""
    return pa.PythonFile(place.open(), "r") if isinstance(place, ObjectPath) else pa.memory_map(str(place))


def loaded(place: Place) -> pa.NativeFile:
    """Open a file to read all of it."""
    return pa.BufferReader(place.read_bytes()) if isinstance(place, ObjectPath) else pa.memory_map(str(place))


def matching(directory: Place, pattern: str) -> list[Place]:
    """The matching places below a directory, in order; `*` is all of a part of a name."""
    return [*sorted(directory.glob(pattern))] if isinstance(directory, Path) else [*directory.glob(pattern)]


def sweepable(directory: Place) -> list[Place]:
    """The places in the directories in `directory` that may be deleted if they are not needed."""
    if isinstance(directory, ObjectPath):
        return list(directory.older_than(ORPHAN_AGE_S))
    return list(directory.glob("*/*"))


@contextmanager
def locked(path: Path, timeout_s: float, what: str) -> Iterator[None]:
    """Hold the lock file `path`; the end of this process, of any kind, releases it.

    Raises:
        StorageError: another process holds it longer than `timeout_s`.
    """
    make_directory(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageError(f"{path}: another process is {what}; wait for it, or end it") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _scratch() -> Path:
    """The directory for Spark's scratch files, or the system's for temporary files."""
    mine = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return Path(mine) if mine and Path(mine).is_dir() else Path(tempfile.gettempdir())
