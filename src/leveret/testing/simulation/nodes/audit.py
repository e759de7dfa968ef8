"""Compares each promise of a node with the disks of all nodes, from the moment of the promise until the end.

A wrong order of steps seldom loses a message: the loss needs the end of a certain node at a certain moment. So the
world examines the disks, which no node can see. The nodes that etcd's record counts on have the confirmed messages and
settlements *on their disks*: all of these nodes, or a majority if the record says so. A copy has them if its chunk at
the confirmed end equals the leader's chunk. The audit checks that at each confirm, and again at each change of a record
and at each removal of a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from leveret.core.queues.queue import Queue
from leveret.runtime.logs.log_home import directory_of
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.wire.chunk import HEADER_BYTES, ChunkError, decode_header


class CountedOn(NamedTuple):
    """The nodes that a record counts on to have a queue's confirmed messages, including the leader.

    Attributes:
        nodes: their names.
        needed: the number of nodes that must have all confirmed messages.
    """

    nodes: frozenset[str]
    needed: int


class DurableLog(NamedTuple):
    """A log on a disk.

    Attributes:
        first, next_offset: its extent.
        heads: by the first offset of a segment, the headers of its chunks by the offset behind each chunk.
    """

    first: int
    next_offset: int
    heads: dict[int, dict[int, bytes]]

    def head(self, end: int) -> bytes | None:
        """Return the header of the chunk that ends at this offset, empty without one; None if it was dropped."""
        if not any(first < end for first in self.heads):
            return None
        return next((heads[end] for heads in self.heads.values() if end in heads), b"")


class SegmentHeads:
    """The headers of a segment's whole chunks, read on from the last known one when the file has grown.

    Attributes:
        octets: the synced octets that were read last.
        end: the offset behind the last whole chunk, 0 without one.
        heads: the headers, by the offset behind each chunk.
    """

    __slots__ = ("_at", "end", "heads", "octets")

    def __init__(self) -> None:
        """Begin without octets."""
        self.octets = b""
        self.end = 0
        self.heads: dict[int, bytes] = {}
        self._at = 0

    def read(self, octets: bytes) -> None:
        """Read the present octets; the chunks before the first change are known."""
        if not octets.startswith(self.octets[: self._at]):
            self.end, self.heads, self._at = 0, {}, 0
        self.octets = octets
        at, size = self._at, len(octets)
        while at + HEADER_BYTES <= size:
            head = octets[at : at + HEADER_BYTES]
            try:
                header = decode_header(head)
            except ChunkError:
                break  # The rest of the file is preallocated.
            at += header.chunk_bytes
            if at > size:
                break
            self.end = max(self.end, header.next_offset)
            self.heads[header.next_offset] = head
            self._at = at


class DurableLogs:
    """The synced logs of all nodes: the least that a loss of power leaves."""

    def __init__(self, disk: SimulatedDisk) -> None:
        """Begin without reading a log."""
        self._disk = disk

    def log(self, data_dir: Path, log: str) -> DurableLog | None:
        """Return a log; None if there is none."""
        first: list[int] = []
        found: dict[int, dict[int, bytes]] = {}
        end = 0
        for name, file in self._disk.durable(data_dir, log):
            text, _, kind = name.partition(".")
            if text.isdecimal():
                number = int(text)
                first.append(number)
                # The final name of a new segment is durable once the directory is synced; a start accepts both names.
                if kind in ("segment", "sealed.segment", "segment.new"):
                    segment = file.reading
                    if not isinstance(segment, SegmentHeads):
                        segment = file.reading = SegmentHeads()
                    if segment.octets is not file.synced:
                        segment.read(file.synced)
                    found[number] = segment.heads
                    end = max(end, segment.end)
        return DurableLog(min(first), max(*first, end), found) if first else None


class PromiseAudit:
    """See the module.

    Attributes:
        confirmed: by the queue's epoch, the offset up to which its messages and settlements are confirmed.
    """

    def __init__(self, disk: SimulatedDisk, nodes: list[SimulatedNode]) -> None:
        """Begin without confirmed messages; the list of nodes may change."""
        self.confirmed: dict[int, int] = {}
        self._heads: dict[int, bytes | None] = {}
        """By the queue's epoch, the header of the leader's chunk that ends at the confirmed offset."""
        self._logs = DurableLogs(disk)
        self._nodes = nodes
        self._damaged: set[tuple[str, str]] = set()
        self._tied: dict[int, tuple[object, dict[Queue, int]]] = {}

    def damaged(self, path: Path) -> None:
        """Note a file that was damaged or removed from outside: the audit skips the copy until `recorded` ends that."""
        for node in self._nodes:
            if path.is_relative_to(node.data_dir):
                self._damaged.add((node.name, path.parent.relative_to(node.data_dir).as_posix()))

    def recorded(self, epoch: int, counted_on: CountedOn) -> None:
        """Note a new record: a damaged copy that it does not count on must be whole before another record does.

        Until the node of the copy runs again a record that counts on it, for acks from before, may be under way.
        """
        log = _log_name(epoch)
        self._damaged -= {
            (node.name, log) for node in self._nodes if node.name not in counted_on.nodes and node.is_up
        }

    def acked(self, leader: str, node: str, log: str, end: int) -> None:
        """Check that a node has on disk what its leader takes for acked: a log up to this offset.

        Raises:
            BooksFault: it lacks something of that.
        """
        copy_of = next((each for each in self._nodes if each.name == node), None)
        if copy_of is None or not end:
            return
        if not copy_of.is_open and (node, log) in self._damaged:
            # An ack from before the node ended, and its log was removed from outside, may still be under way.
            return
        found = self._logs.log(copy_of.data_dir, log)
        if found is None or found.next_offset < end:
            raise BooksFault(
                f"acked too early: {leader} counts on {node} for {log} up to {end}; "
                f"its disk has it up to {found.next_offset if found is not None else 'nowhere'}"
            )

    def tied(self, batch: object, queues: Iterable[Queue]) -> None:
        """Note that a node has appended a batch of messages, whose confirm waits for the disk from now on."""
        self._tied[id(batch)] = batch, {queue: queue.backlog.next_offset for queue in queues}

    def confirms(self, batch: object) -> dict[Queue, int]:
        """Return the offset up to which this batch confirms the records of each queue."""
        return self._tied.pop(id(batch), (batch, {}))[1]

    def confirm(self, leader: str, epoch: int, end: int) -> None:
        """Note that a leader confirms the records of a queue up to an offset."""
        if end > self.confirmed.get(epoch, 0):
            data_dirs = [node.data_dir for node in self._nodes if node.name == leader]
            found = self._logs.log(data_dirs[0], _log_name(epoch)) if data_dirs else None
            self.confirmed[epoch], self._heads[epoch] = end, found.head(end) if found is not None else None

    def judge(self, epoch: int, counted_on: CountedOn, floor: int | None = None) -> None:
        """Check that the nodes that a record counts on have the confirmed records on disk.

        Args:
            epoch: the epoch of the queue.
            counted_on: the nodes that the record counts on.
            floor: the leader's floor; no node needs records before it. None if the floor is unknown.

        Raises:
            BooksFault: too few disks have the confirmed records.
        """
        end, log = self.confirmed.get(epoch), _log_name(epoch)
        if end is None:
            return
        missing = [
            f"{node.name} {lack}"
            for node in self._nodes
            if node.name in counted_on.nodes and (node.name, log) not in self._damaged
            for lack in [self._lack(node.data_dir, epoch, end, floor)]
            if lack
        ]
        if len(missing) > len(counted_on.nodes) - counted_on.needed:
            raise BooksFault(
                f"promised too early: {log} is confirmed up to {end}, with {counted_on.needed} of "
                f"{', '.join(sorted(counted_on.nodes))}; on their disks, {'; '.join(missing)}"
            )

    def _lack(self, data_dir: Path, epoch: int, end: int, floor: int | None) -> str:
        """Return a text about what a copy lacks of the confirmed records; empty if it lacks nothing."""
        found = self._logs.log(data_dir, _log_name(epoch))
        if found is None or found.next_offset < end:
            return f"has it up to {found.next_offset if found is not None else 'nowhere'}"
        if floor is not None and found.first > max(floor, 0):
            return f"has it from {found.first} on, and {floor} is not settled"
        theirs, ours = found.head(end), self._heads.get(epoch)
        if theirs is not None and ours is not None and theirs != ours:
            return f"has other records before {end}"
        return ""


def _log_name(epoch: int) -> str:
    return f"{Queue.log_kind}/{directory_of(epoch)}"
