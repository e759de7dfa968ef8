"""The cluster's interface for a node; `runtime.cluster.wiring` makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from leveret.core.queues.queue import Queue, Reader
from leveret.model import definitions as d
from leveret.model.errors import Corrupt
from leveret.runtime.clients.recovery_forwarding import RecoveryPort
from leveret.runtime.clients.stream_host import StreamReplicating
from leveret.runtime.collecting.shared_incarnations import SharedIncarnations
from leveret.runtime.logs.commit import ReplicationBarrier
from leveret.runtime.logs.log_store import QueueStoring
from leveret.runtime.logs.ports import ReplicationPort
from leveret.runtime.schema_sync.decisions import SchemaDecisionStore
from leveret.runtime.standby.site import StandbySite
from leveret.session.amqp091.remote_queues import Leaders
from leveret.session.stream.types import UpstreamSite
from leveret.storage.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSide:
    """See the module.

    Attributes:
        operations: commands of operators (management.node.ClusterOperations).
        is_founder: whether the cluster begins with the data of this node.
        take_definitions: gives the broker the cluster's definitions, given those of the node's own log; returns the
            epochs of all of the cluster's queues.
        make_queue: see Broker.make_queue.
        forwarding: stores messages that are published to queues with a leader elsewhere.
        leaders: the leaders of other nodes, as channels use them.
        replication_port: the nodes that must have a change before it is promised.
        barrier: what a promise waits for beside the disk.
        copy_gone: called when the files of a mirror's log are gone; returns whether the log is a mirror's.
        schema_decisions: decisions on schema replication, for all nodes.
        standby_site: the downstream side of message replication, of all nodes.
        recovery_port: publishes recovered messages to queues with a leader elsewhere.
        on_draining: tells the other nodes whether this one is in maintenance.
        find_streams: returns host and port of another node for clients of streams, with or without TLS; or None.
        stream_replicas: copies of streams that other nodes lead.
        site: this cluster, as downstreams see it.
        incarnations: the incarnations of collected queues.
        on_streams: called with a further address at which clients of streams may connect.
    """

    operations: Any
    is_founder: bool
    take_definitions: Callable[[d.Definitions], set[int]]
    make_queue: Callable[[d.Queue, Reader, bool], Queue]
    forwarding: QueueStoring
    leaders: Leaders
    replication_port: ReplicationPort
    barrier: ReplicationBarrier
    copy_gone: Callable[[Log, Corrupt], bool]
    schema_decisions: SchemaDecisionStore
    standby_site: StandbySite
    recovery_port: RecoveryPort
    on_draining: Callable[[bool], Awaitable[None]]
    find_streams: Callable[[str, bool], tuple[str, int] | None]
    stream_replicas: StreamReplicating
    on_streams: Callable[[], None]
    site: UpstreamSite
    incarnations: SharedIncarnations
