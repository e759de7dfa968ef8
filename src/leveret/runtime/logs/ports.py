"""The ports of the flush: its sockets, the others that a confirm waits for, and the upstream of message replication."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.model.definitions import Change
from leveret.wire.chunk import Header

Part: TypeAlias = Callable[[], Callable[[bool], None]]
"""Makes one more part of an outcome (core.queues.confirms)."""

CopiedChunk = tuple[Queue, Header, list[bytes], bytes]
"""A queue, and a chunk of its log for the outgoing log: header, data in pieces, trailer."""


class Collecting(Protocol):
    """The upstream of message replication: it copies the appended chunks of replicated queues (runtime.collecting)."""

    def collect(self, queue: Queue, header: Header, data: list[bytes], trailer: bytes) -> None:
        """Copy a durable chunk of a replicated queue. Never fails the broker."""

    def resume(self, queues: list[Queue]) -> None:
        """Begin to collect those of the queues that should be collected and are not."""

    def pause(self, queue: Queue) -> None:
        """Stop copying chunks of the queue, until its collecting resumes or ends."""

    def unfollow(self, queues: list[Queue], *, deleted: bool = False) -> None:
        """Stop collecting the queues; downstreams learn that none of their messages is to be recovered."""


class Peer(Protocol):
    """The socket of a session."""

    def write(self, pieces: list[bytes | memoryview], *, hold: int) -> None:
        """Send, after everything sent before; octets with a `hold`, and all after them, wait for `release(hold)`."""

    def release(self, hold: int) -> None:
        """Send the octets that waited for holds up to this one, which are durable."""

    def end(self) -> None:
        """Close the socket after what was written."""


class ConfirmPort(Protocol):
    """Others that have to keep what is confirmed to publishers: nodes of the cluster, or another site."""

    def concerns(self, queue: object) -> bool:
        """Whether others have to keep the records of a queue."""

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        """Make a part for each of them that has to keep some of a just flushed batch.

        It is called when they have it, or not.
        """


class ReplicationPort(ConfirmPort, Protocol):
    """The other nodes that have to keep this node's records: the leader of a queue, or its mirrors."""

    def when_taken(self, queues: Iterable[Queue], part: Part) -> None:
        """The same for everything that the queues of these that are led here got up to this flush."""

    def when_decided(
        self,
        queue: Queue,
        since: int,
        place: int,
        then: Callable[[list[tuple[int, int]]], None],
        *,
        until_taken: bool,
    ) -> None:
        """Call back when the leader of a queue has, or refuses, the messages behind the place `since`, up to `place`.

        `then` gets what has to be published again, as such ranges of places: nothing is stored of it. What the leader
        drops for want of room is in it only if the messages are published `until_taken`; what its queue has, although
        no other site does, is not.
        """

    def is_overloaded(self) -> bool:
        """Whether publishers should wait for other nodes."""

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once those nodes have caught up."""

    def flushed(self, queue: Queue) -> None:
        """Note that this flush has handled the queue."""

    def taken_down(self, queue: Queue) -> None:
        """Note that the queue's log cannot be read here, so that it is no longer served."""

    def share(self, changes: list[Change], known: Callable[[], None]) -> None:
        """Send changes of definitions to all nodes; calls `known` when all live nodes have them."""
