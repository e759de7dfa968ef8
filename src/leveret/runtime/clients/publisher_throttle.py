"""Throttles a publisher whose consumers are far behind: it waits for its next turn.

A publish costs the node less than a delivery with its ack. If both share one processor, a publisher with as many turns
as its consumers takes most of the processor, and the backlog grows although the consumers could keep up. So the
publisher waits until the node has delivered as many messages as the publisher's last turn brought. The wait ends
earlier if the consumers take no messages, or few, because then the node is not their bottleneck.
"""

from __future__ import annotations

from typing import Final

LOOK_S: Final = 0.002
"""The interval of looks at a waiting publisher."""
IDLE_LOOKS: Final = 2
"""Consumers without a delivery between so many looks have all that they can take."""
SLOW_S: Final = 0.010
"""The longest wait for slow consumers: they must not hold a publisher to their rate, a broker is there for backlogs."""
SLOW_SHARE: Final = 0.25
"""Consumers that took less than this share of the publisher's turn in that time are slow."""
WAIT_S_MAX: Final = 0.020
"""The longest wait."""


class PublisherThrottle:
    """One wait of a throttled publisher; does no I/O and reads no clock."""

    __slots__ = ("_ends_s", "_enough", "_few", "_idle_looks", "_seen", "_slow_ends_s")

    def __init__(self, published: int, delivered: int, now_s: float) -> None:
        """Begin after a publisher's turn with so many messages; `delivered` are the node's deliveries so far."""
        self._enough = delivered + published
        self._few = delivered + SLOW_SHARE * published
        self._slow_ends_s, self._ends_s = now_s + SLOW_S, now_s + WAIT_S_MAX
        self._seen = delivered
        self._idle_looks = 0

    def is_over(self, delivered: int, now_s: float) -> bool:
        """Whether the publisher's next turn begins; called once a look."""
        self._idle_looks = self._idle_looks + 1 if delivered == self._seen else 0
        self._seen = delivered
        ends_s = self._slow_ends_s if delivered < self._few else self._ends_s
        return delivered >= self._enough or self._idle_looks >= IDLE_LOOKS or now_s >= ends_s
