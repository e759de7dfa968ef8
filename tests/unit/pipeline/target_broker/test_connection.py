"""A connection whose socket takes and has octets when a test says so, by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pamqp import base, commands

from leveret.pipeline.target_broker import connection
from leveret.pipeline.target_broker.connection import LOOK_S, AmqpConnection
from leveret.wire.amqp091 import marshal

TIMEOUT_S = 10.0
BLOCKED, UNBLOCKED = commands.Connection.Blocked("low on memory"), commands.Connection.Unblocked()


class Broker:
    """The socket, and the clock. A step is a second in which nothing is taken, and what is said in it.

    A step without a word has octets that are no whole record of TLS.
    """

    def __init__(self, steps: list[tuple[base.Frame, ...] | None]) -> None:
        self.now_s = 0.0
        self._steps = steps
        self._said: tuple[base.Frame, ...] = ()
        self._has_part = False
        self.taken = b""

    def send(self, octets: memoryview) -> int:
        if not self._steps:
            self.taken += octets
            return len(octets)
        said = self._steps.pop(0)
        self._has_part, self._said = said is None, said or ()
        self.now_s += LOOK_S
        raise TimeoutError

    def recv(self, size: int) -> bytes:
        if self._has_part:
            raise TimeoutError
        said, self._said = self._said, ()
        return b"".join(marshal(each, 0) for each in said)

    def has_octets(self, timeout_s: float) -> bool:
        return self._has_part or bool(self._said)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "steps",
    [
        [(BLOCKED,), *[()] * 100, (UNBLOCKED,), *[()] * 5],
        [(BLOCKED, UNBLOCKED), *[()] * 5],
        [None, (), None],
    ],
    ids=["after a long alarm it has its time again", "after a short one", "a part of a record"],
)
def test_a_broker_that_takes_octets_again_in_time_is_not_lost(
    steps: list[tuple[base.Frame, ...] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(steps)
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: broker.now_s))
    made = AmqpConnection.__new__(AmqpConnection)
    vars(made).update(
        peer="b:5672",
        _timeout_s=TIMEOUT_S,
        _on_blocked=lambda reason: None,
        _waits_for_alarms=True,
        _buffer=bytearray(),
        _blocked_by="",
        _socket=broker,
        _has_octets=broker.has_octets,
    )
    made.send(b"octets")
    assert broker.taken == b"octets"
