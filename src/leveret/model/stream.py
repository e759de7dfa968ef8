"""Terms of streams: offset specifications (with the stream protocol's numbers), and intervals of time."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

_INTERVAL: Final = re.compile(r"(\d+)([YMDhms])")
_UNIT_MS: Final = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
}


class OffsetType(IntEnum):
    """The kind of position at which a subscription begins."""

    FIRST = 1
    LAST = 2
    NEXT = 3
    OFFSET = 4
    TIMESTAMP = 5


class OffsetSpec(NamedTuple):
    """The position at which a subscription begins.

    `value` is an offset or a time in ms, or unused, depending on `kind`.
    """

    kind: int
    value: int = 0


def interval_ms(text: str) -> int | None:
    """Parse an interval such as `7D` or `12h` (Y, M, D, h, m, s) to milliseconds; None if the text is no interval."""
    match = _INTERVAL.fullmatch(text)
    return int(match[1]) * _UNIT_MS[match[2]] if match else None
