"""What maintenance means for the doors that RabbitMQ 3.10 has not, for health checks, and over a restart."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest

from leveret.pipeline.upstream.stream_connection import ConnectionLost, StreamConnection
from leveret.testing.network.ports import accepts, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.wire.stream.codec import StreamCommand

PATIENCE_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LeveretProcess]:
    with LeveretProcess(parent_dir=tmp_path, config={"log.file": "leveret.log"}) as node:
        yield node


def in_service(node: LeveretProcess) -> int:
    url = f"http://127.0.0.1:{node.management_port}/api/health/checks/is-in-service"
    return httpx.get(url, auth=("guest", "guest"), timeout=PATIENCE_S).status_code


def test_a_drained_node_ends_stream_connections_fails_its_check_and_serves_again_after_a_restart(
    node: LeveretProcess,
) -> None:
    stream = StreamConnection(
        "127.0.0.1", node.stream_port, vhost="/", username="guest", password="guest", timeout_s=PATIENCE_S
    )
    assert in_service(node) == 200
    node.ctl("drain")
    assert in_service(node) == 503
    assert not accepts(node.stream_port)
    with pytest.raises(ConnectionLost, match="maintenance"):
        stream.await_command(StreamCommand)
    node.restart()
    assert in_service(node) == 200
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port)).close()


def test_an_address_that_was_taken_meanwhile_keeps_the_listeners_suspended_until_it_is_free(
    node: LeveretProcess,
) -> None:
    node.ctl("suspend_listeners")
    with socket.create_server(("127.0.0.1", node.amqp_port)):
        refused = node.ctl("resume_listeners", check=False)
        assert refused.returncode != 0
        assert f"cannot listen on 127.0.0.1:{node.amqp_port} for AMQP" in refused.stderr
    node.ctl("resume_listeners")
    assert accepts(node.amqp_port)
    assert accepts(node.stream_port)


def test_a_log_that_was_moved_away_goes_on_in_a_new_file(node: LeveretProcess) -> None:
    log = node.data_dir / "log" / "leveret.log"
    moved = log.rename(log.with_name("old.log"))
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port)).close()
    wait_until(lambda: "connection_closed" in moved.read_text(), "the old file to be written", PATIENCE_S)
    assert not log.exists()
    node.ctl("rotate_logs")
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port)).close()
    wait_until(lambda: "connection_closed" in log.read_text(), "the new file to be written", PATIENCE_S)
