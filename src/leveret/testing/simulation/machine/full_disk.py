"""Disks of limited size: writes beyond it fail, as on a full disk.

    with LimitedDisks() as disks:
        disks.limit(data_dir, 1 << 20)                       # of all files below it; None ends the limit
        disks.fill(data_dir)                                 # no more octets fit, until a file is removed

A write that fits in part is done in part, and the next one fails. Only the sizes of files and a page for each new
directory count, not a file system's own needs. The reported free space is that of the limit.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

_DIRECTORY_BYTES: Final = 4096


class _LimitedFile(io.FileIO):
    """A file that writes its octets with `os.write`, which applies the limits."""

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)


class LimitedDisks:
    """See the module."""

    def __init__(self) -> None:
        """Begin without limits."""
        self._limits: dict[str, int] = {}
        self._patches = ExitStack()
        self._write: Callable[[int, Any], int] = os.write
        self._pwrite: Callable[[int, Any, int], int] = os.pwrite
        self._pwritev: Callable[..., int] = os.pwritev
        self._fallocate: Callable[[int, int, int], None] = os.posix_fallocate
        self._mkdir: Callable[..., None] = os.mkdir
        self._statvfs: Callable[[Any], os.statvfs_result] = os.statvfs
        self._open: Callable[..., Any] = io.open

    def limit(self, directory: Path, size_bytes: int | None) -> None:
        """Limit the joint size of the files below a directory; None ends the limit."""
        self._limits.pop(str(directory.resolve()), None)
        if size_bytes is not None:
            self._limits[str(directory.resolve())] = size_bytes

    def fill(self, directory: Path, left_bytes: int = 0) -> None:
        """Limit the free space below a directory to `left_bytes`."""
        self.limit(directory, _used_bytes(str(directory.resolve())) + left_bytes)

    def __enter__(self) -> Self:
        """Apply the limits until the end of the block."""
        calls = {
            "write": self._limited_write,
            "pwrite": self._limited_pwrite,
            "pwritev": self._limited_pwritev,
            "posix_fallocate": self._limited_fallocate,
            "mkdir": self._limited_mkdir,
            "statvfs": self._limited_statvfs,
        }
        for name, call in calls.items():
            self._patches.enter_context(mock.patch.object(os, name, call))
        for module in (io, builtins):
            self._patches.enter_context(mock.patch.object(module, "open", self._limited_open))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _free_bytes(self, path: str) -> int | None:
        """Return the free space at a path; None without a limit."""
        for directory, size_bytes in self._limits.items():
            if f"{path}/".startswith(f"{directory}/"):
                return max(0, size_bytes - _used_bytes(directory))
        return None

    def _fitting(self, descriptor: int, place: int, count: int) -> int:
        """Return the number of `count` octets that fit into a file from `place` on. Raises OSError: none fits."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        free_bytes = self._free_bytes(path)
        if free_bytes is None:
            return count
        fitting = min(count, max(0, os.fstat(descriptor).st_size - place) + free_bytes)
        if count and not fitting:
            raise _full(path)
        return fitting

    def _limited_write(self, descriptor: int, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        if not self._limits or not os.path.isfile(f"/proc/self/fd/{descriptor}"):
            return self._write(descriptor, data)
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        return self._write(descriptor, view[: self._fitting(descriptor, place, len(view))])

    def _limited_pwrite(self, descriptor: int, data: Any, place: int, /) -> int:
        if not self._limits:
            return self._pwrite(descriptor, data, place)
        view = memoryview(data).cast("B")
        return self._pwrite(descriptor, view[: self._fitting(descriptor, place, len(view))], place)

    def _limited_pwritev(self, descriptor: int, buffers: Sequence[Any], place: int, flags: int = 0, /) -> int:
        if not self._limits:
            return self._pwritev(descriptor, buffers, place, flags)
        count = sum(len(memoryview(each).cast("B")) for each in buffers)
        fitting = self._fitting(descriptor, place, count)
        if fitting == count:
            return self._pwritev(descriptor, buffers, place, flags)
        return self._pwrite(descriptor, b"".join(buffers)[:fitting], place)

    def _limited_fallocate(self, descriptor: int, place: int, count: int, /) -> None:
        if self._limits and self._fitting(descriptor, place, count) < count:
            raise _full(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._fallocate(descriptor, place, count)

    def _limited_mkdir(self, path: Any, mode: int = 0o777, **given: Any) -> None:
        if self._limits:
            free_bytes = self._free_bytes(os.path.realpath(os.path.dirname(os.fsdecode(path)) or "."))
            if free_bytes is not None and free_bytes < _DIRECTORY_BYTES:
                raise _full(os.fsdecode(path))
        self._mkdir(path, mode, **given)

    def _limited_statvfs(self, path: Any, /) -> os.statvfs_result:
        found = self._statvfs(path)
        is_open = isinstance(path, int)
        real = os.readlink(f"/proc/self/fd/{path}") if is_open else os.path.realpath(os.fsdecode(path))
        free_bytes = self._free_bytes(real)
        if free_bytes is None:
            return found
        free = free_bytes // found.f_frsize
        return os.statvfs_result((*found[:3], free, free, *found[5:]))

    def _limited_open(
        self, file: Any, mode: str = "r", buffering: int = -1, *given: Any, **named: Any
    ) -> Any:
        if not self._limits or mode not in ("wb", "xb", "ab"):
            return self._open(file, mode, buffering, *given, **named)
        raw = _LimitedFile(file, mode, named.get("closefd", True), named.get("opener"))
        return io.BufferedWriter(raw) if buffering else raw


def _used_bytes(directory: str) -> int:
    used = 0
    for each in os.scandir(directory):
        if each.is_dir(follow_symlinks=False):
            used += _used_bytes(each.path)
        elif each.is_file(follow_symlinks=False):
            used += each.stat().st_size
    return used


def _full(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
