"""core.queues.queue: a cursor over a log behaves like a plain list of messages, whatever is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leveret.core.queues import queue as queue_module
from leveret.core.queues.backlog import backlog as backlog_module
from leveret.core.queues.backlog.backlog import DELIVERY_BYTES_MAX, WINDOW_IDLE_BYTES_MAX
from leveret.core.queues.consumers import DEALT_SINGLY
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import RUN_COSTS, Messages, alike, count_of
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model.errors import StorageError
from leveret.wire.record import content_header
from tests.unit.core.queues.queue_log import HEADS, PURGED, SMALL, Log, Sink, body, numbers, offsets, shrink


class Model:
    """The same queue as lists of numbers."""

    def __init__(self) -> None:
        self.gathered: list[int] = []
        self.again = 0
        self.returned: list[int] = []
        self.ready: list[int] = []
        self.unacked: dict[int, int] = {}
        self.unlogged: list[int] = []

    def take(self, taken: list[int], places: list[int], redelivered: bool) -> None:
        source = self.returned if self.returned else self.ready
        assert redelivered == bool(self.returned)
        assert taken == source[: len(taken)]
        assert bool(taken) == bool(source)
        del source[: len(taken)]
        self.unacked.update(zip(taken, places, strict=True))

    def flush(self) -> None:
        if self.again:
            self.returned = sorted([*self.returned, *self.ready, *self.gathered[: self.again]])
            self.ready = []
        self.ready += self.gathered[self.again :]
        self.gathered, self.again, self.unlogged = [], 0, []

    def restart(self) -> None:
        self.again = 0
        self.ready = sorted([*self.returned, *self.ready, *self.unacked, *self.unlogged])
        self.gathered, self.returned, self.unacked, self.unlogged = [], [], {}, []


class QueueMachine(RuleBasedStateMachine):
    """Anything that may happen to a queue, in any order."""

    @initialize()
    def begin(self) -> None:
        self.log, self.model = Log(), Model()
        self.queue = self.log.recover()
        self.published = 0

    @rule(count=st.integers(1, 9), head=st.sampled_from(HEADS), again=st.booleans())
    def publish(self, count: int, head: Head, again: bool) -> None:
        new = list(range(self.published, self.published + count))
        self.published += count
        self.queue.gathered.add(alike(head, [body(number, head) for number in new]))
        self.model.gathered += new
        if again:
            self.queue.gathered_again()
            self.model.again = len(self.model.gathered)

    @rule()
    def flush(self) -> None:
        self.log.flush(self.queue)
        self.model.flush()

    @rule(limit=st.integers(1, 12))
    def take(self, limit: int) -> None:
        runs, redelivered = self.queue.take(limit)
        taken = numbers(runs)
        assert len(taken) <= limit
        assert sum(len(octets) for run in runs for octets in run.bodies[:-1]) <= SMALL["DELIVERY_BYTES_MAX"]
        self.model.take(taken, offsets(runs), redelivered)

    @precondition(lambda self: self.model.unacked)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        for number, offset in self._some(data):
            self.queue.settle(offset, 1)
            self.model.unlogged.append(number)

    @precondition(lambda self: self.model.unacked)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        for number, offset in self._some(data):
            self.queue.requeue(offset, 1)
            self.model.returned = sorted([*self.model.returned, number])

    @precondition(lambda self: self.model.unacked)
    @rule()
    def requeue_all_in_runs(self) -> None:
        held = sorted(self.model.unacked.values())
        for offset in held:
            if offset - 1 not in held:
                count = next(n for n in range(1, len(held) + 1) if offset + n not in held)
                self.queue.requeue(offset, count)
        self.model.returned = sorted([*self.model.returned, *self.model.unacked])
        self.model.unacked = {}

    def _some(self, data: st.DataObject) -> Iterator[tuple[int, int]]:
        for number in data.draw(
            st.lists(st.sampled_from(sorted(self.model.unacked)), unique=True, min_size=1)
        ):
            yield number, self.model.unacked.pop(number)

    @rule()
    def purge(self) -> None:
        dropped = [*self.model.returned, *self.model.ready]
        assert self.queue.drop_ready(PURGED) == len(dropped)
        self.model.unlogged += dropped
        self.model.returned, self.model.ready = [], []

    @rule()
    def crash_and_restart(self) -> None:
        self.queue = self.log.recover()
        self.model.restart()

    @rule()
    def drop_old_segments(self) -> None:
        self.flush()
        self.log.first = self.queue.settled.floor

    @rule()
    def a_consumer_comes_or_goes(self) -> None:
        if self.queue.consumers:
            self.queue.remove_consumer(next(iter(self.queue.consumers)))
        else:
            self.queue.add_consumer(Sink(0))

    @invariant()
    def counts_are_right(self) -> None:
        ready = len(self.model.returned) + len(self.model.ready)
        assert self.queue.ready_count == ready
        assert self.queue.unacked_count == len(self.model.unacked)
        assert self.queue.message_count == ready + len(self.model.unacked)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.flush()
        self.crash_and_restart()
        left: list[int] = []
        take_all(self.queue, left)
        assert left == self.model.ready, "after a restart exactly what was not settled is there, in order"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def take_all(queue: Queue, got: list[int]) -> None:
    for _ in range(queue.ready_count):
        got += numbers(queue.take(7)[0])


def filled(count: int, head: Head = HEADS[0]) -> tuple[Log, Queue]:
    log = Log()
    queue = log.recover()
    queue.gathered.add(alike(head, [body(number, head) for number in range(count)]))
    log.flush(queue)
    return log, queue


@pytest.mark.usefixtures("small")
def test_a_queue_over_its_log_is_a_list_of_messages() -> None:
    run_state_machine_as_test(QueueMachine, settings=settings(max_examples=120, stateful_step_count=40))


@pytest.mark.usefixtures("small")
@given(
    prefetches=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=4),
    count=st.integers(0, 60),
    head=st.sampled_from(HEADS),
)
def test_dispatch_gives_each_message_to_one_consumer_up_to_its_capacity(
    prefetches: list[tuple[int, bool]], count: int, head: Head
) -> None:
    log, queue = filled(count, head)
    sinks = [Sink(prefetch, no_ack) for prefetch, no_ack in prefetches]
    for sink in sinks:
        queue.add_consumer(sink)
    queue.dispatch()
    everything = sorted(number for sink in sinks for number, _, _ in sink.got)
    assert everything == list(range(len(everything)))
    endless = any(sink.no_ack and sink.prefetch for sink in sinks)
    assert len(everything) == (count if endless else min(count, sum(sink.prefetch for sink in sinks)))
    for sink in sinks:
        assert sink.got == sorted(sink.got)
        assert sink.held <= sink.prefetch
    assert queue.unacked_count == sum(sink.held for sink in sinks)
    assert queue.ready_count == count - len(everything)
    log.flush(queue)
    assert log.recover().ready_count == count - sum(len(sink.got) for sink in sinks if sink.no_ack)


def test_a_few_messages_are_dealt_out_evenly() -> None:
    _, queue = filled(6)
    sinks = [Sink(100) for _ in range(3)]
    for sink in sinks:
        queue.add_consumer(sink)
    queue.dispatch()
    assert [len(sink.got) for sink in sinks] == [2, 2, 2]


@pytest.mark.parametrize(
    ("prefetches", "count", "dealt"),
    [
        ([9, 9], 2 * DEALT_SINGLY - 1, [[0, 2, 4, 6], [1, 3, 5]]),
        ([9, 9], 2 * DEALT_SINGLY + 1, [[0, 1, 2, 3, 8], [4, 5, 6, 7]]),
        ([2, 9, 9], 12, [[0, 1], [2, 3, 4, 5, 10], [6, 7, 8, 9, 11]]),
        ([9], 7, [[0, 1, 2, 3, 4, 5, 6]]),
    ],
)
def test_of_more_messages_each_consumer_has_its_part_at_once(
    prefetches: list[int], count: int, dealt: list[list[int]]
) -> None:
    _, queue = filled(count)
    sinks = [Sink(prefetch) for prefetch in prefetches]
    for sink in sinks:
        queue.add_consumer(sink)
    queue.dispatch()
    assert [[number for number, _, _ in sink.got] for sink in sinks] == dealt


def test_what_came_back_is_delivered_first_as_redelivered_and_in_its_old_order() -> None:
    _, queue = filled(6)
    queue.take(4)
    queue.requeue(2, 1)
    queue.requeue(0, 1)
    sink = Sink(10)
    queue.add_consumer(sink)
    queue.dispatch()
    assert sink.got == [(0, 0, True), (2, 2, True), (4, 4, False), (5, 5, False)]


def test_a_consumer_that_keeps_up_never_reads_the_log() -> None:
    log, queue = filled(0)
    sink = Sink(10**6)
    queue.add_consumer(sink)
    for number in range(50):
        queue.gathered.add(alike(HEADS[1], [body(number, HEADS[1])]))
        log.flush(queue)
        queue.dispatch()
        _, offset, _ = sink.got[-1]
        queue.settle(offset, 1)
        log.flush(queue)
    assert [number for number, _, _ in sink.got] == list(range(50))
    assert log.reads == 0


@pytest.mark.usefixtures("small")
def test_a_backlog_is_not_kept_in_memory() -> None:
    log, queue = filled(0)
    for number in range(200):
        queue.gathered.add(alike(HEADS[1], [body(number, HEADS[1])]))
        log.flush(queue)
    held = sum(len(run.bodies) for run in queue.backlog._window)
    assert 0 < held * (20 + 64) <= SMALL["WINDOW_IDLE_BYTES_MAX"] + 84
    got: list[int] = []
    take_all(queue, got)
    assert got == list(range(200))


def fat(number: int, octets: int) -> Head:
    """A message with a header of so many octets, which no other has."""
    text = number.to_bytes(4, "big").rjust(octets, b".")
    table = b"\x01aS" + len(text).to_bytes(4, "big") + text
    return make_head(b"", b"q", content_header(b"\x20\x00" + len(table).to_bytes(4, "big") + table, 4))


def publish_fat(queue: Queue, count: int, octets: int) -> None:
    """Each unlike the others, as messages of one read are gathered: by columns."""
    heads = [fat(number, octets) for number in range(count)]
    queue.gathered.add(
        Messages(
            [head.route for head in heads],
            [head.sized_header for head in heads],
            [body(number, HEADS[0]) for number in range(count)],
        )
    )


def test_headers_count_for_the_memory_that_a_backlog_takes() -> None:
    """A publisher may write 128 KiB into each header: 4,000 messages of a few octets took half a gigabyte."""
    log, queue = filled(0)
    for _ in range(30):
        publish_fat(queue, 1, 100_000)
        log.flush(queue)
    assert queue.backlog.window_count <= WINDOW_IDLE_BYTES_MAX // 100_000 + 1
    assert queue.window_bytes >= queue.backlog.window_count * 100_000


def test_headers_count_for_what_a_consumer_is_handed_at_once() -> None:
    log, queue = filled(0)
    queue.add_consumer(Sink(0))
    publish_fat(queue, 40, 100_000)
    log.flush(queue)
    left = 40
    while left:
        runs, _ = queue.take(left)
        assert sum(run.octets for run in runs) <= DELIVERY_BYTES_MAX + 100_100
        left -= count_of(runs)
    assert queue.backlog.window_bytes == 0


@pytest.mark.parametrize("is_fat", [False, True])
@pytest.mark.parametrize("death", ["maxlen", "maxbytes", "expired", "rejected"])
def test_headers_count_for_what_dies_at_once(is_fat: bool, death: str) -> None:
    """Each is taken apart: 4,000 with 10,000 carbon copies each would be a step of minutes, and 30 one of 0.3 s."""
    log = Log()
    queue = log.recover()
    limits = {
        "maxlen": QueueSettings(dead_letter_exchange="x", max_length=0),
        "maxbytes": QueueSettings(dead_letter_exchange="x", max_length_bytes=0),
        "expired": QueueSettings(dead_letter_exchange="x", message_ttl_ms=1),
        "rejected": QueueSettings(dead_letter_exchange="x"),
    }
    queue.configure(limits[death])
    publish_fat(queue, 40, 100_000 if is_fat else 100)
    log.flush(queue)
    if death == "rejected":
        for run in [run for _ in range(40) for run in queue.take(40)[0]]:
            queue.reject(run.first, len(run))
    died: list[int] = []
    for _ in range(40 if is_fat else 1):
        queue.dispatch(5)
        died.append(sum(count_of(letters.runs) for letters in queue.dead_lettering.take()))
    assert died == ([1] * 40 if is_fat else [40])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("came_back", [False, True])
def test_a_log_that_cannot_be_read_for_a_while_loses_no_message(came_back: bool) -> None:
    log, queue = filled(0)
    for number in range(40):
        queue.gathered.add(alike(HEADS[0], [body(number, HEADS[0])]))
        log.flush(queue)
    if came_back:
        for _ in range(30):
            queue.take(1)
        queue.requeue(3, 20)
    before = (queue.ready_count, queue.unacked_count)
    log.broken = True
    got: list[int] = []
    with pytest.raises(StorageError):
        take_all(queue, got)
    assert (queue.ready_count, queue.unacked_count) == (before[0] - len(got), before[1] + len(got))
    log.broken = False
    take_all(queue, got)
    assert queue.ready_count == 0
    assert got == ([*range(3, 23), *range(30, 40)] if came_back else list(range(40)))


def test_publisher_sequences_wait_for_the_flush() -> None:
    queue = Log().recover()
    queue.advance_sequence(b"plan", 7)
    assert queue.sequences.logged == {}
    assert queue.sequences.unlogged == {b"plan": 7}


def test_messages_gathered_together_are_appended_together_and_the_callers_list_is_left_alone() -> None:
    queue = Log().recover()
    first: list[Any] = [b"0001"]
    queue.gathered.add(alike(HEADS[0], first))
    queue.gathered.add(alike(HEADS[0], [b"0002"]))
    queue.gathered.add(alike(HEADS[1], [b"0003"]))
    (together,) = queue.gathered.take()
    assert together.bodies == [b"0001", b"0002", b"0003"]
    assert [head.entry for head, bodies in together.by_head() for _ in bodies] == [
        HEADS[at].entry for at in (0, 0, 1)
    ]
    assert first == [b"0001"]


@pytest.mark.parametrize("kind", [{}, {"x-max-priority": 2}])
def test_a_long_backlog_is_handed_out_a_part_in_each_dispatch(
    kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second for 50,000 messages, each of another priority than the one before, without a prefetch."""
    heads = [make_head(b"", b"q", content_header(b"\x08\x00" + bytes((at,)), 4)) for at in (0, 1)]
    monkeypatch.setattr(queue_module, "DEALT_AT_ONCE", 10 * RUN_COSTS)
    monkeypatch.setattr(backlog_module, "DELIVERY_RUNS_MAX", 5)
    log = Log(**kind)
    queue = log.recover()
    for number in range(100):
        queue.gathered.add(alike(heads[number % 2], [body(number, heads[number % 2])]))
        log.flush(queue)
    consumer = Sink(prefetch=1000)
    queue.add_consumer(consumer)
    handed: list[int] = []
    while queue.ready_count:
        queue.dispatch(7)
        handed.append(consumer.held - sum(handed))
        assert queue.wait_ms == (0 if queue.ready_count else None), "it goes on at once"
    assert max(handed) <= 15
    numbers = list(range(100))
    assert [number for number, _, _ in consumer.got] == (numbers[1::2] + numbers[::2] if kind else numbers)


def test_what_was_not_offered_yet_is_neither_too_old_nor_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "DEALT_AT_ONCE", 2 * RUN_COSTS)
    monkeypatch.setattr(backlog_module, "DELIVERY_RUNS_MAX", 1)
    log = Log()
    queue = log.recover()
    queue.configure(QueueSettings(message_ttl_ms=0, max_length=1))
    consumer = Sink(prefetch=1000)
    queue.add_consumer(consumer)
    for number in range(20):
        queue.gathered.add(alike(HEADS[number % 2], [body(number, HEADS[number % 2])]))
    log.flush(queue, 7)
    for _ in range(20):
        queue.dispatch(7)
    assert [number for number, _, _ in consumer.got] == list(range(20))
