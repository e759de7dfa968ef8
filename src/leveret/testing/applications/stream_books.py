"""The books of a stream: the message at each offset, as the readers see it.

| fault | meaning |
|---|---|
| altered | an offset had another message for an earlier reader, or body or properties are not those of its message |
| disordered | a reader got an offset out of turn, or a publisher's messages are not in their order |
| skipped | a reader did not get a message that is between two that it got |
| duplicated | a message is at two offsets |
| lost | a confirmed message is at no offset at the end |

A stored offset may itself take up an offset of the stream. At that offset no reader gets a message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leveret.testing.applications.contents import is_streamed
from leveret.testing.applications.run_books import BookedMessage, BooksFault, RunBooks, number_in


@dataclass(slots=True)
class StreamBooks:
    """One stream.

    Attributes:
        name: the stream's name.
        books: the books of the run, with the published messages of the stream.
        at: by offset, the number of the message that a reader got there.
    """

    name: str
    books: RunBooks
    at: dict[int, int] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)
    _empty: set[int] = field(default_factory=set)

    def read(
        self, offset: int, body: bytes, before: int | None, properties: Mapping[str, Any] | None = None
    ) -> None:
        """Note a message that a reader got. `before` is the reader's previous offset, None for its first message.

        `properties` are those of a reader over AMQP 0-9-1. Publishers of the stream protocol send bodies only.

        Raises:
            BooksFault: the message is a fault.
        """
        where = f"offset {offset} of stream {self.name}"
        number = number_in(body)
        message = self.books.messages.get((self.name, number))
        if message is None or message.body != body:
            raise BooksFault(f"altered: {where} has message {number} with {body[:60]!r}")
        if properties and "message_id" in properties and not is_streamed(message.properties, properties):
            raise BooksFault(f"altered: {where} has message {number} with {properties}")
        if before is not None:
            self._follows(offset, before)
        if offset in self._empty:
            raise BooksFault(f"skipped: {where} has message {number}, which another reader did not get")
        if self.at.setdefault(offset, message.number) != message.number:
            raise BooksFault(f"altered: {where} has message {number}, and had {self.at[offset]}")
        if self._offsets.setdefault(message.number, offset) != offset:
            raise BooksFault(
                f"duplicated: message {number} is at {where}, and at {self._offsets[message.number]}"
            )

    def _follows(self, offset: int, before: int) -> None:
        """Check two offsets that a reader got one after the other, without any between them."""
        where = f"offset {offset} of stream {self.name}"
        if offset <= before:
            raise BooksFault(f"disordered: {where} came behind offset {before}")
        between = range(before + 1, offset)
        if skipped := [each for each in between if each in self.at]:
            raise BooksFault(f"skipped: {where} came behind {before}, and messages are at {skipped[:5]}")
        self._empty.update(between)

    def begin_anew(self) -> None:
        """Forget which message is at which offset: another site has the stream now, perhaps without its newest ones."""
        self.at.clear()
        self._offsets.clear()
        self._empty.clear()

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
