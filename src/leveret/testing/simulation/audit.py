"""Compares each promise of a node with the disks of all nodes, from the moment of the promise until the end.

A wrong order of steps seldom loses a message: the loss needs the end of a certain node at a certain moment. So the
world examines the disks, which no node can see. The nodes that etcd's record counts on have the confirmed messages *on
their disks*: all of these nodes, or a majority if the record says so. The audit checks that at each confirm, and again
at each change of a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from leveret.core.queues.queue import Queue
from leveret.runtime.logs.log_home import directory_of
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.disk import SimulatedDisk
from leveret.testing.simulation.node import SimulatedNode
from leveret.wire.chunk import HEADER_BYTES, ChunkError, decode_header


class CountedOn(NamedTuple):
    """The nodes that a record counts on to have a queue's confirmed messages, including the leader.

    Attributes:
        nodes: their names.
        needed: the number of nodes that must have all confirmed messages.
    """

    nodes: frozenset[str]
    needed: int


class DurableLogs:
    """The synced logs of all nodes: the least that a loss of power leaves."""

    def __init__(self, disk: SimulatedDisk) -> None:
        """Begin without reading a log."""
        self._disk = disk
        self._ends: dict[Path, tuple[bytes, int]] = {}
        """By segment: the synced octets that were read last, and the end of their whole chunks."""

    def bounds(self, data_dir: Path, log: str) -> tuple[int, int] | None:
        """Return the first and the next offset of a log; None for no log."""
        found: list[tuple[int, int]] = []
        for path, octets in self._disk.durable(data_dir, log).items():
            number, _, kind = path.name.partition(".")
            if number.isdecimal():
                # The final name of a new segment is durable once the directory is synced; a start accepts both names.
                is_segment = kind in ("segment", "sealed.segment", "segment.new")
                found.append(
                    (int(number), self._end(path, octets, int(number)) if is_segment else int(number))
                )
        return (min(found)[0], max(end for _, end in found)) if found else None

    def _end(self, path: Path, octets: bytes, first: int) -> int:
        known = self._ends.get(path)
        if known is not None and known[0] is octets:
            return known[1]
        at, end = 0, first
        while at + HEADER_BYTES <= len(octets):
            try:
                header = decode_header(octets[at : at + HEADER_BYTES])
            except ChunkError:
                break  # The rest of the file is preallocated.
            at += header.chunk_bytes
            if at <= len(octets):
                end = header.next_offset
        self._ends[path] = octets, end
        return end


class PromiseAudit:
    """See the module.

    Attributes:
        confirmed: the offset up to which a queue's messages are confirmed, by the queue's epoch.
    """

    def __init__(self, disk: SimulatedDisk, nodes: list[SimulatedNode]) -> None:
        """Begin without confirmed messages; the list of nodes may change."""
        self.confirmed: dict[int, int] = {}
        self._logs = DurableLogs(disk)
        self._nodes = nodes
        self._damaged: set[tuple[str, str]] = set()
        self._tied: dict[int, tuple[object, dict[Queue, int]]] = {}

    def damaged(self, path: Path) -> None:
        """Note a file that was damaged or removed from outside: from now on the audit skips that copy of its log."""
        for node in self._nodes:
            if path.is_relative_to(node.data_dir):
                self._damaged.add((node.name, path.parent.relative_to(node.data_dir).as_posix()))

    def tied(self, batch: object, queues: Iterable[Queue]) -> None:
        """Note that a node has appended a batch of messages, whose confirm waits for the disk from now on."""
        self._tied[id(batch)] = batch, {queue: queue.backlog.next_offset for queue in queues}

    def confirms(self, batch: object) -> dict[Queue, int]:
        """Return the offset up to which this batch confirms the messages of each queue."""
        return self._tied.pop(id(batch), (batch, {}))[1]

    def judge(self, epoch: int, counted_on: CountedOn, floor: int | None = None) -> None:
        """Check that the nodes that a record counts on have the confirmed messages on disk.

        Args:
            epoch: the epoch of the queue.
            counted_on: the nodes that the record counts on.
            floor: the leader's floor; no node needs records before it. None if the floor is unknown.

        Raises:
            BooksFault: too few disks have the promised messages.
        """
        end, log = self.confirmed.get(epoch), f"{Queue.log_kind}/{directory_of(epoch)}"
        if end is None:
            return
        missing: list[str] = []
        for node in self._nodes:
            if node.name in counted_on.nodes and (node.name, log) not in self._damaged:
                bounds = self._logs.bounds(node.data_dir, log)
                if bounds is None or bounds[1] < end:
                    missing.append(f"{node.name} has it up to {bounds[1] if bounds else 'nowhere'}")
                elif floor is not None and bounds[0] > max(floor, 0):
                    missing.append(f"{node.name} has it from {bounds[0]} on, and {floor} is not settled")
        if len(missing) > len(counted_on.nodes) - counted_on.needed:
            raise BooksFault(
                f"promised too early: {log} is confirmed up to {end}, with {counted_on.needed} of "
                f"{', '.join(sorted(counted_on.nodes))}; on their disks, {'; '.join(missing)}"
            )
