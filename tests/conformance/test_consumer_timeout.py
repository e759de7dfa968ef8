"""A client that does not acknowledge what it was sent loses its channel, and others get the messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from leveret.testing.rabbitmq import available
from tests.conformance.brokers import RABBITMQ, Broker, running
from tests.conformance.conftest import BROKERS
from tests.conformance.rawclient import PATIENCE_S

TIMEOUT_MS = 1_000
TOLD = (
    f"PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: {TIMEOUT_MS} ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


@pytest.fixture(scope="module", params=BROKERS)
def impatient(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that waits a second for acknowledgements, and looks more often than that."""
    reason = available() if request.param == RABBITMQ else None
    if reason is not None:
        pytest.skip(reason)
    with running(request.param, {"consumer_timeout": str(TIMEOUT_MS)}) as broker:
        if request.param == RABBITMQ:
            broker.ctl("eval", "application:set_env(rabbit, channel_tick_interval, 200).")
        yield broker


@pytest.fixture
def late(impatient: Broker) -> Iterator[pika.BlockingConnection]:
    connection = impatient.connect()
    yield connection
    connection.close()


def with_message(late: pika.BlockingConnection, name: str) -> Any:
    """A channel, with one message in the queue `name`."""
    channel = late.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, b"m")
    return channel


def delivered(late: pika.BlockingConnection, channel: Any, name: str, *, auto_ack: bool = False) -> list[int]:
    """Consume, and wait for the first delivery; the tags that came gather in the list."""
    tags: list[int] = []
    channel.basic_consume(name, lambda *got: tags.append(got[1].delivery_tag), auto_ack=auto_ack)
    late.call_later(PATIENCE_S, lambda: pytest.fail("nothing was delivered"))
    while not tags:
        late.process_data_events(None)
    return tags


def closed_with(late: pika.BlockingConnection, channel: Any) -> tuple[int, str]:
    """What the channel is closed with, as soon as that happens."""
    late.call_later(PATIENCE_S, lambda: pytest.fail("the channel stays open"))
    while channel.is_open:
        late.process_data_events(None)
    with pytest.raises(ChannelClosedByBroker) as told:
        channel.basic_get("")
    return told.value.reply_code, told.value.reply_text
