"""The PROXY protocol: headers of both versions, and octets that are none."""

from __future__ import annotations

import ipaddress
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.proxy_protocol import LINE_BYTES_MAX, SIGNATURE, Proxied, ProxyError, header, missing, parse

CLIENT, SERVER = ("192.0.2.7", 56324), ("192.0.2.1", 5672)
LINE = b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 5672\r\n"


def binary(
    client: tuple[str, int], server: tuple[str, int], extra: bytes = b"", command: int = 0x21
) -> bytes:
    addresses = [ipaddress.ip_address(each[0]) for each in (client, server)]
    family = 0x11 if addresses[0].version == 4 else 0x21
    rest = b"".join(each.packed for each in addresses)
    rest += client[1].to_bytes(2, "big") + server[1].to_bytes(2, "big") + extra
    return SIGNATURE + bytes((command, family)) + len(rest).to_bytes(2, "big") + rest


def read(stream: bytes) -> tuple[Proxied | None, bytes]:
    """Read a header as a socket is read: never more than what is missing."""
    octets = b""
    while count := missing(octets):
        assert len(octets) + count <= len(stream), "read past the end"
        octets = stream[: len(octets) + count]
    return parse(octets), stream[len(octets) :]


ports = st.integers(0, 65535)


def ends(version: Literal[4, 6]) -> st.SearchStrategy[tuple[tuple[str, int], tuple[str, int]]]:
    end = st.tuples(st.ip_addresses(v=version).map(str), ports)
    return st.tuples(end, end)


places = ends(4) | ends(6)


@given(places, st.binary(max_size=40), st.binary(max_size=20))
def test_a_binary_header_tells_the_client_and_leaves_what_follows(
    ends: tuple[tuple[str, int], tuple[str, int]], extra: bytes, after: bytes
) -> None:
    assert read(binary(*ends, extra) + after) == (Proxied(*ends), after)


@given(places)
def test_a_header_that_is_written_tells_the_same_client(
    ends: tuple[tuple[str, int], tuple[str, int]],
) -> None:
    assert header(Proxied(*ends)) == binary(*ends)


def test_addresses_of_two_families_have_no_header() -> None:
    with pytest.raises(ValueError, match="two families"):
        header(Proxied(("192.0.2.7", 1), ("::1", 2)))


@given(places, st.binary(max_size=20))
def test_a_line_tells_the_client_and_leaves_what_follows(
    ends: tuple[tuple[str, int], tuple[str, int]], after: bytes
) -> None:
    (client, client_port), (server, server_port) = ends
    kind = "TCP6" if ":" in client else "TCP4"
    line = f"PROXY {kind} {client} {server} {client_port} {server_port}\r\n".encode()
    assert read(line + after) == (Proxied(*ends), after)


@pytest.mark.parametrize(
    "header",
    [b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n", binary(CLIENT, SERVER, command=0x20)],
)
def test_a_proxy_may_speak_for_itself(header: bytes) -> None:
    assert read(header + b"AMQP") == (None, b"AMQP")


@pytest.mark.parametrize(
    "octets",
    [
        b"AMQP\x00\x00\x09\x01AMQP",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 56324\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 65536\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 -1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP4 nobody nobody 1 2\r\n",
        b"PROXY TCP5 192.0.2.7 192.0.2.1 1 2\r\n",
        b"PROXY TCP4 \xff 192.0.2.1 1 2\r\n",
        b"PROXY " + b"x" * LINE_BYTES_MAX,
        binary(CLIENT, SERVER, command=0x11),
        SIGNATURE + b"\x21\x11\x00\x04abcd",
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_what_is_no_header_is_refused(octets: bytes) -> None:
    with pytest.raises(ProxyError):
        read(octets)


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=40).map(lambda rest: SIGNATURE + rest)))
def test_any_octets_are_a_header_or_refused_and_never_read_without_bound(octets: bytes) -> None:
    taken = b""
    try:
        while (count := missing(taken)) and len(taken) + count <= len(octets):
            taken = octets[: len(taken) + count]
        if not missing(taken):
            parse(taken)
    except ProxyError:
        pass
    assert len(taken) <= len(octets)


def test_a_line_is_read_octet_by_octet_at_its_end() -> None:
    assert read(LINE) == (Proxied(CLIENT, SERVER), b"")
