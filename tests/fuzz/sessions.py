"""The sessions of `session`, fed with conversations: nothing may escape `receive`, and nothing be left behind.

An input's first octet says how it is fed: bit 0, after a lawful handshake; bit 1, as parts between `CUT`
that are put into frames of the right size; bit 2, a few octets at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pamqp.frame
from pamqp import base, commands
from proton import Message

from leveret.model.errors import NotFound
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.session.amqp091.connection_base import OUT_BYTES_MAX
from leveret.session.amqp10.server import REPLY_PREFIX, Amqp10Session
from leveret.session.stream.connection import UNSTORED_BYTES_MAX, StreamClientConnection
from leveret.session.stream.types import Append, SendResponse, StoreBatch
from leveret.session.stream.types import StreamConnectionState as StreamState
from leveret.testing.sites.stream_host import FakeStreamHost
from leveret.wire import amqp091, properties, tables
from leveret.wire.stream.codec import FRAME
from tests.fuzz.codecs import HEADERS, PROPERTIES, STREAM_COMMANDS
from tests.fuzz.target import CUT, Target, expect
from tests.unit.session.amqp091 import fakes
from tests.unit.session.amqp10 import test_server as amqp10_peer

OPENED: Final = 1
FRAMED: Final = 2
IN_PIECES: Final = 4
PIECE_BYTES: Final = 7
READS_MAX: Final = 600
OUTPUT_BYTES_MAX: Final = 2 * OUT_BYTES_MAX
STREAM_FRAME_MAX_BYTES: Final = 65_536
SILENT_MS: Final = 20_000_000


def reads(octets: bytes, how: int) -> Iterator[bytes]:
    """What the socket gives at a time."""
    step = max(PIECE_BYTES, len(octets) // READS_MAX) if how & IN_PIECES else max(len(octets), 1)
    for at in range(0, len(octets), step):
        yield octets[at : at + step]


# --- AMQP 0-9-1 ---------------------------------------------------------------------------------


def amqp091_connection(octets: bytes) -> None:
    """A client beside another one, whose queue and connection must be none the worse for it."""
    node = fakes.FakeNode()
    other = fakes.connect(node, 1)
    other.receive(fakes.frame(commands.Queue.Declare(queue="held", durable=True)), 0)
    how, said = octets[:1] or b"\0", octets[1:]
    session = ClientConnection(node, peer="fuzz", from_loopback=True, now_ms=0)
    if how[0] & OPENED:
        opened = [fakes.frame(commands.Channel.Open(), channel) for channel in (1, 2)]
        session.receive(b"".join([*fakes.HANDSHAKE, *opened]), 0)
    if how[0] & FRAMED:
        said = b"".join(_amqp_frame(part) for part in said.split(CUT) if part)
    for piece in reads(said, how[0]):
        session.receive(piece, 0)
        node.flush(session, other)
        session.go_on(0)
        expect(session.out_bytes <= OUTPUT_BYTES_MAX, f"{session.out_bytes} octets wait to be sent")
        _check_frames(b"".join(session.take_output()).removeprefix(amqp091.PROTOCOL_HEADER))
        other.take_output()
    for now_ms in (1_000, 10_000_000):
        session.tick(now_ms)
    session.lost()
    node.flush(other)
    _check_left_behind(node, session, other)


def _amqp_frame(part: bytes) -> bytes:
    """First octet: type and channel; the rest is the payload."""
    kind, channel = part[0] & 0x0F, part[0] >> 4
    return amqp091.frame(kind, channel, part[1:])


def _as_part(frame: bytes) -> bytes:
    kind, channel, _ = amqp091.FRAME_HEAD.unpack_from(frame)
    return bytes((channel << 4 | kind,)) + frame[7:-1]


def _check_frames(octets: bytes) -> None:
    """Whole frames, and properties that can be read; texts of publishers are theirs, and not always UTF-8."""
    position = 0
    while position < len(octets):
        kind, _, size = amqp091.FRAME_HEAD.unpack_from(octets, position)
        start, position = position + amqp091.FRAME_HEAD.size, position + amqp091.FRAME_HEAD.size + size + 1
        expect(octets[position - 1 : position] == amqp091.FRAME_END_OCTET, "a frame does not end")
        if kind == amqp091.FRAME_HEADER:
            tables.check(properties.split_whole(octets[start : position - 1]).get(properties.HEADERS, b""))


def _check_left_behind(node: fakes.FakeNode, session: ClientConnection, other: ClientConnection) -> None:
    expect(session.state is AmqpState.CLOSED, "a lost connection is not closed")
    expect(session not in node.broker.connections, "a lost connection is still known")
    for queue in node.broker.queues.values():
        expect(queue.owner is not session, f"{queue.key} stays locked")
        expect(not queue.consumers, f"{queue.key} keeps a consumer")
        expect(queue.unacked_count == 0, f"{queue.key} has {queue.unacked_count} unacked")
        expect(queue.ready_count >= 0, f"{queue.key} lost count")
    other.receive(fakes.frame(commands.Queue.Declare(queue="after")), 0)
    replies = [reply for _, reply in fakes.take(other)]
    expect(any(isinstance(reply, commands.Queue.DeclareOk) for reply in replies), f"the other got {replies}")


def _talk(*methods: base.Frame) -> list[bytes]:
    return [bytes(pamqp.frame.marshal(method, 1)) for method in methods]


def amqp091_talks() -> list[list[bytes]]:
    """Lawful conversations on channel 1, frame by frame."""
    queue, exchange, basic = commands.Queue, commands.Exchange, commands.Basic
    given: dict[str, Any] = {name: value for name, value in PROPERTIES if value}
    arguments: dict[str, Any] = {"x-max-priority": 5, "x-dead-letter-exchange": "e", "x-message-ttl": 60_000}
    return [
        [
            *_talk(queue.Declare(queue="q"), basic.Qos(prefetch_count=5), basic.Consume(queue="q")),
            *fakes.publish(b"hello" * 20),
            *fakes.publish(b"0123456789", steps=(3, 3), **given),
            *_talk(basic.Ack(1), basic.Nack(2, requeue=True), basic.Reject(3), basic.Recover(True)),
        ],
        [
            *_talk(commands.Confirm.Select(), queue.Declare(queue="locked", exclusive=True)),
            *fakes.publish(b"x", "locked", mandatory=True),
            *fakes.publish(b"", "nowhere", mandatory=True),
            *_talk(basic.Get(queue="locked"), queue.Purge(queue="locked"), queue.Delete(queue="locked")),
        ],
        [
            *_talk(exchange.Declare(exchange="e", exchange_type="headers", arguments=HEADERS)),
            *_talk(exchange.Declare(exchange="t", exchange_type="topic")),
            *_talk(queue.Declare(queue="w", arguments=arguments), queue.Bind(queue="w", exchange="e")),
            *_talk(queue.Bind(queue="w", exchange="t", routing_key="a.*.#")),
            *fakes.publish(b"x", "a.b.c", "t", headers={"CC": ["w"], "BCC": ["w"]}),
            *_talk(
                exchange.Bind(destination="t", source="e"),
                exchange.Unbind(destination="t", source="e"),
                exchange.Delete(exchange="e"),
            ),
        ],
        [
            *_talk(commands.Tx.Select(), queue.Declare(queue="held", durable=True)),
            *fakes.publish(b"x", "held"),
            *_talk(commands.Tx.Commit(), basic.Get(queue="held"), commands.Tx.Rollback()),
            *_talk(basic.Consume(queue="held", consumer_tag="c"), basic.Cancel("c")),
            *_talk(commands.Channel.Flow(False), commands.Channel.Close(200, "done", 0, 0)),
        ],
        [
            *_talk(basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True)),
            *fakes.publish(b"x", "held", reply_to="amq.rabbitmq.reply-to"),
            fakes.frame(commands.Connection.Close(200, "done", 0, 0), 0),
        ],
    ]


def amqp091_seeds() -> Iterator[bytes]:
    for talk in amqp091_talks():
        yield bytes((OPENED,)) + b"".join(talk)
        yield bytes((OPENED | FRAMED,)) + CUT.join(map(_as_part, talk))
        yield bytes((OPENED | IN_PIECES,)) + b"".join(talk)
    yield b"\0" + b"".join([*fakes.HANDSHAKE, *_talk(commands.Channel.Open())])


# --- stream protocol ----------------------------------------------------------------------------


class StreamNode(FakeStreamHost):
    """One that also says no where its callers are to expect it."""

    def delete_super_stream(self, user: str, vhost: str, name: str) -> None:
        if name not in self.super_streams:
            raise NotFound(f"no super stream '{name}'")
        for each in self.super_streams.pop(name):
            self.streams.pop((vhost, each), None)


def stream_session(octets: bytes) -> None:
    host = StreamNode()
    session = StreamClientConnection(host, True, STREAM_FRAME_MAX_BYTES, 60, 0)
    how, said = octets[:1] or b"\0", octets[1:]
    if how[0] & OPENED:
        session.receive(b"".join(each.encode() for each in STREAM_COMMANDS[:5]), 0)
        expect(session.state is StreamState.OPEN, "the handshake does not open")
    if how[0] & FRAMED:
        said = b"".join(
            FRAME.pack(len(part) + 4, part[0] << 8 & 0x8000 | part[0] & 0x7F, 1) + part[1:]
            for part in said.split(CUT)
            if part
        )
    for piece in reads(said, how[0]):
        for effect in session.receive(piece, 0):
            _perform(session, effect)
        output = b"".join(session.take_output(0))
        expect(
            len(output) <= 1024 + 64 * (len(piece) + STREAM_FRAME_MAX_BYTES),
            f"{len(output)} octets of answer",
        )
        expect(session.unstored_bytes <= UNSTORED_BYTES_MAX + STREAM_FRAME_MAX_BYTES, "too much is unstored")
    expect(
        len(session.subscriptions) <= 256 and len(session.publishers) <= 256, "more than there are numbers"
    )
    was_open = session.state is StreamState.OPEN
    for now_ms in (61_000, 10_000_000, SILENT_MS):
        session.tick(now_ms)
    expects_beats = 0 < session.heartbeat_s * 1000 < SILENT_MS // 2
    expect(
        session.state is (StreamState.CLOSED if expects_beats or not was_open else StreamState.OPEN),
        f"a silent peer is {session.state}",
    )


def _perform(session: StreamClientConnection, effect: object) -> None:
    match effect:
        case Append() | StoreBatch():
            session.stored(effect)
        case SendResponse():
            session.answer(effect.response)
        case _:
            pass


def stream_seeds() -> Iterator[bytes]:
    encoded = [each.encode() for each in STREAM_COMMANDS]
    yield b"\0" + b"".join(encoded)
    yield bytes((IN_PIECES,)) + b"".join(encoded[:8])
    yield bytes((OPENED,)) + b"".join(encoded[5:])
    yield bytes((OPENED | FRAMED,)) + CUT.join(
        bytes((frame[5] | frame[4] & 0x80,)) + frame[8:] for frame in encoded[5:]
    )


# --- AMQP 1.0 -----------------------------------------------------------------------------------


def amqp10_session(octets: bytes) -> None:
    session = Amqp10Session(amqp10_peer.Host(), from_loopback=True)
    how, said = octets[:1] or b"\0", octets[1:]
    sent = 0
    for piece in reads(said, how[0]):
        sent += len(session.receive(piece, 0))
    expect(sent <= OUTPUT_BYTES_MAX, f"{sent} octets of answer")
    for now_ms in (11_000, 10_000_000, 20_000_000):
        session.tick(now_ms)


class Recorder(amqp10_peer.Client):
    """A client that keeps what it said."""

    def __init__(self) -> None:
        self.said = b""
        super().__init__()

    def _said(self) -> bytes:
        octets = super()._said()
        self.said += octets
        return octets


def amqp10_seeds() -> Iterator[bytes]:
    client = Recorder()
    client.replies(REPLY_PREFIX + "me")
    sender = client.requests()
    for settled in (False, True):
        message = Message(body=b"request", inferred=True, reply_to=REPLY_PREFIX + "me")
        client.send(sender, message, settled=settled)
    sender.close()
    client.connection.close()
    client.pump()
    yield b"\0" + client.said
    yield bytes((IN_PIECES,)) + client.said


SESSIONS: Final = (
    Target("amqp091-connection", amqp091_connection, amqp091_seeds, 8192),
    Target("stream-session", stream_session, stream_seeds, 8192),
    Target("amqp10-session", amqp10_session, amqp10_seeds, 8192),
)
