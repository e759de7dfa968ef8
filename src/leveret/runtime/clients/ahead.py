"""How long a publisher waits for its next turn while its consumers are far behind.

A publish costs the node less than a delivery with its ack. Where both share one processor, a publisher that has a turn
as often as its consumers takes most of the processor, and the backlog grows although the consumers could keep up. So
the publisher waits until the node has delivered as many messages as the publisher's last turn brought. It waits no
longer where consumers take nothing, for then the node is not what they wait for.
"""

from __future__ import annotations

from typing import Final

LOOK_S: Final = 0.002
"""How often a waiting publisher is looked at."""
IDLE_LOOKS: Final = 2
"""Consumers that were sent nothing between so many looks have what they can take."""
WAIT_S_MAX: Final = 0.010
"""Slow consumers would else hold a publisher to their own rate, and a backlog is what a broker is for."""


class AheadWait:
    """One wait of a publisher; does no I/O and reads no clock."""

    __slots__ = ("_ends_s", "_enough", "_idle_looks", "_seen")

    def __init__(self, published: int, delivered: int, now_s: float) -> None:
        """The publisher's turn brought so many messages; `delivered` are the node's deliveries so far."""
        self._enough = delivered + published
        self._ends_s = now_s + WAIT_S_MAX
        self._seen = delivered
        self._idle_looks = 0

    def is_over(self, delivered: int, now_s: float) -> bool:
        """Whether the publisher has its turn; asked once a look."""
        self._idle_looks = self._idle_looks + 1 if delivered == self._seen else 0
        self._seen = delivered
        return delivered >= self._enough or self._idle_looks >= IDLE_LOOKS or now_s >= self._ends_s
