"""The load generator's processes: one publisher or one consumer each, with a job in JSON.

    python -m bench.load '{"role": "publish", "port": 5672, ...}'

`bench.process` describes the start and the result of a process.

The generator must cost less than the broker, so it does no work for a single message. A publisher sends long slices of
messages that were encoded beforehand, and counts confirms. A consumer learns the size of a delivery from the first one,
and then counts octets. In every read it checks the place and the delivery tag of the last whole delivery. `python -m
bench --selftest` measures the generator's own limits.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.client import FRAME_END, RECV_BYTES, Connection, LoadError, Message, describe, ring
from bench.process import ORDERS, Result, Sampler, main, total_told, wait_for_go

RING_MESSAGES: Final = 4_000
RUN_MESSAGES: Final = 1_000
RUN_BYTES_MAX: Final = 262_144
# A client that sends after every confirm sends single messages. So it waits for this part of its window instead.
ROOM_PARTS: Final = 10
READ_BYTES: Final = 1 << 20
IDLE_S: Final = 0.2

ACK: Final = struct.Struct(">11sQBB")
ACK_HEAD: Final = bytes.fromhex("0100010000000d003c0050")
_FRAME_SIZE: Final = struct.Struct(">I")
_TAG: Final = struct.Struct(">Q")
_STAMP: Final = struct.Struct(">Q")
# type, channel, size; class and method; the consumer tag "c"
_DELIVER_TAG_AT: Final = 7 + 4 + 2


@dataclass
class PublishJob:
    """The job of a publisher.

    Attributes:
        window: the highest number of unconfirmed messages; 0 publishes without confirms.
        seconds: the time of publishing, unless `count` is set.
        count: the number of messages to publish; 0 for no limit.
        rate: messages a second; 0 for no limit.
    """

    port: int
    queue: str
    body_bytes: int = 1000
    persistent: bool = True
    window: int = 1000
    seconds: float = 0.0
    count: int = 0
    rate: int = 0
    vhost: str = "/"
    role: str = "publish"


@dataclass
class ConsumeJob:
    """The job of a consumer.

    Attributes:
        ack_every: the number of deliveries that one `multiple` ack acknowledges.
        stamped: bodies begin with the time when they were due, in ns; the consumer measures their age.
        warmup_s: the time after the first message in which ages do not count.
    """

    port: int
    queue: str
    prefetch: int = 1000
    ack_every: int = 250
    stamped: bool = False
    warmup_s: float = 0.0
    vhost: str = "/"
    role: str = "consume"


class Confirms:
    """The confirmed messages of a publisher: all up to one number, and some later ones."""

    def __init__(self) -> None:
        self._through = 0
        self._early: set[int] = set()
        self._rest = b""

    @property
    def count(self) -> int:
        """The number of confirmed messages."""
        return self._through + len(self._early)

    def feed(self, octets: bytes) -> None:
        """Count the confirms in the broker's octets.

        Raises:
            LoadError: a frame is no `basic.ack`, but for example a nack or a close.
        """
        octets = self._rest + octets
        whole = len(octets) - len(octets) % ACK.size
        for head, tag, multiple, end in ACK.iter_unpack(memoryview(octets)[:whole]):
            if head != ACK_HEAD or end != FRAME_END:
                raise LoadError(f"instead of confirms the broker sent {describe(octets)}")
            if multiple:
                self._confirm_through(tag)
            else:
                self._early.add(tag)
        self._rest = octets[whole:]
        self._close_up()

    def _confirm_through(self, tag: int) -> None:
        self._through = max(tag, self._through)
        if self._early:
            self._early = {one for one in self._early if one > self._through}

    def _close_up(self) -> None:
        while self._through + 1 in self._early:
            self._through += 1
            self._early.discard(self._through)


class Publisher:
    """One connection that publishes."""

    def __init__(self, job: PublishJob) -> None:
        self.job = job
        self.message = Message("", job.queue, job.body_bytes, job.persistent)
        self.stride = self.message.stride
        longest = job.window or max(1, min(RUN_MESSAGES, RUN_BYTES_MAX // self.stride))
        longest = min(longest, RING_MESSAGES)
        self.longest_run = longest
        self.octets = ring(self.message, RING_MESSAGES, longest)
        self.view = memoryview(self.octets)
        self.connection = Connection(job.port, vhost=job.vhost)
        self.socket = self.connection.socket
        self.confirms = Confirms()
        if job.window:
            self.connection.confirm_select()

    def run(self) -> Result:
        """Publish by the job; return when all messages are sent and confirmed."""
        self.socket.settimeout(None)
        if self.job.rate:
            return self._paced()
        return self._windowed() if self.job.window else self._unbounded()

    def _send(self, start: int, count: int) -> None:
        """Send `count` messages of the ring, from the one of number `start` on."""
        for sent in range(0, count, self.longest_run):
            at = (start + sent) % RING_MESSAGES * self.stride
            run = min(self.longest_run, count - sent)
            self.socket.sendall(self.view[at : at + run * self.stride])

    def _windowed(self) -> Result:
        """Keep the window full."""
        job, confirms, sampler = self.job, self.confirms, Sampler()
        room_min = max(1, job.window // ROOM_PARTS)
        deadline = time.monotonic() + job.seconds
        left = job.count or sys.maxsize
        sent = 0
        while True:
            room = min(job.window - (sent - confirms.count), left)
            if room >= min(room_min, left) and left:
                self._send(sent, room)
                sent, left = sent + room, left - room
            sampler.note(confirms.count)
            if not job.count and time.monotonic() > deadline:
                left = 0
            if not left and confirms.count == sent:
                return sampler.result(sent)
            self._read_confirms()

    def _unbounded(self) -> Result:
        """Send without confirms: only the socket makes it wait."""
        job, sampler = self.job, Sampler()
        deadline = time.monotonic() + job.seconds
        sent = 0
        while sent < job.count if job.count else time.monotonic() < deadline:
            run = min(self.longest_run, job.count - sent) if job.count else self.longest_run
            self._send(sent, run)
            sent += run
            sampler.note(sent)
        return sampler.result(sent)

    def _paced(self) -> Result:
        """Send each message when it is due, with that time in its body."""
        job, sampler = self.job, Sampler()
        interval_ns = 1_000_000_000 // job.rate
        total = job.count or round(job.seconds * job.rate)
        started_ns = time.monotonic_ns()
        sent = 0
        while sent < total:
            due = min(total, (time.monotonic_ns() - started_ns) // interval_ns + 1)
            for number in range(sent, due):
                self._stamp(number, started_ns + number * interval_ns)
            while sent < due:
                run = min(due - sent, self.longest_run)
                self._send(sent, run)
                sent += run
            sampler.note(sent)
            self._take_confirms()
            wait_ns = started_ns + sent * interval_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
        while self.job.window and self.confirms.count < sent:
            self._read_confirms()
        return sampler.result(sent)

    def _stamp(self, number: int, due_ns: int) -> None:
        """Write a time into the body of one message, and into its repetition at the end of the ring."""
        slot = number % RING_MESSAGES
        _STAMP.pack_into(self.octets, slot * self.stride + self.message.body_at, due_ns)
        if slot < self.longest_run:
            again = (RING_MESSAGES + slot) * self.stride + self.message.body_at
            _STAMP.pack_into(self.octets, again, due_ns)

    def _read_confirms(self) -> None:
        self.confirms.feed(self.connection.receive())

    def _take_confirms(self) -> None:
        """Count the confirms that have arrived already."""
        try:
            self.confirms.feed(self.socket.recv(RECV_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return


@dataclass(frozen=True)
class Delivery:
    """The layout of this run's deliveries, learned from the first one."""

    stride: int
    body_at: int
    head: bytes

    @classmethod
    def learn(cls, octets: bytes | bytearray) -> Delivery | None:
        """Return the layout of the first delivery; None if it is still incomplete."""
        at = 0
        starts = []
        for _ in range(3):
            if len(octets) < at + 7:
                return None
            starts.append(at)
            at += 8 + _FRAME_SIZE.unpack_from(octets, at + 3)[0]
        if len(octets) < at:
            return None
        if [octets[one] for one in starts] != [1, 2, 3]:
            raise LoadError(f"instead of a delivery the broker sent {describe(bytes(octets))}")
        return cls(at, starts[2] + 7, bytes(octets[:_DELIVER_TAG_AT]))


