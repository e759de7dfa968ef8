"""The load generator's processes for messages that differ: one for all publishers, one for all consumers.

    python -m bench.traffic_load '{"role": "publish", "port": 5672, ...}'

A consumer finds the messages of a read with one `unpack_from` for each, sends its acks, and checks many messages later
at once. For the check it reads tags, queues and numbers as columns. It checks that each queue has the messages of each
publisher once and in order, and compares the properties and the body of each message with the publisher's ring.
"""

from __future__ import annotations

import math
import random
import struct
import sys
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pamqp import commands, frame, header

from bench.client import FRAME_END, Connection, LoadError, describe
from bench.load import ACK, ACK_HEAD, ROOM_PARTS, Confirms
from bench.process import Result, consume_total, main, publish_for
from bench.traffic import (
    AT_NAME,
    AT_NUMBER,
    BODY_FRAME_MAX,
    FRAME_HEAD_BYTES,
    SEQUENCE_BITS,
    Integers,
    Load,
    Octets,
    Ring,
    names_of,
    queue_name,
)

BUFFER_BYTES: Final = 8 << 20
CHECK_BYTES: Final = 2 << 20
CHECK_MESSAGES: Final = 1_000
"""A consumer checks its messages when it has so many octets or messages."""
DECODED_EVERY: Final = 64
"""If the broker alters headers, one message in so many has its properties decoded and compared."""
TAG_DIGITS: Final = 5
"""A consumer tag has two numbers of so many digits: the queue's, and the consumer's on this connection and queue."""
_AT_DIGIT: Final = np.arange(TAG_DIGITS)
_DIGITS: Final = 10 ** np.arange(TAG_DIGITS - 1, -1, -1)
_HEADER: Final = struct.Struct(">I4xQ")
"""A header frame from its size on: the size, class and weight, the body's size."""
_CONSUMER_TAG_AT: Final = FRAME_HEAD_BYTES + 4 + 1
_DELIVERY_TAG_AT: Final = _CONSUMER_TAG_AT + 2 * TAG_DIGITS
_REDELIVERED_AT: Final = _DELIVERY_TAG_AT + 8
_ACKS: Final = np.dtype([("head", "S11"), ("tag", ">u8"), ("multiple", "u1"), ("end", "u1")])


@dataclass
class TrafficJob:
    """The job of one of the two processes.

    Attributes:
        load: the fields of a `Load`.
        count: the number of messages to publish; 0 publishes for `seconds`.
    """

    role: str
    port: int
    load: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    count: int = 0
    vhost: str = "/"


def load_of(fields: dict[str, Any]) -> Load:
    """Return the load with these fields, which come from JSON."""
    return Load(**{**fields, "body_bytes": tuple(fields["body_bytes"])})


