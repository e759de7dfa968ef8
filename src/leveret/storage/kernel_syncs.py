"""Syncs of files by the kernel's own threads: the asynchronous input and output of Linux, see io_submit(2).

A sync by a thread of the process hands the interpreter over four times, to the thread and back, before and after its
call. That takes longer than the call on a fast disk. Here a submission and a look at the results are one system call
each, neither of which waits, so neither releases the interpreter. The kernel holds the file until its sync has ended.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
from typing import Final, NamedTuple

from leveret.storage.sync import DirectoryDescriptor

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 64
"""The most files in a sync at any time."""

_FSYNC: Final = 2
_FDSYNC: Final = 3
_REPORTS_TO_DESCRIPTOR: Final = 1


class _Calls(NamedTuple):
    """The numbers of the system calls, which the C library has no functions for."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS: Final = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}


class _Request(ctypes.Structure):
    """`struct iocb` of linux/aio_abi.h on a machine of little-endian order."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_fd", ctypes.c_uint32),
    )


class _Result(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelSyncs:
    """The syncs of one event loop, which calls `ended` when `readable_fd` is readable."""

    def __init__(self) -> None:
        """Open a queue of the kernel.

        Raises:
            OSError: the kernel has none, or no more.
        """
        # PyDLL keeps the interpreter during a call.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        if platform.system() != "Linux" or platform.machine() not in _CALLS:
            raise OSError(errno.ENOSYS, f"no asynchronous syncs on {platform.machine()}")
        self._numbers = _CALLS[platform.machine()]
        self._queue = ctypes.c_ulong(0)
        self.readable_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._check(self._call(self._numbers.setup, AT_ONCE_MAX, ctypes.byref(self._queue)))
        except OSError:
            os.close(self.readable_fd)
            raise
        self._requests = [self._request() for _ in range(AT_ONCE_MAX)]
        self._addresses = (ctypes.c_void_p * AT_ONCE_MAX)(*map(ctypes.addressof, self._requests))
        self._results = (_Result * AT_ONCE_MAX)()
        self._running = 0

    def _request(self) -> _Request:
        return _Request(flags=_REPORTS_TO_DESCRIPTOR, result_fd=self.readable_fd)

    @staticmethod
    def _check(returned: int) -> int:
        if returned < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return returned

    def begin(self, descriptors: list[int], number: int) -> int:
        """Begin to sync the first of these descriptors, as many as the kernel takes; return how many those are.

        They may be closed at once. `ended` returns `number` once for each.

        Raises:
            OSError: it takes none.
        """
        count = min(len(descriptors), AT_ONCE_MAX - self._running)
        for request, fd in zip(self._requests, descriptors[:count], strict=False):
            request.data, request.fd = number, fd
            request.opcode = _FSYNC if isinstance(fd, DirectoryDescriptor) else _FDSYNC
        if not count:
            return 0
        begun = self._check(self._call(self._numbers.submit, self._queue, count, self._addresses))
        self._running += begun
        return begun

    def ended(self) -> list[tuple[int, OSError | None]]:
        """The number of each sync that has ended since the last call, and its error; never waits."""
        try:
            os.eventfd_read(self.readable_fd)
        except BlockingIOError:
            return []
        results = self._results
        count = self._check(self._call(self._numbers.getevents, self._queue, 0, AT_ONCE_MAX, results, None))
        self._running -= count
        return [(result.data, _error_of(result.result)) for result in results[:count]]

    def close(self) -> None:
        """Wait for the syncs that have begun; forget their results."""
        # Other threads go on meanwhile: a disk may take its time.
        ctypes.CDLL(None).syscall(self._numbers.destroy, self._queue)
        os.close(self.readable_fd)


def _error_of(result: int) -> OSError | None:
    return OSError(-result, os.strerror(-result)) if result < 0 else None


def open_kernel_syncs() -> KernelSyncs | None:
    """A queue for syncs by the kernel; None if it has none for this process."""
    try:
        return KernelSyncs()
    except OSError as error:
        logger.info("kernel_syncs_unavailable error=%s action=sync_in_threads", error)
        return None
