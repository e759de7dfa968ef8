"""Bounds the number of open segments, because a node may have more queues than the system has descriptors.

Opening one more than `count_max` closes segments that were not used lately (second chance). The choice matters for
promises: the kernel reports a failed write-back to descriptors that were open at the time, and may have forgotten it
when the file is opened again. So a segment with octets that no fdatasync has covered is synced before it is closed,
here and now. An error of that sync is a permanent failure of the log (`Log.unsynced` raises it). The sync blocks the
event loop for the disk. The node avoids it: publishers and long work wait while half of `count_max` logs are unsynced
(runtime.logs.backpressure).
"""

from __future__ import annotations

import errno
import sys
from collections import OrderedDict
from typing import Final, Protocol

from leveret.model.errors import StorageError
from leveret.storage.segment import Segment

_CLOSED_AT_ONCE: Final = 16
"""The number of segments to close when the system has no descriptor left."""
_CLOSED_OF_MANY: Final = 64
"""At the bound, one segment in so many is closed: a search may pass all open ones, so not every open may need one."""
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_DISK: Final = frozenset({errno.EROFS, errno.EIO})
"""A file system that met an error is made read-only, or gives this error for each call (ext4, XFS)."""


class OutOfDescriptors(StorageError):
    """The system has no descriptor left; the log is whole, and a later try may succeed."""


class DiskFailed(StorageError):
    """The disk failed, or its file system is read-only: no later try succeeds while the node runs."""


def storage_error(error: OSError, text: str) -> StorageError:
    """The exception for an error of the system."""
    if error.errno in _NO_DISK:
        return DiskFailed(f"{text}: {error}")
    return opening_error(error, text)


def opening_error(error: OSError, text: str) -> StorageError:
    """As `storage_error`, for a log that is opened: one file that cannot be read says nothing of the disk."""
    kind = OutOfDescriptors if error.errno in _NO_DESCRIPTOR else StorageError
    return kind(f"{text}: {error}")


class SegmentOwner(Protocol):
    """The log of a segment; only it knows whether the segment may be closed as it is."""

    def is_due(self, segment: Segment) -> bool:
        """Whether a segment has octets that no fdatasync has covered."""

    def sync_and_close(self, segment: Segment) -> None:
        """Close a segment's descriptor, after an fdatasync if it is due."""


class OpenSegments:
    """The open segments of all logs of one thread; so no descriptor is closed during a read."""

    def __init__(self, count_max: int = sys.maxsize) -> None:
        """None is open."""
        self.count_max = count_max
        self._open: OrderedDict[Segment, SegmentOwner] = OrderedDict()

    def __len__(self) -> int:
        """The number of open segments."""
        return len(self._open)

    def open(self, log: SegmentOwner, segment: Segment) -> int:
        """Open a segment without a descriptor, and make its file if necessary. Raises OSError."""
        if len(self._open) >= self.count_max:
            self.close_all_but(self.count_max - max(1, self.count_max // _CLOSED_OF_MANY))
        try:
            descriptor = segment.fd()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            self.close_all_but(max(0, len(self._open) - _CLOSED_AT_ONCE))
            descriptor = segment.fd()
        segment.is_used = True
        self._open[segment] = log
        return descriptor

    def closed(self, segment: Segment) -> None:
        """Note that a segment's descriptor was closed."""
        self._open.pop(segment, None)

    def close_all_but(self, count: int) -> None:
        """Close segments until no more than `count` are open: first clean ones that were not used lately."""
        for allowed in (_is_idle_and_clean, _is_clean, _is_any):
            for _ in range(len(self._open)):
                if len(self._open) <= count:
                    return
                segment, log = self._open.popitem(last=False)
                if allowed(log, segment):
                    log.sync_and_close(segment)
                else:
                    segment.is_used = False
                    self._open[segment] = log


def _is_idle_and_clean(log: SegmentOwner, segment: Segment) -> bool:
    return not segment.is_used and not log.is_due(segment)


def _is_clean(log: SegmentOwner, segment: Segment) -> bool:
    return not log.is_due(segment)


def _is_any(log: SegmentOwner, segment: Segment) -> bool:
    return True
