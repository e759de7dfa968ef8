"""The order of a cluster's outgoing logs, which are transferred each at its own pace (ADR 48).

A *move* settles a message because a copy of it is in another queue: a dead letter. The copy may be in another node's
log. So a downstream lets a move count only if the copy is here too. It asks each node what its log covers, after it has
stored the move: the copy is before the ends that the nodes then name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from leveret.model.reasons import Reason

ORDER_STREAM: Final = "leveret.order"
"""The statistics of this stream are a node's LogCoverage."""
ORDER_STATISTIC: Final = "has_order"
"""In the statistics of an outgoing log: its node answers for ORDER_STREAM."""
EARLIER_LEADER: Final = 5
"""The reason of settlements with which a new leader's log begins: for any reason, under leaders before it."""
MOVES: Final = (int(Reason.DEAD_LETTERED), EARLIER_LEADER)
"""The reasons of settlements that may be moves."""
_MARKS_KEPT: Final = 16_384
_MODULUS: Final = 2**62 - 57
"""A prime, so that all octets of a name matter."""


class LogCoverage(NamedTuple):
    """What the outgoing log of a vhost has at a node, now.

    Attributes:
        writer: the log's writer; another one may give offsets that are not durable yet to other records.
        end: the offset before which the log has everything that is promised of the queues that the node leads; -1 if
            it lacks some of that.
        led: the sum of the marks of all collected queues that the node leads.
        known: the sum of the marks of all collected queues, as far as the node knows.
    """

    writer: int
    end: int
    led: int
    known: int

    @classmethod
    def of(cls, statistics: Mapping[str, int]) -> LogCoverage:
        """Read statistics. Raises KeyError."""
        return cls(*(statistics[name] for name in cls._fields))


@lru_cache(_MARKS_KEPT)
def mark_of(queue: str, epoch: int) -> int:
    """A number of a queue, so that the sums of different sets of queues differ.

    A node sums the marks of all its queues in one step, each time that a downstream asks.
    """
    octets = b"%d %b" % (epoch, queue.encode(errors="surrogatepass"))
    number = int.from_bytes(octets, "big")
    return number * number % _MODULUS


def sum_of(marks: int) -> int:
    """A sum of marks as LogCoverage has it."""
    return marks % _MODULUS


def is_whole(coverages: Collection[LogCoverage]) -> bool:
    """Whether the logs of these nodes have everything that is promised: each collected queue has one leader of them."""
    led = sum_of(sum(each.led for each in coverages))
    return all(each.end >= 0 and each.known == led for each in coverages)
