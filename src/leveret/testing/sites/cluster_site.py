"""A cluster of Leveret nodes and their etcd as real processes, each node behind links that a test can harm.

    with ClusterSite(folder) as site:                  # starts an etcd and three nodes
        a, b, c = site.nodes
        site.set_policy("ha", "^q", {"ha-mode": "all"})
        a.kill9()
        with site.paused(b), site.cut_off(c):
            ...

With `links` every node reaches etcd, and is reached by the others, through a LinkProxy of its own: to cut a node off is
to stall both. Without, nothing stands between them, and nothing is lost to the proxies' threads.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
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
    """Return None if a cluster can be run here, else the reason why not and what would help."""
    if BACKEND not in {each.key for each in settings_of(Config)}:
        return f"nodes do not know the setting {BACKEND}"
    return etcd.available()


class SiteNode:
    """One node of a ClusterSite (a ClusterNode).

    Attributes:
        process: the node's process, with its data and ports.
        cluster_port: where other nodes find it.
        replication_port: where followers beyond the cluster find it, if the site has such.
        link: between the others and `cluster_port`; None without links.
        etcd_link: between the node and etcd's first member; None without links.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        config: Mapping[str, str],
        links: int | None,
        *,
        is_followed: bool = False,
    ) -> None:
        """Prepare; nothing runs. `links` is the port of etcd if there are to be links."""
        self.name = name
        self.cluster_port = free_port()
        self.replication_port = free_port()
        self.link = LinkProxy(self.cluster_port) if links else None
        self.etcd_link = LinkProxy(links) if links else None
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
        self.process = LeveretProcess(folder / name, {**config, **own}, parent_dir=folder)

    @property
    def node(self) -> str:
        """Its name in the cluster."""
        return self.process.config["nodename"]

    @property
    def amqp_port(self) -> int:
        """Where clients find it."""
        return self.process.amqp_port

    @property
    def management_port(self) -> int:
        """Where its HTTP API is."""
        return self.process.management_port

    @property
    def amqp_uri(self) -> str:
        """Where guest connects to vhost `/`."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.amqp_port}/%2F"

    @property
    def data_dir(self) -> Path:
        """Where it keeps everything."""
        return self.process.data_dir

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.alive

    def launch(self) -> None:
        """Start it without waiting."""
        self.process.launch()

    def wait_ready(self) -> None:
        """Wait until its listeners answer: it is a member of the cluster then."""
        self.process.wait_ready()

    def stop(self) -> int:
        """End it in order, keeping its data; return its exit status."""
        return self.process.stop()

    def kill9(self) -> None:
        """End it as a crash would, keeping its data."""
        self.process.kill9()

    def pause(self) -> None:
        """Stop the process where it stands (SIGSTOP)."""
        self.process.server.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause (SIGCONT)."""
        self.process.server.signal(signal.SIGCONT)

    def ctl(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `leveretctl` against it."""
        return self.process.ctl(*args, check=check)

    def log_text(self) -> str:
        """Everything it has written, over all its starts."""
        return self.process.log_text()

    def log_tail(self) -> str:
        """The end of that, for an error."""
        return self.process.server.log_tail()

    def cpu_seconds(self) -> float:
        """Processor time since its start."""
        return self.process.cpu_seconds()

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return self.process.rss_bytes()

    def give_secret(self, secret: bytes) -> None:
        """Put down what nodes of one cluster share, readable for the owner alone."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = self.data_dir / SECRET_FILE
        mine.unlink(missing_ok=True)
        mine.touch(mode=0o600)
        mine.write_bytes(secret)
        mine.chmod(0o400)

    def wipe(self) -> None:
        """Remove all its data; it must not run."""
        assert not self.alive
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def close(self) -> None:
        """End the process and the links; its data stay with the site's folder."""
        self.process.close()
        for link in (self.link, self.etcd_link):
            if link is not None:
                link.close()


class ClusterSite(MirrorCluster):
    """See the module.

    Attributes:
        etcd: what the nodes agree by.
        members: the nodes; `nodes` are the same.
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
            folder: for the data of all nodes; it is the caller's to remove.
            nodes: how many.
            config: more lines for each node's configuration.
            etcd_members: how many members the etcd has.
            etcd_hosts: their addresses, if they are not on loopback.
            links: whether to put proxies between the nodes, and between them and etcd.
            followed: whether nodes beyond the cluster may follow its nodes.
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

    def add(self) -> SiteNode:
        """Prepare one node more, with nothing in it; `start` has it join."""
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
        """What an operator does once for each node: copy what all of them share."""
        node.give_secret(self._secret)

    def form(self) -> None:
        """Start etcd and all nodes; return when they are a cluster.

        Raises:
            NotReady: none can be run here, or a node does not come up.
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

    def revive_without(self, node: ClusterNode, *lost: ClusterNode) -> None:
        """See MirrorCluster: as RabbitMQ, it forgets before it starts, though it need not."""
        settings = str(next(each for each in self.members if each is node).process.config_file)
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
        """Start the nodes that are down; return when all are members."""
        for node in self.members:
            if not node.alive:
                node.launch()
        for node in self.members:
            node.wait_ready()
        self.wait_members()

    # -- harm ---------------------------------------------------------------------------------

    @contextmanager
    def paused(self, *nodes: SiteNode) -> Iterator[None]:
        """Have processes stand still while the block runs."""
        for each in nodes:
            each.pause()
        try:
            yield
        finally:
            for each in nodes:
                each.go_on()

    @contextmanager
    def cut_off(self, *nodes: SiteNode) -> Iterator[None]:
        """Nothing passes between these nodes and etcd, and nothing gets to them, while the block runs."""
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
        """Undo what was done to links and processes."""
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
