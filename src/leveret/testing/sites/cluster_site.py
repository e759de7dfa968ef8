"""A cluster of Leveret nodes and their etcd as real processes, with links that a test can cut.

    with ClusterSite(folder) as site:                  # starts an etcd and three nodes
        a, b, c = site.nodes
        site.set_policy("ha", "^q", {"ha-mode": "all"})
        a.kill9()
        with site.paused(b), site.cut_off(c):
            ...

With `links` each node has two LinkProxies: one from the other nodes to this node, and one from this node to etcd.
`cut_off` stalls both. Without `links` the connections are direct, and cost no time in the proxies' threads.
"""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from leveret.config.settings import settings_of
from leveret.config.tree import Config
from leveret.testing.network.link_proxy import LinkProxy
from leveret.testing.network.ports import LOOPBACK, NotReady, free_port
from leveret.testing.servers import etcd
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.etcd import EtcdCluster
from leveret.testing.sites.follower_site import SECRET_FILE
from leveret.testing.sites.mirror_cluster import ClusterNode, MirrorCluster, QueuePlace

BACKEND: Final = "cluster_formation.peer_discovery_backend"
ADVERTISED: Final = "cluster.advertised_uri"
LEASE_TTL: Final = "2s"
_SECRET_BYTES: Final = 32


def available() -> str | None:
    """Return None if a cluster can be run here, else the reason and the remedy."""
    if BACKEND not in {each.key for each in settings_of(Config)}:
        return f"nodes do not know the setting {BACKEND}"
    return etcd.available()


class SiteNode(LeveretProcess):
    """One node of a ClusterSite (a ClusterNode).

    Attributes:
        name: the first part of its name in the cluster.
        cluster_port: the port for other nodes.
        replication_port: the port for followers outside of the cluster, if the site has such.
        link: the proxy between the other nodes and `cluster_port`; None without links.
        etcd_link: the proxy between the node and etcd's first member; None without links.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        config: Mapping[str, str],
        etcd_port: int | None,
        *,
        is_followed: bool = False,
    ) -> None:
        """Prepare a node; nothing runs yet. `etcd_port` is for a node with links, else None."""
        self.name = name
        self.cluster_port = free_port()
        self.replication_port = free_port()
        self.link = LinkProxy(self.cluster_port) if etcd_port else None
        self.etcd_link = LinkProxy(etcd_port) if etcd_port else None
        own = {
            "nodename": f"{name}@localhost",
            "cluster.bind": LOOPBACK,
            "cluster.port": str(self.cluster_port),
        }
        if is_followed:
            own |= {"replication.bind": LOOPBACK, "replication.port": str(self.replication_port)}
        if self.link is not None and self.etcd_link is not None:
            own |= {
                ADVERTISED: f"tcp://{LOOPBACK}:{self.link.port}",
                "cluster.etcd.endpoints": f"http://{LOOPBACK}:{self.etcd_link.port}",
            }
        super().__init__(folder / name, {**config, **own}, parent_dir=folder)

    @property
    def node(self) -> str:
        """Its name in the cluster."""
        return self.config["nodename"]

    @property
    def amqp_uri(self) -> str:
        """The URI for guest to vhost `/`."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.amqp_port}/%2F"

    def pause(self) -> None:
        """Suspend the process (SIGSTOP)."""
        self.server.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause (SIGCONT)."""
        self.server.signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the end of the output, for an error; a line that says why the node ends is whole."""
        fatal = [line for line in self.log_text().splitlines() if "level=critical" in line]
        return "\n".join([super().log_tail(), *fatal[-1:]])

    def give_secret(self, secret: bytes) -> None:
        """Write the cluster's shared secret, readable for the owner alone, into the data directory."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = self.data_dir / SECRET_FILE
        mine.unlink(missing_ok=True)
        mine.touch(mode=0o600)
        mine.write_bytes(secret)
        mine.chmod(0o400)

    def wipe(self) -> None:
        """Remove all data of a stopped node."""
        assert not self.alive
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def close(self) -> None:
        """End the process and the links; the data stay in the site's folder."""
        super().close()
        for link in (self.link, self.etcd_link):
            if link is not None:
                link.close()


