"""A node without sockets, disk or clock, and the octets of clients: for tests of the pure session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pamqp.frame
from pamqp import base, body, commands, header

from leveret.config.sections.limits import Amqp
from leveret.config.sections.tls import CertificateLogin
from leveret.core.broker.alarms import Alarms, Watermark
from leveret.core.broker.broker import Broker
from leveret.core.queues.confirms import ConfirmBatch, ConfirmingChannel
from leveret.core.queues.head import Head
from leveret.core.queues.messages import Run, alike
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import AuthenticationFailed
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.session.amqp091.remote_queues import Leaders
from leveret.session.host import Sender
from leveret.wire import amqp091 as wire

FRAME_MAX_BYTES = 4096
BODY_MAX_BYTES = FRAME_MAX_BYTES - wire.FRAME_OVERHEAD
PERSISTENT = commands.Basic.Properties(delivery_mode=2)
Stored = tuple[bytes, bytes, bytes]
"""Route (two short strings), content header payload, body."""


class FakeNode:
    """A session.host.SessionHost whose logs are lists: a message or None (a settlement) at every offset."""

    def __init__(self) -> None:
        self.leaders: Leaders | None = None
        self.broker = Broker(self.read)
        self.cluster_name = self.node_name = "fake"
        self.version = "0"
        self.limits = replace(Amqp(), frame_max_bytes=FRAME_MAX_BYTES, channel_max=100)
        self.certificate_login = CertificateLogin()
        self.alarms = Alarms(Watermark(), Watermark(), 1)
        self.outbox: list[Sender] = []
        self.logs: dict[Queue, list[tuple[Head, bytes] | None]] = {}
        self.settled: dict[Queue, list[tuple[int, int, int]]] = {}
        self.ids = 0
        self.time_of_day_ms = 0
        self.failed_channels: list[tuple[str, str, int, str, str]] = []
        self.deaf: list[tuple[str, str]] = []
        for entity in (
            d.Vhost(name="/"),
            d.User(name="guest", password_hash=""),
            d.Permission(user="guest", vhost="/", configure=".*", write=".*", read=".*"),
        ):
            self.broker.apply(d.Put(entity))

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        if (username, password) != ("guest", "guest"):
            raise AuthenticationFailed("no")
        return username

    def authenticate_external(self, username: str, from_loopback: bool) -> str:
        if username != "guest":
            raise AuthenticationFailed("no")
        return username

    def open_vhost(self, user: str, vhost: str) -> None:
        self.broker.topology(vhost)

    def channel_failed(self, name: str, user: str, number: int, operation: str, text: str) -> None:
        self.failed_channels.append((name, user, number, operation, text))

    def replies_dropped(self, name: str, user: str) -> None:
        self.deaf.append((name, user))

    def clock_ms(self) -> int:
        return self.time_of_day_ms

    def unique_id(self) -> str:
        self.ids += 1
        return f"{self.ids:022}"

    def read(self, queue: Queue, offset: int) -> list[Run]:
        log = self.logs[queue]
        return [
            Run(at, alike(record[0], [record[1]]))
            for at, record in enumerate(log[offset:], offset)
            if record is not None
        ]

    def waits_for_nodes(self, queues: Iterable[object]) -> bool:
        return False

    def append_now(self, queue: Queue) -> None:
        gathered = queue.gathered.take()
        log = self.logs.setdefault(queue, [])
        if gathered:
            first = len(log)
            log += [(part.head_at(at), body) for part in gathered for at, body in enumerate(part.bodies)]
            queue.appended(first, gathered)

    def flush(self, *sessions: ClientConnection) -> None:
        """What runtime.logs.engine does at the end of a turn, with a disk that takes no time."""
        self.broker.deferred_work.go_on(lambda: True)
        dirty, self.broker.dirty = self.broker.dirty, {}
        for queue in dirty:
            self.append_now(queue)
            queue.dispatch(self.time_of_day_ms)
            if queue.settling:
                self.settled.setdefault(queue, []).extend((a, b, c) for a, b, c in queue.settling)
                queue.settling = []
                self.logs[queue].append(None)
                queue.logged_settlement(len(self.logs[queue]) - 1)
        confirming = [self.broker.confirming, *(session.confirming for session in sessions)]
        closed = [
            (channel, batch)
            for channels in confirming
            for channel in channels
            for batch in channel.close_batches()
        ]
        for channels in confirming:
            channels.clear()
        for channel, batch in closed:
            self.promise(channel, batch)

    def promise(self, channel: ConfirmingChannel, batch: ConfirmBatch) -> None:
        channel.confirm(batch, ok=not batch.refused)

    def queue(self, name: str) -> Queue:
        return self.broker.queues["/", name]

    def messages(self) -> dict[str, list[Stored]]:
        """What every queue's log holds."""
        return {
            queue.key[1]: [(r[0].route, r[0].header, r[1]) for r in self.logs.get(queue, []) if r is not None]
            for queue in self.broker.queues.values()
        }


