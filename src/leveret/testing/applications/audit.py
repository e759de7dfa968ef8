"""The audit: the applications' own books against the messages that a broker has in the end.

`covered_ms` has, by queue, the time up to which everything must be present. After a restart on the same disk that is
`FOREVER`; on a standby it is the time of the last transferred record. A confirm or an ack that a client knew before
that time must hold; later ones lie within the lag, and are counted, not judged. A message whose ack was on the way when
its broker died may be present or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final, Self

from leveret.testing.applications.applications import AppMessage, ReceivedMessage
from leveret.testing.applications.books import Books, read_book
from leveret.testing.applications.contents import is_same

FOREVER: Final = 1 << 63


@dataclass(slots=True)
class QueueBooks:
    """The totals of one queue.

    Attributes:
        lost: confirmed, not acked, not found.
        lost_unlawfully: those of them that were confirmed before `covered_ms`.
        resurrected: found although acked before `covered_ms`, or delivered again after the ack.
        acked_in_lag: found, acked after `covered_ms`.
        duplicated: found more than once.
        disordered: found behind a message that was published later.
        altered: with another queue, exchange, key, property or body than published.
    """

    queue: str
    confirmed: int = 0
    acked: int = 0
    transferred: int = 0
    recovered: int = 0
    lost: int = 0
    lost_unlawfully: int = 0
    resurrected: int = 0
    acked_in_lag: int = 0
    duplicated: int = 0
    altered: int = 0
    disordered: int = 0

    @property
    def balances(self) -> bool:
        """Return whether nothing forbidden happened."""
        return not (
            self.lost_unlawfully or self.resurrected or self.duplicated or self.altered or self.disordered
        )


@dataclass(slots=True)
class Audit:
    """All queues, and the lag by which they are judged."""

    lines: list[QueueBooks]
    lag_ms: int = 0
    lag_messages: int = 0

    @property
    def balances(self) -> bool:
        """Return whether every queue balances."""
        return all(line.balances for line in self.lines)

    @property
    def total(self) -> QueueBooks:
        """Return the sum of all queues."""
        total = QueueBooks("all")
        for name in [field.name for field in fields(QueueBooks) if field.name != "queue"]:
            setattr(total, name, sum(getattr(line, name) for line in self.lines))
        return total


@dataclass(slots=True)
class Account:
    """The books of all groups: for each number the time of its last entry."""

    confirmed: dict[int, int]
    delivered: dict[int, int]
    tried: dict[int, int]
    acked: dict[int, int]

    @classmethod
    def read(cls, *groups: Books) -> Self:
        """Read the books of several groups of applications."""

        def merged(name: str) -> dict[int, int]:
            entries = [entry for books in groups for entry in read_book(getattr(books, name))]
            return dict(sorted(entries, key=lambda entry: entry[1]))

        return cls(merged("confirmed"), merged("delivered"), merged("tried"), merged("acked"))

    def may_be_settled(self, number: int) -> bool:
        """Return whether the message's ack was taken, or was on the way and no later delivery contradicts it."""
        tried = self.tried.get(number)
        return number in self.acked or (tried is not None and self.delivered.get(number, 0) <= tried)

    def came_again(self, number: int) -> bool:
        """Return whether the message was delivered after its ack was taken."""
        acked = self.acked.get(number)
        return acked is not None and self.delivered.get(number, 0) > acked


def audit(
    published: Iterable[AppMessage],
    account: Account,
    found: Mapping[str, Sequence[ReceivedMessage]],
    covered_ms: Mapping[str, int],
    transferred: Mapping[str, int] | None = None,
) -> Audit:
    """Compare, for the queues of `covered_ms`; `found` has each queue's messages in its order."""
    messages = {message.number: message for message in published}
    lines = {queue: QueueBooks(queue, transferred=(transferred or {}).get(queue, 0)) for queue in covered_ms}
    for queue, taken in found.items():
        _judge_found(lines[queue], taken, messages, account, covered_ms[queue])
    there = {message.number for taken in found.values() for message in taken}
    result = Audit(list(lines.values()))
    for number, confirmed_ms in account.confirmed.items():
        queue = messages[number].queue
        line = lines[queue]
        line.confirmed += 1
        line.acked += number in account.acked
        line.resurrected += account.came_again(number) and number not in there
        result.lag_messages += confirmed_ms >= covered_ms[queue]
        if number not in there and not account.may_be_settled(number):
            line.lost += 1
            line.lost_unlawfully += confirmed_ms < covered_ms[queue]
    return result


def _judge_found(
    line: QueueBooks,
    taken: Sequence[ReceivedMessage],
    messages: Mapping[int, AppMessage],
    account: Account,
    covered_ms: int,
) -> None:
    numbers = [message.number for message in taken]
    line.recovered = len(numbers)
    line.duplicated = sum(count - 1 for count in Counter(numbers).values())
    line.disordered = sum(later < earlier for earlier, later in pairwise(numbers))
    for message in taken:
        line.altered += not _same(message, messages.get(message.number), line.queue)
        acked_ms = account.acked.get(message.number)
        if acked_ms is not None:
            if acked_ms < covered_ms:
                line.resurrected += 1
            else:
                line.acked_in_lag += 1


def _same(taken: ReceivedMessage, published: AppMessage | None, queue: str) -> bool:
    if published is None or queue != published.queue:
        return False
    way = (taken.exchange, taken.routing_key, taken.body)
    return way == (published.exchange, published.routing_key, published.body) and is_same(
        vars(published.properties), vars(taken.properties)
    )
