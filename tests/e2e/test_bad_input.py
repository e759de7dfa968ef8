"""Bad input at every door of a real node: a clear error there, the node stays up, and nothing is lost.

The exact words of AMQP errors are asked of RabbitMQ itself in tests/conformance, those of `leveretctl` in
test_ctl, damage on disk in test_storage_damage. Here one node takes all of it, one thing after the other,
and after each it is the same process with the same messages.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pika
import pytest
from pamqp import commands
from pika.exceptions import AMQPError, ChannelClosedByBroker

from leveret.model.errors import LeveretError
from leveret.pipeline.upstream.stream_client import StreamClient
from leveret.testing.applications.applications import Taken, drain
from leveret.testing.applications.parcels import declare, parcels
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
            for one in parcels([QUEUE], COUNT):
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


def held(node: LeveretProcess) -> list[Taken]:
    """What the queue holds; to have looked is what the flag of redelivery tells of."""
    return [each._replace(redelivered=False) for each in drain(node.amqp_port, "/", QUEUE, keep=True)]


def connect(node: LeveretProcess, user: str, password: str, vhost: str = "/") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port, vhost, credentials))


# -- AMQP ------------------------------------------------------------------------------------------


def test_amqp_a_wrong_password_is_an_authentication_error(node: LeveretProcess) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match=r"\(403\).*ACCESS_REFUSED"):
        connect(node, "guest", "wrong")


@pytest.mark.parametrize(
    ("vhost", "text"),
    [
        ("nowhere", "NOT_ALLOWED - vhost nowhere not found"),
        ("private", "NOT_ALLOWED - access to vhost 'private' refused for user 'nobody'"),
    ],
)
def test_amqp_a_vhost_that_is_not_there_or_not_open_to_the_user_gets_530(
    node: LeveretProcess, vhost: str, text: str
) -> None:
    with pytest.raises(AMQPError) as caught:
        connect(node, "nobody", "secret", vhost)
    assert "(530)" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("user", "call", "code", "text"),
    [
        (
            "nobody",
            lambda channel: channel.queue_purge(QUEUE),
            403,
            "ACCESS_REFUSED - access to queue 'kept' in vhost '/' refused for user 'nobody'",
        ),
        (
            "guest",
            lambda channel: channel.queue_purge("missing"),
            404,
            "NOT_FOUND - no queue 'missing' in vhost '/'",
        ),
    ],
)
def test_amqp_a_queue_that_is_not_there_or_not_open_to_the_user_closes_the_channel(
    node: LeveretProcess, user: str, call: Callable[[Any], None], code: int, text: str
) -> None:
    with connect(node, user, "secret" if user == "nobody" else "guest") as connection:
        with pytest.raises(ChannelClosedByBroker) as caught:
            call(connection.channel())
        assert (caught.value.reply_code, caught.value.reply_text) == (code, text)
        assert connection.is_open


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


@pytest.mark.parametrize(
    "command", ["set_schema_replication_upstream_endpoints", "set_standby_replication_upstream_endpoints"]
)
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ""),
        ("not json", ""),
        ("[]", ""),
        ('{"endpoints": [], "username": "u", "password": "p"}', "endpoints"),
        ('{"endpoints": ["h:x"], "username": "u", "password": "p"}', "h:x"),
        ('{"endpoints": ["h:5552"], "username": 7, "password": "p"}', "username"),
    ],
)
def test_ctl_endpoints_that_are_none_are_refused_in_one_line_and_change_nothing(
    node: LeveretProcess, command: str, text: str, named: str
) -> None:
    before = get(node, "global-parameters")
    ended = node.ctl(command, "-", input_text=text, check=False)
    assert ended.returncode in (64, 65)
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert named in ended.stderr
    assert get(node, "global-parameters") == before


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


@pytest.mark.story
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_standby_an_endpoint_that_does_not_answer_is_named_in_the_status(
    node: LeveretProcess, endpoint: int
) -> None:
    point(node, "standby", endpoint)

    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = get(node, "replication/standby/details")["vhosts"]
        return found

    wait_until(
        lambda: any(str(endpoint) in row["error"] for row in rows()),
        f"port {endpoint} in the status",
        STATUS_TIMEOUT_S,
    )
    assert [row["state"] for row in rows()] == ["connecting"]
    assert str(endpoint) in node.ctl("standby_replication_status").stdout


def point(node: LeveretProcess, kind: str, port: int) -> None:
    value = {"endpoints": [f"{LOOPBACK}:{port}"], "username": "u", "password": "p"}
    node.ctl(f"set_{kind}_replication_upstream_endpoints", "-", input_text=json.dumps(value))


def test_a_setting_that_is_none_stops_a_start_with_its_key_and_line(
    node: LeveretProcess, tmp_path: Path
) -> None:
    config = tmp_path / "leveret.conf"
    config.write_text("# first\nlisteners.tcp.1 = 127.0.0.1:0\nlisteners.tpc.2 = 127.0.0.1:0\n")
    argv = [
        "-m",
        "leveret.cli.server",
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--config",
        str(config),
    ]
    ended = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 78
    assert len(ended.stderr.splitlines()) == 1
    assert f"{config}:3: unknown setting 'listeners.tpc.2'" in ended.stderr
    assert not (tmp_path / "data").exists()
