"""What a node tells of its clients, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.pipeline.upstream.stream_connection import StreamConnection
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess

SECRET = "s3cr3t-w0rd"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LeveretProcess]:
    config = {"default_pass": SECRET, "log.console.formatter": "json", "log.console.level": "debug"}
    with LeveretProcess(config=config, parent_dir=tmp_path) as node:
        yield node


def incarnations(node: LeveretProcess, protocol: str) -> list[list[dict[str, Any]]]:
    """The events of each connection that was let in over this protocol."""
    lines = [line for line in node.log_text().splitlines() if line.startswith("{")]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in map(json.loads, lines):
        by_name.setdefault(str(event.get("name", "")), []).append(event)
    return [
        incarnation
        for incarnation in by_name.values()
        if incarnation[0].get("protocol") == protocol
        and any(event["msg"] == "connection_authenticated" for event in incarnation)
    ]


def ended(node: LeveretProcess, protocol: str) -> list[dict[str, Any]]:
    """The events of the one connection over this protocol, once it is closed."""
    wait_until(
        lambda: [len(incarnation) for incarnation in incarnations(node, protocol)] == [3], "three events", 10
    )
    return incarnations(node, protocol)[0]


def connect(node: LeveretProcess, password: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials("guest", password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", node.amqp_port, credentials=credentials)
    )


def test_the_life_of_a_connection_is_three_lines(node: LeveretProcess) -> None:
    connect(node, SECRET).close()
    accepted, authenticated, closed = ended(node, "amqp")
    assert [event["msg"] for event in (accepted, authenticated, closed)] == [
        "connection_accepted",
        "connection_authenticated",
        "connection_closed",
    ]
    assert accepted["name"].endswith(f" -> 127.0.0.1:{node.amqp_port}")
    assert (authenticated["user"], authenticated["vhost"]) == ("guest", "/")
    assert (closed["user"], closed["level"]) == ("guest", "info")


def test_a_refused_login_names_the_user_and_no_password(node: LeveretProcess) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(node, SECRET + "x")
    wait_until(lambda: "login_refused" in node.log_text(), "the event", 60)
    [refused] = [line for line in node.log_text().splitlines() if "login_refused" in line]
    event = json.loads(refused)
    assert (event["level"], event["user"], event["reason"]) == ("warning", "guest", "invalid credentials")
    connect(node, SECRET).close()
    assert SECRET not in node.log_text()


def test_a_connection_that_is_refused_is_warned_of(node: LeveretProcess) -> None:
    credentials = pika.PlainCredentials("guest", SECRET)
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", node.amqp_port, "nosuch", credentials=credentials)
        )
    wait_until(lambda: "NOT_ALLOWED" in node.log_text(), "the event", 60)
    [closed] = [line for line in node.log_text().splitlines() if "NOT_ALLOWED" in line]
    event = json.loads(closed)
    assert (event["msg"], event["level"]) == ("connection_closed", "warning")
    assert event["reason"] == "NOT_ALLOWED - vhost nosuch not found"


def test_a_channel_that_a_client_loses_is_told_with_operation_and_reason(node: LeveretProcess) -> None:
    connection = connect(node, SECRET)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_declare("nosuch", passive=True)
    connection.close()
    wait_until(lambda: "channel_closed" in node.log_text(), "the event", 60)
    [closed] = [line for line in node.log_text().splitlines() if "channel_closed" in line]
    event = json.loads(closed)
    assert (event["level"], event["user"], event["operation"]) == ("warning", "guest", "queue.declare")
    assert event["reason"] == "NOT_FOUND - no queue 'nosuch' in vhost '/'"


def test_a_stream_client_is_told_of_in_the_same_words(node: LeveretProcess) -> None:
    client = StreamConnection(
        "127.0.0.1", node.stream_port, vhost="/", username="guest", password=SECRET, timeout_s=10
    )
    client.close()
    assert [event["msg"] for event in ended(node, "stream")] == [
        "connection_accepted",
        "connection_authenticated",
        "connection_closed",
    ]
