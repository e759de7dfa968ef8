"""A cluster as the upstream of a downstream of one node or several, as real processes.

with ClusterStandby("orders", folder) as pair:
pair.start()
pair.replicate("osr", "^.*")
pair.follow()
pair.site.members[0].kill9()
pair.wait_transferred()
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.standby_pair import FOLLOW_TIMEOUT_S, StandbyPair, downstream_settings

_MIRRORED: Final = {"ha-mode": "all", "ha-sync-mode": "automatic"}


class ClusterStandby(StandbyPair):
    """See the module.

    Attributes:
        site: the cluster; `upstream` is one of its nodes.
        second: the downstream if it is a cluster; `downstream` is one of its nodes. None for a single node.
    """

    def __init__(self, vhost: str, folder: Path, nodes: int = 3, downstream_nodes: int = 1) -> None:
        """Prepare all nodes in `folder`; nothing runs yet."""
        self.site = ClusterSite(folder, nodes, {"cluster_name": "eu.1"})
        self.second: ClusterSite | None = None
        super().__init__(vhost, folder, upstream=self.site.members[0])
        if downstream_nodes > 1:
            (folder / "us").mkdir()
            self.downstream.close()
            self.second = ClusterSite(folder / "us", downstream_nodes, downstream_settings("eu.2"))
            self.downstream = self.second.members[0]

    def start(self) -> None:
        """Start all nodes; make the vhost, and the users of the two links, at the upstream."""
        if self.second is None:
            self.downstream.launch()
        self.site.form()
        if self.second is None:
            self.downstream.wait_ready()
        else:
            self.second.form()
        self._prepare_upstream()

    def lose_owner(self) -> SiteNode:
        """Kill the node of the downstream cluster that owns the vhost; return it."""
        assert self.second is not None
        owner = self.row()["owner"]
        lost = next(node for node in self.second.members if node.node == owner)
        lost.kill9()
        self.downstream = next(node for node in self.second.members if node.alive)
        return lost

    def wait_taken_over(self, lost: SiteNode) -> None:
        """Wait until another node owns the vhost and has all of its data."""

        def taken() -> bool:
            row = self.row()
            return bool(row["node"] == row["owner"] != lost.node and row["state"] == "connected")

        wait_until(taken, f"the vhost taken over from {lost.node}", FOLLOW_TIMEOUT_S)

    def replicate(self, name: str, pattern: str) -> None:
        """Set a policy that replicates the matching queues, and mirrors them at all nodes."""
        self._set_policy(name, pattern, {"remote-dc-replicate": True, **_MIRRORED})

    def mirror_only(self, name: str, pattern: str) -> None:
        """Set a policy that mirrors the matching queues, and no longer replicates them."""
        self._set_policy(name, pattern, _MIRRORED)

    def _set_policy(self, name: str, pattern: str, definition: Mapping[str, object]) -> None:
        self.upstream = self._running()[0]
        policy = ["--vhost", self.vhost, name, pattern, json.dumps(definition), "--apply-to", "queues"]
        self.upstream.ctl("set_policy", *policy)

    def _running(self) -> list[SiteNode]:
        return [node for node in self.site.members if node.alive]

    def _named_upstreams(self) -> list[LeveretProcess]:
        has_turned = self.upstream not in self.site.members
        return [self.upstream] if has_turned else [*self._running()[:2]]

    def lose_site(self) -> None:
        """Kill all nodes of the cluster."""
        for node in self._running():
            node.kill9()

    def restart_upstream(self) -> None:
        """Start all nodes of the killed cluster again."""
        self.site.start_all()

    def close(self) -> None:
        """End every process."""
        for node in (self.upstream, self.downstream):
            node.close()
        self.site.close()
        if self.second is not None:
            self.second.close()

    # -- status -------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """Return the downstream's status row of the vhost; empty while it has none."""
        rows = self.status()["vhosts"]
        return next((row for row in rows if row["virtual_host"] == self.vhost), {})

    def covered(self, queues: Collection[str]) -> dict[str, int]:
        """Return, by queue, the time up to which the standby has all its records; each leader has a log of its own."""
        own = {row["queue"]: row["timestamp"] for row in self._transferred_rows()}
        return {queue: own.get(queue, 0) for queue in queues}

    def wait_transferred(self) -> None:
        """Wait until the standby has all records that the upstream has at the time of this call."""
        self.row_transferred()

    def row_transferred(self) -> dict[str, Any]:
        """Wait as `wait_transferred` does, and return the row that said so."""
        began_s = time.monotonic()
        row: dict[str, Any] = {}

        def has_all() -> bool:
            nonlocal row
            row = self.row()
            heard_ago_ms = row.get("heard_ago_ms")
            if heard_ago_ms is None or row["state"] != "connected" or row["lag_records"]:
                return False
            return bool(heard_ago_ms < (time.monotonic() - began_s) * 1000)

        wait_until(has_all, "all records at the standby", FOLLOW_TIMEOUT_S)
        return row
