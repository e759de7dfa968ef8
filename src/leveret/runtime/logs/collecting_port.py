"""The engine's port to the upstream of message replication (runtime.collecting)."""

from __future__ import annotations

from typing import Protocol

from leveret.core.queues.queue import Queue
from leveret.wire.chunk import Header

CopiedChunk = tuple[Queue, Header, bytes, bytes]
"""A queue, and a chunk of its log for the outgoing log."""


class Collecting(Protocol):
    """The upstream of message replication: it copies the appended chunks of replicated queues (runtime.collecting)."""

    def collect(self, queue: Queue, header: Header, data: bytes, trailer: bytes) -> None:
        """Copy a durable chunk of a replicated queue. Never fails the broker."""

    def resume(self, queues: list[Queue]) -> None:
        """Begin to collect those of the queues that should be collected and are not."""

    def pause(self, queue: Queue) -> None:
        """Stop copying chunks of the queue, until its collecting resumes or ends."""

    def unfollow(self, queues: list[Queue], *, deleted: bool = False) -> None:
        """Stop collecting the queues; downstreams learn that none of their messages is to be recovered."""
