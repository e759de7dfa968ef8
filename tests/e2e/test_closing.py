"""How sockets of a real node end while their client still sends; AMQP's own ends are in conformance/test_closing.py."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pamqp import commands

from leveret.pipeline.upstream.stream_connection import StreamConnection
from leveret.session.amqp091.connection import DROPPED_BYTES_MAX
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from leveret.wire.stream import commands as stream
from leveret.wire.stream.codec import Code
from tests.conformance.rawclient import Peer

RUNS: Final = 40
BEHIND: Final = 20
MIB: Final = 1024 * 1024
KERNEL_BUFFERS: Final = [Path("/proc/sys/net/ipv4/tcp_rmem"), Path("/proc/sys/net/ipv4/tcp_wmem")]
CLOSE: Final = commands.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    with LeveretProcess(parent_dir=tmp_path_factory.mktemp("node")) as node:
        yield node


def flood(peer: Peer, octets: int) -> int:
    """Send garbage until the node ends the connection; return how many octets went."""
    for sent in range(0, octets, MIB):
        try:
            peer.send_octets(b"\x01" * MIB)
        except ConnectionError:
            return sent
    return octets


def kernel_buffers_bytes() -> int:
    """Return how much the kernel takes on both sides at most without the node's reading a byte: tcp(7), the maxima."""
    return sum(int(limits.read_text().split()[-1]) for limits in KERNEL_BUFFERS)


def test_a_stream_client_reads_the_answer_to_its_close_whatever_it_sent_behind(node: LeveretProcess) -> None:
    for _ in range(RUNS):
        connection = StreamConnection(
            LOOPBACK, node.stream_port, vhost="/", username="guest", password="guest", timeout_s=30
        )
        connection.send(stream.Close(7, Code.OK, "bye").encode())
        for _ in range(BEHIND):
            connection.send(stream.Publish(1, [(1, b"x" * 512)], []).encode())
        assert connection.await_command(stream.CloseResponse).correlation == 7
        connection.close()


def test_a_login_that_is_refused_is_told_whatever_was_sent_behind_it(node: LeveretProcess) -> None:
    for _ in range(RUNS):
        with Peer(node.amqp_port) as peer:
            peer.authenticate(password="wrong")
            for _ in range(BEHIND):
                peer.send(0, commands.Connection.Open())
            assert peer.expect(0, commands.Connection.Close).reply_code == 403


def test_who_speaks_another_protocol_reads_ours_whatever_it_sent_behind(node: LeveretProcess) -> None:
    for _ in range(RUNS):
        with socket.create_connection((LOOPBACK, node.amqp_port), 30) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            for _ in range(BEHIND):
                one.sendall(b"x" * 512)
            assert one.recv(64, socket.MSG_WAITALL) == b"AMQP\x00\x00\x09\x01"


@pytest.mark.parametrize("who_closes", ["client", "node"])
def test_a_client_that_sends_on_for_ever_is_cut_off_and_costs_no_memory(
    node: LeveretProcess, who_closes: str
) -> None:
    before = node.rss_bytes()
    with Peer(node.amqp_port) as peer:
        peer.login()
        if who_closes == "client":
            peer.send(0, CLOSE)
            peer.expect(0, commands.Connection.CloseOk)
        else:
            peer.send(1, commands.Basic.Qos())
            peer.expect(0, commands.Connection.Close)
        sent = flood(peer, 4 * DROPPED_BYTES_MAX)
    assert DROPPED_BYTES_MAX - MIB <= sent <= DROPPED_BYTES_MAX + kernel_buffers_bytes()
    assert node.rss_bytes() < before + 64 * MIB


def test_a_node_that_stops_does_not_wait_for_a_client_that_never_closes(tmp_path: Path) -> None:
    with LeveretProcess(parent_dir=tmp_path) as node, Peer(node.amqp_port) as peer:
        peer.login()
        peer.send(0, CLOSE)
        peer.expect(0, commands.Connection.CloseOk)
        node.stop()
        peer.expect_end()
