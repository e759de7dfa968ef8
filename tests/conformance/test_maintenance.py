"""Taking a node out of service for clients, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from leveret.testing.network.ports import accepts, wait_until
from tests.conformance.brokers import RABBITMQ, Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.rawclient import PATIENCE_S


@pytest.fixture(scope="module", params=BROKERS)
def served(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of its own, as nobody else could use it."""
    with running(kind_of(request)) as broker:
        yield broker


@pytest.fixture
def client(served: Broker) -> Iterator[pika.BlockingConnection]:
    connection = served.connect()
    yield connection
    if connection.is_open:
        connection.close()


def upgrade(broker: Broker, command: str) -> str:
    """Run a command of rabbitmq-upgrade, which leveretctl has as well."""
    program: dict[str, Any] = {"program": "rabbitmq-upgrade"} if broker.kind == RABBITMQ else {}
    return broker.ctl(command, **program).stdout


def test_suspended_listeners_let_nobody_in_and_those_who_are_in_stay(
    served: Broker, client: pika.BlockingConnection, name: str
) -> None:
    assert "will no longer accept client connections" in served.ctl("suspend_listeners").stdout
    with pytest.raises(AMQPConnectionError):
        served.connect()
    assert not accepts(served.amqp_port)
    client.channel().queue_declare(name, exclusive=True)
    assert "will now accept client connections" in served.ctl("resume_listeners").stdout
    served.connect().close()


def test_suspending_and_resuming_twice_is_no_error(served: Broker) -> None:
    for command in ("suspend_listeners", "suspend_listeners", "resume_listeners", "resume_listeners"):
        served.ctl(command)
    served.connect().close()


def test_a_drained_node_has_no_clients_until_it_is_revived(
    served: Broker, client: pika.BlockingConnection
) -> None:
    assert "into maintenance mode" in upgrade(served, "drain")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        client.process_data_events(PATIENCE_S)
    assert closed.value.reply_code == 320
    assert closed.value.reply_text == "CONNECTION_FORCED - Node was put into maintenance mode"
    assert not accepts(served.amqp_port)
    assert "marked for maintenance" in served.ctl("cluster_status").stdout
    assert "Is under maintenance?: true" in served.ctl("status").stdout
    assert "back into regular operating mode" in upgrade(served, "revive")
    wait_until(lambda: accepts(served.amqp_port), "the listener", PATIENCE_S)
    served.connect().close()
    assert "not under maintenance" in served.ctl("cluster_status").stdout
