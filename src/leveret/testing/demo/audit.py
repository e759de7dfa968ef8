"""The audit: the publisher's and consumers' own books against what the standby gave back.

`covered_ms` is the moment up to which the standby had everything: the timestamp of the last chunk that
was transferred. A confirm or an ack that a client knew of before that moment must be honoured; what
came later lies within the lag, and is counted, not judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from leveret.testing.demo.books import read_book
from leveret.testing.demo.clients import CONTENT_TYPE
from leveret.testing.demo.flights import EXCHANGE, QUEUES, Flight, queue_of


@dataclass(slots=True)
class QueueBooks:
    """One line of the table.

    Attributes:
        lost: confirmed, not acked, not recovered.
        lost_unlawfully: of these, confirmed before `covered_ms`.
        resurrected: recovered although acked before `covered_ms`.
        acked_in_lag: recovered, acked after `covered_ms`.
        altered: recovered with another exchange, key, property or body than were published.
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
        """Whether nothing happened that must not."""
        return not (
            self.lost_unlawfully or self.resurrected or self.duplicated or self.altered or self.disordered
        )


@dataclass(slots=True)
class Audit:
    """All lines, and the lag they are judged by."""

    lines: list[QueueBooks]
    lag_ms: int
    lag_messages: int

    @property
    def balances(self) -> bool:
        """Whether every line does."""
        return all(line.balances for line in self.lines)


def audit(
    published: list[Flight],
    confirmed_book: Path,
    acked_book: Path,
    drained: dict[str, list[tuple[int, str, str, bytes, str, dict[str, Any]]]],
    transferred: dict[str, int],
    *,
    killed_ms: int,
    covered_ms: int,
) -> Audit:
    """Compare; `drained` and `transferred` are by queue."""
    confirmed = dict(read_book(confirmed_book))
    acked = dict(read_book(acked_book))
    lines = {queue: QueueBooks(queue, transferred=transferred.get(queue, 0)) for queue in QUEUES}
    for queue, messages in drained.items():
        _count_recovered(lines[queue], messages, published, acked, covered_ms)
    recovered = {message[0] for messages in drained.values() for message in messages}
    for number, confirmed_ms in confirmed.items():
        line = lines[queue_of(published[number].routing_key)]
        line.confirmed += 1
        line.acked += number in acked
        if number not in acked and number not in recovered:
            line.lost += 1
            line.lost_unlawfully += confirmed_ms < covered_ms
    in_lag = sum(confirmed_ms >= covered_ms for confirmed_ms in confirmed.values())
    return Audit(list(lines.values()), max(0, killed_ms - covered_ms), in_lag)


def _count_recovered(
    line: QueueBooks, messages: list[Any], published: list[Flight], acked: dict[int, int], covered_ms: int
) -> None:
    numbers = [message[0] for message in messages]
    line.recovered = len(numbers)
    line.duplicated = sum(count - 1 for count in Counter(numbers).values())
    line.disordered = sum(later < earlier for earlier, later in pairwise(numbers))
    for number, exchange, routing_key, body, content_type, headers in messages:
        flight = published[number]
        same = (exchange, routing_key, body, content_type) == (
            EXCHANGE,
            flight.routing_key,
            flight.body,
            CONTENT_TYPE,
        )
        line.altered += not (same and headers.get("number") == number)
        if number in acked:
            if acked[number] < covered_ms:
                line.resurrected += 1
            else:
                line.acked_in_lag += 1
