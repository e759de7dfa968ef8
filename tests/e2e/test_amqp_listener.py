"""The AMQP port of a real node: TLS, proxies, limits, and peers that cost memory."""

from __future__ import annotations

import re
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from pamqp import commands

from leveret.testing.network.ports import AMQP_HEADER, LOOPBACK, free_port, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.certificates import CertificateAuthority, available
from leveret.wire.proxy_protocol import SIGNATURE
from tests.conformance.rawclient import Closed, Peer, raw_frame

PATIENCE_S: Final = 60.0
CONFIG_STATUS: Final = 78
MIB: Final = 1024 * 1024
LARGE_COUNT: Final = 100
LARGE_BODY: Final = b"x" * MIB
MEMORY_SLACK_BYTES: Final = 64 * MIB
"""What a peer may cost: its buffers of some MiB, a read, and what the allocator keeps."""
CLOSED: Final = (Closed, ConnectionError, ssl.SSLError)

needs_certificates = pytest.mark.skipif(available() is not None, reason=str(available()))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    config = {"handshake_timeout": "1000", "connection_max": "6", "consumer_max_per_channel": "2"}
    with LeveretProcess(config=config, parent_dir=tmp_path_factory.mktemp("node")) as node:
        yield node


def launched(config: dict[str, str], folder: Path) -> LeveretProcess:
    """A node that is not asked for more than its word that it is ready."""
    node = LeveretProcess(config=config, parent_dir=folder)
    node.launch()

    def is_ready() -> bool:
        node.server.assert_alive()
        return "leveret ready" in node.log_text()

    wait_until(is_ready, "the node", PATIENCE_S)
    return node


def ready_ports(node: LeveretProcess, kind: str) -> list[int]:
    return [int(port) for port in re.findall(rf" {kind}={re.escape(LOOPBACK)}:(\d+)", node.log_text())]


# -- TLS -------------------------------------------------------------------------------------------


@needs_certificates
def test_a_tls_port_serves_both_versions_of_amqp_and_is_told_when_ready(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    server = authority.issue("server", names="DNS:localhost", password="secret")
    config = {
        "listeners.tcp.1": f"{LOOPBACK}:0",
        "listeners.ssl.default": f"{LOOPBACK}:0",
        **server.settings(),
        "ssl_options.password": "secret",
    }
    node = launched(config, tmp_path)
    try:
        [plain], [secured] = ready_ports(node, "amqp"), ready_ports(node, "amqps")
        assert 0 not in (plain, secured)
        context = authority.client_context()
        options = pika.SSLOptions(context, "localhost")
        with pika.BlockingConnection(
            pika.ConnectionParameters(LOOPBACK, secured, ssl_options=options)
        ) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"x" * MIB)
            assert channel.basic_get("q", auto_ack=True)[2] == b"x" * MIB
        with Peer(secured, context) as peer:
            peer.send_octets(b"AMQP\x03\x01\x00\x00")
            assert peer.read_octets(8) == b"AMQP\x03\x01\x00\x00"
        with Peer(secured) as stranger:
            stranger.send_octets(b"GET / HTTP/1.1\r\n\r\n")
            wait_until(lambda: "tls_refused" in node.log_text(), "a word in the log", PATIENCE_S)
        assert 'reason="http request"' in node.log_text()
        assert "secret" not in node.log_text()
    finally:
        node.close()


