"""SASL frames: what proton's client sends is read, what it reads is sent, the rest is a `SaslError`."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import SASL, Connection, Transport

from leveret.wire.amqp10 import (
    SASL_FRAME_BYTES_MAX,
    SASL_HEADER,
    SaslError,
    SaslInit,
    SaslOutcome,
    decode_init,
    decode_plain,
    encode_mechanisms,
    encode_outcome,
    sasl_frame_bytes,
)

FIELDS = {"mechanism": b"\xa3\x05PLAIN", "response": b"\xa0\x04\x00u\x00p", "hostname": b"\xa1\x01h"}


def frame(body: bytes, kind: int = 1, doff: int = 2) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), doff, kind, 0) + body


def init(*fields: bytes, descriptor: bytes = b"\x00\x53\x41") -> bytes:
    content = b"".join(fields)
    return frame(descriptor + b"\xc0" + bytes((len(content) + 1, len(fields))) + content)


def proton_client(user: str, password: str) -> Transport:
    transport, connection = Transport(Transport.CLIENT), Connection()
    connection.user, connection.password, connection.hostname = user, password, "vhost:v"
    sasl = transport.sasl()
    sasl.allow_insecure_mechs = True
    sasl.allowed_mechs("PLAIN")
    transport.bind(connection)
    connection.open()
    return transport


def said(transport: Transport) -> bytes:
    octets = b""
    while (pending := transport.pending()) > 0:
        octets += transport.peek(pending) or b""
        transport.pop(pending)
    return octets


@given(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=60),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=60),
)
def test_what_a_real_client_sends_is_read(user: str, password: str) -> None:
    client = proton_client(user, password)
    assert said(client) == SASL_HEADER
    client.push(SASL_HEADER + encode_mechanisms("PLAIN"))
    octets = said(client)

    size = sasl_frame_bytes(octets)
    read = decode_init(octets[:size])

    assert read.mechanism == "PLAIN"
    assert decode_plain(read.initial_response) == (user, password)


@pytest.mark.parametrize(("code", "outcome"), [(SaslOutcome.OK, SASL.OK), (SaslOutcome.AUTH, SASL.AUTH)])
def test_a_real_client_reads_the_outcome(code: SaslOutcome, outcome: int) -> None:
    client = proton_client("u", "p")
    said(client)
    client.push(SASL_HEADER + encode_mechanisms("PLAIN", "ANONYMOUS"))
    said(client)
    client.push(encode_outcome(code))
    assert client.sasl().outcome == outcome


@pytest.mark.parametrize(
    "octets",
    [
        init(*FIELDS.values()),
        init(*FIELDS.values(), descriptor=b"\x00\x80" + (0x41).to_bytes(8, "big")),
        init(*FIELDS.values(), descriptor=b"\x00\xa3\x13amqp:sasl-init:list"),
        init(b"\xb3\0\0\0\x05PLAIN", b"\xb0\0\0\0\x04\x00u\x00p", b"\xb1\0\0\0\x01h"),
        frame(b"\0\0\0\0" + init(*FIELDS.values())[8:], doff=3),
    ],
)
def test_every_encoding_of_an_init_is_read(octets: bytes) -> None:
    assert decode_init(octets) == SaslInit("PLAIN", b"\x00u\x00p", "h")


def test_fields_that_are_null_or_left_out_are_empty() -> None:
    assert decode_init(init(FIELDS["mechanism"])) == SaslInit("PLAIN", b"", "")
    assert decode_init(init(FIELDS["mechanism"], b"\x40", b"\x40")) == SaslInit("PLAIN", b"", "")


@pytest.mark.parametrize(
    ("octets", "named"),
    [
        (init(), "no mechanism"),
        (init(b"\x40"), "no mechanism"),
        (frame(b"\x00\x53\x41\x45"), "no mechanism"),
        (init(b"\xa1\x05PLAIN"), "mechanism is of type 0xa1"),
        (init(FIELDS["mechanism"], b"\xa3\x01x"), "initial-response is of type 0xa3"),
        (init(b"\xa3\x50PLAIN"), "ends within a value"),
        (init(b"\xa3\x01\xff"), "not text"),
        (init(*FIELDS.values(), descriptor=b"\x00\x53\x44"), "performative 68 where 65"),
        (init(*FIELDS.values(), descriptor=b"\x00\xa3\x01x"), "performative another"),
        (init(*FIELDS.values(), descriptor=b"\x00\x70\x41"), "type 0x70"),
        (frame(b"\x53\x41"), "without a performative"),
        (frame(b"\x00\x53\x41\x40"), "no list"),
        (frame(b""), "ends within a value"),
    ],
)
def test_an_init_that_is_none_is_named(octets: bytes, named: str) -> None:
    with pytest.raises(SaslError, match=named):
        decode_init(octets)


@given(st.binary(max_size=64))
def test_garbage_in_a_frame_is_an_init_or_an_error(body: bytes) -> None:
    with suppress(SaslError):
        assert decode_init(frame(body)).mechanism.isascii()


@given(st.integers(0, 7))
def test_a_frame_is_waited_for_until_its_header_is_whole(count: int) -> None:
    assert sasl_frame_bytes(init(*FIELDS.values())[:count]) == 0


@pytest.mark.parametrize(
    "header",
    [
        struct.pack(">IBBH", 20, 2, 0, 0),
        struct.pack(">IBBH", 20, 1, 1, 0),
        struct.pack(">IBBH", 7, 2, 1, 0),
        struct.pack(">IBBH", SASL_FRAME_BYTES_MAX + 1, 2, 1, 0),
        b"GET / HT",
    ],
)
def test_a_header_that_lies_is_refused(header: bytes) -> None:
    with pytest.raises(SaslError):
        sasl_frame_bytes(header)


@pytest.mark.parametrize("response", [b"", b"up", b"\0u", b"\0\0p", b"\0u\0p\0", b"\0\xff\0p"])
def test_a_plain_response_that_is_none_is_refused(response: bytes) -> None:
    with pytest.raises(SaslError):
        decode_plain(response)


def test_an_authorization_id_is_passed_over() -> None:
    assert decode_plain(b"somebody\0u\0p") == ("u", "p")