class Publishing:
    """One connection that publishes its ring repeatedly, and keeps its window full."""

    def __init__(self, job: TrafficJob, load: Load, place: int, count: int) -> None:
        self.ring = Ring(load, place)
        self.window = load.window
        self.left = count
        self.sent = 0
        self.confirms = Confirms()
        self.connection = Connection(job.port, vhost=job.vhost)
        self.connection.confirm_select()
        self.socket = self.connection.socket
        self.socket.settimeout(None)

    def fill_window(self) -> None:
        """Fill the window with messages, unless it has little room."""
        room = min(self.window - (self.sent - self.confirms.count), self.left)
        if room < min(max(1, self.window // ROOM_PARTS), self.left):
            return
        self.left -= room
        while room:
            run = min(room, self.ring.count - self.sent % self.ring.count)
            self.ring.number(self.sent, run)
            self.socket.sendall(self.ring.run(self.sent, run))
            self.sent += run
            room -= run

    def read(self) -> None:
        """Read confirms."""
        self.confirms.feed(self.connection.receive())


class Books:
    """The delivered messages, by queue, priority and publisher."""

    def __init__(self, load: Load, rings: list[Ring]) -> None:
        self._load = load
        self._rings = rings
        self._orders = load.queues * max(1, load.priorities)
        self._next = np.zeros(len(rings) * self._orders * load.copies, dtype=np.int64)
        self._seen = [np.zeros(0, dtype=bool) for _ in rings]

    def enter(self, publishers: Integers, sequences: Integers, queues: Integers) -> None:
        """Note deliveries in the order of their arrival.

        Raises:
            LoadError: a message came twice, from a wrong queue, or out of order.
        """
        if self._load.kind == "fanout":
            self._enter_ordered(publishers * self._load.queues + queues, sequences)
            return
        for place in np.unique(publishers).tolist():
            own = publishers == place
            self._enter_of(place, sequences[own], queues[own])

    def _enter_of(self, place: int, sequences: Integers, queues: Integers) -> None:
        ring = self._rings[place]
        slots = sequences % ring.count
        if (ring.queues[slots] != queues).any():
            raise LoadError("a message was delivered from a queue that its routing key does not lead to")
        if not self._load.ordered:
            self._enter_any(place, sequences)
            return
        ranks, counts = ring.ranks
        orders = ring.orders[slots]
        self._enter_ordered(
            place * self._orders + orders, sequences // ring.count * counts[orders] + ranks[slots]
        )

    def _enter_ordered(self, lines: Integers, ordinals: Integers) -> None:
        """Check that the messages of each line have the ordinals 0, 1, 2 ... in this order."""
        by_line = np.argsort(lines, kind="stable")
        lines, ordinals = lines[by_line], ordinals[by_line]
        first = np.r_[True, lines[1:] != lines[:-1]]
        starts = np.flatnonzero(first)
        within = np.arange(len(lines)) - np.repeat(starts, np.diff(np.r_[starts, len(lines)]))
        wanted = self._next[lines] + within
        if (ordinals != wanted).any():
            at = int(np.flatnonzero(ordinals != wanted)[0])
            raise LoadError(
                f"message {ordinals[at]} of line {lines[at]} came where {wanted[at]} was expected"
            )
        self._next[lines] = np.maximum.reduceat(ordinals, starts)[np.cumsum(first) - 1] + 1

    def _enter_any(self, place: int, sequences: Integers) -> None:
        seen = self._seen[place]
        top = int(sequences.max()) + 1
        if top > len(seen):
            seen = self._seen[place] = np.r_[seen, np.zeros(max(top, len(seen)), dtype=bool)]
        if seen[sequences].any() or len(np.unique(sequences)) != len(sequences):
            raise LoadError("a message was delivered twice")
        seen[sequences] = True


class Consuming:
    """One connection that consumes from some queues, acknowledges its messages, and checks them."""

    def __init__(self, job: TrafficJob, load: Load, place: int, books: Books, rings: list[Ring]) -> None:
        self._load, self._rings, self._books = load, rings, books
        self._views = [memoryview(ring.octets) for ring in rings]
        self._altered = load.altered
        self.connection = Connection(job.port, vhost=job.vhost)
        names = {
            f"{number:0{TAG_DIGITS}}{consumer:0{TAG_DIGITS}}": queue_name(number)
            for number in _queues_of(load, place)
            for consumer in range(load.consumers_each)
        }
        self.connection.consume_each(names, prefetch=load.prefetch)
        self.socket = self.connection.socket
        self.socket.settimeout(None)
        self.count = self._acked = self._checked = 0
        self._buffer = bytearray(max(BUFFER_BYTES, 4 * load.body_bytes[1]))
        self._view = memoryview(self._buffer)
        self._columns: Octets = np.frombuffer(self._buffer, dtype=np.uint8)
        self._filled = len(self.connection.pending)
        self._buffer[: self._filled] = self.connection.pending
        self._scanned = 0
        self._method_bytes = 0
        self._starts: list[int] = []
        self._bodies: list[int] = []
        self._scan()

    def read(self) -> None:
        """Read deliveries."""
        self._filled += self.connection.receive_into(self._view[self._filled :])
        self._scan()
        self._acknowledge(self._load.ack_every)
        if (
            self._scanned >= CHECK_BYTES
            or len(self._starts) >= CHECK_MESSAGES
            or self._filled == len(self._buffer)
        ):
            self.check()

    def finish(self) -> None:
        """Acknowledge all messages, and check the last ones."""
        if self.count > self._acked:
            self.socket.sendall(ACK.pack(ACK_HEAD, self.count, 1, FRAME_END))
            self._acked = self.count
        self.check()

    def _scan(self) -> None:
        """Find the complete messages in the buffer."""
        octets, at, filled = self._buffer, self._scanned, self._filled
        method = self._method_bytes or self._learn()
        if not method:
            return
        starts, bodies, unpack = self._starts.append, self._bodies.append, _HEADER.unpack_from
        to_header, to_body = method + 3, method + FRAME_HEAD_BYTES + 1
        while at + to_header + _HEADER.size <= filled:
            header_bytes, size = unpack(octets, at + to_header)
            body_at = at + to_body + header_bytes
            end = body_at + size + 8 * -(-size // BODY_FRAME_MAX)
            if end > filled:
                break
            starts(at)
            bodies(body_at)
            at = end
        self.count += len(self._starts) - (self.count - self._checked)
        self._scanned = at

    def _learn(self) -> int:
        """Return the size of a delivery's method frame, learned from the first one; 0 while that is incomplete."""
        if self._filled >= FRAME_HEAD_BYTES:
            self._method_bytes = FRAME_HEAD_BYTES + int.from_bytes(self._buffer[3:7], "big") + 1
        return self._method_bytes

    def _acknowledge(self, every: int) -> None:
        whole = (self.count - self._acked) // every
        if not whole:
            return
        acks = np.empty(whole, dtype=_ACKS)
        acks["head"] = ACK_HEAD
        acks["tag"] = self._acked + every * np.arange(1, whole + 1)
        acks["multiple"] = every > 1
        acks["end"] = FRAME_END
        self.socket.sendall(acks.tobytes())
        self._acked += every * whole

    def check(self) -> None:
        """Check the messages since the last check, and drop them from the buffer.

        Raises:
            LoadError: a message is not the expected one.
        """
        if self._starts:
            starts, bodies = np.array(self._starts), np.array(self._bodies)
            ends = np.r_[starts[1:], self._scanned]
            self._check(starts, bodies, ends)
            self._checked += len(starts)
        self._filled -= self._scanned
        self._buffer[: self._filled] = self._buffer[self._scanned : self._scanned + self._filled]
        self._scanned = 0
        self._starts.clear()
        self._bodies.clear()

    def _check(self, starts: Integers, bodies: Integers, ends: Integers) -> None:
        octets, headers = self._columns, starts + self._method_bytes
        tags = octets[starts[:, None] + _DELIVERY_TAG_AT + AT_NUMBER].view(">u8").ravel()
        good = (
            (octets[starts] == 1)
            & (octets[headers] == 2)
            & (octets[bodies] == 3)
            & (octets[ends - 1] == FRAME_END)
        )
        good &= tags == np.arange(self._checked + 1, self._checked + 1 + len(starts), dtype=np.uint64)
        good &= octets[starts + _REDELIVERED_AT] == 0
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            found = describe(bytes(self._buffer[starts[at] : ends[at]]))
            raise LoadError(f"expected a delivery with tag {self._checked + 1 + at} here, found {found}")
        queues = (octets[starts[:, None] + _CONSUMER_TAG_AT + _AT_DIGIT] - ord("0")) @ _DIGITS
        numbers = octets[bodies[:, None] + FRAME_HEAD_BYTES + AT_NUMBER]
        each = numbers.view(">u8").ravel().astype(np.int64)
        publishers, sequences = each >> SEQUENCE_BITS, each & ((1 << SEQUENCE_BITS) - 1)
        if publishers.min() < 0 or publishers.max() >= len(self._rings):
            raise LoadError("a body begins with a number that no publisher wrote")
        self._books.enter(publishers, sequences, queues)
        self._compare(publishers, sequences, numbers, np.stack([headers, bodies, ends]))

    def _compare(self, publishers: Integers, sequences: Integers, numbers: Octets, places: Integers) -> None:
        """Compare each message with its slot in its publisher's ring, from its header frame to its last octet."""
        self._columns[places[1][:, None] + FRAME_HEAD_BYTES + AT_NUMBER] = 0
        for place in np.unique(publishers).tolist():
            own, ring = publishers == place, self._rings[place]
            headers, bodies, ends = places[:, own]
            slots = sequences[own] % ring.count
            if self._load.mixed and not self._altered:
                at = (headers + ring.names[slots] - ring.headers[slots])[:, None] + AT_NAME
                if (ends - headers == ring.ends[slots] - ring.headers[slots]).all():
                    if (self._columns[at] != names_of(numbers[own])).any():
                        raise LoadError("a message has the message id of another one")
                    self._columns[at] = ord("0")
            if self._altered or not self._same(place, headers, ring.headers[slots], ends, ring.ends[slots]):
                # The octets differ if the broker encodes properties anew or adds some, so compare the values.
                every = DECODED_EVERY if self._altered else 1
                self._compare_bodies(place, slots, bodies, ends)
                self._compare_properties(ring, slots, headers, bodies, every)
                self._altered = True

    def _same(self, place: int, at: Integers, ring_at: Integers, ends: Integers, ring_ends: Integers) -> bool:
        if (ends - at != ring_ends - ring_at).any():
            return False
        starts_with, ring = self._buffer.startswith, self._views[place]
        columns = zip(at.tolist(), ring_at.tolist(), ring_ends.tolist(), strict=True)
        return all(starts_with(ring[first:end], found) for found, first, end in columns)

    def _compare_bodies(self, place: int, slots: Integers, bodies: Integers, ends: Integers) -> None:
        ring = self._rings[place]
        if not self._same(place, bodies, ring.bodies[slots], ends, ring.ends[slots]):
            raise LoadError("a message came with another body than it was sent with")

    def _compare_properties(
        self, ring: Ring, slots: Integers, headers: Integers, bodies: Integers, every: int
    ) -> None:
        """Compare the properties of every `every`th message by their values."""
        for at in range(random.randrange(min(every, len(slots))), len(slots), every):
            found = frame.unmarshal(bytes(self._buffer[headers[at] : bodies[at]]))[2]
            assert isinstance(found, header.ContentHeader)
            sent = ring.properties(int(slots[at]))
            headers_sent, headers_found = _headers(sent), _headers(found.properties)
            kept = {name: headers_found.get(name) for name in headers_sent}
            if _others(found.properties) != _others(sent) or kept != headers_sent:
                raise LoadError(
                    f"a message came with {dict(found.properties)}, it was sent with {dict(sent)}"
                )


def _headers(properties: commands.Basic.Properties) -> dict[str, Any]:
    return dict(properties.headers or {})


def _others(properties: commands.Basic.Properties) -> dict[str, Any]:
    """Return the properties without the headers, to which a broker may add, and without the message id."""
    return {name: value for name, value in properties if name not in ("headers", "message_id")}


def _queues_of(load: Load, place: int) -> list[int]:
    """Return the numbers of a connection's queues; several connections share a queue if there are fewer queues."""
    if load.consumers <= load.queues:
        return list(range(place, load.queues, load.consumers))
    return [place % load.queues]


def _publish(job: TrafficJob) -> Result:
    load = load_of(job.load)
    share = -(-job.count // load.publishers) if job.count else sys.maxsize
    publishing = [Publishing(job, load, place, share) for place in range(load.publishers)]
    result = publish_for(math.inf if job.count else job.seconds, publishing)
    for one in publishing:
        one.connection.close()
    return result


def _consume(job: TrafficJob) -> Result:
    load = load_of(job.load)
    rings = [Ring(load, place) for place in range(load.publishers)]
    books = Books(load, rings)
    consuming = [Consuming(job, load, place, books, rings) for place in range(load.consumers)]
    result = consume_total(consuming)
    for one in consuming:
        one.finish()
        one.connection.close()
    return result


def work(fields: dict[str, Any]) -> Result:
    """Do a publisher's or a consumer's job."""
    job = TrafficJob(**fields)
    return _publish(job) if job.role == "publish" else _consume(job)


if __name__ == "__main__":
    main(work)
