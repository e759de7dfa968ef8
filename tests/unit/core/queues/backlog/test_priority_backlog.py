"""core.queues.backlog.priority_backlog: one queue a priority, served from the highest, whatever is in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
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
from leveret.core.queues.backlog import priority_backlog
from leveret.core.queues.backlog.priority_backlog import PriorityBacklog
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import RUN_COSTS, Run, alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.wire.record import content_header
from tests.unit.core.queues.queue_log import PURGED, Log, Sink, body, numbers, offsets, shrink

TOP = 2
HEADS = [
    make_head(b"", b"q", content_header(b"\x08\x00" + bytes((priority,)), size))
    for size in (4, 60)
    for priority in range(4)
]


class PriorityMachine(RuleBasedStateMachine):
    """Anything that may happen to a queue with priorities, beside lists of numbers."""

    @initialize()
    def begin(self) -> None:
        self.log = Log(**{"x-max-priority": TOP})
        self.queue: Queue = self.log.recover()
        self.priority: dict[int, int] = {}
        self.gathered: list[int] = []
        self.again = 0
        self.ready: list[int] = []
        self.returned: list[int] = []
        self.unacked: dict[int, int] = {}
        self.unlogged: list[int] = []

    @rule(count=st.integers(1, 5), head=st.sampled_from(HEADS), again=st.booleans())
    def publish(self, count: int, head: Head, again: bool) -> None:
        new = list(range(len(self.priority), len(self.priority) + count))
        self.priority |= dict.fromkeys(new, min(head.priority, TOP))
        self.queue.gathered.add(alike(head, [body(number, head) for number in new]))
        self.gathered += new
        if again:
            self.queue.gathered_again()
            self.again = len(self.gathered)

    @rule()
    def flush(self) -> None:
        self.log.flush(self.queue)
        if self.again:
            self.returned += [*self.ready, *self.gathered[: self.again]]
            self.ready = []
        self.ready += self.gathered[self.again :]
        self.gathered, self.again, self.unlogged = [], 0, []

    @rule(limit=st.integers(1, 9))
    def take(self, limit: int) -> None:
        runs, redelivered = self.queue.take(limit)
        taken = numbers(runs)
        assert len(taken) <= limit
        assert bool(taken) == bool(self.ready or self.returned)
        if not taken:
            return
        highest = max(self.priority[number] for number in [*self.ready, *self.returned])
        returned = sorted(n for n in self.returned if self.priority[n] == highest)
        fresh = sorted(n for n in self.ready if self.priority[n] == highest)
        assert redelivered == bool(returned)
        assert taken == (returned or fresh)[: len(taken)]
        for number in taken:
            (self.returned if redelivered else self.ready).remove(number)
        self.unacked.update(zip(taken, offsets(runs), strict=True))

    @precondition(lambda self: self.unacked)
    @rule(data=st.data(), requeue=st.booleans())
    def settle_or_requeue(self, data: st.DataObject, requeue: bool) -> None:
        for number, offset in self._some(data):
            if requeue:
                self.queue.requeue(offset, 1)
                self.returned.append(number)
            else:
                self.queue.settle(offset, 1)
                self.unlogged.append(number)

    def _some(self, data: st.DataObject) -> Iterator[tuple[int, int]]:
        held = sorted(self.unacked)
        for number in data.draw(st.lists(st.sampled_from(held), unique=True, min_size=1)):
            yield number, self.unacked.pop(number)

    @rule()
    def purge(self) -> None:
        dropped = [*self.returned, *self.ready]
        assert self.queue.drop_ready(PURGED) == len(dropped)
        self.unlogged += dropped
        self.returned, self.ready = [], []

    @rule()
    def crash_and_restart(self) -> None:
        self.queue = self.log.recover()
        self.ready = sorted([*self.returned, *self.ready, *self.unacked, *self.unlogged])
        self.again = 0
        self.gathered, self.returned, self.unacked, self.unlogged = [], [], {}, []

    @rule()
    def a_consumer_comes_or_goes(self) -> None:
        if self.queue.consumers:
            self.queue.remove_consumer(next(iter(self.queue.consumers)))
        else:
            self.queue.add_consumer(Sink(0))

    @invariant()
    def only_what_is_ready_is_kept(self) -> None:
        assert isinstance(self.queue.backlog, PriorityBacklog)
        kept = sorted((run.first, run.end) for run in self.queue.backlog._kept.values())
        ready = {offset for first, end in self.queue.backlog.ready_ranges() for offset in range(first, end)}
        assert ready.issuperset(offset for first, end in kept for offset in range(first, end))

    @invariant()
    def counts_are_right(self) -> None:
        assert self.queue.ready_count == len(self.ready) + len(self.returned)
        assert self.queue.unacked_count == len(self.unacked)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.flush()
        self.crash_and_restart()
        left: list[int] = []
        for _ in range(self.queue.ready_count):
            left += numbers(self.queue.take(7)[0])
        assert left == sorted(self.ready, key=lambda number: (-self.priority[number], number))


def test_a_queue_with_priorities_is_a_list_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    run_state_machine_as_test(PriorityMachine, settings=settings(max_examples=120, stateful_step_count=40))


def test_messages_of_one_priority_stand_together_in_a_chunk() -> None:
    """Each of 200 messages of five priorities was a range of its own, to take, to deliver and to settle."""
    log = Log(**{"x-max-priority": TOP})
    queue = log.recover()
    heads = [HEADS[priority] for priority in (0, 3, 1, 2, 0, 3)]
    for number, head in enumerate(heads):
        queue.gathered.add(alike(head, [body(number, head)]))
    log.flush(queue)
    assert list(queue.backlog.ready_ranges()) == [(0, 6)]
    # Priorities above the highest count as that, in the order of their arrival.
    taken = [queue.take(9)[0] for _ in range(3)]
    assert [numbers(runs) for runs in taken] == [[1, 3, 5], [2], [0, 4]]
    assert [offsets(runs) for runs in taken] == [[2, 3, 4], [5], [0, 1]]


def test_what_comes_back_in_many_pieces_is_sorted_with_few_reads_of_the_log() -> None:
    """In the order of coming back, each piece took a read of all that is behind it: minutes for 50,000 of them."""
    heads = [make_head(b"", key, content_header(b"\0\0", 1)) for key in (b"a", b"b")]
    reads: list[int] = []

    def read(offset: int) -> list[Run]:
        reads.append(offset)
        return [Run(at, alike(heads[at % 2], [b"x"])) for at in range(offset, min(1000, offset + 100))]

    backlog = PriorityBacklog(read, lambda run: False, priority_max=3)
    backlog.append(0, [alike(heads[at % 2], [b"x"]) for at in range(1000)], 0, 1 << 20)
    while backlog.take(100)[0]:
        pass
    for at in range(0, 1000, 2):
        backlog.put_back(at, at + 1)
    assert sum(end - first for first, end in backlog.ready_ranges()) == 500
    assert len(reads) <= 11


FIVE = [make_head(b"", b"q", content_header(b"\x08\x00" + bytes((priority,)), 1)) for priority in range(5)]


@pytest.mark.parametrize("came_back", [False, True])
def test_the_log_is_read_once_and_not_once_for_each_priority(
    monkeypatch: pytest.MonkeyPatch, came_back: bool
) -> None:
    """10,000 messages of five priorities took six reads of all of them to come back and be delivered again."""
    monkeypatch.setattr(priority_backlog, "WINDOW_IDLE_BYTES_MAX", 0)
    reads: list[int] = []

    def read(offset: int) -> list[Run]:
        reads.append(offset)
        return [Run(at, alike(FIVE[at % 5], [b"x"])) for at in range(offset, min(1000, offset + 97))]

    backlog = PriorityBacklog(read, lambda run: False, priority_max=4)
    backlog.append(0, [alike(FIVE[at % 5], [b"x"]) for at in range(1000)], 0, 0)
    if came_back:
        taken = list(backlog.skip(1000))
        for first, end in taken:
            backlog.put_back(first, end)
        while backlog.sort_some():
            pass
        assert not backlog.window_bytes, "nobody is there to take what is sorted"
        reads.clear()
    order = [offset for _ in range(1000) for offset in offsets(backlog.take(7)[0])]
    assert order == sorted(range(1000), key=lambda at: (-(at % 5), at))
    # 11, and one for the first message of each priority, which stands before that of the priority above.
    assert len(reads) <= 15
    assert (backlog.window_bytes, backlog.window_count) == (0, 0)


def test_no_more_is_kept_for_other_priorities_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_backlog, "WINDOW_BYTES_MAX", 2000)

    def read(offset: int) -> list[Run]:
        return [Run(at, alike(FIVE[at % 5], [b"x"])) for at in range(offset, min(1000, offset + 100))]

    backlog = PriorityBacklog(read, lambda run: False, priority_max=4)
    backlog.append(0, [alike(FIVE[at % 5], [b"x"]) for at in range(1000)], 0, 0)
    order: list[int] = []
    while len(order) < 1000:
        order += offsets(backlog.take(7)[0])
        assert backlog.window_bytes <= 2000 + Run(0, alike(FIVE[0], [b"x"])).memory_bytes
    assert order == sorted(range(1000), key=lambda at: (-(at % 5), at))


def a_backlog_of_many_priorities(monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[Log, Queue]:
    """In the log, no message like the one before: the log is read five records at a time."""
    monkeypatch.setattr(priority_backlog, "SORTED_AT_ONCE", 10)
    monkeypatch.setattr(queue_module, "DEALT_AT_ONCE", 10 * RUN_COSTS)
    log = Log(**{"x-max-priority": TOP})
    queue: Queue = log.recover()
    for number in range(count):
        queue.gathered.add(alike(HEADS[number % 3], [body(number, HEADS[number % 3])]))
        log.flush(queue)
    return log, log.recover()


def take_all_and_put_back(queue: Queue) -> None:
    """All is delivered and comes back, one by one."""
    taken: list[int] = []
    while queue.ready_count:
        taken += offsets(queue.take(7)[0])
    for offset in taken:
        queue.requeue(offset, 1)


def test_what_comes_back_is_sorted_a_little_in_each_dispatch_and_nothing_is_handed_out_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50,000 messages that came back were a step of 1.5 s."""
    log, queue = a_backlog_of_many_priorities(monkeypatch, 100)
    take_all_and_put_back(queue)
    consumer = Sink(prefetch=1000)
    queue.add_consumer(consumer)
    steps = 0
    while not consumer.got:
        reads = log.reads
        queue.dispatch(7)
        steps += 1
        assert log.reads - reads <= 5, "ten runs are sorted, or ten handed out, five with a read"
        assert queue.wait_ms == 0, "it goes on at once"
    assert steps >= 10
    while len(consumer.got) < 100:
        queue.dispatch(7)
    expected = sorted(range(100), key=lambda number: (-min(HEADS[number % 3].priority, TOP), number))
    assert [number for number, _, _ in consumer.got] == expected


