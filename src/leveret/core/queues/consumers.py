"""The consumers of a queue, and the order in which they are served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import ClassVar, Final, Protocol

from leveret.core.queues.counters import Counters
from leveret.core.queues.messages import Run
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.definitions import QueueKey

DEALT_SINGLY: Final = 4
"""Messages are dealt one at a time if there are fewer than so many for each consumer."""


class QueueConsumer(Protocol):
    """A consumer of messages: the session's part of a `basic.consume`."""

    no_ack: bool
    exclusive: bool
    priority: int

    def capacity(self) -> int:
        """The number of further messages that the consumer may be sent now."""

    def queue_deleted(self) -> None:
        """Note that the queue is gone, and tell the client if it asked for that."""

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        """Take these runs; they are unacked from now on, or settled if `no_ack`."""


class DeliverySource(Protocol):
    """A queue as its consumers use it: led here, or led by another node and used through a client's channel."""

    is_remote: ClassVar[bool]
    key: QueueKey
    definition: QueueDefinition
    settings: QueueSettings
    counters: Counters
    consumers: Consumers

    def settle(self, first: int, count: int) -> None:
        """See core.queues.queue.Queue, as for all of these."""

    def reject(self, first: int, count: int) -> None:
        """Reject messages for good."""

    def requeue(self, first: int, count: int) -> None:
        """Return messages to their place."""

    def why_not_settled(self) -> str:
        """Why an acknowledgement no longer settles its messages; empty if it does."""

    def check_refusable(self) -> None:
        """Check that nack and reject are possible."""


class Consumers:
    """Consumers by priority, the highest first, then in the order of their arrival.

    The cost of a dispatch depends on changes, not on the number of consumers: a consumer without capacity leaves the
    line of its priority, and is not asked again before a `wake`.

    Attributes:
        count: the number of consumers.
        single_active: whether only one is served at a time (`x-single-active-consumer`).
        active: that one; the next in line succeeds it. None if all are served.
        on_active: called with the next active consumer, if only one is served.
    """

    def __init__(self, *, single_active: bool) -> None:
        """Begin without consumers."""
        self.single_active = single_active
        self.active: QueueConsumer | None = None
        self.on_active: Callable[[QueueConsumer], None] = _ignore
        self._levels: dict[int, dict[QueueConsumer, None]] = {}
        self._lines: dict[int, OrderedDict[QueueConsumer, None]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[QueueConsumer]:
        """Iterate over all consumers, in order."""
        return chain.from_iterable(self._levels.values())

    def __len__(self) -> int:
        """The number of consumers."""
        return self.count

    def refuses(self, *, exclusive: bool) -> bool:
        """Whether another consumer is refused: beside an exclusive one, or because it would be exclusive itself."""
        has_exclusive = self.count == 1 and next(iter(self)).exclusive
        return has_exclusive or (exclusive and (self.count > 0 or self.single_active))

    def add(self, consumer: QueueConsumer) -> None:
        """Add a consumer behind those of its priority."""
        if consumer.priority not in self._levels:
            self._levels[consumer.priority] = {}
            self._levels = dict(sorted(self._levels.items(), reverse=True))
            self._lines = {priority: self._lines.get(priority, OrderedDict()) for priority in self._levels}
        self._levels[consumer.priority][consumer] = None
        self._lines[consumer.priority][consumer] = None
        self.count += 1
        if self.single_active and self.active is None:
            self._activate(consumer)

    def remove(self, consumer: QueueConsumer) -> bool:
        """Remove a consumer; return whether it was there."""
        level = self._levels.get(consumer.priority, {})
        if consumer not in level:
            return False
        del level[consumer]
        self._lines[consumer.priority].pop(consumer, None)
        if not level:
            del self._levels[consumer.priority], self._lines[consumer.priority]
        self.count -= 1
        if consumer is self.active:
            self.active = None
            if self.count:
                self._activate(next(iter(self)))
        return True

    def _activate(self, consumer: QueueConsumer) -> None:
        self.active = consumer
        self.on_active(consumer)

    def clear(self) -> None:
        """Remove all consumers."""
        self._levels.clear()
        self._lines.clear()
        self.count = 0
        self.active = None

    def capacity(self) -> int:
        """The number of messages that all consumers that are served may get now."""
        return sum(each.capacity() for each in self if self.is_active(each))

    def is_active(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer is served: any, or the active one of a queue with a single active consumer."""
        return not self.single_active or consumer is self.active

    def wake(self, consumer: QueueConsumer) -> None:
        """Put a consumer that may have capacity again at the end of its line. Must be called whenever that happens."""
        if consumer in self._levels.get(consumer.priority, ()):
            self._lines[consumer.priority][consumer] = None

    @property
    def has_willing(self) -> bool:
        """Whether any consumer has capacity now."""
        return self.count > 0 and self.next() is not None

    def had_turn(self, consumer: QueueConsumer) -> None:
        """Move a consumer that got messages to the end of its line. A turn without messages does not count."""
        line = self._lines.get(consumer.priority)
        if line and consumer in line:
            line.move_to_end(consumer)

    def next(self) -> tuple[QueueConsumer, int, int] | None:
        """The next consumer to serve: (consumer, its capacity, about how many have capacity); None if there is none.

        It is the first in line of the highest priority; those before it without capacity leave the line.
        """
        if self.single_active:
            capacity = 0 if self.active is None else self.active.capacity()
            return None if self.active is None or capacity <= 0 else (self.active, capacity, 1)
        for line in self._lines.values():
            while line:
                consumer = next(iter(line))
                capacity = consumer.capacity()
                if capacity > 0:
                    return consumer, capacity, len(line)
                del line[consumer]
        return None


def share_of(ready: int, willing_count: int) -> int:
    """The number of ready messages that each of so many consumers gets in its turn.

    A few are dealt one at a time, as in RabbitMQ. If there are more, each consumer gets its part at once, because ten
    adjacent messages cost little more than one to deliver and to settle.
    """
    return ready // willing_count if ready >= DEALT_SINGLY * willing_count or willing_count == 1 else 1


def _ignore(consumer: QueueConsumer) -> None:
    """Do nothing: all consumers are here."""
