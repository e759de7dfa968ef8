"""How far a promotion is follows from its plans and the queues here, whatever its pipeline has told."""

from __future__ import annotations

from leveret.runtime.standby import progress
from leveret.runtime.standby.progress import PlannedMessages, PromotionProgress, amounts


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
