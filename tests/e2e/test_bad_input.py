"""Bad input at every door of a real node: a clear error there, the node stays up, and nothing is lost.

The exact words of AMQP errors are asked of RabbitMQ itself in tests/conformance, those of `leveretctl` in
test_ctl, damage on disk in test_storage_damage. Here one node takes all of it, one thing after the other,
and after each it is the same process with the same messages.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Final

import httpx
import pika
import pytest
from pamqp import commands

from leveret.model.errors import LeveretError
from leveret.pipeline.upstream.stream_client import StreamClient
from leveret.testing.applications.applications import ReceivedMessage, drain
from leveret.testing.applications.mixed_messages import declare, mixed_messages
from leveret.testing.network.ports import LOOPBACK, free_port, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.standby_pair import get
from leveret.wire.amqp091 import FRAME_END
from tests.conformance.rawclient import FRAME_METHOD, Peer

QUEUE: Final = "kept"
COUNT: Final = 50
STATUS_TIMEOUT_S: Final = 90.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    config = {
        "schema_definition_sync.operating_mode": "downstream",
        "schema_definition_sync.downstream.minimum_sync_interval": "1",
        "standby.replication.operating_mode": "downstream",
    }
    with LeveretProcess(config=config, parent_dir=tmp_path_factory.mktemp("node")) as node:
        node.ctl("add_vhost", "private", "--tags", "standby_replication")
        node.ctl("add_user", "nobody", "secret")
        node.ctl("set_permissions", "nobody", "^$", "^$", "^$")
        with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel, [QUEUE])
            for one in mixed_messages([QUEUE], COUNT):
                channel.basic_publish(one.exchange, one.routing_key, one.body, one.properties)
        yield node


@pytest.fixture(autouse=True)
def nothing_is_lost(node: LeveretProcess) -> Iterator[None]:
    pid, before = node.pid, held(node)
    assert len(before) == COUNT
    yield
    assert node.alive
    assert node.pid == pid
    assert held(node) == before
    assert "traceback=" not in node.log_text()


def held(node: LeveretProcess) -> list[ReceivedMessage]:
    """What the queue holds; to have looked is what the flag of redelivery tells of."""
    return [each._replace(redelivered=False) for each in drain(node.amqp_port, "/", QUEUE, keep=True)]


# -- AMQP ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 3, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_amqp_a_frame_that_lies_about_its_size_ends_its_connection_only(
    node: LeveretProcess, size: int
) -> None:
    with Peer(node.amqp_port) as peer, Peer(node.amqp_port) as other:
        for one in (peer, other):
            one.login()
            one.open_channel(1)
        declared = bytes((0, 50, 0, 10)) + b"\0" * 20
        peer.send_octets(struct.pack(">BHI", FRAME_METHOD, 1, size) + declared + bytes((FRAME_END,)))
        assert peer.expect_connection_close()[0] == 501
        other.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


def test_amqp_a_frame_that_is_never_finished_keeps_nobody_waiting(node: LeveretProcess) -> None:
    with Peer(node.amqp_port) as peer, Peer(node.amqp_port) as other:
        peer.login()
        peer.send_octets(struct.pack(">BHI", FRAME_METHOD, 0, 1000) + b"\0")
        other.login()
        other.open_channel(1)


# -- stream protocol and HTTP ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "password", "vhost", "text"),
    [
        ("guest", "wrong", "/", "authentication failure"),
        ("guest", "guest", "nowhere", "vhost access failure"),
        ("nobody", "secret", "private", "vhost access failure"),
    ],
)
def test_stream_who_may_not_enter_is_told_so(
    node: LeveretProcess, user: str, password: str, vhost: str, text: str
) -> None:
    with pytest.raises(LeveretError, match=text):
        StreamClient(LOOPBACK, node.stream_port, vhost=vhost, username=user, password=password)


@pytest.mark.parametrize("octets", [b"\xff" * 64, b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_stream_a_frame_that_lies_about_its_size_ends_the_connection(
    node: LeveretProcess, octets: bytes
) -> None:
    with socket.create_connection((LOOPBACK, node.stream_port), timeout=10) as peer:
        peer.sendall(octets)
        while peer.recv(4096):
            pass


@pytest.mark.parametrize(
    ("method", "path", "auth", "body", "status"),
    [
        ("GET", "overview", ("guest", "wrong"), "", 401),
        ("GET", "overview", ("nobody", "secret"), "", 401),
        ("GET", "queues/nowhere", ("guest", "guest"), "", 404),
        ("GET", "queues/%2F/missing", ("guest", "guest"), "", 404),
        ("PUT", "queues/%2F/bad", ("guest", "guest"), "{not json", 400),
        ("PUT", "queues/%2F/kept", ("guest", "guest"), '{"durable": false}', 400),
        ("PUT", "policies/%2F/p", ("guest", "guest"), '{"pattern": "(", "definition": {}}', 400),
        ("POST", "definitions", ("guest", "guest"), '{"queues": [{"name": 7}]}', 400),
    ],
)
def test_http_what_cannot_be_done_has_its_status_and_a_reason(
    node: LeveretProcess, method: str, path: str, auth: tuple[str, str], body: str, status: int
) -> None:
    url = f"http://{LOOPBACK}:{node.management_port}/api/{path}"
    reply = httpx.request(method, url, auth=auth, content=body.encode(), timeout=10)
    assert reply.status_code == status, reply.text
    assert reply.json()["error"]
    assert reply.json()["reason"]


# -- the operator ----------------------------------------------------------------------------------


@pytest.fixture(params=["refused", "silent"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port where nobody listens, or where somebody does and never says a word."""
    if request.param == "refused":
        yield free_port()
        return
    with socket.create_server((LOOPBACK, 0)) as silent:
        yield silent.getsockname()[1]


def test_schema_an_endpoint_that_does_not_answer_is_named_in_the_status(
    node: LeveretProcess, endpoint: int
) -> None:
    point(node, "schema", endpoint)
    wait_until(
        lambda: str(endpoint) in (get(node, "tanzu/osr/schema/status")["last_error"] or ""),
        f"port {endpoint} in the status",
        STATUS_TIMEOUT_S,
    )
    assert str(endpoint) in node.ctl("schema_replication_status").stdout
    assert get(node, "tanzu/osr/schema/status")["state"] in ("connecting", "recover")


def point(node: LeveretProcess, kind: str, port: int) -> None:
    value = {"endpoints": [f"{LOOPBACK}:{port}"], "username": "u", "password": "p"}
    node.ctl(f"set_{kind}_replication_upstream_endpoints", "-", input_text=json.dumps(value))
