"""The documents of a site's HTTP API, as far as the console reads them. Pure.

Fields are RabbitMQ's, and Leveret's own beside them. A field that a site does not send has a default, so that an
older node, or RabbitMQ, is shown with less; a document of another shape is refused as a whole.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from leveret.model.errors import PeerError


class NotUnderstood(PeerError):
    """A site's answer is not what its API promises."""


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
    uptime: int | None = None
    disk_free: int | None = None
    disk_free_limit: int | None = None
    disk_free_alarm: bool = False
    mem_used: int | None = None
    mem_limit: int | None = None
    mem_alarm: bool = False
    file_descriptor_alarm: bool = False
    partitions: list[str] = []


class FollowerStatus(Struct):
    """A follower, as its leader reports it."""

    name: str = ""
    node_id: str = ""
    address: str = ""
    state: str = ""
    in_sync: bool = False
    lag_bytes: int | None = None
    lag_records: int | None = None
    lag_s: float | None = None
    apply_delay_s: float | None = None


class HeldBack(Struct):
    """What a delayed follower can leave out, and when its leader did the first and the last of that."""

    messages: int = 0
    records: int = 0
    oldest_at_ms: int | None = None
    newest_at_ms: int | None = None


class LeaderStatus(Struct):
    """The leader, as its follower reports it; `held_back` by a delayed one."""

    name: str = ""
    uri: str = ""
    state: str = ""
    error: str = ""
    lag_records: int | None = None
    lag_s: float | None = None
    held_back: HeldBack | None = None


class ReadingStatus(Struct):
    """How far a node is that reads all of its data, for a scrub or a comparison."""

    running: bool = False
    octets_done: int = 0
    octets_total: int = 0


class NodeReplication(Struct):
    """`/api/replication/node`."""

    role: str = ""
    epoch: int = 0
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
    lag_records: int = 0
    error: str = ""


class TransferredVhost(Struct):
    """A vhost of a downstream: how far its transfer is.

    In a cluster `node` recovers the vhost, and `owner` is to; of an upstream cluster, `nodes` are those with a log.
    """

    virtual_host: str
    state: str = ""
    lag_records: int = 0
    lag_ms: int | None = None
    heard_ago_ms: int | None = None
    is_archive_read: bool = False
    missing_messages: int = 0
    newest_age_ms: int | None = None
    error: str = ""
    node: str = ""
    owner: str = ""
    nodes: list[UpstreamNodeLog] = []


class TransferringNode(Struct):
    """A node of a downstream cluster, and how its links do."""

    node: str
    state: str = ""
    error: str = ""


class CollectedVhost(Struct):
    """A vhost of an upstream that is collected, in a cluster by a `node`; `kept` of `records` are there."""

    virtual_host: str
    node: str = ""
    queues: int = 0
    records: int = 0
    kept: int = 0
    bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    missing_messages: int = 0
    error: str = ""


class KnownDownstream(Struct):
    """A downstream of a vhost, as the upstream knows it, in a cluster as its `node` does."""

    virtual_host: str
    downstream: str
    node: str = ""
    lag_records: int = 0
    missing_messages: int = 0
    last_seen: int | None = None


class RunningOperation(Struct):
    """What the site does for an operator now: begun by whom, when, and how far it is."""

    kind: str
    by: str = ""
    begun_ms: int = 0
    step: str = ""
    done: int = 0
    total: int = 0
    seconds_left: float | None = None


class StandbyDetails(Struct):
    """`/api/replication/standby/details`; `left_out` of a promotion that was for a part of what is there."""

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
    retention_bytes_max: int | None = None
    retention_ms_max: int | None = None


class NodePlots(Struct):
    """What a node kept for plots: rows of at_ms and values."""

    node: str
    rows: list[list[float | None]] = []


class PlotsDocument(Struct):
    """`/api/replication/plots`; `names` of the values in each row after its first."""

    names: list[str] = []
    nodes: list[NodePlots] = []


class PastOperation(Struct):
    """A row of `/api/replication/history`; one that neither runs nor has ended was interrupted."""

    kind: str
    begun_ms: int
    node: str = ""
    by: str = ""
    ended_ms: int | None = None
    is_running: bool = False
    error: str = ""
    result: dict[str, Any] = {}


class KeptMoments(Struct):
    """A row of `/api/replication/standby/moments`."""

    virtual_host: str
    earliest_ms: int
    newest_ms: int


class SchemaStatus(Struct):
    """`/api/tanzu/osr/schema/status`."""

    operating_mode: str = ""
    state: str = ""
    upstream_cluster: str | None = None
    upstream_endpoints: list[str] = []
    last_error: str | None = None
    conflict_count: int = 0
    conflicts: list[Any] = []
    refused_count: int = 0


class MemberRow(Struct):
    """A node of a cluster, as its cluster knows it."""

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
    """A row of `/api/queues` without its statistics: there are ten thousands of them."""

    name: str
    vhost: str
    type: str = "classic"
    durable: bool = True
    exclusive: bool = False
    state: str = "running"
    node: str = ""
    policy: str | None = None
    messages: int = 0
    leader: str | None = None
    members: tuple[str, ...] | None = None
    online: tuple[str, ...] | None = None
    slave_nodes: tuple[str, ...] | None = None
    synchronised_slave_nodes: tuple[str, ...] | None = None


class SynchronisingQueue(Struct):
    """A queue by itself; `sync_messages` of `messages` are at all mirrors while they are synchronised, else None."""

    messages: int = 0
    state: str = ""
    sync_messages: int | None = None


class DivergentRow(Struct):
    """A row of `/api/replication/divergent`."""

    id: str = ""
    at_ms: int | None = None
    messages: int = 0
    queues: list[dict[str, Any]] = field(default_factory=list)


class AppliedSchema(Struct):
    """A row of `/api/replication/schema/history`; `stamp` in seconds since 1970."""

    stamp: int = 0
    upstream_cluster: str = ""
    puts: int = 0
    deletes: int = 0
    conflicts: int = 0
    refused: int = 0
    changes: list[str] = []


class ShownMessage(Struct):
    """A message, as a queue's `get` and the list of divergent messages have it."""

    exchange: str = ""
    routing_key: str = ""
    properties: dict[str, Any] | list[Any] = {}
    payload: str = ""
    payload_encoding: str = "string"
    payload_bytes: int | None = None
    redelivered: bool | None = None
    settled: bool | None = None
    vhost: str | None = None
    queue: str | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


def read_document(octets: bytes, kind: Any) -> Any:
    """Decode one document.

    Raises:
        NotUnderstood: it is no JSON, or of another shape; names the place.
    """
    try:
        return msgspec.json.decode(octets, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotUnderstood(f"the answer is not what the HTTP API promises: {error}") from None
