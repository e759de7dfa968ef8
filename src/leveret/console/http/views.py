"""The documents for pages, as JSON: each function makes a document from a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leveret.console.http.sessions import ConsoleSession
from leveret.console.jobs.actions import ADMINISTRATOR, BY_NAME, SiteAction, may_act, offered
from leveret.console.jobs.jobs import Jobs
from leveret.console.judging.conflicts import conflict_warnings
from leveret.console.judging.links import standby_links
from leveret.console.judging.retention import retention_warnings
from leveret.console.judging.safety import ALL_QUEUES, Danger, SafetyRow, by_vhost, counts, joint_losses
from leveret.console.judging.topology import link_rows, site_role, site_rows
from leveret.console.sites.facts import HEARD_MS, SiteFacts
from leveret.console.sites.watch import clock_ms
from leveret.model.errors import InvalidCommand
from leveret.model.whole_number import whole_number

Json = dict[str, Any]

PAGE_ROWS: Final = 100
_TITLES: Final = {
    "rehearsal": BY_NAME["rehearse"].title,
    "promotion": BY_NAME["promote"].title,
    "recovery_into": BY_NAME["recover_into"].title,
    "rejoin": BY_NAME["rejoin"].title,
}
"""The titles of actions, by the kind of a site's operation."""
_VHOSTS_MAX: Final = 200


def show_sites(session: ConsoleSession, _query: Mapping[str, str]) -> Json:
    """Return the sites, and the links between them."""
    now_ms = clock_ms()
    facts = session.facts
    return {"now_ms": now_ms, "sites": site_rows(facts, now_ms), "links": link_rows(facts, now_ms)}


def show_safety(session: ConsoleSession, query: Mapping[str, str]) -> Json:
    """Return counts by danger, vhosts, and the page of queues at `from`; `text`, `danger`, `site`, `vhost` filter."""
    rows = session.rows()
    chosen = _chosen(rows, query)
    first = _whole_number(query, "from")
    now_ms, vhosts = clock_ms(), by_vhost(rows)
    return {
        "now_ms": now_ms,
        "counts": counts(rows),
        # Rows for vhosts with an unknown number of queues.
        "vhost_rows": sum(row.queue == ALL_QUEUES for row in rows),
        "vhosts_in_danger": sum(row.queue == ALL_QUEUES and row.danger < Danger.ONE_SITE for row in rows),
        "joint": _lossy(joint_losses(vhosts), "heard", "silent"),
        "vhosts": [_lossy(each) for each in vhosts[:_VHOSTS_MAX]],
        "vhost_count": len(vhosts),
        "total": len(chosen),
        "from": first,
        "rows": [_row_json(row) for row in chosen[first : first + PAGE_ROWS]],
        "sites": [_reading(facts, now_ms) for facts in session.facts],
        "warnings": [
            *retention_warnings(session.facts, standby_links(session.facts), now_ms),
            *conflict_warnings(session.facts),
        ],
    }


def show_plots(session: ConsoleSession, query: Mapping[str, str]) -> Json:
    """Return, by site, the series of the last hour, or with `span=day` of the last day."""
    now_ms, day = clock_ms(), query.get("span") == "day"
    sites = {name: watch.samples.series(day=day, now_ms=now_ms) for name, watch in session.watches.items()}
    return {"now_ms": now_ms, "span": "day" if day else "hour", "sites": sites}


def show_actions(session: ConsoleSession, jobs: Jobs) -> Json:
    """Return, by site, the actions that this user may request, and the jobs at sites that the user may monitor."""
    now_ms = clock_ms()
    sites = [_actions(facts, now_ms) for facts in session.facts if may_act(facts)]
    # The site's last report may still list a job as running that has just ended here.
    own = {
        (job.site, job.action.title)
        for job in jobs.of_sites([facts.site for facts in session.facts])
        if job.ended_ms is None or now_ms - job.ended_ms < HEARD_MS
    }
    seen = {facts.site for facts in session.facts if {ADMINISTRATOR, "monitoring"} & set(facts.tags)}
    return {
        "now_ms": now_ms,
        "sites": sites,
        "jobs": [job.document(now_ms) for job in jobs.of_sites(seen)],
        "operations": [
            {"site": facts.site, **msgspec.to_builtins(each), "title": _TITLES.get(each.kind, each.kind)}
            for facts in session.facts
            if facts.site in seen
            for each in facts.standby.operations
            if (facts.site, _TITLES.get(each.kind)) not in own
        ],
        "promotions": [
            {"site": facts.site, **facts.standby.promotion}
            for facts in session.facts
            if facts.standby.promotion is not None and facts.site in seen
        ],
    }


def _actions(facts: SiteFacts, now_ms: int) -> Json:
    is_heard = facts.is_heard(now_ms)
    return {
        "site": facts.site,
        "is_heard": is_heard,
        "role": site_role(facts),
        "actions": [_action(action, facts) for action in offered(facts, is_heard=is_heard)],
    }


def _action(action: SiteAction, facts: SiteFacts) -> Json:
    preview = [option.name for option in BY_NAME[action.preview].options] if action.preview else []
    return {
        "name": action.name,
        "title": action.title,
        "is_final": action.is_final,
        "forecast": action.forecast(facts),
        "preview": action.preview,
        "preview_options": preview,
        "options": [
            {
                "name": each.name,
                "kind": each.kind,
                "label": each.label,
                "is_needed": each.is_needed,
                "span": each.span(facts),
            }
            for each in action.options
            if each.makes_sense(facts)
        ],
    }


def _chosen(rows: list[SafetyRow], query: Mapping[str, str]) -> list[SafetyRow]:
    """Return the rows that pass the four filters; a filter that is not set costs no time."""
    text = query.get("text", "").lower()
    if text:
        rows = [row for row in rows if text in row.queue.lower() or text in row.vhost.lower()]
    if danger := query.get("danger"):
        rows = [row for row in rows if row.danger.name.lower() == danger]
    for name in ("site", "vhost"):
        if wanted := query.get(name):
            rows = [row for row in rows if getattr(row, name) == wanted]
    return rows


def _reading(facts: SiteFacts, now_ms: int) -> Json:
    """Return the age and the error of a site's facts."""
    return {
        "site": facts.site,
        "is_heard": facts.is_heard(now_ms),
        "age_ms": facts.age_ms(now_ms),
        "queues_age_ms": None if facts.queues_ms is None else now_ms - facts.queues_ms,
        "error": facts.error or facts.refused or facts.troubles.get("queues", ""),
    }


def _row_json(row: SafetyRow) -> Json:
    document = row._asdict()
    document["danger"] = row.danger.name.lower()
    document["copies"] = [_lossy(copy._asdict(), "behind") for copy in row.copies]
    return _lossy(document)


def _lossy(document: Json, *names: str) -> Json:
    """Convert losses to objects."""
    for name in names or ("if_node", "if_site"):
        document[name] = document[name]._asdict()
    return document


def _whole_number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "0")
    number = whole_number(text, most=999_999_999)
    if number is None:
        raise InvalidCommand(f"{name}: '{text[:20]}' is no whole number")
    return number


VIEWS: Final = {"sites": show_sites, "safety": show_safety, "plots": show_plots}
