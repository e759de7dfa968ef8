"""core.queues.quorum_queue: counting how often a message came back costs nothing for ever."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.queues.head import make_head
from leveret.core.queues.messages import alike
from leveret.core.queues.queue_settings import QueueSettings
from leveret.core.queues.quorum_queue import DELIVERY_COUNT, QuorumQueue
from leveret.model.reasons import Reason
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.record import content_header
from tests.unit.core.queues.queue_log import Log, offsets

HEAD = make_head(b"", b"q", content_header(b"\0\0", 4))


def filled(count: int, **settings: Any) -> tuple[Log, QuorumQueue]:
    log = Log(**{"x-queue-type": "quorum"})
    queue = log.recover()
    assert isinstance(queue, QuorumQueue)
    queue.configure(QueueSettings(**settings))
    queue.gathered.add(alike(HEAD, [b"%04d" % number for number in range(count)]))
    log.flush(queue)
    return log, queue


def taken(queue: QuorumQueue) -> list[int]:
    """All that is ready, which may take several turns."""
    found: list[int] = []
    while queue.ready_count:
        found += offsets(queue.take(9)[0])
    return found


def test_every_delivery_tells_how_often_the_message_came_back() -> None:
    _, queue = filled(1)
    for count in range(50):
        (run,), _ = queue.take(1)
        headers = tables.split(props.split(run.head.header)[props.HEADERS])
        assert tables.integer_of(headers[DELIVERY_COUNT]) == count
        queue.requeue(run.first, 1)
    assert len(HEAD.counted) < 20, "a message that comes back for ever keeps no head for every time"


@pytest.mark.parametrize("how", ["settle", "purge", "drop", "reject"])
def test_a_message_that_is_gone_is_counted_no_more(how: str) -> None:
    _, queue = filled(9)
    for offset in taken(queue):
        queue.requeue(offset, 1)
    if how == "settle":
        for offset in taken(queue):
            queue.settle(offset, 1)
    elif how == "purge":
        queue.drop_ready(Reason.PURGED)
    elif how == "drop":
        queue.configure(QueueSettings(max_length=0))
        queue.dispatch(1)
    else:
        for offset in taken(queue):
            queue.reject(offset, 1)
    assert queue.message_count == 0
    assert [queue.return_counts.of(offset) for offset in range(queue.next_offset)] == [0] * queue.next_offset


@pytest.mark.parametrize("limit", [None, 9])
def test_what_comes_back_is_the_next_whether_there_is_a_limit_or_not(limit: int | None) -> None:
    _, queue = filled(3, delivery_limit=limit)
    for _ in range(4):
        assert offsets(queue.take(1)[0]) == [0]
        queue.requeue(0, 1)


def test_what_comes_back_too_often_is_dropped_at_its_limit() -> None:
    _, queue = filled(2, delivery_limit=3)
    for _ in range(4):
        assert queue.ready_count == 2
        for offset in offsets(queue.take(2)[0]):
            queue.requeue(offset, 1)
    assert queue.message_count == 0
