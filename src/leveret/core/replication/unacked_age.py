"""The age of the oldest frame that a follower has not acked, in or out of sync. Pure.

`core.replication.in_sync` measures only the followers that promises wait for, because it decides by that age; this one
is for operators, who want to see it grow while a follower is out of sync.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_FRAMES_MAX: Final = 1024


class _SentFrames(NamedTuple):
    """Frames up to `position`, the first of which was sent at `at_ms`."""

    position: int
    at_ms: int


class UnackedAge:
    """See the module. Positions and times never fall."""

    __slots__ = ("_acked", "_sent")

    def __init__(self) -> None:
        """Begin without a frame."""
        self._acked = 0
        self._sent: deque[_SentFrames] = deque()

    def sent(self, position: int, now_ms: int) -> None:
        """Note that the frame up to a position was sent; one without a change has the position before it."""
        if position <= (self._sent[-1].position if self._sent else self._acked):
            return
        self._sent.append(_SentFrames(position, now_ms))
        if len(self._sent) > _FRAMES_MAX:
            # The age of the oldest one stays exact; if only a part of two is acked, it is too high.
            frames = list(self._sent)
            pairs = zip(frames[::2], [*frames[1::2], frames[-1]], strict=False)
            self._sent = deque(_SentFrames(last.position, first.at_ms) for first, last in pairs)

    def acked(self, position: int) -> None:
        """Take an ack of all frames up to a position."""
        self._acked = max(self._acked, position)
        while self._sent and self._sent[0].position <= position:
            self._sent.popleft()

    def ms(self, now_ms: int) -> int:
        """Return the age; 0 if every frame was acked."""
        return now_ms - self._sent[0].at_ms if self._sent else 0
