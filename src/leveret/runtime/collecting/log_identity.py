"""The name of an outgoing log and the epochs of its writers: `identity.json` beside the log, made with it.

A log that replaces another one has another name, so no downstream takes it for the continuation. A downstream whose
last record has another epoch than the record at that offset has a different log, even under the same name.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from typing import Final

import msgspec

from leveret.model.errors import StorageError
from leveret.storage.log import Log
from leveret.storage.state_file import StateFile

_WITHOUT: Final = "otherwise remove it, and downstreams begin anew"
ID_BITS: Final = 62
LEADERSHIPS_MAX: Final = 1000
"""The most epochs in the file; older records were transferred long ago."""


class _LedFrom(msgspec.Struct, frozen=True, array_like=True):
    """The writer of the log from the offset `first` on: each start and each promotion of a node has its own epoch."""

    epoch: int
    first: int


class _Saved(msgspec.Struct, frozen=True):
    """The content of the file; earlier versions did not record writers."""

    log_id: int | None = None
    leaderships: list[_LedFrom] = msgspec.field(name="reigns", default_factory=list)


class OutgoingLogIdentity:
    """See the module.

    Attributes:
        log_id: the name of the log.
        is_new: whether the name is new, so that no downstream has records of it.
    """

    def __init__(self, file: StateFile, log: Log) -> None:
        """Read the identity of a log; an empty log gets a new name, because its segments may have been lost.

        Raises:
            StorageError: the file is damaged, or the disk refused it.
        """
        self._file, self._log = file, log
        try:
            found = msgspec.convert(file.load(_WITHOUT), _Saved)
        except msgspec.ValidationError as error:
            raise StorageError(f"{file.path}: {error}; {_WITHOUT}") from None
        # This node has served no dropped record; an earlier leader may have done so.
        self._leaderships = [
            leadership for leadership in found.leaderships if leadership.first < log.next_offset
        ][-LEADERSHIPS_MAX:]
        self._is_reported = False
        self.is_new = found.log_id is None or not log.next_offset
        self.log_id = secrets.randbits(ID_BITS) if found.log_id is None or self.is_new else found.log_id
        if self.is_new:
            self._save(self._leaderships)

    def begin_leadership(self) -> None:
        """Add the log's epoch, before any record is written in it; on disk, and on its way to followers.

        Raises:
            StorageError: the disk refused it.
        """
        if self._is_reported:
            return
        if not self._leaderships or self._leaderships[-1].epoch != self._log.epoch:
            leaderships = [*self._leaderships, _LedFrom(self._log.epoch, self._log.next_offset)]
            self._save(leaderships)
            self._leaderships = leaderships
        self._is_reported = True

    def epoch_before(self, offset: int) -> int | None:
        """The epoch in which the record before `offset` was written; None if unknown."""
        at = bisect_left(self._leaderships, offset, key=lambda leadership: leadership.first)
        return self._leaderships[at - 1].epoch if at else None

    def _save(self, leaderships: list[_LedFrom]) -> None:
        self._file.save(msgspec.to_builtins(_Saved(self.log_id, leaderships)))
