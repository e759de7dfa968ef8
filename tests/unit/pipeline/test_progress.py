from __future__ import annotations

from leveret.pipeline.progress import Inbox, report


def test_news_arrive_in_order() -> None:
    with Inbox() as inbox:
        for number in range(3):
            report(inbox.address, "stored", next=number)
        assert inbox.wait(5) == [{"event": "stored", "next": number} for number in range(3)]
        assert inbox.wait(0) == []


def test_news_to_nobody_are_dropped() -> None:
    with Inbox() as inbox:
        address = inbox.address
    report(address, "stored")
