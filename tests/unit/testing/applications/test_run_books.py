"""The books of a simulated run say what must not be, and nothing else."""

from __future__ import annotations

import pytest

from leveret.testing.applications.run_books import BookedMessage, BooksFault, ResurrectionFault, RunBooks
from leveret.testing.applications.stream_books import StreamBooks


def delivered(books: RunBooks, message: BookedMessage, *, redelivered: bool = False) -> BookedMessage:
    return books.delivered(
        message.queue, str(message.number), message.body, message.properties, redelivered=redelivered
    )


def test_a_message_is_not_lost_altered_doubled_disordered_or_delivered_again_without_a_flag() -> None:
    books = RunBooks()
    (one,), (other,) = books.published(["q"], "p"), books.published(["q"], "p")
    books.confirm([one])
    with pytest.raises(BooksFault, match="altered"):
        books.delivered("q2", "1", one.body, one.properties, redelivered=False)
    with pytest.raises(BooksFault, match="altered"):
        books.delivered("q", "1", other.body, one.properties, redelivered=False)
    with pytest.raises(BooksFault, match="altered"):
        books.delivered("q", "1", one.body, other.properties, redelivered=False)
    delivered(books, one)
    with pytest.raises(BooksFault, match="unflagged"):
        delivered(books, one)
    with pytest.raises(BooksFault, match="lost: 1 confirmed"):
        books.judge({"q": [2]})
    with pytest.raises(BooksFault, match="duplicated"):
        books.judge({"q": [1, 1]})
    with pytest.raises(BooksFault, match="disordered"):
        books.judge({"q": [2, 1]})
    books.judge({"q": [1]})
    books.settle(one)
    with pytest.raises(BooksFault, match="resurrected"):
        delivered(books, one, redelivered=True)
    books.judge({"q": []})
    assert (books.confirmed, books.settled, other.is_confirmed) == (1, 1, False)


def test_a_message_to_several_queues_has_to_be_in_each() -> None:
    books = RunBooks()
    books.confirm(books.published(["q", "r"], "p"))
    with pytest.raises(BooksFault, match="lost: 1 confirmed messages are nowhere, first 1 of r"):
        books.judge({"q": [1], "r": []})
    books.judge({"q": [1], "r": [1]})


def test_a_rejected_message_is_where_it_was_or_among_the_dead_letters_once_for_each_rejection() -> None:
    books = RunBooks()
    (message,) = books.published(["q"], "p")
    books.confirm([message])
    delivered(books, message)
    books.reject(message, "dead")
    for found in ({"q": [1], "dead": []}, {"q": [], "dead": [1]}, {"q": [1], "dead": [1]}):
        books.judge(found)
    with pytest.raises(BooksFault, match="lost"):
        books.judge({"q": [], "dead": []})
    with pytest.raises(BooksFault, match="duplicated: message 1 is 2 times in dead"):
        books.judge({"q": [], "dead": [1, 1]})
    delivered(books, message, redelivered=True)
    books.reject(message, "dead")
    books.judge({"q": [], "dead": [1, 1]})


def test_a_rejected_message_that_its_queue_keeps_comes_to_nobody_and_may_be_dead_several_times() -> None:
    books = RunBooks()
    (message,) = books.published(["q"], "p")
    books.confirm([message])
    delivered(books, message)
    books.reject(message, "dead", is_kept=True)
    delivered(books, message, redelivered=True)
    books.keep_dead(message)
    books.judge({"q": [], "dead": [1, 1]})
    with pytest.raises(ResurrectionFault, match="delivered after it was dead"):
        delivered(books, message, redelivered=True)
    with pytest.raises(BooksFault, match="lost"):
        books.judge({"q": [], "dead": []})


def test_nobody_gets_what_was_never_committed() -> None:
    books = RunBooks()
    (message,) = books.published(["q"], "p", is_withheld=True)
    with pytest.raises(BooksFault, match="uncommitted"):
        delivered(books, message)


def test_what_may_be_lost_is_not_judged_but_it_is_not_doubled_either() -> None:
    books = RunBooks(may_lose=True)
    books.confirm(books.published(["q"], "p"))
    books.judge({"q": []})
    with pytest.raises(BooksFault, match="duplicated"):
        books.judge({"q": [1, 1]})


def test_a_stream_has_one_message_at_each_offset_for_all_its_readers() -> None:
    books = RunBooks()
    stream = StreamBooks("s", books)
    one, other, third = (books.published(["s"], "p")[0] for _ in range(3))
    books.confirm([one, other])
    stream.read(0, one.body, None)
    with pytest.raises(BooksFault, match="altered: offset 0"):
        stream.read(0, other.body, None)
    with pytest.raises(BooksFault, match="disordered: offset 0"):
        stream.read(0, one.body, 0)
    with pytest.raises(BooksFault, match="duplicated: message 1"):
        stream.read(1, one.body, 0)
    with pytest.raises(BooksFault, match="lost: 1 confirmed"):
        stream.judge()
    stream.at.clear()
    stream.read(1, third.body, None)
    stream.read(2, other.body, 1)
    with pytest.raises(BooksFault, match="disordered: message 2"):
        stream.judge()


def test_a_reader_gets_each_message_between_two_but_an_offset_may_have_none() -> None:
    books = RunBooks()
    stream = StreamBooks("s", books)
    one, other, third = (books.published(["s"], "p")[0] for _ in range(3))
    stream.read(0, one.body, None)
    stream.read(2, other.body, 0)
    stream.read(3, third.body, 2)
    with pytest.raises(BooksFault, match="skipped: offset 1 of stream s has message 1"):
        stream.read(1, one.body, None)
    with pytest.raises(BooksFault, match="skipped: offset 3 of stream s came behind 0, and messages are at"):
        stream.read(3, third.body, 0)
