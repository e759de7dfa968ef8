"""The cluster's interface for a node; `runtime.cluster.wiring` makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from leveret.core.queues.queue import Queue, Reader
from leveret.model import definitions as d
from leveret.model.errors import Corrupt
from leveret.runtime.logs.commit import ReplicationBarrier
from leveret.runtime.logs.engine import ReplicationPort
from leveret.runtime.logs.log_store import QueueStoring
from leveret.runtime.schema_sync.decisions import Deciding
from leveret.session.amqp091.remote_queues import Leaders
from leveret.storage.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSide:
    """See the module.

    Attributes:
        operations: what operators may do (management.node.ClusterOperations).
        is_founder: whether the cluster begins with what this node has.
        take_definitions: gives the broker the definitions that the cluster has; told what the node's own log has.
        make_queue: see Broker.make_queue.
        forwarding: stores what is published to queues that other nodes lead.
        leaders: those nodes, as channels know them.
        replication_port: who else has to keep what the node is told.
        barrier: what a promise waits for beside the disk.
        copy_gone: told of the files of a log that is here for another node's queue; whether it is.
        schema_decisions: what is decided on schema replication, for all nodes.
        on_draining: tells the other nodes whether this one is in maintenance.
        find_streams: host and port of another node for clients of streams, with TLS or not; None if it has none.
        on_streams: told that clients of streams may come to one address more.
    """

    operations: Any
    is_founder: bool
    take_definitions: Callable[[d.Definitions], None]
    make_queue: Callable[[d.Queue, Reader, bool], Queue]
    forwarding: QueueStoring
    leaders: Leaders
    replication_port: ReplicationPort
    barrier: ReplicationBarrier
    copy_gone: Callable[[Log, Corrupt], bool]
    schema_decisions: Deciding
    on_draining: Callable[[bool], Awaitable[None]]
    find_streams: Callable[[str, bool], tuple[str, int] | None]
    on_streams: Callable[[], None]
