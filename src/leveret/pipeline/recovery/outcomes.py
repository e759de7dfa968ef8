"""Outcomes: a plan's outcome from those of its queues, and rows for the operator from those of plans."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from leveret.pipeline.archive.recovery_plan import PlanOutcome, QueueOutcome, RecoveryPlan

_ADDED: Final = ("in_doubt", "reader_offsets", "publisher_ids", "unreadable_records")
"""The fields that are summed over the plans of a vhost."""


def _with_stored_positions(plan: RecoveryPlan, queue: QueueOutcome) -> QueueOutcome:
    """The outcome with the numbers of a stream's recovered readers and publishers."""
    stored_positions = [each for each in plan.stored_positions if each.queue == queue.queue]
    return msgspec.structs.replace(
        queue,
        reader_offsets=sum(len(each.offsets) for each in stored_positions),
        clamped_offsets=sum(each.clamped for each in stored_positions),
        publisher_ids=sum(len(each.sequences) for each in stored_positions),
    )


def outcome_of(plan: RecoveryPlan, queues: list[QueueOutcome], *, is_cut_short: bool = False) -> PlanOutcome:
    """The outcome of a plan with these queues; after a cut the next plan has the stored positions."""
    if not is_cut_short:
        queues = [_with_stored_positions(plan, queue) for queue in queues]
    return PlanOutcome(
        plan_id=plan.plan_id,
        vhost=plan.vhost,
        number=plan.number,
        selection=plan.selection,
        finished_ms=time.time_ns() // 1_000_000,
        queues=sorted(queues, key=lambda queue: queue.queue),
        unreadable_records=sum(plan.unreadable.values()),
        is_cut_short=is_cut_short,
    )


def summarise(outcomes: list[PlanOutcome], vhosts: Iterable[str]) -> list[dict[str, Any]]:
    """One row a vhost: the recovered messages, or that there were none."""
    rows: dict[str, dict[str, Any]] = {}
    for vhost in vhosts:
        rows[vhost] = PlanOutcome(plan_id="", vhost=vhost, number=0, finished_ms=0, queues=[]).summary()
    for outcome in outcomes:
        mine, before = outcome.summary(), rows.get(outcome.vhost)
        rows[outcome.vhost] = mine if before is None else _added(before, mine)
    return [rows[vhost] for vhost in sorted(rows)]


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    firsts = [row["first_timestamp"] for row in (one, other) if row["message_count"]]
    lasts = [row["last_timestamp"] for row in (one, other) if row["message_count"]]
    queues = dict(one["queues"])
    for queue, count in other["queues"].items():
        queues[queue] = queues.get(queue, 0) + count
    return one | {
        "first_timestamp": min(firsts, default=None),
        "last_timestamp": max(lasts, default=None),
        "message_count": one["message_count"] + other["message_count"],
        "queues": queues,
        **{name: one[name] + other[name] for name in _ADDED},
    }