def frame(value: base.Frame | header.ContentHeader | body.ContentBody, channel: int = 1) -> bytes:
    return bytes(pamqp.frame.marshal(value, channel))


def content(octets: bytes, channel: int = 1, steps: tuple[int, ...] = (), **properties: Any) -> list[bytes]:
    """The frames of a message after its method; `steps` are sizes of body frames, the rest as large as may be."""
    made = commands.Basic.Properties(**properties) if properties else PERSISTENT
    frames = [frame(header.ContentHeader(0, len(octets), made), channel)]
    position = 0
    sizes = list(steps)
    while position < len(octets):
        size = sizes.pop(0) if sizes else BODY_MAX_BYTES
        frames.append(frame(body.ContentBody(octets[position : position + size]), channel))
        position += size
    return frames


def publish(
    octets: bytes,
    key: str = "q",
    exchange: str = "",
    channel: int = 1,
    *,
    mandatory: bool = False,
    steps: tuple[int, ...] = (),
    **properties: Any,
) -> list[bytes]:
    """The frames of a publish."""
    method = commands.Basic.Publish(0, exchange, key, mandatory)
    return [frame(method, channel), *content(octets, channel, steps, **properties)]


HANDSHAKE: list[bytes] = [
    wire.PROTOCOL_HEADER,
    frame(
        commands.Connection.StartOk(
            {"capabilities": {"consumer_cancel_notify": True}}, "PLAIN", "\0guest\0guest", "en_US"
        ),
        0,
    ),
    frame(commands.Connection.TuneOk(100, FRAME_MAX_BYTES, 60), 0),
    frame(commands.Connection.Open("/"), 0),
]


def connect(node: FakeNode, *channels: int) -> ClientConnection:
    """A connection that is open, with these channels; its output so far is taken."""
    session = ClientConnection(node, peer="test", from_loopback=True, now_ms=0)
    opened = [frame(commands.Channel.Open(), channel) for channel in channels]
    session.receive(b"".join([*HANDSHAKE, *opened]), 0)
    assert session.state is AmqpState.OPEN
    take(session)
    return session


def take(session: ClientConnection) -> list[tuple[int, Any]]:
    """(channel, frame) of what waits to be sent."""
    return decode(b"".join(session.take_output()))


def decode(octets: bytes) -> list[tuple[int, Any]]:
    """(channel, frame) of every frame."""
    frames = []
    while octets:
        size, channel, value = pamqp.frame.unmarshal(octets)
        frames.append((channel, value.value if isinstance(value, body.ContentBody) else value))
        octets = octets[size:]
    return frames


def by_channel(octets: bytes) -> dict[int, bytes]:
    """The octets of each channel's frames, in order."""
    channels: dict[int, bytes] = {}
    while octets:
        _, channel, size = wire.FRAME_HEAD.unpack_from(octets)
        channels[channel] = channels.get(channel, b"") + octets[: size + 8]
        octets = octets[size + 8 :]
    return channels
