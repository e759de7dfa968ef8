"""HTTP clients that keep the node waiting: each is let go in its time, on every HTTP port, and others never notice."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from leveret.management.http.socket_path import CONTROL_SOCKET
from leveret.testing.network.ports import LOOPBACK, free_ports, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.certificates import CertificateAuthority, available

REQUEST_S: Final = 1.0
IDLE_S: Final = 1.5
RATE: Final = 2_000
SLACK_S: Final = 18.0
"""The machine may be busy; a client here gives up after 20 s of silence."""
POST: Final = (
    b"POST /api/definitions HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
)
GET: Final = b"GET /api/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    if available() is not None:
        pytest.skip(str(available()))
    folder = tmp_path_factory.mktemp("node")
    secret = CertificateAuthority(folder).issue("server", names="DNS:localhost").settings()
    https, metrics = free_ports(2)
    config = {
        "management.tcp.request_timeout": str(int(REQUEST_S * 1000)),
        "management.tcp.idle_timeout": str(int(IDLE_S * 1000)),
        "management.http.body_rate_min": str(RATE),
        "management.ssl.port": str(https),
        "prometheus.tcp.port": str(metrics),
        **{key.replace("ssl_options", "management.ssl"): value for key, value in secret.items()},
    }
    with LeveretProcess(config=config, parent_dir=folder) as node:
        yield node


def test_the_line_of_a_ready_node_names_the_listener_with_tls(node: LeveretProcess) -> None:
    assert f" https={LOOPBACK}:{node.config['management.ssl.port']} data_dir=" in node.log_text()


def plain(node: LeveretProcess, source: str = LOOPBACK) -> socket.socket:
    return socket.create_connection((LOOPBACK, node.management_port), 20, source_address=(source, 0))


def metrics(node: LeveretProcess) -> socket.socket:
    return socket.create_connection((LOOPBACK, int(node.config["prometheus.tcp.port"])), 20)


def half_tls(node: LeveretProcess) -> socket.socket:
    return socket.create_connection((LOOPBACK, int(node.config["management.ssl.port"])), 20)


def secured(node: LeveretProcess) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(half_tls(node))


def control(node: LeveretProcess) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(str(node.data_dir / CONTROL_SOCKET))
    return client


def said_until_end(client: socket.socket) -> bytes:
    said = b""
    try:
        while octets := client.recv(65536):
            said += octets
    except (ConnectionError, ssl.SSLError):
        pass
    return said


def whole_response(client: socket.socket) -> bytes:
    said = b""
    while b"\r\n\r\n" not in said:
        said += client.recv(65536)
    head, _, body = said.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])  # type: ignore[index]
    while len(body) < length:
        body += client.recv(65536)
    return head


def dripped(client: socket.socket, octet: bytes, longest_s: float) -> float:
    """How long the node takes one octet after the other."""
    began_s = time.monotonic()
    client.settimeout(0.05)
    while time.monotonic() - began_s < longest_s:
        try:
            client.sendall(octet)
            if not client.recv(65536):
                break
        except TimeoutError:
            continue
        except OSError:
            break
        break
    return time.monotonic() - began_s


@pytest.mark.parametrize("connected_to", [plain, secured, half_tls, metrics, control])
def test_who_says_nothing_is_let_go(
    node: LeveretProcess, connected_to: Callable[[LeveretProcess], socket.socket]
) -> None:
    with connected_to(node) as client:
        began_s = time.monotonic()
        assert said_until_end(client) == b""
        assert time.monotonic() - began_s < REQUEST_S + SLACK_S


@pytest.mark.parametrize("connected_to", [plain, secured, metrics, control])
def test_headers_that_drip_are_not_waited_for(
    node: LeveretProcess, connected_to: Callable[[LeveretProcess], socket.socket]
) -> None:
    with connected_to(node) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Long: ")
        assert dripped(client, b"x", 60) < REQUEST_S + SLACK_S


def test_a_request_that_was_begun_is_told_that_it_is_late(node: LeveretProcess) -> None:
    with plain(node) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Long: x")
        assert said_until_end(client).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("connected_to", [plain, secured, control])
def test_a_body_that_drips_is_late_as_soon_as_headers_that_drip(
    node: LeveretProcess, connected_to: Callable[[LeveretProcess], socket.socket]
) -> None:
    with connected_to(node) as client:
        # The node counts from the request, which it may have long before the first drop.
        began_s = time.monotonic()
        client.sendall(POST)
        dripped(client, b" ", 60)
        assert REQUEST_S < time.monotonic() - began_s < REQUEST_S + SLACK_S


def test_a_body_that_stops_is_not_waited_for(node: LeveretProcess) -> None:
    with plain(node) as client:
        client.sendall(POST)
        # Much is there at once: that is worth more time than a pause may last.
        client.sendall(b" " * 50_000)
        began_s = time.monotonic()
        assert said_until_end(client).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began_s < IDLE_S + SLACK_S


def test_a_slow_body_that_goes_on_is_waited_for(node: LeveretProcess) -> None:
    """An upload over a slow link lasts several times as long as a body in drops."""
    body = b"{" + b" " * 99_998 + b"}"
    part = 8 * RATE
    with plain(node) as client:
        client.sendall(POST)
        began_s = time.monotonic()
        for at in range(0, len(body), part):
            client.sendall(body[at : at + part])
            time.sleep(REQUEST_S / 2)
        assert time.monotonic() - began_s > 3 * REQUEST_S
        assert client.recv(65536).startswith(b"HTTP/1.1 204 ")


def ask_for_ever(client: socket.socket) -> None:
    """Send requests, a hundred within a minute: the node reads them until its answers wait, however busy it is."""
    client.settimeout(60)
    while True:
        client.sendall(GET * 100)


def test_a_response_that_nobody_reads_is_not_kept(node: LeveretProcess) -> None:
    with plain(node) as client, pytest.raises(ConnectionError):
        ask_for_ever(client)


def test_a_connection_that_goes_on_asking_stays(node: LeveretProcess) -> None:
    """Longer than any of the deadlines."""
    with plain(node) as client:
        began_s = time.monotonic()
        while time.monotonic() - began_s < 3 * REQUEST_S:
            client.sendall(GET)
            assert whole_response(client).startswith(b"HTTP/1.1 200 ")


def test_connections_are_limited_in_all_and_from_one_address(tmp_path: Path) -> None:
    config = {"management.http.connection_max": "12", "management.http.connection_max_per_address": "8"}
    with LeveretProcess(config=config, parent_dir=tmp_path) as node, ExitStack() as stack:
        kept = [stack.enter_context(plain(node)) for _ in range(20)]
        kept += [stack.enter_context(plain(node, "127.0.0.2")) for _ in range(20)]
        # Who is refused hears so long before those who are served and say nothing.
        wait_until(lambda: sum(map(is_open, kept)) <= 12, "the others are sent away", 60)
        served = [client for client in kept if is_open(client)]
        by_address = [client.getsockname()[0] for client in served]
        # Whoever looked whether the node is ready may have had a place until now.
        assert 6 <= by_address.count(LOOPBACK) <= 8
        assert 10 <= len(by_address) <= 12
        assert "connections_refused listener=http reason=setting" in node.log_text()
        served[0].sendall(GET)
        assert served[0].recv(100).startswith(b"HTTP/1.1 200 ")
        for client in kept:
            client.close()
        wait_until(lambda: is_answered(node), "room for another", 60)


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        client.settimeout(20)


def is_answered(node: LeveretProcess) -> bool:
    with plain(node) as client:
        try:
            client.sendall(GET)
            return client.recv(100).startswith(b"HTTP/1.1 200 ")
        except ConnectionError:
            return False