@needs_certificates
def test_a_certificate_that_cannot_be_used_stops_the_start_and_is_named(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    config = {
        "listeners.ssl.default": str(free_port()),
        "ssl_options.certfile": str(one.certfile),
        "ssl_options.keyfile": str(other.keyfile),
    }
    node = LeveretProcess(config=config, parent_dir=tmp_path)
    node.launch()
    try:
        wait_until(lambda: not node.alive, "the node's end", PATIENCE_S)
        assert f"certificate {one.certfile} and key {other.keyfile} cannot be used" in node.log_text()
        assert node.server.exit_status == CONFIG_STATUS
    finally:
        node.close()


# -- proxies ---------------------------------------------------------------------------------------


@needs_certificates
def test_a_proxy_s_client_is_who_the_proxy_says(tmp_path: Path) -> None:
    """Its address is shown, and decides whether guest may log in; with TLS the header comes before it."""
    authority = CertificateAuthority(tmp_path)
    server = authority.issue("server", names="DNS:localhost")
    config = {
        "proxy_protocol": "true",
        "listeners.tcp.1": f"{LOOPBACK}:0",
        "listeners.ssl.1": f"{LOOPBACK}:0",
        **server.settings(),
    }
    local = b"PROXY TCP4 127.0.0.9 127.0.0.1 4711 5672\r\n"
    remote = (
        SIGNATURE + b"\x21\x11\x00\x0c" + bytes((192, 0, 2, 7, 192, 0, 2, 1)) + struct.pack(">HH", 4711, 5672)
    )
    node = launched(config, tmp_path)
    try:
        [port], [tls_port] = ready_ports(node, "amqp"), ready_ports(node, "amqps")
        with Peer(port) as peer:
            peer.send_octets(local)
            peer.login()
            assert '"127.0.0.9:4711 -> 127.0.0.1:5672"' in node.log_text()
        with Peer(port) as peer:
            peer.send_octets(remote)
            peer.authenticate()
            assert peer.expect_connection_close()[0] == 403
        bare = socket.create_connection((LOOPBACK, tls_port), PATIENCE_S)
        bare.sendall(local)
        with authority.client_context().wrap_socket(bare, server_hostname="localhost") as secured:
            secured.sendall(AMQP_HEADER)
            assert secured.recv(1) == b"\x01"
        with Peer(port) as peer, pytest.raises(CLOSED):
            peer.start()
    finally:
        node.close()


# -- limits ----------------------------------------------------------------------------------------


def test_a_handshake_that_takes_too_long_is_cut_off_however_it_drips(node: LeveretProcess) -> None:
    with ExitStack() as held:
        silent, half = (held.enter_context(Peer(node.amqp_port)) for _ in range(2))
        half.start()
        for peer in (silent, half):
            peer.expect_end(PATIENCE_S)


def test_a_channel_takes_as_many_consumers_as_it_is_set_to(node: LeveretProcess) -> None:
    with Peer(node.amqp_port) as peer:
        peer.login()
        peer.open_channel(1)
        peer.call(1, commands.Queue.Declare(queue="crowded", exclusive=True), commands.Queue.DeclareOk)
        for _ in range(2):
            peer.call(1, commands.Basic.Consume(queue="crowded"), commands.Basic.ConsumeOk)
        peer.send(1, commands.Basic.Consume(queue="crowded"))
        text = "NOT_ALLOWED - reached maximum (2) of consumers per channel"
        assert peer.expect_connection_close() == (530, text)


# -- memory ----------------------------------------------------------------------------------------


def memory_limit(node: LeveretProcess) -> int:
    """What the node's memory may come to at most while a peer tries to fill it."""
    return max(node.rss_bytes() + MEMORY_SLACK_BYTES, node.server.rss_bytes_peak() + MIB)


def write_until_nobody_takes_it(peer: Peer, octets: bytes, count: int) -> int:
    """Write without reading; return how often it went whole."""
    peer._socket.settimeout(1.0)
    for number in range(count):
        try:
            peer.send_octets(octets)
        except TimeoutError:
            return number
    return count


def test_a_client_that_never_reads_is_not_read_from(node: LeveretProcess) -> None:
    """Its messages come back because nobody wants them: what it does not read costs no memory."""
    limit = memory_limit(node)
    with Peer(node.amqp_port) as peer:
        peer.login()
        peer.open_channel(1)
        body = b"x" * 100_000
        publish = b"".join(
            (
                raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x07nowhere\x01"),
                raw_frame(2, 1, b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"),
                raw_frame(3, 1, body),
            )
        )
        taken = write_until_nobody_takes_it(peer, publish, 5000)
        assert taken < 1000
        assert node.server.rss_bytes_peak() < limit
        for _ in range(taken):
            peer.expect(1, commands.Basic.Return)
            assert peer.expect_content(1) == body


@pytest.fixture
def large(node: LeveretProcess) -> Iterator[str]:
    """A queue with many messages of a mebibyte each."""
    with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare("large", durable=True)
        channel.confirm_delivery()
        for _ in range(LARGE_COUNT):
            channel.basic_publish("", "large", LARGE_BODY)
        yield "large"
        channel.queue_delete("large")


def test_a_few_octets_that_ask_for_much_are_answered_as_fast_as_the_answers_go(
    node: LeveretProcess, large: str
) -> None:
    limit = memory_limit(node)
    with Peer(node.amqp_port) as peer:
        peer.login()
        peer.open_channel(1)
        peer.send(1, *[commands.Basic.Get(queue=large, no_ack=True)] * LARGE_COUNT)
        for _ in range(LARGE_COUNT):
            peer.expect(1, commands.Basic.GetOk)
            assert node.server.rss_bytes_peak() < limit
            assert peer.expect_content(1) == LARGE_BODY


def test_a_consumer_that_does_not_read_is_sent_no_more_than_it_takes(
    node: LeveretProcess, large: str
) -> None:
    limit = memory_limit(node)
    with Peer(node.amqp_port) as peer, Peer(node.amqp_port) as other:
        for one in (peer, other):
            one.login()
            one.open_channel(1)
        peer.call(1, commands.Basic.Consume(queue=large, no_ack=True), commands.Basic.ConsumeOk)
        peer.expect(1, commands.Basic.Deliver)
        # The node has had time to send all it would when another has been served many times.
        for _ in range(200):
            other.expect_silence(1)
        assert node.server.rss_bytes_peak() < limit
        left = other.call(1, commands.Queue.Declare(queue=large, passive=True), commands.Queue.DeclareOk)
        assert (left.message_count or 0) > LARGE_COUNT // 2


def test_a_peer_that_takes_nothing_is_given_up_after_two_heartbeats(node: LeveretProcess, large: str) -> None:
    """It is not read from either, so what it sends cannot tell that it is there."""
    with Peer(node.amqp_port) as peer:
        peer.login(heartbeat_s=1)
        peer.open_channel(1)
        peer.send(1, *[commands.Basic.Get(queue=large, no_ack=True)] * LARGE_COUNT)
        wait_until(lambda: "which does not read" in node.log_text(), "its end", PATIENCE_S)


def test_many_large_headers_each_another_are_not_kept(tmp_path: Path) -> None:
    # A node of its own: another one may still be busy with the messages that its last clients did not take.
    with LeveretProcess(parent_dir=tmp_path) as node, Peer(node.amqp_port) as peer:
        peer.login()
        peer.open_channel(1)
        limit = memory_limit(node)
        for number in range(1500):
            headers: Any = {"h": f"{number:08}" + "x" * 100_000}
            properties = commands.Basic.Properties(headers=headers)
            peer.publish(1, b"b", exchange="amq.fanout", properties=properties)
        peer.expect_silence(1)
        assert node.server.rss_bytes_peak() < limit


# -- alarms ----------------------------------------------------------------------------------------


def test_a_node_may_start_with_its_publishers_blocked_and_be_told_otherwise(tmp_path: Path) -> None:
    config = {"vm_memory_high_watermark.relative": "0", "disk_free_limit.absolute": "1000000GB"}
    with LeveretProcess(config=config, parent_dir=tmp_path) as node, Peer(node.amqp_port) as peer:
        peer.login()
        peer.open_channel(1)
        peer.publish(1, b"x", routing_key="q")
        assert peer.expect(0, commands.Connection.Blocked).reason == "low on disk & memory"
        node.ctl("set_vm_memory_high_watermark", "absolute", "100GB")
        node.ctl("set_disk_free_limit", "1MB")
        peer.expect(0, commands.Connection.Unblocked)
        peer.expect_silence(1)
        assert "alarm_in_effect" in node.log_text()
        assert "alarms_cleared" in node.log_text()
