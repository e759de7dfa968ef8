"""A queue of a tortured cluster that an unsynchronised mirror may lead, and what is quarantined of it then.

Its books: what was confirmed is in the queue, or in a report of what was quarantined at a node. Nobody consumes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import httpx

from leveret.testing.applications.applications import AppMessage
from leveret.testing.applications.contents import is_shown, shown_number
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

LOSSY: Final = "lossy"
TERMS: Final = {
    "ha-mode": "exactly",
    "ha-params": 2,
    "ha-sync-mode": "manual",
    "ha-promote-on-failure": "always",
    "ha-promote-on-shutdown": "always",
}


class Quarantined:
    """What nodes quarantined, as an operator deals with it: read, then moved out of the way.

    Attributes:
        rows: of messages of `LOSSY`, by their number, of all reports so far.
        lost: messages that the reports count as lost.
    """

    def __init__(self, site: ClusterSite) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.lost = 0
        self._site = site

    def collect(self, node: SiteNode) -> None:
        """Deal with what is quarantined at a node.

        Raises:
            AssertionError: another queue was led on without all messages, or something cannot be read.
        """
        found = self._site.api("GET", "replication/divergent", at=node)
        for report in [each for each in found if each["node"] == node.node and each["is_finished"]]:
            lost = {log["queue"] for log in report["logs"] if log["is_lost"]}
            assert lost <= {LOSSY}, f"{node.node}: {lost} were led on without what is in {report}"
            self.lost += report["lost"]
            for row in self._messages(node, report["id"]):
                assert "damage" not in row, f"{node.node}: {report['id']} cannot be read: {row}"
                if row["queue"] == LOSSY:
                    self.rows[shown_number(row)] = row
            dealt_with = node.data_dir.parent / f"{node.name}-dealt-with"
            dealt_with.mkdir(exist_ok=True)
            count = sum(1 for _ in dealt_with.iterdir())
            (node.data_dir / "divergent" / report["id"]).rename(dealt_with / f"{count}-{report['id']}")

    def altered(self, published: Iterable[AppMessage]) -> list[int]:
        """Numbers of those that are not as they were published."""
        return [
            each.number
            for each in published
            if each.number in self.rows
            and not is_shown(vars(each.properties), each.body, self.rows[each.number])
        ]

    def alarms(self) -> list[str]:
        """What the check of all alarms says at each node where it fails."""
        found = []
        for node in self._site.members:
            try:
                self._site.api("GET", "health/checks/alarms", at=node)
            except httpx.HTTPStatusError as failed:
                found.append(f"{node.node}: {failed.response.json().get('reason')}")
        return found

    def _messages(self, node: SiteNode, report: str) -> list[dict[str, Any]]:
        url = f"http://{LOOPBACK}:{node.management_port}/api/replication/divergent/messages"
        with httpx.Client(auth=("guest", "guest"), trust_env=False, verify=False) as client:
            answer = client.get(url, params={"report": report}).raise_for_status()
        rows = [json.loads(line) for line in answer.text.splitlines()]
        return [row for row in rows if row.get("node", node.node) == node.node]
