"""Settlements and returns of many deliveries, each of which is by itself: in turns, with others served between.

A client may hold any number of deliveries, and settle or return all of them by one method, or by its end. Deliveries
that follow each other are one run, which costs as much as one of them; where others lie between, each is a run. A few
are dealt with at once. Of many a part is done with each flush (core.broker.chores), in the order in which all would be
done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, Protocol

from leveret.core.broker.broker import Broker
from leveret.core.broker.chores import ENOUGH
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.queue import Queue
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.delivery import FEW, ChannelConsumer, Unacked, UnackedRuns

PART_RUNS: Final = 4
"""So many runs are a part of what takes turns."""
QUEUES_AT_ONCE: Final = 250
"""So many queues go on with one flush."""
SEEN_AT_ONCE: Final = 100_000
"""Of so many runs it is looked up at once where they go back to: 4 ms."""

Settle = Callable[[Collection[Unacked]], None]


class LeavingChannel(Protocol):
    """A channel that has ended."""

    consumers: dict[bytes, ChannelConsumer]
    unacked: UnackedRuns

    def remove_consumer(self, tag: bytes) -> None:
        """A consumer leaves its queue."""

    def requeue(self, runs: Collection[Unacked]) -> None:
        """Deliveries go back."""


class _Returning:
    """The queues of this node to which something comes back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[Queue, None] = {}

    def add(self, source: DeliverySource) -> bool:
        """From now on nothing is handed out of it; whether this node leads it."""
        queue = self._broker.queues.get(source.key)
        if queue is None or queue is not source:
            return False
        if queue not in self._queues:
            self._queues[queue] = None
            queue.pending_returns.begin()
        return True

    def end(self) -> Iterator[object]:
        """All is back: the queues go on, some with each flush."""
        for number, queue in enumerate(self._queues, 1):
            queue.pending_returns.end()
            if self._broker.queues.get(queue.key) is queue:
                self._broker.dirty[queue] = None
            if number % QUEUES_AT_ONCE == 0:
                yield ENOUGH


def begin(broker: Broker, work: Iterator[object], size: int) -> None:
    """Do work of so many runs and consumers: at once if they are few, whatever others do; else in turns."""
    if size > FEW:
        broker.chores.begin(work)
        return
    for _ in work:
        pass


def leave(broker: Broker, channels: Collection[LeavingChannel]) -> None:
    """Take away the consumers of channels that end together, and give back what these have not settled."""
    channels = [channel for channel in channels if channel.consumers or channel.unacked]
    if not channels:
        return
    returning = _Returning(broker)
    for channel in channels:
        for consumer in list(channel.consumers.values()):
            if not returning.add(consumer.queue):
                # Another node leads it, and nothing here keeps it from delivering, or from being registered anew.
                channel.remove_consumer(consumer.tag)
        for source in {run.queue for run in islice(channel.unacked, SEEN_AT_ONCE)}:
            returning.add(source)
    size = sum(len(channel.consumers) + len(channel.unacked) for channel in channels)
    begin(broker, _leaving(returning, channels), size)


def _leaving(returning: _Returning, channels: Iterable[LeavingChannel]) -> Iterator[object]:
    for channel in channels:
        # The first to come is the last to go: of a single active consumer only the next one that stays takes its place.
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
    """Settle runs, which are in no channel any more."""
    left = deque(runs)
    while left:
        settle([left.popleft() for _ in range(min(PART_RUNS, len(left)))])
        yield


def in_parts_back(broker: Broker, requeue: Settle, runs: Collection[Unacked]) -> Iterator[object]:
    """The same: give runs back; of their queues nothing is handed out before all are back."""
    returning = _Returning(broker)

    def give_back(part: Collection[Unacked]) -> None:
        for run in part:
            returning.add(run.queue)
        requeue(part)

    yield from in_parts(give_back, runs)
    yield from returning.end()


@contextmanager
def answered_at_end(connection: ConnectionBase) -> Iterator[Callable[[], None]]:
    """Tell by a call that something is done; if it was not called in here, the connection takes nothing until it is."""
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
