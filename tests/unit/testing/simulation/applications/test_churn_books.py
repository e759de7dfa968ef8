"""What is owed of queues that come and go: nothing that a removal may have met, and everything else."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from leveret.testing.applications.run_books import BookedMessage, BooksFault
from leveret.testing.simulation.applications.churn_books import ChurnBooks


def declared(books: ChurnBooks, queue: str = "q") -> None:
    books.declared(queue, books.declaring(queue))


def confirmed(books: ChurnBooks, queue: str = "q") -> BookedMessage:
    [message] = books.published((queue,), "p/1")
    books.confirm((message,))
    return message


def lost(books: ChurnBooks, queue: str = "q") -> bool:
    """Return whether the books miss a message in a queue that is empty."""
    owed = [message for message in books.messages.values() if message.queue == queue and books.owes(message)]
    with pytest.raises(BooksFault, match="lost") if owed else nullcontext():
        books.judge({queue: []})
    return bool(owed)


def test_a_confirmed_message_is_owed_until_its_queue_may_be_deleted_or_purged() -> None:
    books = ChurnBooks()
    declared(books)
    confirmed(books)
    assert lost(books)
    removal = books.removing("q", is_deletion=False)
    assert not lost(books)
    confirmed(books)
    books.removed(removal)
    assert not lost(books)
    confirmed(books)
    assert lost(books)


def test_what_comes_to_a_queue_that_may_not_be_there_is_not_owed() -> None:
    books = ChurnBooks()
    asked = books.declaring("q")
    confirmed(books)
    books.declared("q", asked)
    assert not lost(books)
    removal = books.removing("q", is_deletion=True)
    books.removed(removal)
    confirmed(books)
    assert not lost(books)
    declared(books)
    confirmed(books)
    assert lost(books)


def test_a_declaration_that_a_deletion_may_follow_makes_nothing_sure() -> None:
    books = ChurnBooks()
    asked = books.declaring("q")
    removal = books.removing("q", is_deletion=True)
    books.declared("q", asked)
    assert not books.is_sure("q")
    books.removed(removal)
    books.declared("q", asked)
    assert not books.is_sure("q")


def test_an_answer_to_a_deletion_and_a_declaration_in_one_makes_the_queue_sure() -> None:
    books = ChurnBooks()
    declared(books)
    removal = books.removing("q", is_deletion=True)
    books.declaring("q")
    books.replaced(removal)
    assert books.is_sure("q")
    confirmed(books)
    assert lost(books)


def test_another_deletion_meanwhile_may_have_come_behind_the_declaration() -> None:
    books = ChurnBooks()
    declared(books)
    removal = books.removing("q", is_deletion=True)
    books.declaring("q")
    other = books.removing("q", is_deletion=True)
    books.removed(other)
    books.replaced(removal)
    assert not books.is_sure("q")


def test_a_mandatory_message_that_did_not_come_back_is_there_although_the_declaration_is_under_way() -> None:
    books = ChurnBooks()
    books.declaring("q")
    [message] = books.published(("q",), "p/1")
    books.confirm_mandatory(message)
    assert lost(books)


def test_a_mandatory_message_may_come_back_only_if_its_queue_may_not_be_there() -> None:
    books = ChurnBooks()
    books.declaring("q")
    [early] = books.published(("q",), "p/1")
    books.returned("q", early.number)
    books.confirm_mandatory(early)
    assert not lost(books)
    declared(books)
    [late] = books.published(("q",), "p/1")
    with pytest.raises(BooksFault, match=r"returned: message .* although queue q was there"):
        books.returned("q", late.number)


def test_a_message_to_an_exchange_is_owed_where_the_binding_was_sure() -> None:
    books = ChurnBooks()
    for queue in ("bound", "unbound"):
        declared(books, queue)
        books.bound("x", queue, books.moment())
    books.unbinding("x", "unbound")
    number, copies = books.routed("x", "p/1")
    books.confirm(copies)
    assert lost(books, "bound")
    assert not lost(books, "unbound")
    body, properties = copies[0].body, copies[0].properties
    assert books.look_up("unbound", str(number), body, properties).queue == "unbound"


def test_of_a_binding_that_ends_a_message_under_way_is_not_owed_and_a_confirmed_one_is() -> None:
    books = ChurnBooks()
    declared(books)
    books.bound("x", "q", books.moment())
    _, under_way = books.routed("x", "p/1")
    books.unbound("x", books.unbinding("x", "q"))
    books.confirm(under_way)
    assert not lost(books)
    books.bound("x", "q", books.moment())
    books.confirm(books.routed("x", "p/1")[1])
    books.unbinding("x", "q")
    assert lost(books)


def test_nobody_gets_a_message_of_a_deleted_queue_who_asks_after_the_answer() -> None:
    books = ChurnBooks()
    declared(books)
    message = confirmed(books)
    before = books.moment()
    books.removed(books.removing("q", is_deletion=True))
    books.got(message, before)
    with pytest.raises(BooksFault, match=r"resurrected: message .* of q"):
        books.got(message, books.moment())


def test_what_a_consumer_had_may_come_back_after_a_purge() -> None:
    books = ChurnBooks()
    declared(books)
    message = confirmed(books)
    books.removed(books.removing("q", is_deletion=False))
    books.got(message, books.moment())


def test_at_rest_declared_queues_are_there_and_deleted_ones_are_not() -> None:
    books = ChurnBooks()
    declared(books, "there")
    declared(books, "gone")
    books.removed(books.removing("gone", is_deletion=True))
    declared(books, "doubtful")
    books.removing("doubtful", is_deletion=True)
    books.judge_queues(("there",))
    books.judge_queues(("there", "doubtful"))
    with pytest.raises(BooksFault, match="vanished: queue there"):
        books.judge_queues(())
    with pytest.raises(BooksFault, match="back: queue gone"):
        books.judge_queues(("there", "gone"))
    books.fleeting.add("there")
    books.judge_queues(())
