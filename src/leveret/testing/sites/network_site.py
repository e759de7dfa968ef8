"""A cluster of Leveret nodes, its etcd and its clients, each on a host of its own in a network that a test can cut.

    with Network() as network, NetworkSite(network, folder, nodes=3) as site:    # in a world: see testing.network
        a, b, c = site.members
        with a.clients.entered():                    # an application on a machine beside node a
            Publisher(a.amqp_port, "/", messages, books, host=a.host.address).run()
        with site.parted([a], [b, c, *site.etcd_hosts]):
            ...

A *place* is a part of the network that no cut divides: a node with the host of its clients, or a member of etcd. The
site asks each node from the node's own host, so a cut does not hide the node from the test.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import pika

from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.mirror_cluster import ClusterNode
from leveret.testing.sites.network_hosts import Network, NetworkHost

CLIENTS: Final = "clients-"
ETCD: Final = "etcd-"


class NetworkNode(SiteNode):
    """A node on a host of its own (a ClusterNode).

    Attributes:
        host: the host of the node.
        clients: the host of its clients.
    """

    def __init__(self, name: str, folder: Path, config: Mapping[str, str], network: Network) -> None:
        """Make the hosts; nothing runs yet."""
        super().__init__(name, folder, config, None)
        self.host = network.add(name)
        self.clients = network.add(CLIENTS + name)
        self.config |= {
            "cluster.bind": self.host.address,
            # Second listeners, beside those on loopback, for clients on other hosts.
            "listeners.tcp.2": f"{self.host.address}:{self.amqp_port}",
            "stream.listeners.tcp.2": f"{self.host.address}:{self.stream_port}",
            "loopback_users": "none",
        }

    def launch(self) -> None:
        """See SiteNode."""
        with self.host.entered():
            super().launch()

    def answers(self) -> bool:
        """See SiteNode."""
        with self.host.entered():
            return super().answers()

    def ctl(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """See SiteNode; the command runs on the node's host."""
        with self.host.entered():
            return super().ctl(*args, **options)


Place: TypeAlias = NetworkNode | NetworkHost


class NetworkSite(ClusterSite):
    """See the module.

    Attributes:
        network: the network of the site.
        etcd_hosts: the hosts of etcd's members, which are places.
    """

    def __init__(
        self,
        network: Network,
        folder: Path,
        nodes: int = 3,
        config: Mapping[str, str] | None = None,
        *,
        etcd_members: int = 1,
    ) -> None:
        """Prepare nodes `n1`, `n2`, ... and etcd, each on a host; nothing runs yet. See ClusterSite."""
        self.network = network
        self.etcd_hosts = [network.add(f"{ETCD}{number + 1}") for number in range(etcd_members)]
        addresses = [host.address for host in self.etcd_hosts]
        super().__init__(folder, nodes, config, etcd_hosts=addresses)

    @property
    def places(self) -> list[NetworkNode]:
        """The nodes, running or not, as places."""
        return [each for each in self.members if isinstance(each, NetworkNode)]

    def add(self) -> NetworkNode:
        """Prepare one more node, without data; with `start` it joins the cluster."""
        node = NetworkNode(f"n{len(self.members) + 1}", self._folder, self._config, self.network)
        self.give_secret(node)
        self.members.append(node)
        return node

    def start_etcd(self) -> None:
        """Start all members of etcd, each on its host, and wait until they answer."""
        for member, host in zip(self.etcd.members, self.etcd_hosts, strict=True):
            with host.entered():
                member.start()
        for member, host in zip(self.etcd.members, self.etcd_hosts, strict=True):
            with host.entered():
                member.wait_ready()

    # -- operating, from the host of the node that is asked -----------------------------------

    def api(self, method: str, path: str, document: Any = None, *, at: ClusterNode | None = None) -> Any:
        """See MirrorCluster."""
        node = at or self.running[0]
        with self._host(node).entered():
            return super().api(method, path, document, at=node)

    def connect(self, node: ClusterNode, vhost: str = "/", **options: Any) -> pika.BlockingConnection:
        """See MirrorCluster."""
        with self._host(node).entered():
            return super().connect(node, vhost, **options)

    def _host(self, node: ClusterNode) -> NetworkHost:
        assert isinstance(node, NetworkNode), f"{node.node} is not of this network"
        return node.host

    # -- faults -------------------------------------------------------------------------------

    @contextmanager
    def parted(self, these: Sequence[Place], those: Sequence[Place], *, back: bool = True) -> Iterator[None]:
        """Drop, for the block, the packets from `these` to `those`, and with `back` those of the other direction."""
        with self.network.cut(_hosts(these), _hosts(those), back=back):
            yield


def _hosts(places: Sequence[Place]) -> list[NetworkHost]:
    return [
        host
        for place in places
        for host in ([place.host, place.clients] if isinstance(place, NetworkNode) else [place])
    ]
