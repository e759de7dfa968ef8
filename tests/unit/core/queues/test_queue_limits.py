"""core.queues.queue under limits: after expiry, overflow, reject and requeue the books of a queue are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leveret.core.queues import dead_lettering as dead_lettering_module
from leveret.core.queues import queue as queue_module
from leveret.core.queues.backlog.priority_backlog import PriorityBacklog
from leveret.core.queues.dead_lettering import NOT_STORED, DeadLetters
from leveret.core.queues.head import Head
from leveret.core.queues.messages import RUN_COSTS, alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model.reasons import Reason
from tests.unit.core.queues.queue_log import HEADS, PURGED, Log, Sink, body, offsets, shrink

TOP = 2
KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "priority": {"x-max-priority": TOP},
    "quorum": {"x-queue-type": "quorum"},
}
HEADER = b"\x00\x3c\x00\x00" + (4).to_bytes(8, "big") + b"\0\0"
LIVES = [
    Head(b"", b"\0\0", HEADER[:4] + size.to_bytes(8, "big") + b"\0\0", size, True, ttl, priority)
    for size in (4, 60)
    for ttl in (None, 3)
    for priority in (0, 2)
]
SETTINGS = st.builds(
    QueueSettings,
    message_ttl_ms=st.sampled_from([None, None, None, 6, 6, 0]),
    max_length=st.sampled_from([None, None, None, 12, 6, 0]),
    max_length_bytes=st.sampled_from([None, 300, 300, 100, 1000, 0]),
    overflow=st.sampled_from(["drop-head", "drop-head", "reject-publish"]),
    dead_letter_exchange=st.sampled_from(["dlx", "dlx", None]),
    delivery_limit=st.sampled_from([1, None]),
)


KEPT = st.builds(
    QueueSettings,
    message_ttl_ms=st.sampled_from([None, None, 6]),
    max_length=st.sampled_from([None, None, 30]),
    max_length_bytes=st.sampled_from([None, None, 1000]),
    overflow=st.just("reject-publish"),
    dead_letter_exchange=st.just("dlx"),
    dead_letter_strategy=st.sampled_from(["at-least-once", "at-least-once", "at-most-once"]),
    delivery_limit=st.sampled_from([1, None]),
)


class LimitsMachine(RuleBasedStateMachine):
    """What happens to a queue that has limits, which change; offsets are checked against the log."""

    kinds: ClassVar = st.sampled_from(list(KINDS))
    limits: ClassVar = SETTINGS

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        kind, settings = data.draw(self.kinds), data.draw(self.limits)
        self.log = Log(**KINDS[kind])
        self.now_ms = 0
        self.published = 0
        self.queue: Queue = self.log.recover()
        self.queue.configure(settings)
        self.held: set[int] = set()
        self.sinks: list[Sink] = []
        self.dying: list[DeadLetters] = []
        self.is_fresh = True
        self.settled = self.dead_count = 0
        self.noted: set[int] = set()

    @rule(count=st.integers(1, 9), head=st.sampled_from(LIVES))
    def publish(self, count: int, head: Head) -> None:
        room = self.queue.room(head.body_bytes)
        assert room >= 0
        count = min(count, room)
        if count:
            self.queue.gathered.add(alike(head, [body(self.published + i, head) for i in range(count)]))
            self.published += count
            self.is_fresh = True

    @rule(later_ms=st.integers(0, 4))
    def flush(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.log.flush(self.queue, self.now_ms)
        self.queue.dispatch(self.now_ms, self.now_ms)
        self._take_from_sinks()
        dead = self.queue.dead_lettering.take()
        assert all(letters.runs for letters in dead)
        self.dying += dead
        self.log.flush(self.queue, self.now_ms)
        self.noted |= set(_each((first, end) for first, end, _ in self.queue.dead_lettering.notes))
        self._check_limits()

    def _take_from_sinks(self) -> None:
        for sink in self.sinks:
            self.held |= {offset for _, offset, _ in sink.got}
            sink.got.clear()

    def _check_limits(self) -> None:
        queue, limits = self.queue, self.queue.settings
        if queue.wait_ms is not None and queue.wait_ms <= 0:
            # Unacked messages in front hold the floor, so what was settled behind them counts.
            settled, dead_count = queue.next_offset - queue.message_count, queue.dead_lettering.count
            goes_on = (
                self.dying or dead_count > self.dead_count or queue.dead_lettering.repeat_at_ms is not None
            )
            assert goes_on or settled > self.settled or queue._unmeasured.ranges, (
                "it goes on, or too many died"
            )
            self.settled, self.dead_count = settled, dead_count
            return
        if limits.overflow == "drop-head":
            assert limits.max_length is None or queue.ready_count <= limits.max_length
            assert limits.max_length_bytes is None or queue.ready_bytes <= limits.max_length_bytes
        self.is_fresh = False

    @rule(prefetch=st.integers(0, 4))
    def consume(self, prefetch: int) -> None:
        sink = Sink(prefetch)
        self.sinks.append(sink)
        self.queue.add_consumer(sink)

    @precondition(lambda self: self.sinks)
    @rule()
    def cancel(self) -> None:
        self.queue.remove_consumer(self.sinks.pop())

    @rule(count=st.integers(1, 8))
    def get(self, count: int) -> None:
        for _ in range(count):
            runs, _ = self.queue.take_one(self.now_ms)
            self.held |= set(offsets(runs))
            assert len(offsets(runs)) <= 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), what=st.sampled_from(["ack", "reject", "requeue"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True, min_size=1))
        for first, count in _runs(chosen):
            self.held -= set(range(first, first + count))
            {"ack": self.queue.settle, "reject": self.queue.reject, "requeue": self.queue.requeue}[what](
                first, count
            )

    @precondition(lambda self: self.dying)
    @rule(again=st.booleans())
    def the_dead_are_safe_or_not(self, again: bool) -> None:
        dying, self.dying = self.dying, []
        for letters in dying:
            self.queue.dead_lettering.finished(letters, [letters] if again else [], self.now_ms + 2)
            for run in [] if again else letters.runs:
                assert run.first != NOT_STORED
                self.queue.settle(run.first, len(run.bodies), Reason.DEAD_LETTERED)

    @precondition(lambda self: self.published > 20)
    @rule(data=st.data())
    def policy(self, data: st.DataObject) -> None:
        self.queue.configure(data.draw(self.limits))

    @rule()
    def purge(self) -> None:
        ready = self.queue.ready_count
        assert self.queue.drop_ready(PURGED) == ready
        assert self.queue.ready_count == 0

    @rule()
    def crash_and_restart(self) -> None:
        limits = self.queue.settings
        self.queue = self.log.recover()
        self.queue.configure(limits)
        self.queue.may_expire = True
        self.held, self.dying, self.sinks = set(), [], []

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        queue = self.queue
        places = [
            *_each(queue.backlog.ready_ranges()),
            *self.held,
            *(
                offset
                for letters in [*self.dying, *queue.dead_lettering.letters]
                for offset in offsets(letters.runs)
            ),
            *_each((dead.first, dead.end) for dead in queue.dead_lettering.declared_dead),
            *_each((dead.first, dead.end) for dead in queue.dead_lettering._refused),
        ]
        assert len(places) == len(set(places)), "nothing is in two places"
        assert sorted(places) == list(_each(queue.settled.gaps(0, queue.next_offset)))

    @invariant()
    def counts_are_right(self) -> None:
        queue = self.queue
        ready = list(_each(queue.backlog.ready_ranges()))
        assert self.noted.isdisjoint([*ready, *self.held]), "what the log names as dead goes to no consumer"
        assert queue.ready_count == len(ready)
        assert queue.unacked_count == queue.message_count - len(ready)
        assert queue.delivered_count == len(self.held)
        assert queue.unsettled_count == len(ready) + len(self.held) + queue.kept_count
        assert queue.unacked_bytes >= 0
        assert queue.unacked_count or not queue.unacked_bytes
        assert queue.window_bytes >= 0
        backlog = queue.backlog
        in_memory = [*backlog._window]
        if isinstance(backlog, PriorityBacklog):
            in_memory += [run for level in backlog._levels for run in level.recent]
            in_memory += backlog._kept.values()
        assert backlog.window_count == sum(len(run.bodies) for run in in_memory)
        if queue.settings.max_length_bytes is not None and not (
            queue._unmeasured.are_all or queue._unmeasured.ranges
        ):
            assert queue.ready_bytes == sum(self._size(offset) for offset in ready)

    def _size(self, offset: int) -> int:
        record = self.log.records[offset]
        assert isinstance(record, tuple)
        return record[0].body_bytes


class KeepingMachine(LimitsMachine):
    """The same for a queue that keeps dead letters until they are taken."""

    kinds = st.just("quorum")
    limits = KEPT


def _each(ranges: Iterator[tuple[int, int]]) -> Iterator[int]:
    for first, end in ranges:
        yield from range(first, end)


def _runs(chosen: list[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of consecutive offsets."""
    chosen = sorted(chosen)
    for offset in chosen:
        if offset - 1 not in chosen:
            yield offset, next(count for count in range(1, len(chosen) + 1) if offset + count not in chosen)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    monkeypatch.setattr(dead_lettering_module, "DEAD_BYTES_MAX", 3 * dead_lettering_module.DEATH_BYTES)
    monkeypatch.setattr(dead_lettering_module, "UNFINISHED_BYTES_MAX", 4 * dead_lettering_module.LETTER_BYTES)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("machine", [LimitsMachine, KeepingMachine])