class Consumer:
    """One connection that consumes until it has the parent's total of messages."""

    def __init__(self, job: ConsumeJob) -> None:
        self.job = job
        self.connection = Connection(job.port, vhost=job.vhost)
        self.socket = self.connection.socket
        self.connection.consume(job.queue, prefetch=job.prefetch)
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self.ages_ns: list[int] = []
        self._count_from_ns = 0
        self._total: int | None = None

    def run(self) -> Result:
        """Count and acknowledge deliveries; return when the parent's total is reached."""
        # The timeout is the kernel's, because Python's own adds a poll before every read.
        self.socket.settimeout(None)
        timeout = struct.pack("ll", 0, int(IDLE_S * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        filled = len(self.connection.pending)
        self.buffer[:filled] = self.connection.pending
        delivery = self._first(filled)
        if delivery is None:
            return Sampler().result(0)
        result = self._count(*delivery)
        if self.ages_ns:
            result.ages_us = percentiles_us(self.ages_ns)
        return result

    def _first(self, filled: int) -> tuple[Delivery, int] | None:
        """Return the first delivery's layout, and the number of read octets; None if the parent's total is 0."""
        while True:
            delivery = Delivery.learn(bytes(self.view[:filled]))
            if delivery is not None:
                self._count_from_ns = time.monotonic_ns() + int(self.job.warmup_s * 1e9)
                return delivery, filled
            filled += (got := self._read(filled))
            if not got and self._known_total() == 0:
                return None

    def _count(self, delivery: Delivery, filled: int) -> Result:
        """Count deliveries by their size; see the module's docstring."""
        sampler, stride = Sampler(), delivery.stride
        count = acked = 0
        while True:
            whole = filled // stride
            if whole:
                count += whole
                self._verify(delivery, (whole - 1) * stride, count)
                if self.job.stamped:
                    self._take_ages(delivery, whole)
                sampler.note(count)
                filled -= whole * stride
                self.buffer[:filled] = self.buffer[whole * stride : whole * stride + filled]
                if count - acked >= self.job.ack_every:
                    acked = self._ack(count)
            got = self._read(filled)
            filled += got
            if not got:
                acked = self._ack(count) if count > acked else acked
                total = self._known_total()
                if total is not None and count >= total:
                    return sampler.result(count)

    def _read(self, filled: int) -> int:
        """Read behind the octets of the buffer; return the number of new ones, 0 after an idle time."""
        try:
            return self.connection.receive_into(self.view[filled:])
        except BlockingIOError:
            return 0

    def _verify(self, delivery: Delivery, at: int, tag: int) -> None:
        """Check that the delivery at `at` has this tag."""
        octets = self.buffer
        good = (
            octets.startswith(delivery.head, at)
            and octets[at + delivery.stride - 1] == FRAME_END
            and _TAG.unpack_from(octets, at + len(delivery.head))[0] == tag
        )
        if not good:
            found = describe(bytes(octets[at : at + delivery.stride]))
            raise LoadError(f"expected the delivery with tag {tag} here, found {found}")

    def _take_ages(self, delivery: Delivery, whole: int) -> None:
        now = time.monotonic_ns()
        if now < self._count_from_ns:
            return
        for at in range(delivery.body_at, whole * delivery.stride, delivery.stride):
            self.ages_ns.append(now - _STAMP.unpack_from(self.buffer, at)[0])

    def _ack(self, tag: int) -> int:
        self.socket.sendall(ACK.pack(ACK_HEAD, tag, 1, FRAME_END))
        return tag

    def _known_total(self) -> int | None:
        """Return the total number of messages, None until the parent has sent it."""
        if self._total is None and select.select([ORDERS], [], [], 0)[0]:
            self._total = total_told()
        return self._total


def percentiles_us(ages_ns: list[int]) -> dict[str, float]:
    """Return the 50th, 99th and 99.9th percentile and the maximum, in microseconds."""
    ordered = sorted(ages_ns)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000

    return {"p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": at(1.0)}


def work(fields: dict[str, Any]) -> Result:
    """Do a publisher's or a consumer's job."""
    worker: Publisher | Consumer
    worker = (
        Publisher(PublishJob(**fields)) if fields["role"] == "publish" else Consumer(ConsumeJob(**fields))
    )
    wait_for_go()
    result = worker.run()
    worker.connection.close()
    return result


if __name__ == "__main__":
    main(work)
