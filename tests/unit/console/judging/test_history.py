from __future__ import annotations

import pytest

from leveret.console.judging.history import (
    EVENTS_MAX,
    PastEvent,
    in_order,
    last_rehearsals,
    past_events,
    recovered_rows,
)
from leveret.console.sites.documents import AppliedSchema, DivergentRow, NodeStatus, PastOperation
from tests.unit.console.facts import NOW_MS, downstream, upstream


def test_what_a_site_keeps_is_on_its_time_line() -> None:
    site = upstream(
        nodes=[NodeStatus("a", True, uptime=60_000)],
        divergent=[DivergentRow("r1", 1_000, 3, [{"queue": "q", "vhost": "/", "messages": 3}])],
    )
    applied = [
        AppliedSchema(
            2, "eu.1", puts=30, deletes=1, conflicts=1, changes=[f"put queues q{at}" for at in range(31)]
        ),
        AppliedSchema(3, "eu.1"),
    ]
    promotion = PastOperation("promotion", 5_000, by="ops")
    events = in_order(past_events(site, applied, [promotion], NOW_MS))
    assert [(event.at_ms, event.kind, event.report) for event in events] == [
        (NOW_MS - 60_000, "start", ""),
        (5_000, "promotion", ""),
        (2_000, "conflict", ""),
        (1_000, "divergent", "r1"),
    ]
    assert events[1].text == "A promotion was interrupted, begun by ops."
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


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (
            PastOperation(
                "rehearsal", 1, by="ops", ended_ms=2, result={"compared": 1200, "recovered_s": 3.25}
            ),
            "A rehearsal succeeded: 1,200 messages were recovered in 3.2 s, as sent, begun by ops.",
        ),
        (PastOperation("rehearsal", 1, ended_ms=2, error="no disk"), "A rehearsal failed: no disk"),
        (PastOperation("promotion", 1, by="ops", is_running=True), "A promotion is running, begun by ops."),
        (
            PastOperation("promotion", 1, ended_ms=2, result={"messages": 70}),
            "The site was promoted: 70 messages were recovered.",
        ),
        (
            PastOperation("recovery_into", 1, ended_ms=2, result={"messages": 1, "to": "b:5672"}),
            "1 message was recovered into b:5672.",
        ),
        (
            PastOperation("rejoin", 1, ended_ms=2, result={"quarantined": 4, "upstream": "us:5552"}),
            "The site returned as a standby of us:5552: 4 messages were quarantined.",
        ),
        (
            PastOperation("fail_over", 1, ended_ms=1, result={"leader": "b", "epoch": 2}),
            "Node b took the lead, in epoch 2.",
        ),
        (
            PastOperation("queues_led_on", 1, node="n2", ended_ms=1, result={"node": "n1", "queues": 3}),
            "Node n1 was lost: node n2 leads 3 of its queues.",
        ),
        (PastOperation("new_thing", 1, ended_ms=1), "New thing."),
    ],
)
def test_an_operation_is_a_sentence(operation: PastOperation, text: str) -> None:
    [event] = past_events(upstream(), [], [operation], NOW_MS)
    assert (event.kind, event.text) == (operation.kind, text)


def test_the_last_rehearsal_is_told_with_its_result_also_if_there_was_none() -> None:
    assert last_rehearsals(upstream(), []) == []
    [never] = last_rehearsals(downstream(), [PastOperation("rehearsal", 9)])
    assert (never.at_ms, never.is_good) == (None, False)
    newest_first = [
        PastOperation("rehearsal", 9, is_running=True),
        PastOperation("rehearsal", 5, ended_ms=6, error="no disk"),
        PastOperation("rehearsal", 1, ended_ms=2),
    ]
    [last] = last_rehearsals(downstream(), newest_first)
    assert (last.at_ms, last.is_good, last.text) == (6, False, "A rehearsal failed: no disk")
