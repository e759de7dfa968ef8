"""A stand-in for a broker: it speaks the protocol and does no work, so it shows the limits of the load generator.

    python -m bench.sink        prints the port of its listener, and serves until its input ends

It serves a publisher and a consumer. It counts published messages by octets and the size of the first message, ignores
their content, and confirms each read at once with one `multiple`. For each counted message the consumer gets a delivery
that was encoded beforehand, with a new tag. This costs less than any broker's work, so a rate against the sink is the
load generator's own limit.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
from typing import Final

from pamqp import base, body, commands, frame, header

from bench.client import CHANNEL, FRAME_END, FRAME_MAX, LOOPBACK, RECV_BYTES
from bench.load import ACK, ACK_HEAD

READ_BYTES: Final = 1 << 20
IDLE_S: Final = 0.1
DELIVER_TAG_AT: Final = 7 + 4 + 2

_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_TAG: Final = struct.Struct(">Q")
_ANSWERS: Final[dict[type[object], base.Frame]] = {
    commands.Connection.StartOk: commands.Connection.Tune(2047, FRAME_MAX, 0),
    commands.Connection.Open: commands.Connection.OpenOk(),
    commands.Channel.Open: commands.Channel.OpenOk(),
    commands.Confirm.Select: commands.Confirm.SelectOk(),
    commands.Queue.Delete: commands.Queue.DeleteOk(0),
    commands.Basic.Qos: commands.Basic.QosOk(),
    commands.Basic.Consume: commands.Basic.ConsumeOk("c"),
    commands.Connection.Close: commands.Connection.CloseOk(),
}


class Sink:
    """The state of the sink: the number of messages of its one queue."""

    def __init__(self) -> None:
        self.arrived = 0
        self.body_bytes = 0
        self.changed = threading.Condition()

    def serve(self, peer: socket.socket) -> None:
        """Serve one client until it leaves."""
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer, contextlib.suppress(OSError):
            if peer.recv(len(_HEADER), socket.MSG_WAITALL) == _HEADER:
                peer.sendall(frame.marshal(commands.Connection.Start(0, 9, {}, "PLAIN", "en_US"), 0))
                self._converse(peer)

    def _converse(self, peer: socket.socket) -> None:
        """Answer methods, until the client publishes or consumes; from then on it does only that."""
        pending = bytearray()
        prefetch = 0
        while octets := peer.recv(RECV_BYTES):
            pending += octets
            while (size := _frame_bytes(pending, 0)) and size <= len(pending):
                _, channel, method = frame.unmarshal(bytes(pending[:size]))
                if isinstance(method, commands.Basic.Publish):
                    return self._count(peer, pending)
                del pending[:size]
                if isinstance(method, commands.Basic.Qos):
                    prefetch = method.prefetch_count
                answer = self._answer(method)
                if answer is not None:
                    peer.sendall(frame.marshal(answer, channel))
                if isinstance(method, commands.Basic.Consume):
                    return self._deliver(peer, prefetch)
        return None

    def _answer(self, method: object) -> base.Frame | None:
        if isinstance(method, commands.Queue.Declare):
            if not method.passive:
                self.arrived = 0
            return commands.Queue.DeclareOk(method.queue, self.arrived, 0)
        return _ANSWERS.get(type(method))

    def _count(self, peer: socket.socket, pending: bytearray) -> None:
        """Count and confirm published messages; `pending` begins with the first one."""
        stride = size = 0
        for _ in range(3):
            while not (size := _frame_bytes(pending, stride)):
                pending += peer.recv(RECV_BYTES)
            stride += size
        self.body_bytes = size - 8
        filled, confirmed = len(pending), 0
        buffer = bytearray(READ_BYTES)
        while True:
            whole, filled = divmod(filled, stride)
            if whole:
                confirmed += whole
                peer.sendall(ACK.pack(ACK_HEAD, confirmed, 1, FRAME_END))
                with self.changed:
                    self.arrived = confirmed
                    self.changed.notify_all()
            # Only the number of octets matters, so the buffer is overwritten.
            got = peer.recv_into(buffer)
            if not got:
                return
            filled += got

    def _deliver(self, peer: socket.socket, prefetch: int) -> None:
        """Send a delivery for each published message, at most `prefetch` of them unacked."""
        template, stride = bytearray(), 0
        delivered = acked = 0
        while True:
            room = prefetch - (delivered - acked)
            if room <= 0:
                acked = _last_ack(peer.recv(RECV_BYTES)) or acked
                continue
            with self.changed:
                self.changed.wait_for(lambda done=delivered: self.arrived > done, IDLE_S)  # type: ignore[misc]
                run = min(self.arrived - delivered, room)
            if run <= 0:
                if _gone(peer):
                    return
                continue
            if not template:
                template = bytearray(delivery(bytes(self.body_bytes)) * prefetch)
                stride = len(template) // prefetch
            for number in range(run):
                _TAG.pack_into(template, number * stride + DELIVER_TAG_AT, delivered + number + 1)
            peer.sendall(memoryview(template)[: run * stride])
            delivered += run


def delivery(octets: bytes) -> bytes:
    """Encode one delivery to the consumer `c`, with tag 0."""
    deliver = commands.Basic.Deliver("c", 0, False, "", "bench")
    head = header.ContentHeader(body_size=len(octets), properties=commands.Basic.Properties())
    frames = (deliver, head, body.ContentBody(octets))
    return b"".join(frame.marshal(one, CHANNEL) for one in frames)


def _frame_bytes(octets: bytearray, at: int) -> int:
    """Return the size of the frame that begins at `at`, 0 if its head is incomplete."""
    if len(octets) < at + 7:
        return 0
    return 8 + int.from_bytes(octets[at + 3 : at + 7], "big")


def _last_ack(octets: bytes) -> int:
    """Return the highest tag of the whole acks in these octets, 0 for none."""
    whole = len(octets) - len(octets) % ACK.size
    return max((tag for _, tag, _, _ in ACK.iter_unpack(octets[:whole])), default=0)


def _gone(peer: socket.socket) -> bool:
    """Return whether the client has closed its side of the connection."""
    try:
        return not peer.recv(RECV_BYTES, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def main() -> None:
    """Serve every client in a thread of its own until standard input ends."""
    sink = Sink()
    with socket.create_server((LOOPBACK, 0)) as server:
        print(server.getsockname()[1], flush=True)

        def accept() -> None:
            while True:
                peer, _ = server.accept()
                threading.Thread(target=sink.serve, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
