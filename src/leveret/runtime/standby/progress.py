"""The progress of a running promotion, for every caller, not only for the shell that began it.

The promotion's plans have the number of messages for each queue, and the node's own queues have the number that has
arrived. So the progress is exact after a crash too, and wherever Spark's workers run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from leveret.runtime.standby.pipeline_process import Event, Report
from leveret.wire.record import RECOVERY_REFERENCE_PREFIX

_QUEUES_A_STEP: Final = 5_000
"""The most queues examined in one step of the event loop."""


_DONE: Final = {"counting": "counted", "exporting": "exported"}
"""The reports of finished messages, by the steps with a total."""
_AMOUNTS: Final = ("queues", "messages", "queues_left", "messages_left")


class PlannedMessages(NamedTuple):
    """A frozen plan: its vhost and reference (`RecoveryPlan.reference`), and the number of messages for each queue."""

    vhost: str
    reference: str
    queues: dict[str, int]

    @classmethod
    def of(cls, row: Event) -> PlannedMessages:
        """Convert a row of a pipeline process."""
        return cls(row["vhost"], RECOVERY_REFERENCE_PREFIX + row["plan_id"], row["queues"])

    @property
    def plan_id(self) -> str:
        """The plan's id."""
        return self.reference.removeprefix(RECOVERY_REFERENCE_PREFIX)


class PromotionProgress:
    """The reports of a running promotion's pipeline.

    Attributes:
        step: the present step, in words.
        plans: the frozen plans.
    """

    def __init__(self) -> None:
        """Begin without reports."""
        self.step = "ending the links"
        self.plans: list[PlannedMessages] = []

    def take(self, event: Event) -> None:
        """Take an event of the pipeline."""
        match event.get("event"):
            case "started":
                self.step = "looking for unconsumed messages"
            case "planned":
                self.step = "recovering"
                self.plans.append(PlannedMessages.of(event))


class JoinedProgress:
    """Joins the reports of several nodes that work on parts of one operation into reports with common totals."""

    def __init__(self, report: Report) -> None:
        """Pass reports on to `report`."""
        self._report = report
        self._steps: set[str] = set()
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def take(self, node: str, event: Event) -> None:
        """Take a report of one node."""
        match event.get("event"):
            case "started" | "comparing" as step:
                if step not in self._steps:
                    self._steps.add(step)
                    self._report(event)
            case "counting" | "exporting" as step:
                # A node counts again if files were replaced during the reading.
                self._totals[node], self._done[node] = event["messages"], 0
                self._report({**event, "messages": sum(self._totals.values())})
                if done := sum(self._done.values()):
                    self._report({"event": _DONE[step], "messages": done})
            case "counted" | "exported":
                self._done[node] = self._done.get(node, 0) + event["messages"]
                self._report(event)
            case "published" if "comparing" in self._steps:
                pass  # Another node compares already, so this node's messages count as compared from now on.
            case _:
                self._report(event)


class PromotionReports:
    """Reports what the nodes of a site tell of a promotion, each plan and each message once.

    A node that tries again publishes the messages of a plan again, and counts them from 0.
    """

    def __init__(self, report: Report) -> None:
        """Pass reports on to `report`."""
        self.report = report
        self._plans: set[str] = set()
        self._published: dict[str, int] = {}

    def take(self, node: str, plans: Iterable[Event], published: int) -> None:
        """Take the plans of a node, and the number of messages that it has published in its present try."""
        for plan in plans:
            if plan["plan_id"] not in self._plans:
                self._plans.add(plan["plan_id"])
                self.report({**plan, "event": "planned"})
        before = self._published.get(node, 0)
        if published > before:
            self._published[node] = published
            self.report({"event": "published", "messages": published - before})


def amounts(
    plans: Iterable[PlannedMessages], recovered: Callable[[tuple[str, str], str], int]
) -> Iterator[list[dict[str, Any]]]:
    """Count, in bounded steps, all messages of plans and the messages left; the last yielded rows are the answer.

    Args:
        plans: the frozen plans.
        recovered: returns the number of a reference's messages that a queue has.

    Yields:
        A row for each vhost: virtual_host; queues, messages (in all); queues_left, messages_left.
    """
    rows: dict[str, dict[str, Any]] = {}
    looked_at = 0
    for plan in plans:
        row = rows.setdefault(plan.vhost, {"virtual_host": plan.vhost, **dict.fromkeys(_AMOUNTS, 0)})
        for queue, messages in plan.queues.items():
            left = max(0, messages - recovered((plan.vhost, queue), plan.reference))
            row["queues"] += 1
            row["messages"] += messages
            row["queues_left"] += left > 0
            row["messages_left"] += left
            looked_at += 1
            if looked_at % _QUEUES_A_STEP == 0:
                yield []
    yield [rows[vhost] for vhost in sorted(rows)]
