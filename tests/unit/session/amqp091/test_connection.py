"""session.amqp091.connection: a conversation gives the same answers however its octets arrive."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.wire import amqp091 as wire
from tests.unit.session.amqp091.fakes import (
    FRAME_MAX_BYTES,
    HANDSHAKE,
    FakeNode,
    connect,
    frame,
    publish,
    take,
)


def method(value: base.Frame) -> list[bytes]:
    return [frame(value)]


SCRIPT: list[list[bytes]] = [
    method(commands.Channel.Open()),
    method(commands.Queue.Declare(queue="q", durable=True)),
    method(commands.Queue.Declare(queue="")),
    method(commands.Exchange.Declare(exchange="e", exchange_type="topic", durable=True)),
    method(commands.Queue.Bind(queue="q", exchange="e", routing_key="a.#")),
    method(commands.Confirm.Select()),
    publish(b"first", "a.b", "e"),
    publish(b"x" * 9000, "a", "e"),
    publish(b"", "nothing", "e", mandatory=True),
    [wire.HEARTBEAT],
    method(commands.Basic.Get(queue="q")),
    method(commands.Basic.Ack(1)),
    method(commands.Basic.Qos(prefetch_count=10)),
    method(commands.Basic.Consume(queue="q", consumer_tag="c")),
    publish(b"second", "a.c", "e"),
    method(commands.Queue.Declare(queue="q", passive=True)),
    publish(b"lost", "a", "no such exchange"),
    publish(b"dropped", "a", "e"),
    method(commands.Channel.CloseOk()),
    method(commands.Channel.Open()),
    publish(b"third", "a", "e"),
    method(commands.Queue.Purge(queue="")),
]
OCTETS = b"".join([*HANDSHAKE, *(octets for step in SCRIPT for octets in step)])


def converse(pieces: list[bytes]) -> tuple[bytes, FakeNode, ClientConnection]:
    """Every octet that the client is sent, with one flush at the end."""
    node = FakeNode()
    session = ClientConnection(node, peer="test", from_loopback=True, now_ms=0)
    for piece in pieces:
        session.receive(piece, 0)
    node.flush(session)
    return b"".join(session.take_output()), node, session


def test_the_script_says_what_it_is_meant_to_say() -> None:
    octets, node, session = converse([OCTETS])
    names = [type(value).__name__ for _, value in _frames(octets) if not isinstance(value, bytes)]
    assert names == [
        "Start", "Tune", "OpenOk", "OpenOk", "DeclareOk", "DeclareOk", "DeclareOk", "BindOk", "SelectOk",
        "Return", "ContentHeader", "GetOk", "ContentHeader", "QosOk", "ConsumeOk", "Deliver", "ContentHeader",
        "Deliver", "ContentHeader", "DeclareOk", "Close", "OpenOk", "Close",
    ]  # fmt: skip
    assert session.state is AmqpState.OPEN
    assert [body for _, _, body in node.messages()["q"]] == [b"first", b"x" * 9000, b"second", b"third"]


def _frames(octets: bytes) -> list[tuple[int, Any]]:
    session = connect(FakeNode())
    session.send(octets)
    return take(session)


def test_any_cut_in_two_gives_the_same_answers() -> None:
    expected, _, _ = converse([OCTETS])
    for cut in range(1, len(OCTETS), 31):
        assert converse([OCTETS[:cut], OCTETS[cut:]])[0] == expected


@given(st.lists(st.integers(0, len(OCTETS)), max_size=30))
def test_any_cuts_give_the_same_answers(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(OCTETS)]
    octets, node, _ = converse([OCTETS[a:b] for a, b in pairwise(edges)])
    expected, same, _ = converse([OCTETS])
    assert octets == expected
    assert node.messages() == same.messages()


def test_octet_by_octet_gives_the_same_answers() -> None:
    assert converse([OCTETS[i : i + 1] for i in range(len(OCTETS))])[0] == converse([OCTETS])[0]


# -- peers that break the rules ---------------------------------------------------------------


@given(st.binary(max_size=300), st.integers(0, len(HANDSHAKE)))
def test_garbage_never_raises_and_never_leaves_a_session_half_open(garbage: bytes, steps: int) -> None:
    _, node, session = converse([*HANDSHAKE[:steps], garbage])
    assert isinstance(session.state, AmqpState)
    session.lost()
    node.flush()
    assert session.state is AmqpState.CLOSED
    assert not node.broker.connections


@given(
    st.lists(st.tuples(st.integers(8, len(OCTETS) - 1), st.integers(1, 255)), min_size=1, max_size=5),
    st.integers(1, len(OCTETS)),
)
def test_a_conversation_with_flipped_bits_never_raises(flips: list[tuple[int, int]], cut: int) -> None:
    octets = bytearray(OCTETS)
    for at, bits in flips:
        octets[at] ^= bits
    answers, node, session = converse([bytes(octets[:cut]), bytes(octets[cut:])])
    assert answers
    session.lost()
    node.flush()
    assert session.state is AmqpState.CLOSED
    assert all(queue.unacked_count == 0 for queue in node.broker.queues.values())
    assert all(not queue.consumers for queue in node.broker.queues.values())


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 8, 255]), st.integers(0, 3), st.binary(max_size=40)),
        max_size=9,
    )
)
def test_well_formed_frames_with_any_payload_never_raise(frames: list[tuple[int, int, bytes]]) -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.receive(b"".join(wire.frame(*one) for one in frames), 0)
    node.flush(session)
    assert isinstance(session.take_output(), list)


@given(st.sampled_from(sorted(commands.INDEX_MAPPING)), st.binary(max_size=30), st.sampled_from([0, 1]))
@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
def test_any_method_with_any_arguments_never_raises(index: int, arguments: bytes, channel: int) -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.receive(wire.frame(wire.FRAME_METHOD, channel, index.to_bytes(4, "big") + arguments), 0)
    node.flush(session)
    assert isinstance(session.take_output(), list)


def closed_with(session: ClientConnection) -> tuple[int | None, str]:
    (_, close) = take(session)[-1]
    assert isinstance(close, commands.Connection.Close)
    assert session.state is AmqpState.CLOSING
    return close.reply_code, close.reply_text


def test_a_frame_that_lies_about_its_size_ends_the_connection_before_it_has_come() -> None:
    session = connect(FakeNode(), 1)
    session.receive(wire.FRAME_HEAD.pack(1, 1, FRAME_MAX_BYTES + 1), 0)
    code, text = closed_with(session)
    assert code == 501
    assert str(FRAME_MAX_BYTES + 1) in text
    session = connect(FakeNode(), 1)
    session.receive(wire.FRAME_HEAD.pack(1, 1, FRAME_MAX_BYTES), 0)
    assert session.state is AmqpState.OPEN
    assert take(session) == []


def test_tables_in_tables_beyond_reason_are_refused_and_the_node_goes_on() -> None:
    for depth, code in ((40, 406), (600, 501)):
        node = FakeNode()
        session = connect(node, 1)
        session.frame_max_bytes = 1 << 20
        table = b""
        for _ in range(depth):
            table = b"\x01aF" + len(table).to_bytes(4, "big") + table
        declare = b"\x00\x32\x00\x0a\x00\x00\x01q\x02" + len(table).to_bytes(4, "big") + table
        session.receive(wire.frame(wire.FRAME_METHOD, 1, declare), 0)
        ((_, close),) = take(session)
        assert close.reply_code == code
        assert not node.broker.queues


def test_another_protocol_is_told_ours() -> None:
    for octets in (b"AMQP\x00\x00\x09\x07", b"GET / HTTP/1.1\r\n"):
        session = ClientConnection(FakeNode(), peer="test", from_loopback=True, now_ms=0)
        session.receive(octets, 0)
        assert b"".join(session.take_output()) == wire.PROTOCOL_HEADER
        assert session.state is AmqpState.CLOSED
        session.receive(b"more", 0)
        assert b"".join(session.take_output()) == b""


def test_after_our_close_everything_but_its_answer_is_dropped() -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.receive(frame(commands.Queue.Declare(queue="q", durable=True)), 0)
    session.force_close("maintenance")
    code, text = closed_with(session)
    assert (code, text) == (320, "CONNECTION_FORCED - maintenance")
    session.receive(b"".join(publish(b"late")), 0)
    session.force_close("again")
    assert take(session) == []
    node.flush(session)
    assert node.messages()["q"] == []
    session.receive(frame(commands.Connection.CloseOk(), 0), 0)
    assert session.state is AmqpState.CLOSED


# -- the end, and time ------------------------------------------------------------------------


def ticked(session: ClientConnection, now_ms: int) -> AmqpState:
    session.tick(now_ms)
    return session.state


def test_a_silent_peer_is_given_up_and_a_quiet_one_hears_a_heartbeat() -> None:
    session = connect(FakeNode(), 1)
    assert session.heartbeat_ms == 60_000
    session.tick(1_000)
    session.tick(31_000)
    assert b"".join(session.take_output()) == wire.HEARTBEAT
    session.receive(wire.HEARTBEAT, 100_000)
    assert [ticked(session, at) for at in (219_999, 220_001)] == [AmqpState.OPEN, AmqpState.CLOSED]


@pytest.mark.parametrize(
    "octets",
    [
        wire.frame(wire.FRAME_HEARTBEAT, 0, b"hello"),
        wire.frame(wire.FRAME_METHOD, 1, b"\0\x3c\0\x6e" + b"\1" + b"more"),
    ],
    ids=["a heartbeat", "basic.recover"],
)
def test_octets_behind_those_that_a_frame_needs_are_passed_over(octets: bytes) -> None:
    session = connect(FakeNode(), 1)
    session.receive(octets, 0)
    assert not any(isinstance(value, commands.Connection.Close) for _, value in take(session))
    assert session.state is AmqpState.OPEN


def test_a_get_counts_messages_that_expired_behind_the_one_it_takes() -> None:
    node = FakeNode()
    session = connect(node, 1)
    lives: list[dict[str, Any]] = [{}, {"expiration": "5"}, {"expiration": "5"}, {}]
    frames = [each for properties in lives for each in publish(b"m", "q", **properties)]
    session.receive(b"".join([frame(commands.Queue.Declare(queue="q")), *frames]), 0)
    node.flush(session)
    take(session)
    session.receive(frame(commands.Basic.Get(queue="q")), 100)
    node.time_of_day_ms = 100
    [count] = [value.message_count for _, value in take(session) if isinstance(value, commands.Basic.GetOk)]
    node.flush(session)
    assert (count, node.queue("q").ready_count) == (3, 1)


def test_a_handshake_that_takes_too_long_is_given_up_however_it_drips() -> None:
    timeout_ms = FakeNode().limits.handshake_timeout_ms
    for steps in range(len(HANDSHAKE)):
        session = ClientConnection(FakeNode(), peer="test", from_loopback=True, now_ms=0)
        session.receive(b"".join(HANDSHAKE[:steps]), timeout_ms - 5)
        before = session.state
        assert before is not AmqpState.CLOSED
        late = (timeout_ms, timeout_ms + 1)
        assert [ticked(session, at) for at in late] == [before, AmqpState.CLOSED]


@pytest.mark.parametrize(
    ("later_ms", "state"), [(0, AmqpState.OPEN), (1_000, AmqpState.OPEN), (1_001, AmqpState.CLOSING)]
)
def test_frames_that_were_under_way_when_a_client_closed_their_channel_are_dropped(
    later_ms: int, state: AmqpState
) -> None:
    session = connect(FakeNode(), 1)
    close = frame(commands.Channel.Close(200, "", 0, 0), 1)
    session.receive(close + b"".join(publish(b"behind", "q")), 5)
    assert (session.state, session.channels) == (AmqpState.OPEN, {})
    session.receive(b"".join(publish(b"late", "q")), 5 + later_ms)
    assert session.state is state


def test_a_channel_that_was_closed_long_ago_is_forgotten() -> None:
    """Another node numbers its channels on and on (2026-11-30)."""
    _, _, session = converse([OCTETS])
    for number in range(2, 50):
        session.receive(frame(commands.Channel.Open(), number), number * 100)
        session.receive(frame(commands.Channel.Close(200, "", 0, 0), number), number * 100)
    assert len(session._channels_closed_at_ms) < 15


def test_after_close_ok_the_client_closes_the_socket() -> None:
    session = connect(FakeNode(), 1)
    session.receive(frame(commands.Connection.Close(200, "", 0, 0), 0) + b"".join(publish(b"", "q")), 0)
    assert (session.state, session.client_closes) == (AmqpState.CLOSED, True)
