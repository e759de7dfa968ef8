"""A queue's consumers: who is served, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol

from leveret.core.queues.counters import Counters
from leveret.core.queues.messages import Run
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model.definitions import Queue as QueueDefinition


class QueueConsumer(Protocol):
    """Who takes messages; the session's side of a `basic.consume`."""

    no_ack: bool
    exclusive: bool
    priority: int

    def capacity(self) -> int:
        """How many more messages it may be sent now."""

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

    Attributes:
        single_active: whether only one is served at a time (`x-single-active-consumer`).
        active: the one that is served then; the next in line when it goes.
        on_active: told who is served from now on, where only one is.
    """

    def __init__(self, *, single_active: bool) -> None:
        """Nobody yet."""
        self.single_active = single_active
        self.active: QueueConsumer | None = None
        self.on_active: Callable[[QueueConsumer], None] = _ignore
        self._all: list[QueueConsumer] = []
        self._turn = 0

    def __iter__(self) -> Iterator[QueueConsumer]:
        """All of them, in order."""
        return iter(self._all)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def add(self, consumer: QueueConsumer) -> None:
        """Take one in, behind those of its priority."""
        place = len(self._all)
        while place and self._all[place - 1].priority < consumer.priority:
            place -= 1
        self._all.insert(place, consumer)
        if self.active is None:
            self._activate(consumer)

    def remove(self, consumer: QueueConsumer) -> bool:
        """Let one go; tell whether it was there."""
        if consumer not in self._all:
            return False
        self._all.remove(consumer)
        if consumer is self.active:
            self.active = None
            if self._all:
                self._activate(self._all[0])
        return True

    def _activate(self, consumer: QueueConsumer) -> None:
        self.active = consumer
        if self.single_active:
            self.on_active(consumer)

    def clear(self) -> None:
        """Let all go."""
        self._all.clear()
        self.active = None

    def is_active(self, consumer: QueueConsumer) -> bool:
        """Whether it is served: any, or the one of a queue with a single active consumer."""
        return not self.single_active or consumer is self.active

    def willing(self) -> list[QueueConsumer]:
        """Those of the highest priority that may take something now."""
        willing: list[QueueConsumer] = []
        for consumer in self._all:
            if willing and consumer.priority < willing[0].priority:
                break
            if consumer.capacity() > 0 and self.is_active(consumer):
                willing.append(consumer)
        return willing

    def turns(self) -> Iterator[tuple[QueueConsumer, int, int]]:
        """Whose turn it is until nobody may take more: (consumer, its capacity, how many are willing)."""
        willing = self.willing()
        while willing:
            place = self._turn % len(willing)
            capacity = willing[place].capacity()
            if capacity > 0:
                yield willing[place], capacity, len(willing)
                # Not before: a turn that nothing was left for is still to come.
                self._turn = place + 1
            else:
                del willing[place]
                willing = willing or self.willing()


def _ignore(consumer: QueueConsumer) -> None:
    """All of them are here."""
