"""core.queues.consumers: who is served, in what order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.consumers import Consumers
from leveret.core.queues.messages import alike
from tests.unit.core.queues.queue_log import HEADS, Log, Sink, body


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
        queue.gather(alike(HEADS[0], [body(number, HEADS[0]) for number in new]))
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
    assert consumers.willing() == [low]
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
    assert consumers.willing() == [low]
