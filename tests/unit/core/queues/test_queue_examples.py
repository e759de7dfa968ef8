"""core.queues.queue by examples: what one message, one limit or one settlement does."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.queues.head import Head
from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.reasons import Reason
from tests.unit.core.queues.queue_log import HEADS, Log, Sink, body, numbers

HEAD = HEADS[0]


def filled(count: int, *, own_ttl_ms: int | None = None, **settings: Any) -> tuple[Queue, Log]:
    """A queue with these settings to which so many messages were published at moment 0."""
    log = Log()
    queue = log.recover()
    queue.configure(QueueSettings(**settings))
    head = Head(b"", b"", b"", HEAD.body_bytes, True, own_ttl_ms)
    queue.gathered.add(alike(head, [body(number, head) for number in range(count)]))
    flush(queue, log, 0)
    return queue, log


def flush(queue: Queue, log: Log, now_ms: int) -> None:
    log.flush(queue, now_ms)
    queue.dispatch(now_ms)
    log.flush(queue, now_ms)


@pytest.mark.parametrize(
    ("of_queue_ms", "own_ttl_ms", "lives_ms"),
    [(6, None, 6), (None, 6, 6), (6, 9, 6), (9, 6, 6), (0, None, 0)],
)
def test_a_message_expires_when_the_shorter_of_both_times_is_over(
    of_queue_ms: int | None, own_ttl_ms: int | None, lives_ms: int
) -> None:
    queue, log = filled(2, own_ttl_ms=own_ttl_ms, message_ttl_ms=of_queue_ms)
    if lives_ms:
        flush(queue, log, lives_ms - 1)
        assert (queue.ready_count, queue.wait_ms) == (2, 1)
    flush(queue, log, lives_ms)
    assert (queue.ready_count, log.records[2:]) == (0, [[(0, 2)]])


def test_a_queue_drops_from_its_head_what_is_beyond_its_length() -> None:
    queue, log = filled(5, max_length=3)
    assert log.records[5:] == [[(0, 2)]]
    assert numbers(queue.take(10)[0]) == [2, 3, 4]


@pytest.mark.parametrize(("count", "room"), [(0, 3), (2, 1), (3, 0), (4, 0)])
def test_a_queue_that_rejects_publishes_takes_as_many_as_its_length_allows(count: int, room: int) -> None:
    queue, _ = filled(count, max_length=3, overflow="reject-publish")
    assert queue.room(HEAD.body_bytes) == room


@pytest.mark.parametrize(
    ("limits", "prefetch", "room"),
    [
        ({"max_length": 0}, 5, 0),
        ({"max_length_bytes": HEAD.body_bytes - 1}, 5, 0),
        ({"max_length": 3}, 5, 8),
        ({"max_length_bytes": 2 * HEAD.body_bytes}, 5, 7),
        ({"max_length": 3}, 0, 3),
    ],
)
def test_what_goes_straight_to_a_consumer_does_not_count_if_it_would_fit(
    limits: dict[str, int], prefetch: int, room: int
) -> None:
    queue, _ = filled(0, overflow="reject-publish", **limits)
    queue.consumers.add(Sink(prefetch))
    assert queue.room(HEAD.body_bytes) == room


def test_an_ack_settles_what_it_is_of_and_nothing_else() -> None:
    queue, log = filled(5)
    queue.take(5)
    queue.settle(1, 2)
    assert [offset in queue.settled for offset in range(5)] == [False, True, True, False, False]
    assert (queue.unacked_count, queue.settling) == (3, [[Reason.ACKED, 1, 3]])
    log.flush(queue)
    assert numbers(log.recover().take(10)[0]) == [0, 3, 4]


def test_a_requeued_message_is_redelivered_and_one_that_was_never_delivered_is_not() -> None:
    queue, _ = filled(3)
    queue.take(2)
    queue.requeue(0, 2)
    assert [(numbers(runs), again) for runs, again in (queue.take(10), queue.take(10))] == [
        ([0, 1], True),
        ([2], False),
    ]


def test_returned_messages_reach_a_waiting_consumer_before_the_limit_counts_them() -> None:
    queue, log = filled(3)
    queue.take(3)
    queue.configure(QueueSettings(max_length=1))
    sink = Sink(10)
    queue.consumers.add(sink)
    queue.requeue(0, 3)
    flush(queue, log, 0)
    assert [number for number, *_ in sink.got] == [0, 1, 2]


@pytest.mark.parametrize("exchange", [None, "dlx"])
def test_a_rejected_message_is_dead_lettered_if_there_is_an_exchange_for_that(exchange: str | None) -> None:
    queue, log = filled(3, dead_letter_exchange=exchange)
    queue.take(3)
    queue.reject(1, 1)
    flush(queue, log, 0)
    letters = [(numbers(each.runs), each.reason) for each in queue.dead_lettering.take()]
    assert letters == ([([1], "rejected")] if exchange else [])
    assert (1 in queue.settled) is (exchange is None)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_confirm_waits_for_the_disk_if_the_message_and_the_queue_are_to_outlive_the_node(
    durable: bool, persistent: bool
) -> None:
    queue = Queue(QueueDefinition(name="q", vhost="v", durable=durable), lambda queue, offset: [])
    assert queue.must_keep(persistent) is (durable and persistent)
