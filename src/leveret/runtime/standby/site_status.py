"""The status of a downstream cluster: each vhost's row at the node that recovers it, and a promotion's progress."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from leveret.core.schema.operating_mode import OperatingMode
from leveret.runtime.standby.progress import PlannedMessages, amounts
from leveret.runtime.standby.site import SiteParts, StandbySite

_WORST_FIRST: Final = (
    "promotion interrupted",
    "promoting",
    "recover",
    "connecting",
    "connected",
    "disconnected",
)
_NOTHING: Final[dict[str, Any]] = {
    "state": "connecting",
    "endpoint": "",
    "transferred": 0,
    "is_archive_read": False,
    "lag_records": 0,
    "lag_ms": 0,
    "heard_ago_ms": None,
    "missing_records": 0,
    "missing_messages": 0,
    "last_timestamp": None,
    "newest_age_ms": None,
    "error": "",
}
"""The row of a vhost that no running node reports."""


class ReportingDownstream(Protocol):
    """The node's own downstream (downstream.StandbyDownstream), as this module uses it."""

    @property
    def mode(self) -> OperatingMode:
        """The operating mode."""

    def vhosts(self) -> list[str]:
        """Return the replicated vhosts."""

    def status(self) -> dict[str, Any]:
        """Return this node's status."""


class SiteStatus:
    """See the module."""

    def __init__(self, site: StandbySite, own: ReportingDownstream, parts: SiteParts) -> None:
        """Ask all nodes of the site by their `parts`."""
        self._site = site
        self._own = own
        self._parts = parts

    async def details(self) -> dict[str, Any]:
        """Return the site's status: each vhost's row at the node that recovers it, and a promotion's progress."""
        found, silent = await self._parts.of_those_that_answer("status")
        own = self._own.status()
        rows = {(node, row["virtual_host"]): row for node, each in found.items() for row in each["vhosts"]}
        vhosts = self._own.vhosts() if self._own.mode is OperatingMode.DOWNSTREAM else []
        own["vhosts"] = [self._row(vhost, rows, silent) for vhost in vhosts]
        own["nodes"] = [
            {"node": node, "state": _state_of(each), "error": each["error"]} for node, each in found.items()
        ] + [{"node": node, "state": "", "error": error} for node, error in silent.items()]
        sizes = [each["archive_bytes"] for each in found.values() if each["archive_bytes"] is not None]
        own["archive_bytes"] = sum(sizes) if sizes else None
        states = [_state_of(each) for each in found.values()]
        own["state"] = next((state for state in _WORST_FIRST if state in states), own["state"])
        errors = [f"{row['node']}: {row['error']}" for row in own["nodes"] if row["error"]]
        own["error"] = own["error"] or next(iter(errors), "")
        if own["promotion"] is not None:
            own["promotion"] |= await self._amounts()
        return own

    def _row(
        self, vhost: str, rows: Mapping[tuple[str, str], dict[str, Any]], silent: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the row of a vhost, with its nodes."""
        owner = self._site.owners.get(vhost)
        if owner is None:
            row = _NOTHING | {"error": "no node owns it yet"}
            return {**row, "virtual_host": vhost, "node": "", "owner": ""}
        row = rows.get((owner.recoverer, vhost)) or rows.get((owner.node, vhost)) or _NOTHING
        row = {**row, "virtual_host": vhost, "node": owner.recoverer, "owner": owner.node}
        if owner.recoverer not in self._site.running and self._site.is_shared:
            row["error"] = (
                f"node {owner.recoverer}, its owner, does not run; another node is about to take it over"
            )
        elif owner.recoverer not in self._site.running:
            row["error"] = f"its data are at node {owner.recoverer}, which does not run"
            if owner.node in self._site.running:
                row["error"] += f"; node {owner.node} transfers the records that the upstream still has"
        elif owner.holder:
            row["error"] = (
                row["error"] or f"node {owner.node} takes the data over, and does not have all of them yet"
            )
        elif owner.recoverer in silent:
            row["error"] = silent[owner.recoverer]
        return row

    async def _amounts(self) -> dict[str, Any]:
        """Return the amounts of messages of an unfinished promotion, in all and left, at all nodes."""
        plans: list[PlannedMessages] = []
        reasons: list[str] = []
        answers, silent = await self._parts.of_those_that_answer("progress")
        for node, found in answers.items():
            plans += [PlannedMessages.of(row) for row in found["plans"]]
            if found["error"]:
                reasons.append(f"{node}: {found['error']}")
        about = [
            {"vhost": each.vhost, "reference": each.reference, "queues": [*each.queues]} for each in plans
        ]
        recovered: dict[tuple[str, str, str], int] = {}
        counted, _ = await self._parts.of_those_that_answer("recovered", plans=about)
        for rows in counted.values():
            for vhost, queue, reference, count in rows:
                key = vhost, queue, reference
                recovered[key] = max(recovered.get(key, 0), count)
        found_rows: list[dict[str, Any]] = []
        for rows in amounts(plans, lambda key, reference: recovered.get((*key, reference), 0)):
            found_rows = rows
            await asyncio.sleep(0)
        reasons += [f"{node}: {reason}" for node, reason in silent.items()]
        return {"vhosts": found_rows, "plans_error": "; ".join(reasons)}


def _state_of(status: Mapping[str, Any]) -> str:
    """Return the state of a node of the site; `idle` if it follows no vhost, because it has no link to wait for."""
    is_idle = status["state"] == "connecting" and not status["vhosts"]
    return "idle" if is_idle else str(status["state"])
