"""The books of a simulated run: what applications know of each message, judged as they learn of it and at the end.

| fault | a message is |
|---|---|
| lost | confirmed, never settled, and not found at the end |
| resurrected | delivered, or found, after a later answer had shown that its settlement is in the log |
| duplicated | found twice at the end |
| unflagged | delivered without `redelivered` twice |
| disordered | found behind a message that the same publisher published later on the same connection |
| altered | delivered with another body, or from another queue |
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


class BooksFault(Exception):
    """The books do not balance; the text names the fault and the message."""


@dataclass(slots=True)
class BookedMessage:
    """One message, by its publisher.

    Attributes:
        number: unique in the run; later messages have higher numbers.
        queue: where it was published to.
        publisher: the publisher, and the number of its connection.
        is_confirmed: the publisher has the confirm.
        is_first_delivered: a consumer got it without `redelivered`.
        is_tried: a consumer has acknowledged it.
        is_settled: a later answer showed that the acknowledgement is in the log.
    """

    number: int
    queue: str
    publisher: str
    is_confirmed: bool = False
    is_first_delivered: bool = False
    is_tried: bool = False
    is_settled: bool = False

    @property
    def body(self) -> bytes:
        """Its octets: of many sizes, and told from those of any other message."""
        size = 40 + self.number * 7919 % 600
        return f"{self.queue} {self.number} ".encode().ljust(size, b".")


@dataclass(slots=True)
class RunBooks:
    """All messages of a run.

    Attributes:
        messages: by number.
        confirmed, settled: counts.
    """

    messages: dict[int, BookedMessage] = field(default_factory=dict)
    confirmed: int = 0
    settled: int = 0

    def published(self, queue: str, publisher: str) -> BookedMessage:
        """Note a message that is about to be published."""
        message = BookedMessage(len(self.messages) + 1, queue, publisher)
        self.messages[message.number] = message
        return message

    def confirm(self, message: BookedMessage) -> None:
        """The publisher has a confirm."""
        if not message.is_confirmed:
            message.is_confirmed = True
            self.confirmed += 1

    def delivered(self, queue: str, number: str, body: bytes, *, redelivered: bool) -> BookedMessage:
        """A consumer got a message.

        Raises:
            BooksFault: that must not be.
        """
        message = self.messages.get(int(number)) if number.isdigit() else None
        if message is None or message.queue != queue or message.body != body:
            raise BooksFault(f"altered: queue {queue} delivered message {number!r} with {body[:60]!r}")
        if message.is_settled:
            raise BooksFault(
                f"resurrected: message {number} of queue {queue} was delivered after it was settled"
            )
        if message.is_first_delivered and not redelivered:
            raise BooksFault(f"unflagged: message {number} of queue {queue} came again without `redelivered`")
        # Two connections: what is delivered again may arrive before the first delivery does.
        message.is_first_delivered |= not redelivered
        message.is_tried = False
        return message

    def settle(self, message: BookedMessage) -> None:
        """An answer shows that the acknowledgement is in the log."""
        if not message.is_settled:
            message.is_settled = True
            self.settled += 1

    def judge(self, found: dict[str, list[int]]) -> None:
        """Compare with all that is left, by queue and in its order.

        Raises:
            BooksFault: the books do not balance.
        """
        seen: set[int] = set()
        for queue, numbers in found.items():
            last: dict[str, int] = defaultdict(int)
            for number in numbers:
                message = self.messages[number]
                if number in seen:
                    raise BooksFault(f"duplicated: message {number} is twice in queue {queue}")
                seen.add(number)
                if number < last[message.publisher]:
                    raise BooksFault(
                        f"disordered: message {number} is behind {last[message.publisher]} in {queue}"
                    )
                last[message.publisher] = number
        lost = [
            message.number
            for message in self.messages.values()
            if message.is_confirmed and not message.is_tried and message.number not in seen
        ]
        if lost:
            some = ", ".join(map(str, lost[:10]))
            raise BooksFault(f"lost: {len(lost)} confirmed messages are nowhere, first {some}")
