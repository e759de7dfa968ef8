"""What the books of a cluster's applications say, and what was left in its queues: counted, and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from leveret.testing.applications.applications import AppMessage, Taken
from leveret.testing.applications.audit import FOREVER, Account, Audit, audit
from leveret.testing.applications.books import Books, read_book


class Counts(NamedTuple):
    """What the books of all applications say together.

    Attributes:
        audit: the judgement.
        redelivered: deliveries of each queue beyond the first of a message.
        unanswered: flights that were published and never confirmed, their node being gone.
        unanswered_there: of these, those that are there nevertheless.
    """

    audit: Audit
    redelivered: Mapping[str, int]
    unanswered: int
    unanswered_there: int


def counted(
    published: Sequence[AppMessage], groups: Iterable[Books], found: Mapping[str, Sequence[Taken]]
) -> Counts:
    """Judge by the books of all applications, and by what was left in the queues at the end."""
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
        # Whoever settles a message twice got two of it.
        lines[queues[number]].duplicated += settled[number] - 1
    redelivered: Counter[str] = Counter()
    for number, times in delivered.items():
        redelivered[queues[number]] += times - 1
    there = {taken.number for each in found.values() for taken in each} | delivered.keys()
    unanswered = queues.keys() - account.confirmed.keys()
    return Counts(result, redelivered, len(unanswered), len(unanswered & there))
