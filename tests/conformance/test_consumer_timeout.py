"""A client that does not acknowledge what it was sent loses its channel, and others get the messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.conformance.brokers import RABBITMQ, Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.rawclient import Peer

TIMEOUT_MS = 1_000
TOLD = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel {} timed out. "
    f"Timeout value used: {TIMEOUT_MS} ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


@pytest.fixture(scope="module", params=BROKERS)
def impatient(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that waits a second for acknowledgements, and looks more often than that."""
    with running(kind_of(request), {"consumer_timeout": str(TIMEOUT_MS)}) as broker:
        if request.param == RABBITMQ:
            broker.ctl("eval", "application:set_env(rabbit, channel_tick_interval, 200).")
        yield broker


@pytest.fixture
def late(impatient: Broker) -> Iterator[Peer]:
    with impatient.peer() as peer:
        peer.login()
        for channel in (1, 2):
            peer.open_channel(channel)
        yield peer


def declared(peer: Peer, name: str, arguments: dict[str, Any] | None = None) -> str:
    """A queue with one message."""
    declare = commands.Queue.Declare(queue=name, auto_delete=False, arguments=arguments or {})
    peer.call(1, declare, commands.Queue.DeclareOk)
    peer.publish(1, b"m", routing_key=name)
    return name


def consume(peer: Peer, channel: int, queue: str, *, no_ack: bool = False) -> None:
    """Consume, and take the queue's message."""
    peer.call(channel, commands.Basic.Consume(queue=queue, no_ack=no_ack), commands.Basic.ConsumeOk)
    peer.expect(channel, commands.Basic.Deliver)
    assert peer.expect_content(channel) == b"m"


def get(peer: Peer, channel: int, queue: str, *, redelivered: bool) -> None:
    """Take the queue's message by basic.get, without acknowledgement."""
    ok = peer.call(channel, commands.Basic.Get(queue=queue), commands.Basic.GetOk)
    assert peer.expect_content(channel) == b"m"
    assert ok.redelivered is redelivered


def test_a_consumer_that_does_not_acknowledge_in_time_loses_its_channel_and_the_message_returns(
    late: Peer, name: str
) -> None:
    consume(late, 1, declared(late, name))
    assert late.expect_channel_close(1) == (406, TOLD.format(1))
    get(late, 2, name, redelivered=True)


def test_what_basic_get_took_must_be_acknowledged_in_time_as_well(late: Peer, name: str) -> None:
    get(late, 1, declared(late, name), redelivered=False)
    assert late.expect_channel_close(1) == (406, TOLD.format(1))


def test_messages_that_need_no_acknowledgement_have_no_timeout(late: Peer, name: str) -> None:
    consume(late, 1, declared(late, f"{name}-1"), no_ack=True)
    consume(late, 2, declared(late, f"{name}-2"))
    assert late.expect_channel_close(2) == (406, TOLD.format(2))
    late.expect_silence(1)
