"""The data directory of a running node: private to its user, and one node's at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from leveret.model.errors import LeveretError
from leveret.model.whole_number import whole_number
from leveret.storage.reserve import is_full

LOCK_FILE: Final = "node.lock"
PID_MAX: Final = 2**22
"""Linux gives no higher process id."""
_OTHERS: Final = 0o077


class DataDirError(LeveretError):
    """The data directory cannot be used."""


class DataDirBusy(DataDirError):
    """Another node runs on it."""


@contextmanager
def claimed(path: Path) -> Iterator[Path]:
    """Make a missing directory (mode 0700), and hold its lock while the context lasts.

    Raises:
        DataDirBusy: another node holds the lock; the text names its process.
        DataDirError: not a directory, another user's, or open to others with files that are no node's.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(path)
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirError(f"data directory {path}: {error.strerror}") from error
    try:
        _lock(descriptor, path)
        yield path
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """Exclude other users; a directory that is neither empty nor a node's keeps its mode."""
    mode = path.stat().st_mode
    if not mode & _OTHERS:
        return
    if not (path / LOCK_FILE).exists() and any(path.iterdir()):
        raise DataDirError(
            f"data directory {path} has other files in it and is open to other users: "
            "name an empty directory, or close it with chmod 700"
        )
    path.chmod(0o700)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise DataDirBusy(
            f"data directory {path} is in use by another node (process {holder}): "
            "stop it first, or name another directory"
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        # The lock is held; its holder is for messages only.
        if not is_full(error):
            raise DataDirError(f"data directory {path} cannot be written: {error.strerror}") from error


def holder(path: Path) -> int | None:
    """The process id of the node that runs on a data directory, None if none does."""
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return whole_number(text, most=PID_MAX)
    finally:
        os.close(descriptor)
    return None
