"""How many segments of logs are held open: a bound, for a node may have more queues than the system has descriptors.

Opening one more than `count_max` closes others that were not used lately (second chance). Which one, matters for
what was promised: the kernel tells of a failed write-back to descriptors that were open at the time, and may have
forgotten it when the file is opened again. So a segment with octets that no fdatasync has covered is closed only
after one, here and now; what that finds wrong is the log's failure for good (`Log.unsynced` raises it). That blocks
the event loop for the disk, and happens only where more logs than `count_max` are written to at once.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from leveret.model.errors import StorageError
from leveret.storage.segment import Segment

_CLOSED_AT_ONCE: Final = 16
"""When the system has no descriptor left."""
_CLOSED_OF_MANY: Final = 64
"""At the bound one of so many is closed: a search may pass all that are open, so not each that opens may cost one."""
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


class OutOfDescriptors(StorageError):
    """The system has no descriptor left; nothing is wrong with the log, and a later try may succeed."""


def storage_error(error: OSError, text: str) -> StorageError:
    """What to raise for an error of the system."""
    kind = OutOfDescriptors if error.errno in _NO_DESCRIPTOR else StorageError
    return kind(f"{text}: {error}")


class SegmentOwner(Protocol):
    """The log of a segment; only it knows whether the segment may be closed as it is."""

    def is_due(self, segment: Segment) -> bool:
        """Whether it has octets that no fdatasync has covered."""

    def sync_and_close(self, segment: Segment) -> None:
        """Give its descriptor back, after an fdatasync if it is due."""


class OpenSegments:
    """See the module. One for all logs that one thread uses: whose descriptors it closes is not inside a read.

    Attributes:
        close_deleted: closes a descriptor that is the last of a file; then the file system frees what the file had,
            which takes a millisecond for some megabytes. At once unless somebody has a thread for it.
    """

    def __init__(self, count_max: int = sys.maxsize) -> None:
        """None is open."""
        self.count_max = count_max
        self.close_deleted: Callable[[int], None] = os.close
        self._open: OrderedDict[Segment, SegmentOwner] = OrderedDict()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def open(self, log: SegmentOwner, segment: Segment) -> int:
        """The descriptor of a segment that has none, opened, or made if need be. Raises OSError."""
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
        """Its descriptor is given back."""
        self._open.pop(segment, None)

    def deleted(self, segment: Segment) -> None:
        """Its file has no name any more."""
        self.closed(segment)
        if segment.has_fd:
            self.close_deleted(segment.take_fd())

    def close_all_but(self, count: int) -> None:
        """Close segments until no more than so many are open: clean ones that were not used lately first."""
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
