"""The parts of a site's HTTP API documents that the console reads. Pure.

The fields are RabbitMQ's, and Leveret's own. A field that a site does not send has a default, so that the console shows
less of an older node or of RabbitMQ; a document of another shape is refused as a whole.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from leveret.model.errors import PeerError
from leveret.model.foreign_json import split_json

Whole: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A number of a document: a larger one would fit into no float, and fail where it is computed with."""


class NotUnderstood(PeerError):
    """A site's answer does not have the form that its API promises."""


class WhoAmI(Struct):
    """`/api/whoami`."""

    name: str
    tags: list[str] | str = []


class Overview(Struct):
    """`/api/overview`: the totals of a site."""

    cluster_name: str = ""
    product_name: str = ""
    product_version: str = ""
    queue_totals: dict[str, Any] = {}
    message_stats: dict[str, Any] = {}


class NodeStatus(Struct):
    """A row of `/api/nodes`."""

    name: str
    running: bool = False
    being_drained: bool = False
    uptime: Whole | None = None
    disk_free: Whole | None = None
    disk_free_limit: Whole | None = None
    disk_free_alarm: bool = False
    mem_used: Whole | None = None
    mem_limit: Whole | None = None
    mem_alarm: bool = False
    file_descriptor_alarm: bool = False
    partitions: list[str] = []


class FollowerStatus(Struct):
    """A follower, from its leader's report."""

    name: str = ""
    node_id: str = ""
    address: str = ""
    state: str = ""
    in_sync: bool = False
    lag_bytes: Whole | None = None
    lag_records: Whole | None = None
    lag_s: float | None = None
    apply_delay_s: float | None = None


class HeldBack(Struct):
    """The changes that a delayed follower can leave out, with the times of the first and the last at the leader."""

    messages: Whole = 0
    records: Whole = 0
    oldest_at_ms: Whole | None = None
    newest_at_ms: Whole | None = None


class LeaderStatus(Struct):
    """The leader, from its follower's report; a delayed follower reports `held_back`."""

    name: str = ""
    uri: str = ""
    state: str = ""
    error: str = ""
    lag_records: Whole | None = None
    lag_s: float | None = None
    held_back: HeldBack | None = None


class ReadingStatus(Struct):
    """The progress of a node's scrub or comparison, which reads all of its data."""

    running: bool = False
    octets_done: Whole = 0
    octets_total: Whole = 0


class NodeReplication(Struct):
    """`/api/replication/node`."""

    role: str = ""
    epoch: Whole = 0
    node: str = ""
    state: str = ""
    error: str = ""
    is_short: bool = False
    followers: list[FollowerStatus] = []
    leader: LeaderStatus | None = None
    scrub: ReadingStatus | None = None
    verify: ReadingStatus | None = None


class UpstreamNodeLog(Struct):
    """A node of an upstream cluster, whose log of a vhost a downstream transfers."""

    node: str
    state: str = ""
    lag_records: Whole = 0
    error: str = ""


class TransferredVhost(Struct):
    """The transfer of a vhost by a downstream.

    In a cluster `node` would recover the vhost now, and `owner` owns it; `nodes` are an upstream cluster's nodes with a
    log.
    """

    virtual_host: str
    state: str = ""
    lag_records: Whole = 0
    lag_ms: Whole | None = None
    heard_ago_ms: Whole | None = None
    is_archive_read: bool = False
    missing_messages: Whole = 0
    newest_age_ms: Whole | None = None
    error: str = ""
    node: str = ""
    owner: str = ""
    nodes: list[UpstreamNodeLog] = []


class TransferringNode(Struct):
    """A node of a downstream cluster, and the state of its links; `idle` if it follows no vhost."""

    node: str
    state: str = ""
    error: str = ""


class CollectedVhost(Struct):
    """The outgoing log of an upstream's vhost, in a cluster at `node`; `kept` of its `records` are still there."""

    virtual_host: str
    node: str = ""
    queues: Whole = 0
    records: Whole = 0
    kept: Whole = 0
    bytes: Whole = 0
    oldest_ms: Whole | None = None
    newest_ms: Whole | None = None
    missing_messages: Whole = 0
    error: str = ""


class KnownDownstream(Struct):
    """A downstream of a vhost, from the upstream's report, in a cluster from that of its `node`."""

    virtual_host: str
    downstream: str
    node: str = ""
    lag_records: Whole = 0
    missing_messages: Whole = 0
    last_seen: Whole | None = None


class RunningOperation(Struct):
    """A running operation of the site: the user who began it, its begin and its progress."""

    kind: str
    by: str = ""
    begun_ms: Whole = 0
    step: str = ""
    done: Whole = 0
    total: Whole = 0
    seconds_left: float | None = None