def test_the_books_of_a_queue_with_limits_are_right_whatever_happens(machine: type[LimitsMachine]) -> None:
    # Making a failure smaller would take minutes.
    phases = [Phase.reuse, Phase.generate]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=80, stateful_step_count=50, phases=phases)
    )


@pytest.mark.parametrize(
    "limits",
    [
        QueueSettings(message_ttl_ms=10),
        QueueSettings(max_length_bytes=HEADS[0].body_bytes),
        QueueSettings(message_ttl_ms=10, dead_letter_exchange="x"),
        QueueSettings(max_length=1, dead_letter_exchange="x"),
    ],
    ids=["expiry", "bytes", "expiry of dead letters", "length of dead letters"],
)
def test_a_backlog_that_a_new_policy_ends_goes_in_turns_and_nobody_gets_of_it(
    limits: QueueSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "DROPPED_AT_ONCE", 10 * RUN_COSTS)
    monkeypatch.setattr(dead_lettering_module, "DEAD_BYTES_MAX", 20 * dead_lettering_module.DEATH_BYTES)
    monkeypatch.setattr(queue_module, "DEAD_AT_ONCE", 20)
    log = Log()
    queue = log.recover()
    queue.gathered.add(alike(HEADS[0], [body(number, HEADS[0]) for number in range(1_000)]))
    log.flush(queue, 0)
    queue.dispatch(0)
    queue.configure(limits)
    left, reads = [queue.ready_count], log.reads
    while len(left) == 1 or (queue.wait_ms is not None and queue.wait_ms <= 0):
        queue.dispatch(100)
        # Each read of this log has five messages.
        assert log.reads - reads <= 22
        assert left[-1] - queue.ready_count <= 12 * RUN_COSTS
        reads = log.reads
        left.append(queue.ready_count)
        for letters in queue.dead_lettering.take():
            for run in letters.runs:
                queue.settle(run.first, len(run), Reason.DEAD_LETTERED)
        log.flush(queue, 100)
        assert len(left) < 1_000
    assert len(left) > 3
    assert left == sorted(left, reverse=True)
    assert left[-1] == (0 if limits.message_ttl_ms else 1)
