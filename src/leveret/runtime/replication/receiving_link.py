"""The connection on which a leader's changes come: its frames are taken, and acked once this node's disk has them.

Each connection has an object of its own, so nothing that was taken or acked on an earlier one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leveret.core.replication.receiver import CopiedLogs, ReceivePhase, ReplicationReceiver
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.logs.commit import GroupCommit
from leveret.wire.link import Acked, FrameHead, LinkError, LogChange, Type, decode_frame, pack

SILENCE_S: Final = 10.0
"""A leader says something every second; one that is silent for so long is gone."""
_ACK_AGAIN_S: Final = 1.0


class ReceivingLink:
    """See the module.

    Attributes:
        peer: the connection.
        receiver: what came on it.
    """

    def __init__(
        self,
        peer: LinkPeer,
        logs: CopiedLogs,
        phase: ReceivePhase,
        commits: GroupCommit,
        on_durable: Callable[[int], None],
    ) -> None:
        """`on_durable` is called when everything up to a number is durable, before that is acked."""
        self.peer = peer
        self.receiver = ReplicationReceiver(logs, phase)
        self._commits = commits
        self._on_durable = on_durable
        self._loop = asyncio.get_running_loop()
        self._heard_at_s = self._loop.time()

    @property
    def silent_s(self) -> float:
        """How long nothing has been heard of the leader."""
        return self._loop.time() - self._heard_at_s

    def heard(self) -> None:
        """Something was received."""
        self._heard_at_s = self._loop.time()

    async def beat(self, ended: asyncio.Event) -> None:
        """Say every second that this side is there, and end the link of a leader that is not; until `ended`."""
        while not ended.is_set():
            try:
                async with asyncio.timeout(_ACK_AGAIN_S):
                    await ended.wait()
            except TimeoutError:
                if self.silent_s > SILENCE_S:
                    self.peer.abort(LinkError(f"the leader has been silent for {SILENCE_S:.0f} s"))
                    return
                self._say_acked(self.receiver.acked, self.peer.received_bytes)

    def take(self, payload: memoryview, make: Callable[[FrameHead, list[LogChange]], None]) -> FrameHead:
        """Have the changes of a frame made, if all of it fits, and ack them once they are on disk.

        Raises:
            PeerError: it does not fit, and nothing of it was made.
            StorageError: `make` raised that.
        """
        head, decoded = decode_frame(payload, self.receiver.names)
        changes = list(decoded())
        is_new = self.receiver.frame(head, changes)
        make(head, changes)
        if is_new:
            self.acknowledge()
        return head

    def acknowledge(self) -> None:
        """Ack what was taken once it is on disk."""
        number, received_bytes = self.receiver.number, self.peer.received_bytes
        self._commits.when_durable(lambda: self._durable(number, received_bytes))
        self._commits.begin()

    def _durable(self, number: int, received_bytes: int) -> None:
        """All up to there is on disk, or the leader was told of the logs of which it is not."""
        self._on_durable(number)
        if not self.peer.is_closed:
            self.receiver.acked = number
            self._say_acked(number, received_bytes)

    def _say_acked(self, number: int, received_bytes: int) -> None:
        self.peer.write(pack(Type.ACK, Acked(number, received_bytes)))
