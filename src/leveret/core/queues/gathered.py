"""The messages that a queue has gathered and its log does not have yet, in the order of their arrival.

Messages come in parts, each a `Messages`. Publishers whose messages differ append to the columns of one open part,
until the flush takes all, or messages come that do not belong into it.
"""

from __future__ import annotations

from typing import Protocol

from leveret.core.queues.head import expiration_ms_of
from leveret.core.queues.messages import Messages, joined
from leveret.wire.content_header import Traits


class Gatherer(Protocol):
    """A publisher's place for messages to one queue: it appends to the columns that the queue has open.

    Attributes:
        traits: the traits of its last message; None once the columns are closed.
    """

    routes: list[bytes]
    headers: list[bytes]
    bodies: list[bytes]
    traits: Traits | None


class OpenMessages(Messages):
    """The messages that a queue gathers between two flushes: all its publishers append to the same columns.

    So a queue that gets few messages from each of many reads costs no object, and no join, for each read. Until
    `close` the columns grow, and `body_bytes` is 0.
    """

    __slots__ = ("_gatherers", "terms")

    def __init__(self, terms: tuple[bytes, int]) -> None:
        """Begin without messages; `terms` are those of all of them (wire.content_header)."""
        expiration, priority = terms
        super().__init__(
            [],
            [],
            [],
            body_bytes=0,
            expiration_ms=expiration_ms_of(expiration) if expiration else None,
            priority=priority,
            is_persistent=False,
        )
        self.terms = terms
        self._gatherers: list[Gatherer] = []

    def admit(self, gatherer: Gatherer, traits: Traits) -> None:
        """Let a publisher append messages of these traits, whose terms must be the right ones, until `close`."""
        if gatherer.bodies is not self.bodies:
            gatherer.routes, gatherer.headers, gatherer.bodies = self.routes, self.headers, self.bodies
            self._gatherers.append(gatherer)
        gatherer.traits = traits
        if traits.is_persistent:
            self._is_persistent = True

    def close(self) -> None:
        """End the appending: publishers have to be admitted to other columns."""
        for gatherer in self._gatherers:
            gatherer.traits = None
        self._gatherers.clear()
        self.body_bytes = sum(map(len, self.bodies))


class Gathered:
    """See the module.

    Attributes:
        parts: the messages; the open part is the last one.
    """

    __slots__ = ("_bytes", "_count", "_open", "parts")

    def __init__(self) -> None:
        """Begin without messages."""
        self.parts: list[Messages] = []
        self._open: OpenMessages | None = None
        # Of the parts that are not open.
        self._count = self._bytes = 0

    def __len__(self) -> int:
        """The number of messages."""
        return self._count + (0 if self._open is None else len(self._open))

    @property
    def body_bytes(self) -> int:
        """The octets of their bodies."""
        return self._bytes + (0 if self._open is None else sum(map(len, self._open.bodies)))

    def add(self, messages: Messages) -> None:
        """Add a part; queues may share it."""
        if self._open is not None:
            self.close()
        self.parts.append(messages)
        self._count += len(messages.bodies)
        self._bytes += messages.body_bytes

    def open(self, terms: tuple[bytes, int]) -> OpenMessages:
        """The part to which messages of these terms are appended."""
        found = self._open
        if found is None or found.terms != terms:
            self.close()
            found = self._open = OpenMessages(terms)
            self.parts.append(found)
        return found

    def close(self) -> None:
        """Close the open part: publishers ask for another before their next message."""
        closing, self._open = self._open, None
        if closing is not None:
            closing.close()
            self._count += len(closing.bodies)
            self._bytes += closing.body_bytes

    def take(self) -> list[Messages]:
        """The messages, once, in as few parts as possible."""
        self.close()
        parts, self.parts = self.parts, []
        self._count = self._bytes = 0
        return joined(parts)
