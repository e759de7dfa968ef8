"""How far a promotion is follows from its plans and the queues here, whatever its pipeline has told."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.runtime.standby import progress
from leveret.runtime.standby.progress import (
    JoinedProgress,
    PlannedMessages,
    PromotionProgress,
    PromotionReports,
    amounts,
)


def test_what_is_left_is_told_by_vhost() -> None:
    told = PromotionProgress()
    for vhost, queues in (("b", {"q": 5}), ("a", {"q": 7, "r": 3, "s": 2})):
        told.take({"event": "planned", "vhost": vhost, "plan_id": vhost * 2, "queues": queues})
    there = {(("a", "q"), "recovery.aa"): 7, (("a", "r"), "recovery.aa"): 1, (("b", "q"), "recovery.aa"): 4}
    *_, rows = amounts(told.plans, lambda key, reference: there.get((key, reference), 0))
    assert rows == [
        {"virtual_host": "a", "queues": 3, "messages": 12, "queues_left": 2, "messages_left": 4},
        {"virtual_host": "b", "queues": 1, "messages": 5, "queues_left": 1, "messages_left": 5},
    ]
    assert told.step == "recovering"


def test_many_queues_are_looked_at_in_bounded_steps() -> None:
    count = progress._QUEUES_A_STEP * 3
    plan = PlannedMessages("v", "recovery.p", {str(number): 1 for number in range(count)})
    *steps, [row] = amounts([plan], lambda key, reference: 0)
    assert len(steps) == 3
    assert (row["queues_left"], row["messages_left"]) == (count, count)


def test_a_node_that_publishes_messages_again_after_a_failure_reports_each_once() -> None:
    lines: list[dict[str, Any]] = []
    reports = PromotionReports(lines.append)
    plan = {"event": "planned", "vhost": "v", "plan_id": "p", "queues": {"q": 9}}
    reports.take("a", [plan], 0)
    reports.take("a", [plan], 5)
    reports.take("a", [plan], 0)
    reports.take("b", [], 0)
    reports.take("a", [], 4)
    reports.take("a", [plan], 9)
    assert lines == [plan, *({"event": "published", "messages": count} for count in (5, 4))]


@pytest.mark.parametrize(
    ("reports", "joined"),
    [
        ([("a", "started", 0), ("b", "started", 0)], [("started", 0)]),
        (
            [("a", "counting", 5), ("a", "counted", 2), ("b", "counting", 7), ("b", "counted", 7)],
            [("counting", 5), ("counted", 2), ("counting", 12), ("counted", 2), ("counted", 7)],
        ),
        (
            [("a", "exporting", 5), ("a", "exported", 4), ("a", "exporting", 6), ("a", "exported", 6)],
            [("exporting", 5), ("exported", 4), ("exporting", 6), ("exported", 6)],
        ),
        (
            [("a", "published", 1), ("a", "comparing", 0), ("b", "published", 9), ("b", "comparing", 0)],
            [("published", 1), ("comparing", 0)],
        ),
    ],
)
def test_the_progress_of_several_nodes_is_that_of_one_operation(
    reports: list[tuple[str, str, int]], joined: list[tuple[str, int]]
) -> None:
    found: list[tuple[str, int]] = []
    several = JoinedProgress(lambda event: found.append((event["event"], event["messages"])))
    for node, event, messages in reports:
        several.take(node, {"event": event, "messages": messages})
    assert found == joined
