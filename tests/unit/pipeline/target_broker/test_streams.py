"""Reading a stream at another broker, whose deliveries come when a test says so, by a clock of the test's own."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pamqp import commands

from leveret.pipeline.target_broker import streams
from leveret.pipeline.target_broker.connection import AmqpConnection, ClientChannel, Delivery
from leveret.pipeline.target_broker.streams import IDLE_S, count_from
from leveret.wire.message10 import OFFSET_HEADER

TIMEOUT_S = 60.0
LAST = 4


class Stream:
    """A broker's stream of messages of one exchange, and the pauses (s) before some of them."""

    def __init__(self, count: int, pauses_s: dict[int, float], there: int | None = None) -> None:
        self.now_s = 0.0
        self._there = count if there is None else there
        self._count = count
        self._pauses_s = pauses_s
        self._next = 0

    def open_channel(self) -> ClientChannel:
        return ClientChannel(1, lambda *_: None, deque(), [])

    def close_channel(self, channel: ClientChannel) -> None:
        pass

    def consume(self, channel: ClientChannel, stream: str, arguments: dict[str, Any]) -> None:
        offset = arguments[OFFSET_HEADER]
        self._next = max(0, self._there - LAST) if offset == "last" else offset
        self._channel, self._due_s = channel, self.now_s + self._pauses_s.get(self._next, 0.0)

    def receive_within(self, timeout_s: float) -> None:
        until_s = self.now_s + timeout_s
        if self._next >= self._count or self._due_s > until_s:
            self.now_s = until_s
            return
        self.now_s = max(self.now_s, self._due_s)
        properties = commands.Basic.Properties(headers={OFFSET_HEADER: self._next}).marshal()
        self._channel.deliveries.append(Delivery(b"x", b"", properties, b""))
        self._next += 1
        self._due_s = self.now_s + self._pauses_s.get(self._next, 0.0)

    def next_delivery(self, channel: ClientChannel) -> Delivery:
        return channel.deliveries.popleft()


@pytest.mark.parametrize("least", [0, 3, 9])
@pytest.mark.parametrize("pauses_s", [{}, {6: 5 * IDLE_S}])
def test_messages_are_counted_up_to_the_end_although_the_broker_pauses_before_it(
    least: int, pauses_s: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is not counted would be published again, and be there twice."""
    stream = Stream(12, pauses_s)
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: stream.now_s))
    assert count_from(cast(AmqpConnection, stream), "s", 2, "x", least, TIMEOUT_S) == 10


@pytest.mark.parametrize("count", [0, 2])
def test_where_no_message_can_be_none_is_waited_for_long(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(count, {})
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: stream.now_s))
    assert count_from(cast(AmqpConnection, stream), "s", 2, "x", 0, TIMEOUT_S) == 0
    assert stream.now_s <= 3 * IDLE_S


@pytest.mark.parametrize("least", [0, 3, 200])
def test_others_who_publish_all_the_time_keep_nobody_waiting_for_ever(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream grows by ten messages each second; retention may have dropped some that were confirmed."""
    stream = Stream(10_000, {number: 0.1 for number in range(100, 10_000)}, there=100)
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: stream.now_s))
    assert count_from(cast(AmqpConnection, stream), "s", 90, "x", least, 5 * IDLE_S) < 100
    assert stream.now_s <= 8 * IDLE_S
