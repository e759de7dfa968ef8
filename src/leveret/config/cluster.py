"""A cluster: how its nodes find each other, where new queues are led, and how mirrors of queues are kept.

Which queues are mirrored, and where, is said by policies, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from leveret.config.etcd import EtcdOptions
from leveret.config.followers import Followers
from leveret.config.kinds import NONE, Bytes, Choice, Duration, Flag, Integer, Ip
from leveret.config.replication import StandbySettings
from leveret.config.settings import branch, contradiction, setting
from leveret.config.syntax import Given
from leveret.config.tls import TlsOptions
from leveret.config.uris import ANYWHERE, CLUSTER_PORT, NodeUri, OptionalNodeUri
from leveret.model.locators import QUEUE_LEADER_LOCATORS, QUEUE_MASTER_LOCATORS

ETCD: Final = "etcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """This node's place in a cluster, and what holds for queues that neither arguments nor policies speak of.

    `sync_bytes_s_max` is 0 for no limit.
    """

    peer_discovery_backend: str = setting(
        "cluster_formation.peer_discovery_backend",
        Choice((NONE, ETCD)),
        NONE,
        "`etcd` makes this node a member of the cluster whose state is in the etcd at `cluster.etcd.endpoints`, below "
        "`cluster.etcd.prefix`. Each of its nodes has a `nodename` of its own, such as rabbit@HOST, and keeps it; all "
        "have the same `.replication_secret` in their data directories.",
    )
    bind: str = setting(
        "cluster.bind",
        Ip(),
        "127.0.0.1",
        "IP address where the other nodes of the cluster connect.",
    )
    port: int = setting(
        "cluster.port",
        Integer(0, 65535),
        str(CLUSTER_PORT),
        "TCP port where the other nodes of the cluster connect; 0 lets the system choose.",
    )
    advertised_uri: NodeUri | None = setting(
        "cluster.advertised_uri",
        OptionalNodeUri(CLUSTER_PORT),
        "none",
        "Where the other nodes of the cluster are told to find this one; none for `cluster.bind` and `cluster.port`.",
    )
    tls: TlsOptions = branch(TlsOptions, "cluster.ssl_options")

    queue_master_locator: str = setting(
        "queue_master_locator",
        Choice(QUEUE_MASTER_LOCATORS),
        "client-local",
        "Which node leads a new classic queue: the one its client is connected to, the one that leads the fewest "
        "queues, or any. A queue may have its own: x-queue-master-locator, and queue-master-locator in a policy.",
    )
    queue_leader_locator: str = setting(
        "queue_leader_locator",
        Choice(QUEUE_LEADER_LOCATORS),
        "client-local",
        "Which node leads a new quorum queue or stream: the one its client is connected to, or with `balanced` the "
        "one that leads the fewest queues; `random` and `least-leaders` are old names of `balanced`. A queue may have "
        "its own: x-queue-leader-locator, and queue-leader-locator in a policy.",
    )
    initial_group_size: int = setting(
        "quorum_queue.initial_cluster_size",
        Integer(1, 99),
        "3",
        "On how many nodes a quorum queue is, its leader among them. A queue may have its own: "
        "x-quorum-initial-group-size, and target-group-size in a policy.",
    )
    sync_batch_size: int = setting(
        "mirroring_sync_batch_size",
        Integer(1, 1_000_000),
        "4096",
        "Most messages that a mirror that synchronises is sent at once. A queue may have its own: "
        "ha-sync-batch-size in a policy.",
    )
    sync_bytes_s_max: int = setting(
        "mirroring_sync_max_throughput",
        Bytes(0),
        "0",
        "Most bytes a second that a queue's mirrors are sent to synchronise; what is published meanwhile comes on "
        "top. 0 for no limit.",
    )
    mirroring_flow_control: bool = setting(
        "mirroring_flow_control",
        Flag(),
        "true",
        "Whether publishers to a mirrored queue are slowed down to what its mirrors take.",
    )
    mirroring_ack_timeout_ms: int = setting(
        "mirroring_ack_timeout",
        Duration(1000),
        "10s",
        "A mirror that acknowledges nothing of what it was sent for this long is no longer synchronised, and nobody "
        "waits for it; it comes back by itself.",
    )
    slave_wait_timeout_ms: int = setting(
        "slave_wait_timeout",
        Integer(0, 3_600_000),
        "15000",
        "Milliseconds that a leader which hands a queue over waits for the mirror that is to lead to have everything.",
    )

    @property
    def is_member(self) -> bool:
        """Whether this node is one of a cluster."""
        return self.peer_discovery_backend == ETCD


class Whole(Protocol):
    """The tree of all settings, as far as it matters here."""

    @property
    def cluster(self) -> Cluster:
        """This room's."""

    @property
    def etcd(self) -> EtcdOptions:
        """Where the state of the cluster is."""

    @property
    def followers(self) -> Followers:
        """What a node of a cluster cannot be."""

    @property
    def standby(self) -> StandbySettings:
        """Nor this, as a downstream."""


def check_together(config: Whole, given: Mapping[str, Given]) -> None:
    """Refuse what is allowed line by line and contradicts itself.

    Raises:
        ConfigError: names the keys, where they were given, and what to do.
    """
    cluster = config.cluster
    if not cluster.is_member:
        return
    if not config.etcd.endpoints:
        raise contradiction(
            given,
            "cluster_formation.peer_discovery_backend",
            "= etcd makes this node a member of a cluster whose state is in etcd: set cluster.etcd.endpoints",
        )
    if config.followers.follow is not None:
        raise contradiction(
            given,
            "replication.follow",
            "has this node serve nobody and keep a copy of another, and "
            "cluster_formation.peer_discovery_backend = etcd makes it a member of a cluster: take one of the two out",
        )
    if config.followers.bind is not None:
        raise contradiction(
            given,
            "replication.bind",
            "lets followers copy the whole of this node, and cluster_formation.peer_discovery_backend = etcd makes it "
            "a member of a cluster, whose queues are copied by policies (ha-mode): take one of the two out",
        )
    if config.standby.operating_mode == "downstream":
        raise contradiction(
            given,
            "standby.replication.operating_mode",
            "= downstream is for a node alone, and cluster_formation.peer_discovery_backend = etcd makes this one "
            "a member of a cluster: take one of the two out",
        )
    if cluster.bind in ANYWHERE and cluster.advertised_uri is None:
        raise contradiction(
            given,
            "cluster.bind",
            f"= {cluster.bind} does not say where the other nodes of the cluster find this one: "
            "set cluster.advertised_uri",
        )
    if cluster.advertised_uri is not None and cluster.advertised_uri.is_tls != bool(cluster.tls.certfile):
        raise contradiction(
            given,
            "cluster.advertised_uri",
            "is tls:// if and only if cluster.ssl_options.certfile is set, as TLS has to go from node to node",
        )
