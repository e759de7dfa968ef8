"""Books of two sites: what a fail-over puts in doubt, and what it must not."""

from __future__ import annotations

import pytest

from leveret.testing.applications.run_books import BookedMessage, BooksFault
from leveret.testing.simulation.applications.site_books import SiteBooks


def confirmed(books: SiteBooks, queue: str, at_s: float) -> BookedMessage:
    [message] = books.published([queue], "p 1")
    books.clock = lambda: at_s
    books.confirm([message])
    return message


def test_what_came_after_the_covered_moment_is_in_doubt_unless_both_sites_confirmed_it() -> None:
    books = SiteBooks()
    books.confirmed_at_both.add("both")
    early, late, both = (confirmed(books, *each) for each in (("one", 1.0), ("one", 3.0), ("both", 3.0)))
    books.settle(early)
    assert books.fail_over(2.0) == (1, 1)
    assert books.doubtful == [late]
    assert [each.is_confirmed for each in (early, late, both)] == [True, False, True]


def test_what_a_promoted_site_delivers_once_more_is_marked() -> None:
    books = SiteBooks()
    message = confirmed(books, "one", 1.0)
    delivery = ("one", str(message.number), message.body, message.properties)
    books.delivered(*delivery, redelivered=False)
    books.fail_over(0.0)
    with pytest.raises(BooksFault, match="unflagged"):
        books.delivered(*delivery, redelivered=False)
    books.delivered(*delivery, redelivered=True)


def test_all_of_a_queue_whose_incarnation_has_ended_is_in_doubt() -> None:
    books = SiteBooks()
    early = confirmed(books, "switched", 1.0)
    books.settle(early)
    assert books.fail_over(2.0, {"switched"}) == (1, 1)


def test_a_second_fail_over_doubts_earlier_messages_only_if_it_covers_nothing() -> None:
    books = SiteBooks()
    books.confirmed_at_both.add("both")
    early, both = confirmed(books, "one", 1.0), confirmed(books, "both", 1.0)
    books.fail_over(2.0)
    assert books.fail_over(5.0) == (0, 0)
    assert books.fail_over(0.0) == (2, 0)
    assert books.doubtful == [early, both]
