from __future__ import annotations

from leveret.console.judging.history import EVENTS_MAX, PastEvent, in_order, past_events, recovered_rows
from leveret.console.sites.documents import AppliedSchema, DivergentRow, NodeStatus, StandbyDetails
from tests.unit.console.facts import NOW_MS, upstream


def test_what_a_site_keeps_is_on_its_time_line() -> None:
    site = upstream(
        nodes=[NodeStatus("a", True, uptime=60_000)],
        divergent=[DivergentRow("r1", 1_000, 3, [{"queue": "q", "vhost": "/", "messages": 3}])],
        standby=StandbyDetails(promotion={"begun_ms": 5_000, "is_running": False}),
    )
    applied = [
        AppliedSchema(
            2, "eu.1", puts=30, deletes=1, conflicts=1, changes=[f"put queues q{at}" for at in range(31)]
        ),
        AppliedSchema(3, "eu.1"),
    ]
    events = in_order(past_events(site, applied, NOW_MS))
    assert [(event.at_ms, event.kind, event.report) for event in events] == [
        (NOW_MS - 60_000, "start", ""),
        (5_000, "promotion", ""),
        (2_000, "conflict", ""),
        (1_000, "divergent", "r1"),
    ]
    assert events[1].text == "A promotion began, and was interrupted."
    assert events[2].text == "Definitions of eu.1: 30 put, 1 deleted, 1 in conflict."
    assert events[2].details[-1] == "and 11 more"
    assert events[3].details == ["q in /: 3"]


def test_a_page_has_the_newest_only() -> None:
    events = [PastEvent(at, "eu", "start", "", []) for at in range(EVENTS_MAX + 5)]
    ordered = in_order(events)
    assert (len(ordered), ordered[0].at_ms, ordered[-1].at_ms) == (EVENTS_MAX, EVENTS_MAX + 4, 5)


def test_rows_of_a_promotion_have_numbers_and_texts_only() -> None:
    rows = recovered_rows("us", [{"virtual_host": "shop", "message_count": 7, "queues": {"q": 7}}])
    assert rows == [{"site": "us", "virtual_host": "shop", "message_count": 7}]