class StandbyDetails(Struct):
    """`/api/replication/standby/details`; `left_out` are the messages that a partial promotion left out."""

    operating_mode: str = ""
    state: str = ""
    error: str = ""
    downstream: str = ""
    upstream_endpoints: list[str] = []
    promotion: dict[str, Any] | None = None
    left_out: dict[str, Any] | None = None
    vhosts: list[TransferredVhost] = []
    nodes: list[TransferringNode] = []
    collected: list[CollectedVhost] = []
    downstreams: list[KnownDownstream] = []
    untagged: list[str] = []
    operations: list[RunningOperation] = []
    retention_bytes_max: Whole | None = None
    retention_ms_max: Whole | None = None


class NodePlots(Struct):
    """A node's history for plots: rows of at_ms and values."""

    node: str
    rows: list[list[float | None]] = []


class PlotsDocument(Struct):
    """`/api/replication/plots`; `names` are those of the values in each row, after at_ms."""

    names: list[str] = []
    nodes: list[NodePlots] = []


class PastOperation(Struct):
    """A row of `/api/replication/history`; an operation that neither runs nor has ended was interrupted."""

    kind: str
    begun_ms: Whole
    node: str = ""
    by: str = ""
    ended_ms: Whole | None = None
    is_running: bool = False
    error: str = ""
    result: dict[str, Any] = {}


class KeptMoments(Struct):
    """A row of `/api/replication/standby/moments`."""

    virtual_host: str
    earliest_ms: Whole
    newest_ms: Whole


class SchemaStatus(Struct):
    """`/api/tanzu/osr/schema/status`."""

    operating_mode: str = ""
    state: str = ""
    upstream_cluster: str | None = None
    upstream_endpoints: list[str] = []
    last_error: str | None = None
    conflict_count: Whole = 0
    conflicts: list[Any] = []
    refused_count: Whole = 0


class MemberRow(Struct):
    """A node of a cluster, from the cluster's list of members."""

    name: str
    alive: bool = False


class ClusterStatus(Struct):
    """`/api/cluster/node`."""

    state: str = ""
    members: list[MemberRow] = []
    partitions: dict[str, list[str]] = {}


class VhostStatus(Struct):
    """A row of `/api/vhosts`."""

    name: str
    tags: list[str] | str = []


class PolicyStatus(Struct):
    """A row of `/api/policies`."""

    vhost: str
    name: str
    definition: dict[str, Any] = {}


class QueueStatus(Struct, gc=False):
    """A row of `/api/queues` without its statistics: a site may have tens of thousands of queues."""

    name: str
    vhost: str
    type: str = "classic"
    durable: bool = True
    exclusive: bool = False
    state: str = "running"
    node: str = ""
    policy: str | None = None
    messages: Whole = 0
    leader: str | None = None
    members: tuple[str, ...] | None = None
    online: tuple[str, ...] | None = None
    slave_nodes: tuple[str, ...] | None = None
    synchronised_slave_nodes: tuple[str, ...] | None = None


class SynchronisingQueue(Struct):
    """One queue; during a synchronisation, all mirrors have `sync_messages` of its `messages`; else None."""

    messages: Whole = 0
    state: str = ""
    sync_messages: Whole | None = None


class DivergentRow(Struct):
    """A row of `/api/replication/divergent`."""

    id: str = ""
    at_ms: Whole | None = None
    messages: Whole = 0
    queues: list[dict[str, Any]] = field(default_factory=list)


class AppliedSchema(Struct):
    """A row of `/api/replication/schema/history`; `stamp` is in seconds since 1970."""

    stamp: Whole = 0
    upstream_cluster: str = ""
    puts: Whole = 0
    deletes: Whole = 0
    conflicts: Whole = 0
    refused: Whole = 0
    changes: list[str] = []


class ShownMessage(Struct):
    """A message, in the form of a queue's `get` and of the list of divergent messages."""

    exchange: str = ""
    routing_key: str = ""
    properties: dict[str, Any] | list[Any] = {}
    payload: str = ""
    payload_encoding: str = "string"
    payload_bytes: Whole | None = None
    redelivered: bool | None = None
    settled: bool | None = None
    vhost: str | None = None
    queue: str | None = None
    offset: Whole | None = None
    timestamp_ms: Whole | None = None


def read_document(octets: bytes, kind: Any) -> Any:
    """Decode one document.

    Raises:
        NotUnderstood: the document is no JSON, or has another shape; the text names the place.
    """
    try:
        return split_json(octets, kind)
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"the answer is not what the HTTP API promises: {error}") from None
