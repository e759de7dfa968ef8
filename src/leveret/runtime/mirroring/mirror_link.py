"""The frames of the link to one mirror node: one a cut with what is live, of all its logs, and others between those.

This is the lower half of source_link.SourceLink; the streams of its logs work on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

from leveret.core.replication.replica_set import ReplicaSet
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.log_table import LogTable
from leveret.runtime.replication.sending_link import SendingLink
from leveret.storage.tree import Tree
from leveret.wire.link import Frame, Octets


class MirrorLeader(Protocol):
    """The state that all links of a leader share: sources.MirrorSources."""

    tree: Tree
    sync_bytes_s_max: int
    ack_timeout_ms: int
    clock_ms: Callable[[], int]
    logs: LogTable

    def touched(self, link: MirrorLink) -> None:
        """It has something in the frame of this flush."""

    def number(self, octets: int) -> int:
        """The number of a frame with so many octets of changes, higher than all before."""

    def replicas(self, name: str) -> ReplicaSet:
        """The replicas of a log that is led here."""

    def cut(self) -> int:
        """Send what was appended since the last cut, to every mirror."""

    def acked(self, node: str) -> None:
        """A mirror has more of its logs: promises may be due."""

    def reported(self, name: str, node: str, state: MirrorState) -> None:
        """The mirror of a log at a node is in another state."""

    def ended(self, link: MirrorLink) -> None:
        """It is gone."""


class MirrorLink(SendingLink, ABC):
    """See the module.

    Attributes:
        leader: see MirrorLeader.
        numbers: what logs may be called in frames from now on.
    """

    def __init__(self, leader: MirrorLeader, peer: LinkPeer, node: str) -> None:
        """Of a node that has proven itself."""
        super().__init__(peer, node, f"mirror {node}", leader.clock_ms)
        self.leader = leader
        self.numbers: Iterator[int] = count(1)
        self._frame = Frame()

    def add(self, head: bytes, chunk: list[Octets] | None = None, records: int = 0) -> None:
        """Have a change in the frame of this flush."""
        frame = self._frame
        if not frame.octets:
            self.leader.touched(self)
        frame.add(head, chunk, records)

    @property
    def gathered(self) -> int:
        """Octets of changes since the last cut."""
        return self._frame.octets

    def cut(self, number: int) -> None:
        """Send what was added since the last cut."""
        frame = self._frame
        if not frame.octets:
            return
        self._frame = Frame()
        self.sender.cut(number, self.now_ms())
        self._write(frame, number)
        if self.is_too_slow:
            self.fall_behind()

    def send(self, frame: Frame) -> int:
        """Send a frame at once; its number."""
        number = self.leader.number(frame.octets)
        self.sender.frame(number)
        self._write(frame, number)
        return number

    def _write(self, frame: Frame, number: int) -> None:
        self.peer.write(*frame.message(number, 0, self.now_ms()))

    @abstractmethod
    def fall_behind(self) -> None:
        """Too much waits for the socket: what is live is sent from disk again."""

    @abstractmethod
    def end(self, name: str, *, reports: bool = True) -> None:
        """That log is not sent any more."""
