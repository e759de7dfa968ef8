"""A stand-in for a broker that does nothing but the protocol: what the load generator can do.

    python -m bench.sink        prints the port it listens on, serves until its input ends

Takes a publisher and a consumer. Published octets are counted by the size of the first message and
thrown away; each read is confirmed at once with one `multiple`. For each message counted the
consumer gets a delivery made beforehand, of which only the tag is written anew. So it is cheaper
than any broker can be, and whatever rate a run against it shows is the load generator's own.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from typing import Final

from pamqp import base, body, commands, frame, header

from bench.client import CHANNEL, FRAME_END, FRAME_MAX, LOOPBACK, RECV_BYTES

READ_BYTES: Final = 1 << 20
BATCH_MESSAGES: Final = 1_000
DELIVER_TAG_AT: Final = 7 + 4 + 2

_ACK: Final = struct.Struct(">11sQBB")
_ACK_HEAD: Final = bytes.fromhex("0100010000000d003c0050")
_TAG: Final = struct.Struct(">Q")
_ANSWERS: Final[dict[type[base.Frame], base.Frame]] = {
    commands.Connection.StartOk: commands.Connection.Tune(2047, FRAME_MAX, 0),
    commands.Connection.Open: commands.Connection.OpenOk(),
    commands.Channel.Open: commands.Channel.OpenOk(),
    commands.Confirm.Select: commands.Confirm.SelectOk(),
    commands.Queue.Declare: commands.Queue.DeclareOk("bench", 0, 0),
    commands.Queue.Delete: commands.Queue.DeleteOk(0),
    commands.Basic.Qos: commands.Basic.QosOk(),
    commands.Basic.Consume: commands.Basic.ConsumeOk("c"),
    commands.Connection.Close: commands.Connection.CloseOk(),
}


class Sink:
    """The one queue of the sink: a count of messages, and a condition to wait for more."""

    def __init__(self) -> None:
        self.arrived = 0
        self.acked = 0
        self.body_bytes = 0
        self.queue = ""
        self.changed = threading.Condition()

    def serve(self, peer: socket.socket) -> None:
        """Speak with one client until it goes."""
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with peer:
                self._converse(peer)
        except OSError:
            return

    def _converse(self, peer: socket.socket) -> None:
        """Answer methods; give over to counting or to delivering once the client does either."""
        if peer.recv(8, socket.MSG_WAITALL) != b"AMQP\x00\x00\x09\x01":
            return
        peer.sendall(frame.marshal(commands.Connection.Start(0, 9, {}, "PLAIN", "en_US"), 0))
        pending = bytearray()
        while octets := peer.recv(RECV_BYTES):
            pending += octets
            while len(pending) > 7:
                size = 8 + int.from_bytes(pending[3:7], "big")
                if len(pending) < size:
                    break
                _, channel, method = frame.unmarshal(bytes(pending[:size]))
                if isinstance(method, commands.Basic.Publish):
                    return self._count(peer, pending, method)
                del pending[:size]
                answer = _ANSWERS.get(type(method))  # type: ignore[arg-type]
                if answer is not None:
                    peer.sendall(frame.marshal(answer, channel))
                if isinstance(method, commands.Basic.Consume):
                    return self._deliver(peer)

    def _count(
        self, peer: socket.socket, pending: bytearray, publish: commands.Basic.Publish
    ) -> None:
        """Count what is published and confirm it."""
        at = 0
        for _ in range(3):
            while len(pending) < at + 7:
                pending += peer.recv(RECV_BYTES)
            size = int.from_bytes(pending[at + 3 : at + 7], "big")
            at += 8 + size
        stride, filled, confirmed = at, len(pending), 0
        buffer = memoryview(bytearray(READ_BYTES))
        with self.changed:
            self.body_bytes, self.queue, self.arrived, self.acked = size, publish.routing_key, 0, 0
        while True:
            whole, filled = divmod(filled, stride)
            if whole:
                confirmed += whole
                peer.sendall(_ACK.pack(_ACK_HEAD, confirmed, 1, FRAME_END))
                with self.changed:
                    self.arrived = confirmed
                    self.changed.notify_all()
            # Only the count matters, so what is left over need not be kept.
            got = peer.recv_into(buffer)
            if not got:
                return
            filled += got
