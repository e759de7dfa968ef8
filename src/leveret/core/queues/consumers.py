"""A queue's consumers, and the order in which they are served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import ClassVar, Protocol

from leveret.core.queues.counters import Counters
from leveret.core.queues.messages import Run
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model.definitions import Queue as QueueDefinition


class QueueConsumer(Protocol):
    """A consumer of messages: the session's side of a `basic.consume`."""

    no_ack: bool
    exclusive: bool
    priority: int

    def capacity(self) -> int:
        """The number of further messages that the consumer may be sent now."""

    def queue_deleted(self) -> None:
        """The queue is gone; tell the client if it wants to know."""

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        """Take these runs; they are unacked from now on, or settled if `no_ack`."""


class DeliverySource(Protocol):
    """A queue as its consumers use it: one that is led here, or one that another node leads, on a client's channel."""

    is_remote: ClassVar[bool]
    key: tuple[str, ...]
    definition: QueueDefinition
    settings: QueueSettings
    counters: Counters
    consumers: Consumers

    def settle(self, first: int, count: int) -> None:
        """See core.queues.queue.Queue, as all of these."""

    def reject(self, first: int, count: int) -> None:
        """These are refused for good."""

    def requeue(self, first: int, count: int) -> None:
        """These come back to their place."""

    def why_not_settled(self) -> str:
        """Why what it delivered is not settled by an acknowledgement any more; empty if it is."""

    def check_refusable(self) -> None:
        """Whether nack and reject are possible."""


class Consumers:
    """Consumers by priority, the highest first, those of one priority in the order they came.

    A dispatch costs by what changed, not by how many consumers there are: a consumer that has no capacity leaves the
    line of its priority, and is not asked again before `wake` says that it may have some.

    Attributes:
        single_active: whether only one is served at a time (`x-single-active-consumer`).
        active: the one that is served then; the next in line when it goes. None where all are served.
        on_active: told who is served from now on, where only one is.
    """

    def __init__(self, *, single_active: bool) -> None:
        """Nobody yet."""
        self.single_active = single_active
        self.active: QueueConsumer | None = None
        self.on_active: Callable[[QueueConsumer], None] = _ignore
        self._levels: dict[int, dict[QueueConsumer, None]] = {}
        self._lines: dict[int, OrderedDict[QueueConsumer, None]] = {}
        self._count = 0

    def __iter__(self) -> Iterator[QueueConsumer]:
        """All of them, in order."""
        return chain.from_iterable(self._levels.values())

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    @property
    def has_exclusive(self) -> bool:
        """Whether one has the queue for itself; then there is no other."""
        return self._count == 1 and next(iter(self)).exclusive

    def add(self, consumer: QueueConsumer) -> None:
        """Take one in, behind those of its priority."""
        if consumer.priority not in self._levels:
            self._levels[consumer.priority] = {}
            self._levels = dict(sorted(self._levels.items(), reverse=True))
            self._lines = {priority: self._lines.get(priority, OrderedDict()) for priority in self._levels}
        self._levels[consumer.priority][consumer] = None
        self._lines[consumer.priority][consumer] = None
        self._count += 1
        if self.single_active and self.active is None:
            self._activate(consumer)

    def remove(self, consumer: QueueConsumer) -> bool:
        """Let one go; tell whether it was there."""
        level = self._levels.get(consumer.priority, {})
        if consumer not in level:
            return False
        del level[consumer]
        self._lines[consumer.priority].pop(consumer, None)
        if not level:
            del self._levels[consumer.priority], self._lines[consumer.priority]
        self._count -= 1
        if consumer is self.active:
            self.active = None
            if self._count:
                self._activate(next(iter(self)))
        return True

    def _activate(self, consumer: QueueConsumer) -> None:
        self.active = consumer
        self.on_active(consumer)

    def clear(self) -> None:
        """Let all go."""
        self._levels.clear()
        self._lines.clear()
        self._count = 0
        self.active = None

    def is_active(self, consumer: QueueConsumer) -> bool:
        """Whether it is served: any, or the one of a queue with a single active consumer."""
        return not self.single_active or consumer is self.active

    def wake(self, consumer: QueueConsumer) -> None:
        """It may have capacity again: its turn comes after those who wait. Must be called whenever that is so."""
        if consumer in self._levels.get(consumer.priority, ()):
            self._lines[consumer.priority][consumer] = None

    @property
    def has_willing(self) -> bool:
        """Whether any may take something now."""
        return self.next() is not None

    def had_turn(self, consumer: QueueConsumer) -> None:
        """It got something. A turn that nothing was left for is still to come."""
        line = self._lines.get(consumer.priority)
        if line and consumer in line:
            line.move_to_end(consumer)

    def next(self) -> tuple[QueueConsumer, int, int] | None:
        """Whose turn it is: (consumer, its capacity, about how many have capacity); None if nobody has any.

        The first in line of the highest priority; those before it that may take nothing leave the line.
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


def _ignore(consumer: QueueConsumer) -> None:
    """All of them are here."""
