"""Past events of all sites on one time line, from the sites' records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from leveret.console.judging.amounts import counted
from leveret.console.judging.links import is_downstream
from leveret.console.sites.documents import AppliedSchema, DivergentRow, PastOperation
from leveret.console.sites.facts import SiteFacts

EVENTS_MAX: Final = 500
_CHANGES_SHOWN: Final = 20


class PastEvent(NamedTuple):
    """One event; `details` are lines of text, `report` is the id of a report of divergent messages."""

    at_ms: int
    site: str
    kind: str
    text: str
    details: list[str]
    report: str = ""


class RehearsalState(NamedTuple):
    """The last rehearsal of a standby: its success and its time, None if there was none."""

    site: str
    at_ms: int | None
    is_good: bool
    text: str


def past_events(
    site: SiteFacts, applied: Sequence[AppliedSchema], operations: Sequence[PastOperation], now_ms: int
) -> list[PastEvent]:
    """Return the events of one site, unordered."""
    events = [_quarantine(site.site, report) for report in site.divergent if report.at_ms is not None]
    events += [
        _applied(site.site, delta) for delta in applied if delta.puts or delta.deletes or delta.conflicts
    ]
    events += [
        PastEvent(now_ms - node.uptime, site.site, "start", f"Node {node.name} started.", [])
        for node in site.nodes
        if node.uptime is not None and site.is_heard(now_ms)
    ]
    events += [_operation(site.site, each) for each in operations]
    return events


def in_order(events: Sequence[PastEvent]) -> list[PastEvent]:
    """Return at most `EVENTS_MAX` events, newest first."""
    return sorted(events, key=lambda event: -event.at_ms)[:EVENTS_MAX]


def _quarantine(site: str, report: DivergentRow) -> PastEvent:
    queues = [f"{row.get('queue')} in {row.get('vhost')}: {row.get('messages')}" for row in report.queues]
    text = f"{counted(report.messages, 'divergent message was', 'divergent messages were')} quarantined."
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
    """Return the rows of a site's promotions, one for each vhost, with only their numbers and texts."""
    plain = (str, int, float, type(None))
    return [
        {"site": site} | {name: value for name, value in row.items() if isinstance(value, plain)}
        for row in summary
    ]


def last_rehearsals(site: SiteFacts, operations: Sequence[PastOperation]) -> list[RehearsalState]:
    """Return one state for a standby or a site with a past rehearsal, else none. `operations` are newest first."""
    ended = [each for each in operations if each.kind == "rehearsal" and each.ended_ms is not None]
    if not is_downstream(site) and not ended:
        return []
    if not ended:
        return [RehearsalState(site.site, None, False, "No promotion of the site was ever rehearsed.")]
    last = ended[0]
    return [RehearsalState(site.site, last.ended_ms, not last.error, _operation(site.site, last).text)]


# -- texts of operations ----------------------------------------------------------------------

_CALLED: Final = {
    "rehearsal": "rehearsal",
    "promotion": "promotion",
    "recovery_into": "recovery into another broker",
    "rejoin": "return as a standby",
}
_CHOSEN: Final = ("start_from_scratch", "all_available", "exclude_virtual_hosts", "queues", "as_of")


def _operation(site: str, each: PastOperation) -> PastEvent:
    name = _CALLED.get(each.kind)
    by = f", begun by {each.by}" if each.by else ""
    chosen = [f"{key}: {each.result[key]}" for key in _CHOSEN if each.result.get(key)]
    if name is None:
        text = _IN_WORDS.get(each.kind, _of_unknown)(each)
    elif each.is_running:
        text = f"A {name} is running{by}."
    elif each.ended_ms is None:
        text = f"A {name} was interrupted{by}."
    elif each.error:
        text = f"A {name} failed{by}: {each.error}"
    else:
        text = f"{_IN_WORDS[each.kind](each)}{by}."
    return PastEvent(each.begun_ms, site, each.kind, text, chosen)


def _messages(each: PastOperation, name: str) -> str:
    return counted(each.result.get(name), "message was", "messages were")


def _seconds(each: PastOperation, name: str) -> str:
    value = each.result.get(name)
    return f"{value:,.1f} s" if isinstance(value, int | float) else "an unknown time"


def _of_rehearsal(each: PastOperation) -> str:
    return (
        f"A rehearsal succeeded: {_messages(each, 'compared')} recovered in {_seconds(each, 'recovered_s')}, "
        "as sent"
    )


def _of_promotion(each: PastOperation) -> str:
    return f"The site was promoted: {_messages(each, 'messages')} recovered"


def _of_recovery_into(each: PastOperation) -> str:
    return f"{_messages(each, 'messages').capitalize()} recovered into {each.result.get('to')}"


def _of_rejoin(each: PastOperation) -> str:
    upstream, messages = each.result.get("upstream"), _messages(each, "quarantined")
    return f"The site returned as a standby of {upstream}: {messages} quarantined"


def _of_fail_over(each: PastOperation) -> str:
    return f"Node {each.result.get('leader')} took the lead, in epoch {each.result.get('epoch')}."


def _of_queues_led_on(each: PastOperation) -> str:
    lost, queues = (
        each.result.get("node"),
        counted(each.result.get("queues"), "of its queues", "of its queues"),
    )
    return f"Node {lost} was lost: node {each.node} leads {queues}."


def _of_unknown(each: PastOperation) -> str:
    return f"{each.kind.replace('_', ' ').capitalize()}."


_IN_WORDS: Final = {
    "rehearsal": _of_rehearsal,
    "promotion": _of_promotion,
    "recovery_into": _of_recovery_into,
    "rejoin": _of_rejoin,
    "fail_over": _of_fail_over,
    "queues_led_on": _of_queues_led_on,
}
