"""The sites of the demo of clusters: an upstream of three nodes, with applications at each of them, and a standby.

The standby is a cluster of three nodes, too, with its own etcd.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

from leveret.testing.demo.flights import QUEUES, declare
from leveret.testing.demo.processes import Applications
from leveret.testing.demo.sites import VHOST, Sites
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.cluster_standby import ClusterStandby

_NODES: Final = 3


class ClusterSites(Sites):
    """Upstream cluster, downstream, and the applications with their books.

    Attributes:
        pair: the sites.
    """

    pair: ClusterStandby

    def __init__(self) -> None:
        """Prepare all nodes; nothing runs yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="leveret-demo-")
        folder = Path(self._folder.name)
        self.pair = ClusterStandby(VHOST, folder, downstream_nodes=_NODES)
        self.applications = Applications(folder / "books", VHOST)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process and remove every file; an error comes with the nodes' logs."""
        if isinstance(value, Exception):
            for site in (self.pair.site, self._second):
                value.add_note(site.evidence())
        super().__exit__(kind, value, trace)

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of each site's HTTP API: of a cluster one for each of its nodes."""
        return {"eu": self.pair.site.urls, "us": self._second.urls}

    @property
    def _second(self) -> ClusterSite:
        assert self.pair.second is not None
        return self.pair.second

    def start(self) -> None:
        """Start all nodes; declare one queue at each node, which therefore leads it."""
        self.pair.start()
        self.pair.replicate("osr", "^airport")
        members = self.pair.site.members
        with self.pair.site.channel(members[0], VHOST) as channel:
            declare(channel)
        self.pair.site.wait(lambda: set(QUEUES) <= set(self.leaders()), "all queues to have a leader")

    def connect_downstream(self) -> None:
        """Point the downstream at the upstream; wait until definitions and records have arrived."""
        self.pair.follow()
        self.pair.wait_transferred()
        self.pair.wait_queues(QUEUES)

    def spread(self) -> None:
        """Spread the leaders of the queues over the nodes."""
        self.pair.site.members[0].ctl("rebalance", "all")

    def leaders(self) -> dict[str, str]:
        """By queue, the node that leads it, from a running node."""
        placed = self.pair.site.queues(self.pair.site.running[0], VHOST)
        return {queue: place.leader for queue, place in placed.items() if place.state == "running"}

    def start_applications(self, count: int, seed: int) -> None:
        """See Applications.start_at_each."""
        ports = [node.amqp_port for node in self.pair.site.members]
        self.applications.start_at_each(ports, count, seed)

    def lose_node(self) -> SiteNode:
        """Kill the node that leads most queues; return it."""
        led = list(self.leaders().values())
        node = max(self.pair.site.members, key=lambda each: led.count(each.node))
        node.kill9()
        return node

    def wait_led_without(self, gone: SiteNode) -> None:
        """Wait until every queue has another leader than this node."""

        def led() -> bool:
            leaders = self.leaders()
            return set(QUEUES) <= set(leaders) and gone.node not in leaders.values()

        self.pair.site.wait(led, f"{gone.node} to be followed")

    def kill_upstream(self) -> None:
        """Kill all nodes of the upstream that run, and wait for the applications' end."""
        for node in self.pair.site.members:
            if node.alive:
                node.kill9()
        self.applications.wait_gone()
