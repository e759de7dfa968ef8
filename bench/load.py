"""The load generator's processes: one publisher or one consumer each, told what to do in JSON.

    python -m bench.load '{"role": "publish", "port": 5672, ...}'

How a process is started and what it returns is in `bench.process`.

The generator must cost less than what it measures, so per message it does nothing: a publisher
sends long slices of messages encoded beforehand and counts confirms; a consumer learns the size of
a delivery from the first one and then counts octets, checking with every read that the last whole
delivery in it stands where it must and has the delivery tag it must have. `python -m bench
--selftest` shows what that is good for.
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
# A client that sends as soon as one confirm is in sends ones; this many are gathered instead.
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
    """What a publisher is to do.

    Attributes:
        window: most messages without confirm; 0 publishes without confirms.
        seconds: how long to publish, unless `count` says how many.
        rate: messages a second; 0 for as many as go.
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
    """What a consumer is to do.

    Attributes:
        ack_every: deliveries acknowledged with one `multiple`.
        stamped: bodies begin with the time they were due, in ns; measure their age.
        warmup_s: ages of messages that came earlier than this after the first do not count.
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
    """Which messages of a publisher are confirmed: all up to one, and some past it."""

    def __init__(self) -> None:
        self._through = 0
        self._early: set[int] = set()
        self._rest = b""

    @property
    def count(self) -> int:
        """How many messages are confirmed."""
        return self._through + len(self._early)

    def feed(self, octets: bytes) -> None:
        """Take what the broker sent.

        Raises:
            LoadError: it is something else than `basic.ack`: a nack, or an end.
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
        self.longest_run = longest
        self.octets = ring(self.message, RING_MESSAGES, longest)
        self.view = memoryview(self.octets)
        self.connection = Connection(job.port, vhost=job.vhost)
        self.socket = self.connection.socket
        self.confirms = Confirms()
        if job.window:
            self.connection.confirm_select()

    def run(self) -> Result:
        """Publish as the job says; return when all is sent and confirmed."""
        self.socket.settimeout(None)
        if self.job.rate:
            return self._paced()
        return self._windowed() if self.job.window else self._unbounded()

    def _send(self, start: int, count: int) -> None:
        """Send `count` messages of the ring, beginning with the one that message `start` is."""
        at = start % RING_MESSAGES * self.stride
        self.socket.sendall(self.view[at : at + count * self.stride])

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
        """Send without ever waiting for more than the socket."""
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
        """Send each message when it is due, with the time it was due in its body."""
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
        """Write a time into the body of one message, also where the ring repeats it."""
        slot = number % RING_MESSAGES
        _STAMP.pack_into(self.octets, slot * self.stride + self.message.body_at, due_ns)
        if slot < self.longest_run:
            again = (RING_MESSAGES + slot) * self.stride + self.message.body_at
            _STAMP.pack_into(self.octets, again, due_ns)

    def _read_confirms(self) -> None:
        octets = self.socket.recv(RECV_BYTES)
        if not octets:
            raise LoadError("the broker closed the connection")
        self.confirms.feed(octets)

    def _take_confirms(self) -> None:
        """Count the confirms that are there already."""
        try:
            self.confirms.feed(self.socket.recv(RECV_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return


@dataclass(frozen=True)
class Delivery:
    """How a delivery of this run looks, learned from the first one."""

    stride: int
    body_at: int
    head: bytes

    @classmethod
    def learn(cls, octets: bytes | bytearray) -> Delivery | None:
        """Measure the first delivery; None if it is not there in whole yet."""
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
    """One connection that consumes until it has as many messages as its parent names."""

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
        # A receive timeout of the kernel: Python's own asks with a poll before every read.
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
        """Wait for one whole delivery; None if the parent says that none will come."""
        while True:
            delivery = Delivery.learn(bytes(self.view[:filled]))
            if delivery is not None:
                self._count_from_ns = time.monotonic_ns() + int(self.job.warmup_s * 1e9)
                return delivery, filled
            filled += (got := self._read(filled))
            if not got and self._reported() == 0:
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
                total = self._reported()
                if total is not None and count >= total:
                    return sampler.result(count)

    def _read(self, filled: int) -> int:
        """Read on behind what is there; return how many octets came, 0 after an idle while."""
        try:
            got = self.socket.recv_into(self.view[filled:])
        except BlockingIOError:
            return 0
        if not got:
            raise LoadError("the broker closed the connection")
        return got

    def _verify(self, delivery: Delivery, at: int, tag: int) -> None:
        """Make sure that the delivery at `at` is the one with this tag."""
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

    def _reported(self) -> int | None:
        """Return how many messages there are in all, once the parent has said so."""
        if self._total is None and select.select([ORDERS], [], [], 0)[0]:
            self._total = total_told()
        return self._total


def percentiles_us(ages_ns: list[int]) -> dict[str, float]:
    """Return the 50th, 99th and 99.9th percentile and the maximum, in microseconds."""
    ordered = sorted(ages_ns)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000

    return {"p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": at(1.0)}


def work(reported: dict[str, Any]) -> Result:
    """Do a publisher's or a consumer's job."""
    worker: Publisher | Consumer
    worker = (
        Publisher(PublishJob(**reported))
        if reported["role"] == "publish"
        else Consumer(ConsumeJob(**reported))
    )
    wait_for_go()
    result = worker.run()
    worker.connection.close()
    return result


if __name__ == "__main__":
    main(work)
