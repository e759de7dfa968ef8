"""The books of a simulated run: the applications' facts about each message, judged as they arrive and at the end.

| fault | a message is |
|---|---|
| lost | confirmed, never settled, and not found at the end, neither in its queue nor among the dead letters |
| resurrected | delivered, or found, after a later answer had shown that its settlement is in the log |
| duplicated | found twice in one queue at the end |
| unflagged | delivered without `redelivered` twice |
| disordered | found behind a message that the same publisher published later on the same connection |
| altered | delivered with another body or other properties, or from another queue |
| uncommitted | delivered although its transaction was never committed |

A message that is published to several queues has a copy in each. A rejected message may be in its own queue, in the
queue of dead letters, or in both: the original is settled only when the dead letter is durable. One that its queue
keeps as dead (at-least-once) never comes to a consumer again, and may be among the dead letters several times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from leveret.testing.applications.contents import is_same, properties_of

COPIES_MAX: Final = 1_000_000
"""The permitted copies where there may be any number."""


class BooksFault(Exception):
    """The books do not balance; the text names the fault and the message."""


class ResurrectionFault(BooksFault):
    """A message arrived after it was settled."""


@dataclass(slots=True)
class BookedMessage:
    """The copy of one message in one queue.

    Attributes:
        number: the message's number, unique in the run; later messages have higher numbers.
        queue: the queue to which it was published.
        publisher: the publisher, and the number of its connection; empty for a dead letter, which has no order.
        is_withheld: its transaction is not committed.
        is_confirmed: the publisher has the confirm.
        is_first_delivered: a consumer got it without `redelivered`.
        is_tried: a consumer has acknowledged it, or its queue was purged or deleted.
        is_settled: a later answer showed that the settlement is in the log.
        is_buried: a later answer showed that the log names it as dead.
        count_max: the highest permitted number of copies in the queue: of a dead letter one for each rejection.
        dead: its copy in the queue of dead letters, after a rejection.
    """

    number: int
    queue: str
    publisher: str
    is_withheld: bool = False
    is_confirmed: bool = False
    is_first_delivered: bool = False
    is_tried: bool = False
    is_settled: bool = False
    is_buried: bool = False
    count_max: int = 1
    dead: BookedMessage | None = None

    @property
    def body(self) -> bytes:
        """Its octets: a text with its number, padded to one of many sizes."""
        size = 40 + self.number * 7919 % 600
        return f"message {self.number} ".encode().ljust(size, b".")

    @property
    def properties(self) -> dict[str, Any]:
        """Its properties, of which no two messages have the same ones."""
        return _properties_of(self.number)

    def is_as_published(self, body: bytes, properties: Mapping[str, Any]) -> bool:
        """Return whether a delivery has its octets and properties."""
        return self.body == body and is_same(self.properties, properties)

    def is_there(self, found: set[tuple[str, int]]) -> bool:
        """Return whether a copy is in its place, or none has to be."""
        is_dead = self.dead is not None and self.dead.is_there(found)
        return is_dead or self.is_tried or (self.queue, self.number) in found


@lru_cache(maxsize=4096)
def _properties_of(number: int) -> dict[str, Any]:
    """Return the properties of a message, which publisher, reader and count ask for; nobody changes them."""
    return properties_of(number)


def number_in(body: bytes) -> int:
    """Return the number of the message with this body; 0 for a body of no message."""
    word = body.removeprefix(b"message ").partition(b" ")[0]
    return int(word) if word.isdigit() else 0


@dataclass(slots=True)
class RunBooks:
    """All messages of a run.

    Attributes:
        messages: the copies, by queue and number.
        confirmed: the number of confirmed copies.
        settled: the number of settled copies.
        may_lose: messages may be lost and may come back, because a policy of the run lets an incomplete mirror lead.
    """

    messages: dict[tuple[str, int], BookedMessage] = field(default_factory=dict)
    confirmed: int = 0
    settled: int = 0
    may_lose: bool = False
    _number: int = 0

    def published(
        self, queues: Iterable[str], publisher: str, *, is_withheld: bool = False
    ) -> list[BookedMessage]:
        """Note a message that is about to be published to some queues; return its copies."""
        self._number += 1
        copies = [BookedMessage(self._number, queue, publisher, is_withheld=is_withheld) for queue in queues]
        self.messages |= {(each.queue, each.number): each for each in copies}
        return copies

    def confirm(self, copies: Iterable[BookedMessage]) -> None:
        """Note a confirm that the publisher has."""
        for message in copies:
            if not message.is_confirmed:
                message.is_confirmed = True
                self.confirmed += 1

    def reject(self, message: BookedMessage, dead_queue: str, *, is_kept: bool = False) -> None:
        """Note that a consumer is about to reject a message, whose queue makes it a dead letter in `dead_queue`.

        With `is_kept` its queue keeps it until that queue has it, and each loss of a node may publish it again.
        """
        if message.dead is None:
            message.dead = BookedMessage(message.number, dead_queue, "", count_max=0)
            self.messages[dead_queue, message.number] = message.dead
        message.dead.count_max += COPIES_MAX if is_kept else 1
        message.dead.is_tried = False

    def keep_dead(self, message: BookedMessage) -> None:
        """Note an answer which shows that the log names a rejected message as dead."""
        message.is_buried = True

    def look_up(self, queue: str, number: str, body: bytes, properties: Mapping[str, Any]) -> BookedMessage:
        """Return the message that a queue has. Raises BooksFault: it is another one than was published there."""
        message = self.messages.get((queue, int(number))) if number.isdigit() else None
        if message is None or not message.is_as_published(body, properties):
            raise BooksFault(
                f"altered: queue {queue} delivered message {number!r} with {properties} and {body[:60]!r}"
            )
        return message

    def delivered(
        self, queue: str, number: str, body: bytes, properties: Mapping[str, Any], *, redelivered: bool
    ) -> BookedMessage:
        """Note a delivery; return the message.

        Raises:
            BooksFault: the delivery is a fault.
        """
        message = self.look_up(queue, number, body, properties)
        if message.is_withheld:
            raise BooksFault(f"uncommitted: message {number} of queue {queue} was delivered")
        if message.count_max == 1 and not self.may_lose:
            self._judge_delivery(message, redelivered=redelivered)
        # The deliveries have different connections, so a later one may arrive before the first one.
        message.is_first_delivered |= not redelivered
        message.is_tried = False
        return message

    def _judge_delivery(self, message: BookedMessage, *, redelivered: bool) -> None:
        where = f"message {message.number} of queue {message.queue}"
        if message.is_settled or message.is_buried:
            fate = "settled" if message.is_settled else "dead"
            raise ResurrectionFault(f"resurrected: {where} was delivered after it was {fate}")
        if message.is_first_delivered and not redelivered:
            raise BooksFault(f"unflagged: {where} came again without `redelivered`")

    def of_queue(self, queue: str) -> list[BookedMessage]:
        """Return the messages that were published to a queue and are not settled."""
        return [each for (name, _), each in self.messages.items() if name == queue and not each.is_settled]

    def owes(self, message: BookedMessage) -> bool:
        """Return whether a message has to be found unless it was delivered: a confirm promised that."""
        return message.is_confirmed

    def settle(self, message: BookedMessage) -> None:
        """Note an answer which shows that the settlement is in the log."""
        if not message.is_settled:
            message.is_settled = message.is_tried = True
            self.settled += 1

    def judge(self, found: dict[str, list[int]]) -> None:
        """Compare the books with the numbers of the remaining messages, by queue, in the queue's order.

        Raises:
            BooksFault: the books do not balance.
        """
        seen: dict[tuple[str, int], int] = defaultdict(int)
        for queue, numbers in found.items():
            last: dict[str, int] = defaultdict(int)
            for number in numbers:
                message = self.messages[queue, number]
                seen[queue, number] += 1
                if seen[queue, number] > message.count_max:
                    raise BooksFault(
                        f"duplicated: message {number} is {seen[queue, number]} times in {queue}"
                    )
                if message.publisher and number < last[message.publisher]:
                    raise BooksFault(
                        f"disordered: message {number} is behind {last[message.publisher]} in {queue}"
                    )
                last[message.publisher] = number
        self._judge_lost(found.keys(), set(seen))

    def _judge_lost(self, queues: Collection[str], found: set[tuple[str, int]]) -> None:
        lost = [
            f"{message.number} of {message.queue}"
            for message in self.messages.values()
            if message.queue in queues and self.owes(message) and not message.is_there(found)
        ]
        if lost and not self.may_lose:
            raise BooksFault(
                f"lost: {len(lost)} confirmed messages are nowhere, first {', '.join(lost[:10])}"
            )
