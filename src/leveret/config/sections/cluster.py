"""Settings of a cluster: discovery of its nodes, leaders of new queues, and synchronisation of mirrors.

Policies, not settings, decide which queues have mirrors, and on which nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from leveret.config.kinds import NONE, Bytes, Choice, Duration, Flag, Integer, Ip
from leveret.config.sections.etcd import EtcdOptions
from leveret.config.sections.followers import Followers
from leveret.config.sections.replication import StandbySettings
from leveret.config.sections.tls import TlsOptions
from leveret.config.settings import branch, contradiction, setting
from leveret.config.syntax import SettingText
from leveret.config.uris import ANYWHERE, CLUSTER_PORT, NodeUri, OptionalNodeUri
from leveret.model.locators import QUEUE_LEADER_LOCATORS, QUEUE_MASTER_LOCATORS

ETCD: Final = "etcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """This node's place in a cluster, and defaults for queues without an argument or policy on the subject.

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
        "IP address of the listener for other nodes of the cluster.",
    )
    port: int = setting(
        "cluster.port",
        Integer(0, 65535),
        str(CLUSTER_PORT),
        "TCP port of the listener for other nodes of the cluster; 0 lets the system choose.",
    )
    advertised_uri: NodeUri | None = setting(
        "cluster.advertised_uri",
        OptionalNodeUri(CLUSTER_PORT),
        "none",
        "Address that other nodes of the cluster use for this node; none for `cluster.bind` "
        "and `cluster.port`.",
    )
    tls: TlsOptions = branch(TlsOptions, "cluster.ssl_options")

    queue_master_locator: str = setting(
        "queue_master_locator",
        Choice(QUEUE_MASTER_LOCATORS),
        "client-local",
        "Leader of a new classic queue: the client's node, the node with the fewest queues, "
        "or a random node. x-queue-master-locator, or queue-master-locator in a policy, sets "
        "it for one queue.",
    )
    queue_leader_locator: str = setting(
        "queue_leader_locator",
        Choice(QUEUE_LEADER_LOCATORS),
        "client-local",
        "Leader of a new quorum queue or stream: the client's node, or with `balanced` the "
        "node with the fewest queues. `random` and `least-leaders` are old names of "
        "`balanced`. x-queue-leader-locator, or queue-leader-locator in a policy, sets it for "
        "one queue.",
    )
    initial_group_size: int = setting(
        "quorum_queue.initial_cluster_size",
        Integer(1, 99),
        "3",
        "Number of members of a quorum queue, its leader included. "
        "x-quorum-initial-group-size, or target-group-size in a policy, sets it for one "
        "queue.",
    )
    sync_batch_size: int = setting(
        "mirroring_sync_batch_size",
        Integer(1, 1_000_000),
        "4096",
        "Maximum number of messages in one batch to a mirror that synchronises. "
        "ha-sync-batch-size in a policy sets it for one queue.",
    )
    sync_bytes_s_max: int = setting(
        "mirroring_sync_max_throughput",
        Bytes(0),
        "0",
        "Maximum rate at which a queue's mirrors synchronise, in bytes a second. New messages "
        "come on top. 0 for no limit.",
    )
    mirroring_flow_control: bool = setting(
        "mirroring_flow_control",
        Flag(),
        "true",
        "Whether publishers to a mirrored queue are slowed down to the speed of its mirrors.",
    )
    mirroring_ack_timeout_ms: int = setting(
        "mirroring_ack_timeout",
        Duration(1000),
        "10s",
        "A mirror that acknowledges nothing for this long is no longer synchronised, and "
        "confirms stop waiting for it. It returns by itself.",
    )
    slave_wait_timeout_ms: int = setting(
        "slave_wait_timeout",
        Integer(0, 3_600_000),
        "15000",
        "Milliseconds for which a leader that hands a queue over waits until the next leader "
        "has every message.",
    )

    @property
    def is_member(self) -> bool:
        """Return whether this node is a member of a cluster."""
        return self.peer_discovery_backend == ETCD


class CheckedSections(Protocol):
    """The part of the settings' tree that these checks read."""

    @property
    def cluster(self) -> Cluster:
        """The settings of this section."""

    @property
    def etcd(self) -> EtcdOptions:
        """The etcd with the state of the cluster."""

    @property
    def followers(self) -> Followers:
        """The settings of followers, some of which contradict a cluster's."""

    @property
    def standby(self) -> StandbySettings:
        """The settings of a standby; an archive in a store contradicts a cluster."""


def check_together(config: CheckedSections, given: Mapping[str, SettingText]) -> None:
    """Refuse settings that are allowed one by one and contradict each other.

    Raises:
        ConfigError: names the keys, their places, and the remedy.
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
            "makes this node a follower, which serves no client, and "
            "cluster_formation.peer_discovery_backend = etcd makes it a member of a cluster: remove one of the two",
        )
    if config.followers.min_in_sync:
        raise contradiction(
            given,
            "replication.min_in_sync",
            "stops the publishers of this node while it lacks followers, and cluster_formation.peer_discovery_backend "
            "= etcd makes it a member of a cluster, whose publishers are at every node: remove one of the two",
        )
    if config.standby.shares_data_dir and config.standby.data_dir is None:
        raise contradiction(
            given,
            "standby.replication.downstream.shared_data_dir",
            "has all nodes of the cluster write one archive, and there is none that they can share: set "
            "standby.replication.downstream.data_dir to a path that all of them mount, or to a place in a store",
        )
    if cluster.bind in ANYWHERE and cluster.advertised_uri is None:
        raise contradiction(
            given,
            "cluster.bind",
            f"= {cluster.bind} is no address at which the other nodes of the cluster reach this node: "
            "set cluster.advertised_uri",
        )
    if cluster.advertised_uri is not None and cluster.advertised_uri.is_tls != bool(cluster.tls.certfile):
        raise contradiction(
            given,
            "cluster.advertised_uri",
            "must be tls:// if and only if cluster.ssl_options.certfile is set: links between nodes use TLS or none do",
        )
