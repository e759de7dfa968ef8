"""The reasons for which a record of a queue's log is settled. Logs hold the numbers, so these must not change."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """The reason for which an offset is settled."""

    ACKED = 0
    EXPIRED = 1
    DROPPED = 2
    PURGED = 3
    DEAD_LETTERED = 4
