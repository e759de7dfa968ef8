"""A queue that was declared as a quorum queue: it counts the returns of each message.

The log is that of a classic queue. Every delivery carries `x-delivery-count`. A message that is returned more often
than `delivery-limit` allows is dead-lettered or dropped (RabbitMQ's rule against poison messages). The counts survive
restarts and fail-overs (`return_counts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leveret.core.queues.head import Head, head_of_octets, make_head
from leveret.core.queues.messages import Messages, Run, alike
from leveret.core.queues.queue import Queue
from leveret.model.reasons import Reason
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.properties import shortstr

DELIVERY_COUNT: Final = b"x-delivery-count"
_COUNTED_MAX: Final = 8
"""The most heads with other counts that a head caches: a message may come back millions of times."""


class QuorumQueue(Queue):
    """See the module."""

    def requeue(self, first: int, count: int) -> None:
        """See Queue; messages that came back too often are dead-lettered or dropped."""
        back = first
        for offset in self.return_counts.add(first, first + count, self.settings.delivery_limit):
            self._put_back(back, offset)
            self._refuse(offset)
            back = offset + 1
        self._put_back(back, first + count)

    def _put_back(self, first: int, end: int) -> None:
        if first < end:
            super().requeue(first, end - first)

    def _refuse(self, offset: int) -> None:
        self.return_counts.forget(offset, offset + 1)
        if self.settings.dead_letter_exchange is None:
            self.settle(offset, 1, Reason.DROPPED)
        else:
            self.dead_lettering.declare_dead(offset, offset + 1, "delivery_limit")

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """See Queue; adds the count to every message."""
        runs, redelivered = super().take(limit)
        if not redelivered:
            return [Run(run.first, _messages_counted(run.taken(), 0), run.arrived_ms) for run in runs], False
        return [piece for run in runs for piece in self._counted(run)], True

    def _counted(self, run: Run) -> Iterator[Run]:
        """A run in pieces of one count each; after a crash a whole long backlog is redelivered with one count."""
        count_of = self.return_counts.of
        first = run.first
        while first < run.end:
            count, end = count_of(first), first + 1
            while end < run.end and count_of(end) == count:
                end += 1
            piece = run.cut(first, end)
            yield Run(first, _messages_counted(piece.taken(), count), run.arrived_ms)
            first = end


def _messages_counted(messages: Messages, count: int) -> Messages:
    """The same messages, each with its count."""
    if messages.head is not None:
        return alike(with_delivery_count(messages.head, count), messages.bodies)
    entry = shortstr(DELIVERY_COUNT) + tables.long_integer(count)
    return Messages(
        messages.routes,
        [_header_counted(header, entry, count) for header in messages.headers],
        messages.bodies,
        body_bytes=messages.body_bytes,
        expiration_ms=messages.expiration_ms,
        priority=messages.priority,
        is_persistent=messages.is_persistent,
    )


def _header_counted(header: bytes, entry: bytes, count: int) -> bytes:
    """A content header behind its length, with the count as the last of its headers."""
    if DELIVERY_COUNT in header:
        # The header exists already, from an earlier queue or the publisher: replace it.
        return _counted(head_of_octets(b"\0\0", header[4:]), count).sized_header
    return props.with_more_headers(header, entry)


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
        # A publisher's headers that are no table stay unchanged.
        return head
    headers[DELIVERY_COUNT] = tables.long_integer(count)
    properties[props.HEADERS] = tables.join(headers)
    return make_head(head.exchange, head.routing_key, props.join(properties, head.body_bytes))
