"""The frames of the link to one mirror node: one frame a cut with the live records of all logs, and others between.

This is the lower half of source_link.SourceLink; the streams of its logs use it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

from leveret.core.replication.replica_set import ReplicaSet
from leveret.model.errors import StorageError
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.log_table import LogTable
from leveret.runtime.process.sparse_log import SparseLog
from leveret.runtime.replication.sending_link import SendingLink
from leveret.storage.tree import Tree
from leveret.wire.link import Frame, LinkError, Octets

logger = logging.getLogger(__name__)


class MirrorLeader(Protocol):
    """The state that all links of a leader share: sources.MirrorSources."""

    tree: Tree
    sync_bytes_s_max: int
    ack_timeout_ms: int
    clock_ms: Callable[[], int]
    logs: LogTable

    def number(self, octets: int) -> int:
        """Return the number of a frame with so many octets of changes, higher than all before."""

    def replicas(self, name: str) -> ReplicaSet:
        """Return the replicas of a log that is led here."""

    def cut(self) -> int:
        """Send the appends since the last cut to every mirror."""

    def acked(self, node: str) -> None:
        """Keep the promises that are due because a mirror has acked more."""

    def reported(self, name: str, node: str, state: MirrorState) -> None:
        """Report the new state of a node's mirror of a log."""

    def ended(self, link: SourceLinkBase) -> None:
        """Forget a link that has ended."""


class SourceLinkBase(SendingLink, ABC):
    """See the module.

    Attributes:
        leader: see MirrorLeader.
        numbers: the next numbers that logs get in frames.
        failing: logs of which the mirror could not write the last attempt; each is tried again every few seconds.
    """

    def __init__(self, leader: MirrorLeader, peer: LinkPeer, node: str) -> None:
        """Serve a node after its handshake."""
        super().__init__(peer, node, f"mirror {node}", leader.clock_ms)
        self.leader = leader
        self.numbers: Iterator[int] = count(1)
        self.failing: set[str] = set()
        self._attempts = SparseLog()
        self._frame = Frame()

    def add(self, head: bytes, chunk: list[Octets] | None = None, records: int = 0) -> None:
        """Add a change to the frame of this flush."""
        self._frame.add(head, chunk, records)

    @property
    def gathered(self) -> int:
        """The octets of changes since the last cut."""
        return self._frame.octets

    def cut(self, number: int) -> None:
        """Send the changes since the last cut."""
        frame = self._frame
        if not frame.octets:
            return
        self._frame = Frame()
        self.sender.cut(number, self.now_ms())
        self._write(frame, number)
        if self.is_too_slow:
            self.fall_behind()

    def send(self, frame: Frame) -> int:
        """Send a frame at once; return its number."""
        number = self.leader.number(frame.octets)
        self.sender.frame(number)
        self._write(frame, number)
        return number

    def _write(self, frame: Frame, number: int) -> None:
        try:
            pieces = frame.message(number, 0, self.now_ms())
        except LinkError as error:
            self.peer.abort(error)
        else:
            self.peer.write(*pieces)

    def lacks(self, name: str, missing_bytes: int, log_bytes: int) -> None:
        """Log what a mirror is to be sent of a log; further attempts of the same go into the sparse lines' count."""
        others = self._attempts.others() if name in self.failing else 0
        if others is not None:
            text = "mirror_lacks log=%s node=%s bytes=%d of_bytes=%d others=%d"
            logger.info(text, name, self.node, missing_bytes, log_bytes, others)

    @abstractmethod
    def fall_behind(self) -> None:
        """Send live records from disk again, because too many octets wait for the socket."""

    @abstractmethod
    def unreadable(self, name: str, error: StorageError) -> None:
        """Send a log no longer that cannot be read."""
