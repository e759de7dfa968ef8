"""A queue's log as a list, and a consumer with a prefetch: for tests of the queues' decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from leveret.core.queues import queue as queue_module
from leveret.core.queues.backlog import backlog, priority_backlog
from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.death_notes import Died
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import Messages, Run, alike, joined
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_types import make_queue
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import StorageError
from leveret.wire.record import content_header

SMALL = {
    "WINDOW_BYTES_MAX": 600,
    "WINDOW_IDLE_BYTES_MAX": 250,
    "DELIVERY_BYTES_MAX": 90,
    "DROPPED_AT_ONCE": 70,
}
HEADS = [make_head(b"", b"q", content_header(b"\x10\x00\x02", size)) for size in (4, 20, 60)]
PURGED = 3


def body(number: int, head: Head) -> bytes:
    return number.to_bytes(4, "big").ljust(head.body_bytes, b".")


def numbers(runs: Sequence[Run]) -> list[int]:
    return [int.from_bytes(octets[:4], "big") for run in runs for octets in run.bodies]


def offsets(runs: Sequence[Run]) -> list[int]:
    return [run.first + i for run in runs for i in range(len(run.bodies))]


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a few messages only, so that a test meets every limit."""
    for module in (backlog, priority_backlog, queue_module):
        for name, value in SMALL.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


class Log:
    """What a queue's log holds: a message or a settlement at every offset, in chunks of several."""

    def __init__(self, **arguments: Any) -> None:
        self.definition = QueueDefinition(name="q", vhost="v", arguments=arguments)
        self.first = 0
        self.records: list[tuple[Head, bytes] | list[tuple[int, int] | Died]] = []
        self.arrived_ms: dict[int, int] = {}
        self.reads = 0
        self.broken = False

    def flush(self, queue: Queue, now_ms: int = 0) -> None:
        """What runtime.logs.queue_store does: append what was gathered, then what was settled."""
        gathered = queue.arranged(queue.gathered.take())
        if gathered:
            first = len(self.records)
            self.records += [
                (part.head_at(at), body) for part in gathered for at, body in enumerate(part.bodies)
            ]
            self.arrived_ms |= dict.fromkeys(range(first, len(self.records)), now_ms)
            queue.appended(first, gathered, now_ms)
        notes = queue.dead_lettering.notes
        if queue.settling or notes.unlogged:
            self.records.append([*((first, end) for _, first, end in queue.settling), *notes.unlogged])
            queue.settling = []
            notes.logged(notes.unlogged)
            queue.logged_settlement(len(self.records) - 1)

    def read(self, queue: Queue, offset: int) -> list[Run]:
        """The core's Reader: at most five records, more if there is no message among them."""
        self.reads += 1
        if self.broken:
            raise StorageError("the disk is gone")
        assert offset >= self.first
        found: list[tuple[int, list[Messages], int]] = []
        for at, record in enumerate(self.records[offset:], offset):
            if isinstance(record, tuple):
                message = alike(record[0], [record[1]])
                arrived_ms = self.arrived_ms[at]
                last = found[-1] if found else None
                if (
                    last
                    and last[0] + len(last[1]) == at
                    and last[2] == arrived_ms
                    and len(joined([*last[1], message])) == 1
                ):
                    last[1].append(message)
                else:
                    found.append((at, [message], arrived_ms))
            if found and at >= offset + 4:
                break
        return [Run(first, joined(messages)[0], arrived_ms) for first, messages, arrived_ms in found]

    def recover(self) -> Queue:
        """A queue as a restart makes it."""
        settled = OffsetSet()
        queue = make_queue(self.definition, self.read)
        for at, record in enumerate(self.records[self.first :], self.first):
            if isinstance(record, list):
                settled.add(at, at + 1)
                for each in record:
                    if isinstance(each, Died):
                        queue.dead_lettering.notes.found(each)
                    else:
                        settled.add(*each)
                        queue.dead_lettering.notes.forget(*each)
        queue.restore(self.first, len(self.records), settled)
        return queue


class Sink:
    """A consumer with a prefetch."""

    def __init__(self, prefetch: int, no_ack: bool = False, priority: int = 0) -> None:
        self.prefetch = prefetch
        self.priority = priority
        self.no_ack = no_ack
        self.exclusive = False
        self.got: list[tuple[int, int, bool]] = []
        self.held = 0
        self.is_told = False

    def capacity(self) -> int:
        return self.prefetch - self.held

    def queue_deleted(self) -> None:
        self.is_told = True

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        self.got += [
            (number, offset, redelivered) for number, offset in zip(numbers(runs), offsets(runs), strict=True)
        ]
        if not self.no_ack:
            self.held += len(numbers(runs))
