"""Why a record of a queue's log is settled; the numbers stand in logs and must not change."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Why an offset is settled."""

    ACKED = 0
    EXPIRED = 1
    DROPPED = 2
    PURGED = 3
    DEAD_LETTERED = 4
