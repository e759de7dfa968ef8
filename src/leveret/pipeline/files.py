"""Files that survive a power loss: written beside, synced, renamed, and the directory synced."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from leveret.model.errors import StorageError

TEMPORARY: Final = ".tmp"
_POLL_S: Final = 0.05


def vhost_directory(vhost: str) -> str:
    """A directory name for a vhost: readable, reversible, and never `.`, `..` or empty."""
    return "vhost-" + quote(vhost, safe="")


def vhost_of_directory(name: str) -> str:
    """The vhost that `vhost_directory` made this of."""
    return unquote(name.removeprefix("vhost-"))


def sync_directory(directory: Path) -> None:
    """Make renames, new and removed names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make `directory` and what leads to it, durable and for this user alone; it may exist."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        sync_directory(each.parent)


def sync_file(path: Path) -> int:
    """Make the content of `path` durable; returns its octets."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


@contextmanager
def written_beside(directory: Path) -> Iterator[Path]:
    """A name in `directory` to write to, and then to rename; gone afterwards if it was not renamed.

    Two writers do not disturb each other.

    Raises:
        StorageError: the disk is full or may not be written.
    """
    beside = directory / f"{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}"
    try:
        yield beside
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def write_durably(path: Path, octets: bytes) -> None:
    """Put `octets` at `path`: whoever reads finds what was there before or all of them."""
    with written_beside(path.parent) as beside:
        beside.write_bytes(octets)
        sync_file(beside)
        beside.rename(path)
        sync_directory(path.parent)


@contextmanager
def locked(path: Path, timeout_s: float, what: str) -> Iterator[None]:
    """Hold the lock file `path`; it is free again when this process ends, however it ends.

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
                    raise StorageError(
                        f"{path}: another process is still at {what}; wait for it, or end it"
                    ) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
