"""The books of a simulated stream: which message is at which offset, as its readers see it.

| fault | meaning |
|---|---|
| altered | an offset had another message for an earlier reader, or a body is not that of its message |
| disordered | a reader got an offset out of turn, or a publisher's messages are not in their order |
| duplicated | a message is at two offsets |
| lost | a confirmed message is at no offset at the end |
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from leveret.testing.simulation.books import BookedMessage, BooksFault, RunBooks


@dataclass(slots=True)
class StreamBooks:
    """One stream.

    Attributes:
        name: of the stream.
        books: of the run, where its messages are noted when they are published.
        at: the number of the message at each offset that a reader has seen.
    """

    name: str
    books: RunBooks
    at: dict[int, int] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)

    def read(self, offset: int, number: str, body: bytes, before: int | None) -> None:
        """A reader got a message; `before` is the offset that it got last on this connection.

        Raises:
            BooksFault: that must not be.
        """
        where = f"offset {offset} of stream {self.name}"
        message = self.books.messages.get((self.name, int(number))) if number.isdigit() else None
        if message is None or message.body != body:
            raise BooksFault(f"altered: {where} has message {number!r} with {body[:60]!r}")
        if before is not None and offset != before + 1:
            raise BooksFault(f"disordered: {where} came behind offset {before}")
        if self.at.setdefault(offset, message.number) != message.number:
            raise BooksFault(f"altered: {where} has message {number}, and had {self.at[offset]}")
        if self._offsets.setdefault(message.number, offset) != offset:
            raise BooksFault(
                f"duplicated: message {number} is at {where}, and at {self._offsets[message.number]}"
            )

    def judge(self) -> None:
        """Compare with the publishers' books once a reader has read all. Raises BooksFault."""
        last: dict[str, int] = defaultdict(int)
        for offset, number in sorted(self.at.items()):
            message = self._message(number)
            if number < last[message.publisher]:
                raise BooksFault(
                    f"disordered: message {number} is at offset {offset}, behind {last[message.publisher]}"
                )
            last[message.publisher] = number
        lost = [
            each.number
            for (queue, number), each in self.books.messages.items()
            if queue == self.name and each.is_confirmed and number not in self._offsets
        ]
        if lost:
            raise BooksFault(f"lost: {len(lost)} confirmed messages of stream {self.name}, first {lost[:10]}")

    def _message(self, number: int) -> BookedMessage:
        return self.books.messages[self.name, number]
