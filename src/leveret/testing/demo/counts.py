"""The books of a cluster's applications, and the messages left in its queues: counted and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from leveret.testing.applications.applications import AppMessage, ReceivedMessage
from leveret.testing.applications.audit import FOREVER, Account, Audit, audit
from leveret.testing.applications.books import Books, read_book


class Counts(NamedTuple):
    """The totals of all applications' books.

    Attributes:
        audit: the verdict.
        redelivered: deliveries of each queue beyond the first of a message.
        unanswered: flights that were published and never confirmed, since their node was gone.
        unanswered_there: those of them that are in a queue nevertheless.
    """

    audit: Audit
    redelivered: Mapping[str, int]
    unanswered: int
    unanswered_there: int


def counted(
    published: Sequence[AppMessage], groups: Iterable[Books], found: Mapping[str, Sequence[ReceivedMessage]]
) -> Counts:
    """Judge the books of all applications, and the messages left in the queues at the end."""
    groups = list(groups)
    queues = {message.number: message.queue for message in published}
    account = Account.read(*groups)
    result = audit(published, account, found, dict.fromkeys(sorted(set(queues.values())), FOREVER))
    lines = {line.queue: line for line in result.lines}
    settled, delivered = (
        Counter(number for books in groups for number, _ in read_book(getattr(books, name)))
        for name in ("acked", "delivered")
    )
    for number in settled:
        # A consumer that settles a message twice received it twice.
        lines[queues[number]].duplicated += settled[number] - 1
    redelivered: Counter[str] = Counter()
    for number, times in delivered.items():
        redelivered[queues[number]] += times - 1
    there = {taken.number for each in found.values() for taken in each} | delivered.keys()
    unanswered = queues.keys() - account.confirmed.keys()
    return Counts(result, redelivered, len(unanswered), len(unanswered & there))
