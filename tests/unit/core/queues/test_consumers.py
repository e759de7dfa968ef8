"""core.queues.consumers: who is served, in what order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.core.queues.consumers import Consumers
from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from tests.unit.core.queues.queue_log import HEADS, Log, Sink, body


def turns(consumers: Consumers, count: int) -> list[Sink]:
    """Who is served, turn after turn."""
    served = []
    for _ in range(count):
        turn = consumers.next()
        assert turn is not None
        assert isinstance(turn[0], Sink)
        served.append(turn[0])
        consumers.had_turn(turn[0])
    return served


@given(flushes=st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_turns_go_on_where_the_last_dispatch_ended(flushes: list[int]) -> None:
    log = Log()
    queue = log.recover()
    sinks = [Sink(100) for _ in range(3)]
    for sink in sinks:
        queue.add_consumer(sink)
    published = 0
    for count in flushes:
        new = range(published, published + count)
        queue.gathered.add(alike(HEADS[0], [body(number, HEADS[0]) for number in new]))
        published += count
        log.flush(queue)
        queue.dispatch()
    for place, sink in enumerate(sinks):
        assert [number for number, _, _ in sink.got] == list(range(place, published, 3))


def test_the_next_in_line_becomes_the_active_one() -> None:
    consumers = Consumers(single_active=True)
    low, high, later = Sink(1), Sink(1, priority=5), Sink(1)
    for one in (low, high, later):
        consumers.add(one)
    assert list(consumers) == [high, low, later]
    assert consumers.active is low
    assert turns(consumers, 3) == [low] * 3
    assert consumers.remove(low)
    assert not consumers.remove(low)
    assert consumers.active is high
    consumers.clear()
    assert len(consumers) == 0


def test_lower_priorities_take_what_the_highest_can_not() -> None:
    consumers = Consumers(single_active=False)
    full, low = Sink(0, priority=9), Sink(2)
    consumers.add(low)
    consumers.add(full)
    assert turns(consumers, 3) == [low] * 3


class Counting(Sink):
    """A sink that counts how often it is asked."""

    asked = 0

    def capacity(self) -> int:
        Counting.asked += 1
        return super().capacity()


def publish(log: Log, queue: Queue, first: int, count: int) -> None:
    """Messages with these numbers, offered at once."""
    queue.gathered.add(alike(HEADS[0], [body(number, HEADS[0]) for number in range(first, first + count)]))
    log.flush(queue)
    queue.dispatch()


def test_a_dispatch_asks_those_that_may_have_room_and_not_all_there_are() -> None:
    log = Log()
    queue = log.recover()
    sinks = [Counting(1) for _ in range(5000)]
    for sink in sinks:
        queue.add_consumer(sink)
    publish(log, queue, 0, 6000)
    while queue.wait_ms is not None:
        queue.dispatch()
    assert [len(sink.got) for sink in sinks] == [1] * 5000
    Counting.asked = 0
    for number in range(100):
        sinks[number].held = 0
        queue.consumers.wake(sinks[number])
        queue.dispatch()
    assert [len(sink.got) for sink in sinks[:100]] == [2] * 100
    assert Counting.asked <= 300
    for sink in sinks:
        queue.remove_consumer(sink)
    assert len(queue.consumers) == 0


class Door(RuleBasedStateMachine):
    """Consumers come, go and acknowledge in any order: nothing waits while one that is served has room."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.queue = self.log.recover()
        self.sinks: list[Sink] = []
        self.published = 0

    @initialize(single_active=st.booleans())
    def begin(self, single_active: bool) -> None:
        self.queue.consumers.single_active = single_active

    @rule(prefetch=st.integers(1, 3), priority=st.integers(0, 2))
    def consume(self, prefetch: int, priority: int) -> None:
        self.sinks.append(Sink(prefetch, priority=priority))
        self.queue.add_consumer(self.sinks[-1])

    @precondition(lambda self: self.sinks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sink = data.draw(st.sampled_from(self.sinks))
        self.sinks.remove(sink)
        self.queue.remove_consumer(sink)

    @precondition(lambda self: self.sinks)
    @rule(data=st.data(), count=st.integers(1, 3))
    def acknowledge(self, data: st.DataObject, count: int) -> None:
        sink = data.draw(st.sampled_from(self.sinks))
        sink.held = max(0, sink.held - count)
        self.queue.consumers.wake(sink)

    @rule(count=st.integers(1, 9))
    def publish(self, count: int) -> None:
        publish(self.log, self.queue, self.published, count)
        self.published += count

    @invariant()
    def nobody_with_room_waits(self) -> None:
        self.queue.dispatch()
        consumers = self.queue.consumers
        assert list(consumers) == sorted(self.sinks, key=lambda sink: -sink.priority)
        assert len(consumers) == len(self.sinks)
        if self.queue.ready_count:
            assert not [one for one in self.sinks if one.capacity() > 0 and consumers.is_active(one)]


TestDoor = Door.TestCase


class Lonely(Sink):
    """A consumer that is compared with no other."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")


@given(
    came=st.lists(st.integers(-2, 2), max_size=12), goes=st.lists(st.integers(0, 11)), single=st.booleans()
)
def test_thousands_of_consumers_may_leave_together_for_none_is_looked_for_among_the_others(
    came: list[int], goes: list[int], single: bool
) -> None:
    consumers, expected = Consumers(single_active=single), list[Lonely]()
    for priority in came:
        expected.append(Lonely(1, priority=priority))
        consumers.add(expected[-1])
    for place in goes:
        if place < len(expected):
            assert consumers.remove(expected.pop(place))
    expected.sort(key=lambda one: -one.priority)
    assert list(map(id, consumers)) == list(map(id, expected))
    assert len(consumers) == len(expected)
    assert (consumers.active is not None) is (single and bool(expected))
