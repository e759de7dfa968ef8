from __future__ import annotations

from pathlib import Path

import pytest

from leveret.testing.applications.applications import AppMessage, ReceivedMessage
from leveret.testing.applications.books import Book, Books
from leveret.testing.applications.mixed_messages import mixed_messages
from leveret.testing.demo.counts import Counts, counted

PUBLISHED = list(mixed_messages(["q"], 4))


def books(folder: Path, **entries: list[tuple[int, int]]) -> Books:
    made = Books(folder)
    for name, each in entries.items():
        with Book(getattr(made, name)) as book:
            for number, time_ms in each:
                book.write([number], time_ms)
    return made


def found(*numbers: int) -> dict[str, list[ReceivedMessage]]:
    def taken(message: AppMessage) -> ReceivedMessage:
        return ReceivedMessage(
            message.number, message.exchange, message.routing_key, message.body, message.properties
        )

    return {"q": [taken(PUBLISHED[number]) for number in numbers]}


def counts(folder: Path, left: tuple[int, ...], acked_again: bool = False) -> Counts:
    publisher = books(folder / "p", confirmed=[(0, 1), (1, 1), (2, 1)])
    one = books(folder / "c1", delivered=[(0, 2), (1, 2)], tried=[(0, 3)], acked=[(0, 4)])
    other = books(folder / "c2", delivered=[(0, 3)], acked=[(0, 5)] if acked_again else [])
    return counted(PUBLISHED, [publisher, one, other], found(*left))


def test_what_was_confirmed_is_settled_or_there(tmp_path: Path) -> None:
    result = counts(tmp_path, (1, 2))
    assert result.audit.balances
    assert result.redelivered == {"q": 1}
    assert (result.unanswered, result.unanswered_there) == (1, 0)


def test_a_flight_without_a_confirm_may_be_there(tmp_path: Path) -> None:
    result = counts(tmp_path, (1, 2, 3))
    assert result.audit.balances
    assert (result.unanswered, result.unanswered_there) == (1, 1)


@pytest.mark.parametrize(
    ("left", "fault"), [((1,), "lost"), ((0, 1, 2), "resurrected"), ((1, 2, 2), "duplicated")]
)
def test_a_fault_is_counted_and_the_books_do_not_balance(
    tmp_path: Path, left: tuple[int, ...], fault: str
) -> None:
    result = counts(tmp_path, left)
    assert not result.audit.balances
    assert getattr(result.audit.total, fault) == 1


def test_a_message_that_two_consumers_settled_was_there_twice(tmp_path: Path) -> None:
    result = counts(tmp_path, (1, 2), acked_again=True)
    assert not result.audit.balances
    assert result.audit.total.duplicated == 1
