"""What happened, on one time line, from what the sites keep. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from leveret.console.sites.documents import AppliedSchema, DivergentRow
from leveret.console.sites.facts import SiteFacts

EVENTS_MAX: Final = 500
_CHANGES_SHOWN: Final = 20


class PastEvent(NamedTuple):
    """One thing that happened; `details` are lines, `report` names divergent messages that can be looked at."""

    at_ms: int
    site: str
    kind: str
    text: str
    details: list[str]
    report: str = ""


def past_events(site: SiteFacts, applied: Sequence[AppliedSchema], now_ms: int) -> list[PastEvent]:
    """Of one site, in no order."""
    events = [_quarantine(site.site, report) for report in site.divergent if report.at_ms is not None]
    events += [
        _applied(site.site, delta) for delta in applied if delta.puts or delta.deletes or delta.conflicts
    ]
    events += [
        PastEvent(now_ms - node.uptime, site.site, "start", f"Node {node.name} started.", [])
        for node in site.nodes
        if node.uptime is not None and site.is_heard(now_ms)
    ]
    promotion = site.standby.promotion
    if promotion is not None and isinstance(begun_ms := promotion.get("begun_ms"), int):
        state = "is running" if promotion.get("is_running") else "was interrupted"
        events.append(PastEvent(begun_ms, site.site, "promotion", f"A promotion began, and {state}.", []))
    return events


def in_order(events: Sequence[PastEvent]) -> list[PastEvent]:
    """Newest first, and no more than a page can show."""
    return sorted(events, key=lambda event: -event.at_ms)[:EVENTS_MAX]


def _quarantine(site: str, report: DivergentRow) -> PastEvent:
    queues = [f"{row.get('queue')} in {row.get('vhost')}: {row.get('messages')}" for row in report.queues]
    text = f"{report.messages:,} divergent messages were quarantined."
    return PastEvent(report.at_ms or 0, site, "divergent", text, queues, report.id)


def _applied(site: str, delta: AppliedSchema) -> PastEvent:
    text = f"Definitions of {delta.upstream_cluster or 'the upstream'}: {delta.puts} put, {delta.deletes} deleted"
    if delta.conflicts:
        text += f", {delta.conflicts} in conflict"
    if delta.refused:
        text += f", {delta.refused} refused"
    more = max(0, delta.puts + delta.deletes - _CHANGES_SHOWN)
    details = [*delta.changes[:_CHANGES_SHOWN], *([f"and {more:,} more"] if more else [])]
    return PastEvent(
        delta.stamp * 1000, site, "conflict" if delta.conflicts else "definitions", f"{text}.", details
    )


def recovered_rows(site: str, summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What promotions of a site recovered, a row a vhost, with numbers and texts only."""
    plain = (str, int, float, type(None))
    return [
        {"site": site} | {name: value for name, value in row.items() if isinstance(value, plain)}
        for row in summary
    ]