def test_a_dispatch_that_has_to_read_many_for_those_of_one_priority_gives_others_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each dispatch of a backlog of ten priorities read 5,000 messages for 512: steps of 140 ms."""
    log, queue = a_backlog_of_many_priorities(monkeypatch, 100)
    consumer = Sink(prefetch=1000)
    queue.add_consumer(consumer)
    while queue.ready_count:
        reads = log.reads
        queue.dispatch(7)
        assert log.reads - reads <= 3
        assert queue.wait_ms == (0 if queue.ready_count else None)
    assert len(consumer.got) == 100


def test_to_purge_what_came_back_takes_no_read_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log, queue = a_backlog_of_many_priorities(monkeypatch, 20)
    take_all_and_put_back(queue)
    reads = log.reads
    assert queue.drop_ready(PURGED) == 20
    assert (log.reads, queue.ready_count, queue.message_count) == (reads, 0, 0)


@pytest.mark.parametrize("taken", [0, 3])
def test_a_purge_settles_what_follows_in_the_log_together_whatever_its_priority(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Each by itself they took 376 ms, of 100,000."""
    _, queue = a_backlog_of_many_priorities(monkeypatch, 60)
    unacked = offsets(queue.take(taken)[0]) if taken else []
    ready = queue.ready_count
    assert queue.drop_ready(PURGED) == ready
    settled = {offset for _, first, end in queue.settling for offset in range(first, end)}
    assert len(queue.settling) <= 1 + len(unacked)
    assert settled == set(range(60)).difference(unacked)
    assert (queue.ready_count, queue.unacked_count) == (0, len(unacked))


def test_messages_beyond_a_limit_are_dropped_in_the_order_of_delivery_and_none_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A policy that drops all but some of 200,000 messages read them all in one step."""
    log, queue = a_backlog_of_many_priorities(monkeypatch, 100)
    taken = offsets(queue.take(7)[0])
    for offset in taken:
        queue.requeue(offset, 1)
    while queue.backlog.sort_some():
        pass
    order = sorted(range(100), key=lambda number: (-min(HEADS[number % 3].priority, TOP), number))
    queue.configure(QueueSettings(max_length=20))
    reads = log.reads
    queue.dispatch(7)
    assert log.reads == reads
    assert sorted(at for _, first, end in queue.settling for at in range(first, end)) == sorted(order[:80])
    left: list[int] = []
    while queue.ready_count:
        left += numbers(queue.take(7)[0])
    assert left == order[80:]
