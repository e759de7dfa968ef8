"""A queue that was declared as a quorum queue: it counts how often a message came back.

Served by the same log as a classic queue. Every delivery carries `x-delivery-count`, and a message that
comes back more often than `delivery-limit` allows is dead-lettered or dropped (RabbitMQ's rule against
poison messages). The counts outlast restarts and fail-overs (`returns`).
"""

from __future__ import annotations

from collections.abc import Iterator

from leveret.core.queues.head import Head, Run, make_head
from leveret.core.queues.queue import Queue
from leveret.model.reasons import Reason
from leveret.wire import properties as props
from leveret.wire import tables

DELIVERY_COUNT = b"x-delivery-count"
_COUNTED_MAX = 8
"""Heads of other counts that a head keeps: one message may come back millions of times."""


class QuorumQueue(Queue):
    """See the module."""

    def requeue(self, first: int, count: int) -> None:
        """See Queue; what came back too often goes for good."""
        back = first
        for offset in self.returns.add(first, first + count, self.settings.delivery_limit):
            self._put_back(back, offset)
            self._refuse(offset)
            back = offset + 1
        self._put_back(back, first + count)

    def _put_back(self, first: int, end: int) -> None:
        if first < end:
            super().requeue(first, end - first)

    def _refuse(self, offset: int) -> None:
        self.returns.forget(offset, offset + 1)
        if self.settings.dead_letter_exchange is None:
            self.settle(offset, 1, Reason.DROPPED)
        else:
            self.dying.declare_dead(offset, offset + 1, "delivery_limit")

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """See Queue; every message with its count."""
        runs, redelivered = super().take(limit)
        if not redelivered:
            for run in runs:
                run.head = with_delivery_count(run.head, 0)
            return runs, False
        return [piece for run in runs for piece in self._counted(run)], True

    def _counted(self, run: Run) -> Iterator[Run]:
        """A run in pieces of one count each: after a crash all of a long backlog is redelivered, none of it counted."""
        count_of = self.returns.of
        first = run.first
        while first < run.end:
            count, end = count_of(first), first + 1
            while end < run.end and count_of(end) == count:
                end += 1
            piece = run.cut(first, end)
            piece.head = with_delivery_count(run.head, count)
            yield piece
            first = end


def with_delivery_count(head: Head, count: int) -> Head:
    """The same head with the header `x-delivery-count`; made once for each count."""
    found = head.counted.get(count)
    if found is None:
        if len(head.counted) >= _COUNTED_MAX:
            head.counted.clear()
        found = head.counted[count] = _counted(head, count)
    return found


def _counted(head: Head, count: int) -> Head:
    properties = props.split(head.header)
    try:
        headers = tables.split(properties.get(props.HEADERS, b""))
    except props.SyntaxFault:
        # A publisher's headers that are no table stay as they are.
        return head
    headers[DELIVERY_COUNT] = tables.long_integer(count)
    properties[props.HEADERS] = tables.join(headers)
    return make_head(head.exchange, head.routing_key, props.join(properties, head.body_bytes))
