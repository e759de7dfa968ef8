"""The connection that brings a leader's changes: its frames are applied, and acked once this node's disk has them.

Each connection has a new object, so the frames and acks of an earlier connection do not count.

This node may have fewer descriptors than its leader. So no frame is taken while half as many logs are unsynced as may
be open: otherwise a log that is appended to would close, and first sync, another one in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from leveret.core.replication.receiver import CopiedLogs, ReceivePhase, ReplicationReceiver
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.logs.commit import GroupCommit
from leveret.wire.link import Acked, FrameHead, LogChange, Type, decode_frame, pack

_ACK_AGAIN_S: Final = 1.0


class ReceivedFrame(NamedTuple):
    """A valid frame, and whether it is to be acked."""

    head: FrameHead
    changes: list[LogChange]
    is_new: bool


class ReceivingLink:
    """See the module.

    Attributes:
        peer: the connection.
        receiver: the account of the received frames.
    """

    def __init__(
        self,
        peer: LinkPeer,
        logs: CopiedLogs,
        phase: ReceivePhase,
        commits: GroupCommit,
        on_durable: Callable[[int], None],
    ) -> None:
        """Start without a frame; `on_durable` is called with each number that is durable, before its ack."""
        self.peer = peer
        self.receiver = ReplicationReceiver(logs, phase)
        self._commits = commits
        self._on_durable = on_durable

    async def beat(self, ended: asyncio.Event) -> None:
        """Repeat the last ack every second, until `ended`."""
        while not ended.is_set():
            try:
                async with asyncio.timeout(_ACK_AGAIN_S):
                    await ended.wait()
            except TimeoutError:
                self._say_acked(self.receiver.acked, self.peer.received_bytes)

    def take(self, payload: memoryview, make: Callable[[FrameHead, list[LogChange]], None]) -> FrameHead:
        """Have the changes of a frame made, if the whole frame is valid, and ack it once they are on disk.

        Raises:
            PeerError: the frame is invalid, and none of its changes was made.
            StorageError: `make` raised it.
        """
        return self.apply(self.read(payload), make)

    def read(self, payload: memoryview) -> ReceivedFrame:
        """Return a frame that is valid as a whole, for `apply`; it refers to the octets of `payload`.

        Raises:
            PeerError: the frame is invalid.
        """
        head, decoded = decode_frame(payload, self.receiver.names)
        changes = list(decoded())
        return ReceivedFrame(head, changes, self.receiver.frame(head, changes))

    def apply(self, frame: ReceivedFrame, make: Callable[[FrameHead, list[LogChange]], None]) -> FrameHead:
        """Have the changes of a read frame made, in the order of the frames, and ack it once they are on disk.

        Raises:
            StorageError: `make` raised it.
        """
        make(frame.head, frame.changes)
        if frame.is_new:
            self.acknowledge()
        if self.is_behind:
            self.peer.hold()
            self._go_on_after_sync()
        return frame.head

    @property
    def is_behind(self) -> bool:
        """Whether so many logs are unsynced that no other log should be appended to (runtime.logs.backpressure)."""
        return self._commits.unsynced_logs > self._commits.unsynced_logs_max

    def go_on(self) -> None:
        """Take the messages behind a held one, once the disk has caught up."""
        if self.peer.is_closed:
            return
        if self.is_behind:
            self._go_on_after_sync()
        else:
            self.peer.go_on()

    def _go_on_after_sync(self) -> None:
        self._commits.when_synced(self.go_on)
        self._commits.begin()

    def acknowledge(self) -> None:
        """Ack the accepted frames once they are on disk."""
        number, received_bytes = self.receiver.number, self.peer.received_bytes
        self._commits.when_durable(lambda: self._durable(number, received_bytes))
        self._commits.begin()

    def _durable(self, number: int, received_bytes: int) -> None:
        """Ack a number: all changes up to it are on disk, except of logs whose failure was reported to the leader."""
        self._on_durable(number)
        if not self.peer.is_closed:
            self.receiver.acked = number
            self._say_acked(number, received_bytes)

    def _say_acked(self, number: int, received_bytes: int) -> None:
        self.peer.write(pack(Type.ACK, Acked(number, received_bytes)))
