"""Logins and the refusals of a handshake, without a socket."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, encode

from leveret.model.errors import LeveretError
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.session.amqp091.sasl import amqplain, plain
from leveret.session.certificate import TlsPeer
from leveret.wire import amqp091 as wire
from tests.unit.session.amqp091.fakes import HANDSHAKE, FakeNode, connect, frame, take

ENCRYPTED = TlsPeer(protocol="tlsv1.3", key_exchange="any", cipher="aes_256_gcm", hash="aead")
CAPABLE: dict[str, Any] = {"capabilities": {"authentication_failure_close": True}}


def certified(common_name: str) -> TlsPeer:
    return replace(ENCRYPTED, certificate={"subject": ((("commonName", common_name),),)})


def answer(
    mechanism: str, response: str | bytes, *, tls: TlsPeer | None = None, node: FakeNode | None = None
) -> ClientConnection:
    """A connection that was offered all mechanisms and took this one."""
    node = node or FakeNode()
    node.limits = replace(node.limits, auth_mechanisms=("PLAIN", "AMQPLAIN", "EXTERNAL"))
    node.certificate_login = replace(node.certificate_login, source="common_name")
    session = ClientConnection(node, peer="test", from_loopback=True, now_ms=0, tls=tls)
    session.receive(wire.PROTOCOL_HEADER, 0)
    take(session)
    octets = response.encode() if isinstance(response, str) else response
    start_ok = commands.Connection.StartOk(CAPABLE, mechanism, octets.decode("latin-1"), "en_US")
    session.receive(frame(start_ok, 0), 0)
    return session


def table(**entries: Any) -> bytes:
    return bytes(encode.field_table(entries))[4:]


def test_libraries_that_decide_by_product_and_version_take_the_node_for_a_rabbitmq_3() -> None:
    """Celery sets the qos of channels at RabbitMQ 3.3 to 3.13 only, NServiceBus wants 3.10 or newer."""
    session = ClientConnection(FakeNode(), peer="test", from_loopback=True, now_ms=0)
    session.receive(wire.PROTOCOL_HEADER, 0)
    ((_, start),) = take(session)
    assert isinstance(start, commands.Connection.Start)
    properties: dict[str, Any] = dict(start.server_properties or {})
    assert properties["product"] == "RabbitMQ"
    assert (3, 10) <= tuple(map(int, properties["version"].split("."))) < (4, 0)
    assert properties["platform"].startswith("Leveret ")


def test_the_header_of_amqp_0_9_begins_a_connection_of_0_9_1() -> None:
    session = ClientConnection(FakeNode(), peer="test", from_loopback=True, now_ms=0)
    session.receive(b"AMQP\x01\x01\x00\x09", 0)
    ((_, start),) = take(session)
    assert isinstance(start, commands.Connection.Start)


def test_a_refused_login_ends_with_the_clients_answer_or_after_three_seconds() -> None:
    """php-amqplib looks whether the socket has ended before it reads the reason."""
    session = answer("PLAIN", "\0guest\0wrong")
    ((_, closed),) = take(session)
    assert closed.reply_code == 403
    states = [session.state]
    for now_ms in (3_000, 3_001):
        session.tick(now_ms)
        states.append(session.state)
    assert states == [AmqpState.CLOSING, AmqpState.CLOSING, AmqpState.CLOSED]
    session = answer("PLAIN", "\0guest\0wrong")
    session.receive(frame(commands.Connection.CloseOk(), 0), 10)
    assert session.state is AmqpState.CLOSED


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", "guest\0guest\0guest"),
        ("PLAIN", "\0guest"),
        ("PLAIN", ""),
        ("AMQPLAIN", table(LOGIN="guest")),
        ("AMQPLAIN", table(LOGIN="guest", PASSWORD=7)),
        ("AMQPLAIN", b"\x05LOG"),
        ("EXTERNAL", ""),
        ("ODD", ""),
    ],
)
def test_a_malformed_login_ends_the_connection_without_a_word(mechanism: str, response: str | bytes) -> None:
    session = answer(mechanism, response)
    assert (session.state, take(session)) == (AmqpState.CLOSED, [])
    assert session.end_reason


def test_a_certificate_names_the_user_whatever_the_client_says() -> None:
    session = answer("EXTERNAL", "somebody", tls=certified("guest"))
    assert (session.state, session.user) == (AmqpState.TUNE, "guest")
    assert answer("EXTERNAL", "guest", tls=certified("nobody")).state is AmqpState.CLOSING
    assert answer("EXTERNAL", "guest", tls=ENCRYPTED).state is AmqpState.CLOSING


@given(st.binary(max_size=60))
def test_any_response_is_a_login_or_a_refusal(octets: bytes) -> None:
    for parse in (plain, amqplain):
        with suppress(LeveretError):
            assert all(isinstance(part, str) for part in parse(octets))


@given(st.text(max_size=20), st.text(max_size=20))
def test_amqplain_carries_any_name_and_password(user: str, password: str) -> None:
    assert amqplain(table(LOGIN=user, PASSWORD=password)) == (user, password)


@pytest.mark.parametrize(
    ("tuned", "text"),
    [
        ((101, 4096), "channel_max = 101 is higher than the maximum allowed value (100)"),
        ((0, 4096), "channel_max = 0 (no limit) is higher than the maximum allowed value (100)"),
        ((1, 4095), "frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ((1, 4097), "frame_max = 4097 is higher than the maximum allowed value (4096)"),
        ((1, 0), "frame_max = 0 (no limit) is higher than the maximum allowed value (4096)"),
    ],
)
def test_sizes_out_of_bounds_are_refused_by_name(tuned: tuple[int, int], text: str) -> None:
    session = ClientConnection(FakeNode(), peer="test", from_loopback=True, now_ms=0)
    session.receive(b"".join(HANDSHAKE[:2]), 0)
    take(session)
    session.receive(frame(commands.Connection.TuneOk(*tuned, 0), 0), 0)
    ((_, closed),) = take(session)
    assert (closed.reply_code, closed.reply_text) == (530, f"NOT_ALLOWED - negotiated {text}")


@pytest.mark.parametrize("at", [0, 7, 14, -1])
def test_a_login_that_is_no_frame_or_no_method_is_not_quoted(at: int) -> None:
    """The reason of the end is logged, and the octets hold a password."""
    start_ok = bytearray(
        frame(commands.Connection.StartOk({"a": "b"}, "PLAIN", "\0guest\0hidden", "en_US"), 0)
    )
    start_ok[at] ^= 0x55
    session = ClientConnection(FakeNode(), peer="test", from_loopback=True, now_ms=0)
    session.receive(wire.PROTOCOL_HEADER + start_ok, 0)
    assert session.state is AmqpState.CLOSED
    assert session.end_reason
    assert not any(each in session.end_reason for each in ("hidden", ",".join(map(str, b"hidden"))))


def test_a_frame_before_tune_is_no_larger_than_the_initial_limit() -> None:
    node = FakeNode()
    node.limits = replace(node.limits, frame_max_bytes=131_072)
    session = ClientConnection(node, peer="test", from_loopback=True, now_ms=0)
    session.receive(wire.PROTOCOL_HEADER + wire.FRAME_HEAD.pack(1, 0, 4097), 0)
    assert session.state is AmqpState.CLOSED


def test_a_node_takes_no_more_connections_and_channels_than_its_limits() -> None:
    node = FakeNode()
    node.limits = replace(node.limits, connection_max=2, channel_max_per_node=2)
    first, second = connect(node, 1), connect(node, 1)
    third = ClientConnection(node, peer="test", from_loopback=True, now_ms=0)
    third.receive(b"".join(HANDSHAKE), 0)
    assert take(third)[-1][1].reply_text == (
        "NOT_ALLOWED - connection refused: node connection limit (2) is reached"
    )
    second.receive(frame(commands.Channel.Open(), 2), 0)
    assert take(second)[-1][1].reply_text == (
        "NOT_ALLOWED - number of channels opened on node 'fake' has reached the maximum allowed limit of (2)"
    )
    assert first.state is AmqpState.OPEN


def test_a_channel_s_number_may_be_above_the_most_channels() -> None:
    node = FakeNode()
    node.limits = replace(node.limits, channel_max=100)
    session = connect(node)
    session.receive(frame(commands.Channel.Open(), 4711), 0)
    assert [(channel, type(reply)) for channel, reply in take(session)] == [(4711, commands.Channel.OpenOk)]


PIECES = st.one_of(
    st.sampled_from([*HANDSHAKE, frame(commands.Channel.Open()), wire.HEARTBEAT]),
    st.builds(wire.frame, st.integers(0, 9), st.integers(0, 3), st.binary(max_size=60)),
    st.builds(wire.FRAME_HEAD.pack, st.integers(0, 255), st.integers(0, 65535), st.integers(0, 2**32 - 1)),
    st.binary(max_size=30),
)


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_whatever_comes_whenever_never_raises_and_is_not_hoarded(
    pieces: list[bytes], begins_well: bool
) -> None:
    node = FakeNode()
    session = (
        connect(node, 1) if begins_well else ClientConnection(node, peer="t", from_loopback=True, now_ms=0)
    )
    for now_ms, piece in enumerate(pieces):
        session.receive(piece, now_ms)
        node.flush(session)
        assert isinstance(session.take_output(), list)
        kept = sum(map(len, session._rest))
        assert kept <= session.frame_max_bytes + wire.FRAME_OVERHEAD
        assert session.state is not AmqpState.CLOSED or not kept
    session.tick(node.limits.handshake_timeout_ms + len(pieces) + 1)
    assert begins_well or session.state in (AmqpState.OPEN, AmqpState.CLOSING, AmqpState.CLOSED)


@pytest.mark.parametrize("opened", [False, True])
def test_a_connection_counts_as_closed_if_it_was_open(opened: bool) -> None:
    """A check of the port counts for nothing."""
    node = FakeNode()
    session = connect(node) if opened else ClientConnection(node, peer="test", from_loopback=True, now_ms=0)
    session.lost()
    churn = node.broker.churn
    assert (churn.connection_created, churn.connection_closed) == (int(opened), int(opened))