class ClusterSite(MirrorCluster):
    """See the module.

    Attributes:
        etcd: the etcd of the nodes.
        members: the nodes; `nodes` has the same ones.
    """

    kind = "leveret"
    begins_empty = False

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        config: Mapping[str, str] | None = None,
        *,
        etcd_members: int = 1,
        etcd_hosts: Sequence[str] = (),
        links: bool = False,
        followed: bool = False,
    ) -> None:
        """Prepare nodes `n1`, `n2`, ... in `folder`, all with the same configuration; nothing runs yet.

        Args:
            folder: for the data of all nodes; the caller removes it.
            nodes: the number of nodes.
            config: more lines for each node's configuration.
            etcd_members: the number of etcd's members.
            etcd_hosts: the addresses of etcd's members, if they are not on loopback.
            links: whether to put proxies between the nodes, and between the nodes and etcd.
            followed: whether nodes outside of the cluster may follow its nodes.
        """
        self.etcd = EtcdCluster(etcd_members, hosts=etcd_hosts)
        self._folder = folder
        self._config = {
            BACKEND: "etcd",
            "cluster.etcd.endpoints": self.etcd.setting,
            "cluster.etcd.prefix": f"/site-{secrets.token_hex(4)}",
            "cluster.etcd.lease_ttl": LEASE_TTL,
            **(config or {}),
        }
        self._links = links
        self._followed = followed
        self._secret = secrets.token_hex(_SECRET_BYTES).encode() + b"\n"
        self.members: list[SiteNode] = []
        for _ in range(nodes):
            self.add()

    @property
    def nodes(self) -> Sequence[ClusterNode]:
        """All nodes, running or not."""
        return self.members

    @property
    def urls(self) -> str:
        """The URLs of all nodes' HTTP APIs, as the console takes those of one site."""
        return ",".join(f"http://{LOOPBACK}:{node.management_port}" for node in self.members)

    def add(self) -> SiteNode:
        """Prepare one more node, without data; with `start` it joins the cluster."""
        etcd_port = self.etcd.members[0].port if self._links else None
        name = f"n{len(self.members) + 1}"
        node = SiteNode(name, self._folder, self._config, etcd_port, is_followed=self._followed)
        self.give_secret(node)
        for link in (node.link, node.etcd_link):
            if link is not None:
                link.start()
        self.members.append(node)
        return node

    def give_secret(self, node: SiteNode) -> None:
        """Give a node the cluster's secret, as an operator does once for each node."""
        node.give_secret(self._secret)

    def form(self) -> None:
        """Start etcd and all nodes; return when they are a cluster.

        Raises:
            NotReady: no cluster can be run here, or a node does not start.
        """
        if reason := available():
            raise NotReady(reason)
        self.start_etcd()
        self.start(*self.members)

    def start_etcd(self) -> None:
        """Start all members of etcd, and wait until they answer."""
        self.etcd.start()

    def close(self) -> None:
        """End all processes and links."""
        for each in self.members:
            each.go_on()
            each.close()
        self.etcd.close()

    def queues(self, asked: ClusterNode, vhost: str = "/") -> Mapping[str, QueuePlace]:
        """See MirrorCluster."""
        rows = self.api("GET", f"queues/{quote(vhost, safe='')}", at=asked)
        return {row["name"]: _placed(row) for row in rows}

    def wait_without_copies(self, node: ClusterNode) -> None:
        """See MirrorCluster. The directory of a copy goes once the leader has agreed."""
        member = next(each for each in self.members if each is node)
        self.wait(lambda: not any((member.data_dir / "queues").glob("*/")), f"{node.node} to have no copies")

    def revive_without(self, node: ClusterNode, *lost: ClusterNode) -> None:
        """See MirrorCluster. The node forgets the lost nodes before its start, as with RabbitMQ."""
        settings = str(next(each for each in self.members if each is node).config_file)
        for each in lost:
            node.ctl("forget_cluster_node", "--offline", "--config", settings, each.node)
        self.start(node)

    def start_alone(self, node: ClusterNode) -> None:
        """See MirrorCluster."""
        self.start(node)

    def drain(self, node: ClusterNode) -> None:
        """See MirrorCluster."""
        node.ctl("drain")

    def revive(self, node: ClusterNode) -> None:
        """See MirrorCluster."""
        node.ctl("revive")

    def start_all(self) -> None:
        """Start the stopped nodes; return when all nodes are members."""
        for node in self.members:
            if not node.alive:
                node.launch()
        for node in self.members:
            node.wait_ready()
        self.wait_members()

    # -- faults -------------------------------------------------------------------------------

    @contextmanager
    def paused(self, *nodes: SiteNode) -> Iterator[None]:
        """Suspend processes for the block."""
        for each in nodes:
            each.pause()
        try:
            yield
        finally:
            for each in nodes:
                each.go_on()

    @contextmanager
    def cut_off(self, *nodes: SiteNode) -> Iterator[None]:
        """Stall, for the block, the links between these nodes and etcd, and from other nodes to these nodes."""
        links = [link for each in nodes for link in (each.link, each.etcd_link) if link is not None]
        assert links, "this site has no links"
        for link in links:
            link.stall()
        try:
            yield
        finally:
            for link in links:
                link.resume()

    def heal(self) -> None:
        """Resume all processes, and undo all faults of the links."""
        for each in self.members:
            each.go_on()
            for link in (each.link, each.etcd_link):
                if link is not None:
                    link.heal()


def _placed(row: Mapping[str, Any]) -> QueuePlace:
    leader, mirrors = row.get("node", ""), row.get("slave_nodes")
    synchronised = row.get("synchronised_slave_nodes")
    if row.get("type") in ("quorum", "stream"):
        mirrors = synchronised = [node for node in row.get("online", ()) if node != leader]
    return QueuePlace(
        leader=leader,
        mirrors=None if mirrors is None else tuple(mirrors),
        synchronised=tuple(synchronised or ()),
        state=row.get("state", ""),
        messages=row.get("messages"),
        policy=row.get("policy") or "",
    )
