"""A hundred queues and twenty connections at once: two processes of the load generator, and their row.

    python -m bench.many '{"role": "publish", "port": 5672, ...}'

A publisher's connection changes its queue with every message, and a consumer's connection has a consumer on each of its
queues. So each read of the broker has messages of many queues, unlike in the other rows. The rest is as in
`bench.load`, whose parts are used here.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass
from typing import Any, Final

from bench.client import FRAME_END, Connection, LoadError, Message, describe, ring
from bench.contenders import Node
from bench.load import ACK, ACK_HEAD, READ_BYTES, ROOM_PARTS, Confirms, Delivery
from bench.process import Result, consume_total, main, publish_for
from bench.rows import Reading, Row, Scenario, Settings, Target, reading
from bench.workers import Worker, measured

SHARE_MIN: Final = 0.5
RING_TURNS: Final = 40
"""The number of different messages for each queue in a connection's ring."""
_TAG: Final = struct.Struct(">Q")
# type, channel, size; class and method; then the consumer tag's length
_CONSUMER_TAG_AT: Final = 7 + 4


@dataclass
class ManyJob:
    """The job of one of the two processes.

    Attributes:
        connections: the number of connections; each has `queues` queues of its own, named by `queue_name`.
        window: for each connection the highest number of unconfirmed messages, and for each consumer of unacked ones.
        seconds: the time of publishing.
    """

    role: str
    port: int
    connections: int = 10
    queues: int = 10
    body_bytes: int = 1000
    window: int = 1000
    seconds: float = 0.0
    vhost: str = "/"


def queue_name(connection: int, number: int) -> str:
    """Return the name of a queue. All names have one length, so that all messages have one size."""
    return f"many-{connection:03}-{number:03}"


class Publishing:
    """One connection that publishes to its queues in turn."""

    def __init__(self, job: ManyJob, place: int) -> None:
        self.window = job.window
        self.confirms = Confirms()
        self.sent = 0
        messages = [Message("", queue_name(place, n), job.body_bytes, True) for n in range(job.queues)]
        self.stride = messages[0].stride
        rings = [memoryview(ring(message, RING_TURNS, 0)) for message in messages]
        turns = b"".join(one[at * self.stride :][: self.stride] for at in range(RING_TURNS) for one in rings)
        self.turn_bytes = len(turns)
        # The ring is repeated, so that a window is one slice from any place of the ring.
        self.view = memoryview(turns * (2 + self.window * self.stride // self.turn_bytes))
        self.connection = Connection(job.port, vhost=job.vhost)
        self.connection.confirm_select()
        self.socket = self.connection.socket
        self.socket.settimeout(None)

    def fill_window(self) -> None:
        """Fill the window with messages, unless it has little room."""
        room = self.window - (self.sent - self.confirms.count)
        if room >= max(1, self.window // ROOM_PARTS):
            at = self.sent * self.stride % self.turn_bytes
            self.socket.sendall(self.view[at : at + room * self.stride])
            self.sent += room

    def read(self) -> None:
        """Read confirms."""
        self.confirms.feed(self.connection.receive())


class Consuming:
    """One connection that counts its queues' deliveries, by size, and acknowledges them."""

    def __init__(self, job: ManyJob, place: int) -> None:
        self.connection = Connection(job.port, vhost=job.vhost)
        queues = {f"{number:03}": queue_name(place, number) for number in range(job.queues)}
        self.connection.consume_each(queues, prefetch=job.window)
        self.socket = self.connection.socket
        self.socket.settimeout(None)
        self.count = self.acked = 0
        self._ack_every = max(1, job.window * job.queues // 4)
        self._buffer = bytearray(READ_BYTES)
        self._filled = len(self.connection.pending)
        self._buffer[: self._filled] = self.connection.pending
        self._delivery: Delivery | None = None

    def read(self) -> None:
        """Read deliveries."""
        self._filled += self.connection.receive_into(memoryview(self._buffer)[self._filled :])
        self._delivery = self._delivery or Delivery.learn(bytes(self._buffer[: self._filled]))
        if self._delivery is None:
            return
        stride = self._delivery.stride
        whole = self._filled // stride
        self.count += whole
        if whole:
            expect_tag(self._buffer, (whole - 1) * stride, stride, self.count)
        self._filled -= whole * stride
        self._buffer[: self._filled] = self._buffer[whole * stride : whole * stride + self._filled]
        if self.count - self.acked >= self._ack_every:
            self.ack()

    def ack(self) -> None:
        """Acknowledge all deliveries."""
        if self.count > self.acked:
            self.socket.sendall(ACK.pack(ACK_HEAD, self.count, 1, FRAME_END))
            self.acked = self.count


def expect_tag(octets: bytearray, at: int, stride: int, tag: int) -> None:
    """Check that the delivery at `at` has this tag.

    Raises:
        LoadError: it has another tag, or there is no delivery.
    """
    end, consumer_tag_at = at + stride, at + _CONSUMER_TAG_AT
    (found,) = _TAG.unpack_from(octets, consumer_tag_at + 1 + octets[consumer_tag_at])
    if found != tag or octets[end - 1] != FRAME_END:
        raise LoadError(f"expected the delivery with tag {tag} here, found {describe(bytes(octets[at:end]))}")


def _publish(job: ManyJob) -> Result:
    publishing = [Publishing(job, place) for place in range(job.connections)]
    result = publish_for(job.seconds, publishing)
    for one in publishing:
        one.connection.close()
    return result


def _consume(job: ManyJob) -> Result:
    consuming = [Consuming(job, place) for place in range(job.connections)]
    result = consume_total(consuming)
    for one in consuming:
        one.ack()
        one.connection.close()
    return result


def work(fields: dict[str, Any]) -> Result:
    """Do a publisher's or a consumer's job."""
    job = ManyJob(**fields)
    return _publish(job) if job.role == "publish" else _consume(job)


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    job = ManyJob("publish", node.amqp_port, seconds=settings.warmup_s + settings.seconds)
    names = [queue_name(place, n) for place in range(job.connections) for n in range(job.queues)]
    connection = Connection(node.amqp_port)
    for name in names:
        connection.declare_queue(name)
    try:
        consumer = Worker(dataclasses.replace(job, role="consume"), "bench.many")
        with consumer, Worker(job, "bench.many") as publisher:
            run = measured(node, publisher, consumer, settings.warmup_s, settings.seconds)
    finally:
        for name in names:
            connection.delete_queue(name)
        connection.close()
    return {"many": reading(run)}


MANY: Final = Scenario(
    (
        Row(
            "many",
            "the same with 100 queues and 20 connections",
            "msg/s",
            True,
            Target("share", SHARE_MIN, of_row="together"),
        ),
    ),
    _run,
)


if __name__ == "__main__":
    main(work)
