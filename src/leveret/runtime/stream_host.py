"""What the stream listener needs of the node it runs in; see `session.stream_types` for the questions.

All of it is called on the event loop. What takes long tells so by a callback, also on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from leveret.session.stream_types import LogBounds, SequenceBook, StreamAuthority


class ServedLog(LogBounds, Protocol):
    """A log whose durable chunks are served to readers."""

    def read(self, offset: int, bytes_max: int) -> list[bytes]:
        """Whole raw chunks (header, data, trailer) from the one that holds `offset`, or else the next.

        In order, all below `committed_offset`, together at most `bytes_max` octets but at least one
        chunk if there is any. A small, blocking file read.

        Raises:
            NotFound: the log was deleted.
            StorageError: what is on disk cannot be served.
        """

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back each time `committed_offset` has risen; return what ends that."""


class RecoveryQueue(SequenceBook, Protocol):
    """A queue that takes recovered messages."""

    def append(self, reference: str, entries: list[tuple[int, bytes]], done: Callable[[], None]) -> None:
        """Store (publishing id, stored message) in order, leaving out ids already stored.

        `done` is called when they are durable, for each call in the order of the calls.

        Raises:
            Refusal, StorageError: they are not stored, and `done` will not be called.
        """


class StreamHost(StreamAuthority, Protocol):
    """The node."""

    def outgoing_log(self, user: str, vhost: str) -> ServedLog:
        """NotFound: the vhost is not replicated. AccessRefused: no permission to read."""

    def recovery_queue(self, user: str, vhost: str, queue: str) -> RecoveryQueue:
        """The queue, declared durable when it is missing. AccessRefused: not for this user."""

    def store_offset(self, vhost: str, reference: str, offset: int) -> None:
        """Keep how far a reader has come."""
