"""Settlements and returns of many deliveries, in several steps with other clients served in between.

A client may hold any number of deliveries, and settle or return all of them by one method, or by its end. Adjacent
deliveries are one run, which costs as much as a single delivery; scattered ones are a run each. Few runs are handled
at once. Many are handled in parts, some with each flush (core.broker.deferred_work), in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, Protocol

from leveret.core.broker.broker import Broker
from leveret.core.broker.deferred_work import ENOUGH
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.queue import Queue
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.delivery import FEW, ChannelConsumer, Unacked, UnackedRuns

PART_RUNS: Final = 4
"""The number of runs in one step."""
QUEUES_AT_ONCE: Final = 250
"""The number of queues that resume delivery with one flush."""
SEEN_AT_ONCE: Final = 100_000
"""The number of runs whose queues are looked up at once: 4 ms."""

Settle = Callable[[Collection[Unacked]], None]


class LeavingChannel(Protocol):
    """A channel that has ended."""

    consumers: dict[bytes, ChannelConsumer]
    unacked: UnackedRuns

    def remove_consumer(self, tag: bytes) -> None:
        """A consumer leaves its queue."""

    def requeue(self, runs: Collection[Unacked]) -> None:
        """Return deliveries to their queues."""


class _Returning:
    """The queues of this node that get messages back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[Queue, None] = {}

    def add(self, source: DeliverySource) -> bool:
        """Pause the deliveries of a queue; return whether this node leads it."""
        queue = self._broker.queues.get(source.key)
        if queue is None or queue is not source:
            return False
        if queue not in self._queues:
            self._queues[queue] = None
            queue.pending_returns.begin()
        return True

    def end(self) -> Iterator[object]:
        """Resume the deliveries after all returns, of some queues with each flush."""
        for number, queue in enumerate(self._queues, 1):
            queue.pending_returns.end()
            if self._broker.queues.get(queue.key) is queue:
                self._broker.dirty[queue] = None
            if number % QUEUES_AT_ONCE == 0:
                yield ENOUGH


def begin(broker: Broker, work: Iterator[object], size: int) -> None:
    """Do work of so many runs and consumers: at once if they are few, else in steps, as deferred work."""
    if size > FEW:
        broker.deferred_work.begin(work)
        return
    for _ in work:
        pass


def leave(broker: Broker, channels: Collection[LeavingChannel]) -> None:
    """Remove the consumers of channels that end together, and return their unsettled deliveries."""
    channels = [channel for channel in channels if channel.consumers or channel.unacked]
    if not channels:
        return
    returning = _Returning(broker)
    for channel in channels:
        for consumer in list(channel.consumers.values()):
            if not returning.add(consumer.queue):
                # Another node leads the queue: deliveries cannot be paused from here, and nothing here can stop a new
                # registration.
                channel.remove_consumer(consumer.tag)
        for source in {run.queue for run in islice(channel.unacked, SEEN_AT_ONCE)}:
            returning.add(source)
    size = sum(len(channel.consumers) + len(channel.unacked) for channel in channels)
    begin(broker, _leaving(returning, channels), size)


def _leaving(returning: _Returning, channels: Iterable[LeavingChannel]) -> Iterator[object]:
    for channel in channels:
        # In reverse order, so that of a single active consumer's successors only one that stays becomes active.
        for tag in reversed(list(channel.consumers)):
            if tag in channel.consumers:
                channel.remove_consumer(tag)
                yield None
        while part := channel.unacked.take_first(PART_RUNS):
            for run in part:
                returning.add(run.queue)
            channel.requeue(part)
            yield None
    yield from returning.end()


def in_parts(settle: Settle, runs: Collection[Unacked]) -> Iterator[None]:
    """Settle runs that were removed from their channel, in steps."""
    left = iter(runs)
    while part := list(islice(left, PART_RUNS)):
        settle(part)
        yield


def in_parts_back(broker: Broker, requeue: Settle, runs: Collection[Unacked]) -> Iterator[object]:
    """Return runs in steps; their queues deliver nothing before all are back."""
    returning = _Returning(broker)

    def give_back(part: Collection[Unacked]) -> None:
        for run in part:
            returning.add(run.queue)
        requeue(part)

    yield from in_parts(give_back, runs)
    yield from returning.end()


@contextmanager
def answered_at_end(connection: ConnectionBase) -> Iterator[Callable[[], None]]:
    """Yield a function that reports the end of some work; until it is called, the connection takes no frames."""
    is_here, is_done = True, False

    def done() -> None:
        nonlocal is_done
        is_done = True
        if not is_here:
            connection.answered()

    yield done
    is_here = False
    if not is_done:
        connection.ask()
