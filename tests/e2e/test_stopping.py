"""A node that is told to stop: what it took over is confirmed and kept, and everybody is told to go."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pamqp import commands

from leveret.storage.secret_file import make_or_read
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess
from tests.conformance.rawclient import Peer

QUEUE = "kept"
BODY_BYTES = 2000
STOPS_WITHIN_S = 60.0
"""On a busy machine; a node that waits for others waits for ever."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LeveretProcess]:
    with LeveretProcess(data_dir=tmp_path / "data") as node:
        yield node


class Publisher(threading.Thread):
    """Publishes numbered messages as fast as it can without waiting, until the node says goodbye."""

    def __init__(self, node: LeveretProcess) -> None:
        super().__init__(daemon=True)
        self.confirmed = 0
        self.published = 0
        self.reply: commands.Connection.Close | None = None
        self._peer = Peer(node.amqp_port)
        self._peer.login()
        self._peer.open_channel(1)
        self._peer.call(1, commands.Queue.Declare(queue=QUEUE, durable=True), commands.Queue.DeclareOk)
        self._peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def run(self) -> None:
        writer = threading.Thread(target=self._publish, daemon=True)
        writer.start()
        self._read()
        writer.join(10)
        self._peer.send(0, commands.Connection.CloseOk())
        self._peer.expect_end()
        self._peer.abort()

    def _publish(self) -> None:
        properties = commands.Basic.Properties(delivery_mode=2)
        try:
            while self.reply is None:
                self.published += 1
                body = f"{self.published}".encode().ljust(BODY_BYTES)
                self._peer.publish(1, body, routing_key=QUEUE, properties=properties)
        except OSError:
            self.published -= 1

    def _read(self) -> None:
        while self.reply is None:
            _, frame = self._peer.receive()
            if isinstance(frame, commands.Basic.Ack):
                assert frame.delivery_tag is not None
                self.confirmed = max(self.confirmed, frame.delivery_tag)
            elif isinstance(frame, commands.Connection.Close):
                self.reply = frame


def test_a_stop_keeps_and_confirms_what_was_taken_and_tells_publishers_to_go(node: LeveretProcess) -> None:
    publishers = [Publisher(node) for _ in range(3)]
    for each in publishers:
        each.start()
    wait_until(lambda: all(each.confirmed > 200 for each in publishers), "confirms", 30)
    assert node.stop() == 0
    for each in publishers:
        each.join(15)
        assert not each.is_alive()
        assert each.reply is not None
        assert each.reply.reply_code == 320
        assert each.reply.reply_text.startswith("CONNECTION_FORCED")
    node.start()
    confirmed = sum(each.confirmed for each in publishers)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port)) as connection:
        kept = connection.channel().queue_declare(QUEUE, passive=True).method.message_count
    # Nothing that was confirmed is missing, and nothing was taken over without being confirmed.
    assert kept == confirmed
    assert confirmed < sum(each.published for each in publishers)


def silent_client(node: LeveretProcess) -> Peer:
    """A client that is logged in and then neither reads nor answers."""
    peer = Peer(node.amqp_port)
    peer.login()
    return peer


def test_a_client_that_does_not_say_goodbye_is_waited_for_no_longer_than_the_setting(tmp_path: Path) -> None:
    config = {"shutdown_timeout": "300ms"}
    with LeveretProcess(data_dir=tmp_path / "data", config=config) as node, silent_client(node) as peer:
        began = time.monotonic()
        assert node.stop() == 0
        assert 0.3 <= time.monotonic() - began < 10, "the default is 10 s"
        assert peer.expect(0, commands.Connection.Close).reply_code == 320


def test_a_second_signal_ends_a_node_that_waits_for_a_client(tmp_path: Path) -> None:
    config = {"shutdown_timeout": "10m", "pid_file": str(tmp_path / "pid")}
    with LeveretProcess(data_dir=tmp_path / "data", config=config) as node, silent_client(node) as peer:
        assert (tmp_path / "pid").read_text() == f"{node.pid}\n"
        node.server.signal(signal.SIGTERM)
        assert peer.expect(0, commands.Connection.Close).reply_code == 320
        node.server.signal(signal.SIGTERM)
        wait_until(lambda: node.server.exit_status is not None, "the end", STOPS_WITHIN_S)
        assert node.server.exit_status == 143
        assert not (tmp_path / "pid").exists()
        assert "stop_forced" in node.log_text()


@pytest.fixture(params=["refuses", "says nothing"])
def unhelpful(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that does not help: nobody listens there, or who does says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        if request.param == "refuses":
            server.close()
        yield port


WAITING: dict[str, tuple[dict[str, str], str]] = {
    "a cluster's etcd": (
        {
            "cluster_formation.peer_discovery_backend": "etcd",
            "cluster.etcd.endpoints": "http://127.0.0.1:{port}",
            "cluster.bind": "127.0.0.1",
            "cluster.port": "0",
        },
        "starting version",
    ),
    "the etcd that elects": (
        {
            "cluster.etcd.endpoints": "http://127.0.0.1:{port}",
            "replication.bind": "127.0.0.1",
            "replication.port": "0",
        },
        "leveret ready",
    ),
    "a leader": ({"replication.follow": "tcp://127.0.0.1:{port}"}, "leveret ready"),
    "a former leader's successor": (
        {
            "replication.bind": "127.0.0.1",
            "replication.port": "0",
            "replication.follow": "tcp://127.0.0.1:{port}",
        },
        "starting version",
    ),
}


@pytest.mark.parametrize(
    ("waits_for", "number"),
    [
        ("a former leader's successor", signal.SIGTERM),
        ("a cluster's etcd", signal.SIGINT),
        *(
            pytest.param(each, signal.SIGTERM, marks=pytest.mark.story)
            for each in WAITING
            if each != "a former leader's successor"
        ),
    ],
)
def test_a_node_that_waits_for_others_at_its_start_ends_when_it_is_told_to(
    tmp_path: Path, unhelpful: int, waits_for: str, number: int
) -> None:
    settings, sign = WAITING[waits_for]
    config = {key: value.format(port=unhelpful) for key, value in settings.items()}
    node = LeveretProcess(parent_dir=tmp_path)
    node.data_dir.mkdir(mode=0o700)
    make_or_read(node.data_dir)
    try:
        if waits_for == "a former leader's successor":
            node.start()
            assert node.stop() == 0
        node.config = config
        node.launch()

        def waits() -> bool:
            node.server.assert_alive()
            return node.log_text().count(sign) > (waits_for == "a former leader's successor")

        wait_until(waits, "the node's start", 30)
        node.server.signal(number)
        wait_until(lambda: node.server.exit_status is not None, "the end", STOPS_WITHIN_S)
        assert node.server.exit_status == 0, node.log_text()
        assert "Traceback" not in node.log_text()
        node.config = {}
        if waits_for == "a leader":
            node.launch()
            wait_until(lambda: node.server.exit_status is not None, "the refusal", STOPS_WITHIN_S)
            assert "never finished joining a leader" in node.log_text(), "it does not lead alone"
            return
        node.start()
        assert node.stop() == 0
    finally:
        node.close()
