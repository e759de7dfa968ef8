"""Nodes beyond a cluster that follow its nodes, and what they are to have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leveret.testing.network.ports import wait_until
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.follower_site import FollowerSiteNode

BODY = b"x" * 20_000
QUEUES = ("ha.one", "ha.two", "alone")


class Beyond(FollowerSiteNode):
    """A follower of a cluster's node."""

    def __init__(self, name: str, folder: Path, config: dict[str, str] | None = None) -> None:
        super().__init__(name, folder, config or {})
        self.link.start()

    def leader(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["leader"]
        return found

    def wait_even_with(self, node: SiteNode | FollowerSiteNode) -> None:
        """Wait until this one has all that the node has done; means little unless that rests."""

        def position() -> Any:
            if isinstance(node, FollowerSiteNode):
                return node.status()["position"]
            return json.loads(node.ctl("--formatter", "json", "replication_status").stdout)["position"]

        def even() -> bool:
            leader = self.leader()
            return (
                leader["state"] in ("streaming", "delayed")
                and not leader["error"]
                and leader["acked_position"] == leader["position"] == position()
            )

        wait_until(even, f"{self.name} as far as {node.name}", 60)


def publish(site: ClusterSite, count: int, *, at: SiteNode, acks: int = 1) -> None:
    """So many messages to each queue, confirmed, of which the first are acked."""
    with site.channel(at) as channel:
        for name in QUEUES:
            for number in range(count):
                channel.basic_publish("", name, str(number).encode() + BODY)
            for _ in range(acks):
                channel.basic_get(name, auto_ack=True)


def publish_to_mirrored(site: ClusterSite, count: int, *, at: SiteNode) -> None:
    """So many to each mirrored queue, confirmed, once another node leads it."""
    with site.channel(at) as channel:
        for name in QUEUES[:2]:
            for _ in range(count):
                channel.basic_publish("", name, BODY)


def declare(site: ClusterSite, followed: SiteNode, other: SiteNode) -> None:
    """A mirrored queue that another node leads, and two that the followed one leads."""
    site.set_policy("ha", "^ha", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    with site.channel(other) as channel:
        channel.queue_declare("ha.one", durable=True)
    with site.channel(followed) as channel:
        for name in ("ha.two", "alone"):
            channel.queue_declare(name, durable=True)
    wait_mirrored(site, followed)


def wait_mirrored(site: ClusterSite, asked: SiteNode) -> None:
    """Wait until the mirrored queues are on all nodes."""
    everybody = {each.node for each in site.members}

    def placed(name: str) -> bool:
        found = site.queue(name, asked=asked)
        return found is not None and {found.leader, *found.synchronised} == everybody

    wait_until(lambda: all(map(placed, QUEUES[:2])), "mirrors on all nodes", 60)


def messages_of(channel: Any, name: str) -> list[str]:
    """All that is in a queue, without the padding; it stays there."""
    found = []
    while (got := channel.basic_get(name))[0] is not None:
        found.append(got[2].removesuffix(BODY).decode())
    return found
