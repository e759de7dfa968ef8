"""The interface of the HTTP API to its node: read `broker`, change it with `broker.apply`, then `await commit()`.

`runtime.node.node.Node` implements it, and so does the tests' fake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from leveret.config import Config
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.core.replication.placement import QueuePlacement
from leveret.core.replication.standby_site import RecoveryRequest
from leveret.model.definitions import QueueKey
from leveret.runtime.clients.amqp10_connection import Amqp10Connection
from leveret.runtime.clients.stream_peer import StreamPeer
from leveret.runtime.integrity.log_copies import LogCopy
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.node.alarms import AlarmWatch
from leveret.runtime.process.event_history import EventHistory
from leveret.runtime.process.loop_watch import LoopWatch
from leveret.runtime.standby.pipeline_process import Report
from leveret.runtime.standby.recovery import RecoveryTarget
from leveret.session.ingest import ApiClient


class SchemaOperations(Protocol):
    """An operator's commands for schema replication."""

    @property
    def follower(self) -> str:
        """The name of the node of this site that follows the upstream; empty for none."""

    @property
    def mode(self) -> str:
        """`upstream`, `downstream` or `none`."""

    async def enable(self) -> None:
        """Follow or serve again."""

    async def disable(self) -> None:
        """Neither follow nor serve."""

    async def restart(self) -> None:
        """Disable and enable."""

    async def set_mode(self, mode: str) -> None:
        """`upstream` or `downstream`."""

    async def set_endpoints(self, text: str | bytes) -> None:
        """Take the upstream's endpoints and credentials from JSON."""

    async def add_user(self, name: str, password: str) -> None:
        """Add a user with all permissions in the link's vhost."""

    async def sync(self, *, force: bool) -> dict[str, Any]:
        """Sync at once; return the put, deleted and kept entities."""

    async def diff(self) -> list[dict[str, Any]]:
        """The changes that a sync would make, a row an entity."""

    def history(self) -> list[dict[str, Any]]:
        """The applied deltas, newest first."""

    def status(self) -> dict[str, Any]:
        """RabbitMQ's fields of `schema_replication_status`."""


class ArchiveOperations(Protocol):
    """The transferred data of a downstream."""

    async def metrics(self) -> list[dict[str, Any]]:
        """One row a transferred queue."""

    async def list_vhosts_available(self) -> list[str]:
        """The vhosts with data to recover."""

    async def disk_usage(self) -> list[dict[str, Any]]:
        """One row a vhost: node, size, unit, vhost."""

    async def moments(self) -> list[dict[str, Any]]:
        """One row a vhost: from earliest_ms to newest_ms it is known how its queues stood."""

    async def messages(self, vhost: str, queue: str, from_ms: int, count: int) -> list[dict[str, Any]]:
        """Messages of a queue that came at `from_ms` or later; rows as those of divergent ones."""

    async def inspect(self, report: Report) -> list[dict[str, Any]]:
        """One row a vhost, queue, exchange and routing key, with the number of messages; reports progress."""

    async def export(
        self, target: str, form: str, options: dict[str, str], report: Report
    ) -> list[dict[str, Any]]:
        """Write messages to files; one row a queue, with the numbers of messages; reports progress."""


class StandbyRecoveries(Protocol):
    """Recoveries from a downstream's data that change nothing at this node; each reports progress."""

    async def dry_run(
        self, wanted: RecoveryRequest, target: RecoveryTarget | None, report: Report
    ) -> dict[str, Any]:
        """The messages that a recovery would bring: `queues`, a row each, `vhosts`, with the losses."""

    async def into(
        self, wanted: RecoveryRequest, target: RecoveryTarget, report: Report
    ) -> list[dict[str, Any]]:
        """Recover into another broker; a row a vhost."""

    async def rehearse(self, wanted: RecoveryRequest, report: Report) -> dict[str, Any]:
        """Recover into scratch vhosts, compare, remove them; returns a dry run's fields, and durations."""


class StandbyOperations(Protocol):
    """An operator's commands for a downstream of message replication."""

    async def connect(self) -> None:
        """Start or resume transferring messages from the upstream."""

    async def disconnect(self) -> None:
        """Stop transferring messages from the upstream."""

    async def set_mode(self, mode: str) -> None:
        """`upstream` or `downstream`."""

    async def promote(self, wanted: RecoveryRequest, on_progress: Report) -> list[dict[str, Any]]:
        """Promote, reporting to `on_progress`; return a row a vhost."""

    @property
    def recoveries(self) -> StandbyRecoveries:
        """The recoveries that change nothing here."""

    def status(self) -> dict[str, Any]:
        """Mode, state, endpoints, and `vhosts` with a row each."""

    async def details(self) -> dict[str, Any]:
        """The status with, for an unfinished promotion, the messages to recover."""

    def promotion_summary(self) -> list[dict[str, Any]]:
        """One row a recovered vhost."""

    async def delete_all_data(self) -> None:
        """Remove all transferred data."""

    async def delete_orphaned_data(self) -> list[dict[str, Any]]:
        """Remove the data that this node would not recover; one row a vhost: vhost, bytes."""

    @property
    def archive(self) -> ArchiveOperations:
        """The transferred data."""


class UpstreamOperations(Protocol):
    """An operator's commands for an upstream of message replication."""

    def metrics(self) -> Iterator[dict[str, Any]]:
        """One row a replicated queue."""

    def messages(self) -> Iterator[tuple[str, str, int]]:
        """The virtual host, the name and the number of messages of each replicated queue."""

    def collected(self) -> list[dict[str, Any]]:
        """One row a collected vhost."""

    def confirms_of(self, queue: Queue) -> dict[str, Any] | None:
        """How publishers' confirms of a queue wait for downstreams; None if they do not.

        rule, unmet, on_timeout, waiting, confirmed_locally, refused: see UpstreamCollection.
        """

    def untagged(self) -> list[str]:
        """Vhosts whose policies ask for replication without effect, because the tag is missing."""

    def downstreams(self) -> list[dict[str, Any]]:
        """One row a vhost and downstream."""

    def forget_downstream(self, name: str) -> bool:
        """Forget a downstream; return whether it was known."""

    def delete_logs(self) -> list[dict[str, Any]]:
        """Remove the outgoing logs; one row a vhost: vhost, bytes."""


class RejoinOperations(Protocol):
    """The rejoin of an upstream that lost its place."""

    async def rejoin(self, *, set_all_aside: bool = False) -> dict[str, Any]:
        """Become a downstream; return the quarantined records that the new upstream lacks, or may lack."""


class InspectionOperations(Protocol):
    """An operator's checks of stored data, and their repair; units as in `ReplicationOperations`."""

    async def verify(self, follower: str | None, deep: bool) -> list[dict[str, Any]]:
        """Compare with the other side, log by log; `deep` reads all stored data. A row a follower and log.

            follower, log, vhost, queue, first_offset, next_offset, chunks, octets, match, detail

        Raises:
            NotFound: there is no such follower.
        """

    async def scrub(self) -> dict[str, Any]:
        """Read all stored data and repair damage: chunks, octets, damaged, repaired, unrepaired [...].

        Raises:
            LeveretError: a scrub runs already.
        """

    async def copies(self, path: str) -> list[LogCopy]:
        """The copies of the log with this name in the tree, this node's first, then its followers'.

        Raises:
            StorageError: the disk refuses to read it.
        """

    async def quarantine_log(self, path: str) -> None:
        """Quarantine the readable part of that log, which is not appended to and will be deleted.

        Raises:
            StorageError: the disk refuses it; the log must stay.
        """

    def divergent(self) -> list[dict[str, Any]]:
        """The reports of quarantined records, which the leader lacked.

        Fields: id, at_ms, from_epoch, logs, messages, octets, queues [{vhost, queue, messages}].
        """

    def divergent_messages(self, report_id: str | None) -> Iterator[dict[str, Any]]:
        """The messages of a report, or of all, read from disk one after the other.

        Fields: report, vhost, queue, offset, timestamp_ms, exchange, routing_key, properties, payload,
        payload_encoding (string, base64), settled.

        Raises:
            NotFound: there is no such report.
        """

    def divergent_part(self, report_id: str | None, first: int) -> Generator[dict[str, Any], None, None]:
        """The same from the `first` of these messages on, counted from 0; the caller closes it.

        A call for the messages behind the last that was read continues without reading earlier ones again.
        """


class ReplicationOperations(Protocol):
    """An operator's commands for followers, and for this process's role.

    The names of fields end in units: "bytes" and "records" count stored data, "s" is seconds, "at_ms" is
    milliseconds since 1970. A value that is unknown, or does not apply, is None.
    """

    @property
    def role(self) -> str:
        """`leader`, `follower` or `fenced`; only a leader accepts changes."""

    @property
    def epoch(self) -> int:
        """The epoch, which each promotion raises."""

    @property
    def state(self) -> str:
        """A follower's state: `connecting`, `joining`, `catching_up`, `streaming`, `delayed`, `failed`.

        Else the role.
        """

    @property
    def has_follower_in_sync(self) -> bool:
        """Whether a follower has everything that this leader confirmed; of a node that follows, always."""

    def status(self) -> dict[str, Any]:
        """The whole status, cheap enough for each scrape of the metrics.

            role, epoch, node_id, node, state, error, incomplete (why it lacks data that it had; empty if it does not),
            listener ("ip:port"), confirm, min_in_sync, below_min_in_sync, in_sync_count, is_short, position, records,
            in_sync [names], etcd {...}
            leader      of a follower: uri, name, epoch, state, error, connected_at_ms, position, applied_position,
                        lag_bytes, lag_records, lag_s, received_bytes, acked_position, apply_delay_s, held_back,
                        in_sync, progress, newest_at_ms (of the newest record, by its leader's clock; None if this node
                        lacks earlier ones)
            followers   a row each: node_id, name, address, state, in_sync, connected_at_ms, lag_bytes, lag_records,
                        lag_s, apply_delay_s, sent_bytes, acked_bytes, compression_ratio, joined_ms, progress
            held_back   of a delayed follower, what it can leave out: messages, records, bytes,
                        oldest_at_ms, newest_at_ms (when the leader did the first and the last of it)
            progress    of a join: bytes_done, bytes_total, rate_bytes_s, seconds_left
            scrub       running, octets_done, octets_total, last_at_ms, chunks, damaged, repaired, error
            verify      of comparisons with the other side: running, octets_done, octets_total
            proxy       of a node that passes clients on while it does not lead (None for others): leaders [URIs],
                        connections, passed_on, refused, last_refusal
            proxied_here    the number of connections that other nodes have passed on to this one

        Of a follower that does not have all data, `lag_bytes` is what its leader named last, None before the first
        comparison; `position`, `applied_position`, `lag_records` and `lag_s` are None.

        Lag counts the changes that a delayed follower can leave out, so `apply_delay_s` is a part of its own `lag_s`.
        Its leader's row counts the changes that are not on its disk.
        """

    async def promote(
        self, *, dry_run: bool, force: bool, apply_until_ms: int | None = None
    ) -> dict[str, Any]:
        """Make a leader of this follower, or only estimate the loss.

        A delayed follower that can leave changes out needs `apply_until_ms`: it leads with the leader's changes up to
        then, and quarantines the rest.

            promoted, state, epoch, took_ms, reason (why it was not promoted, or would not be)
            would_lose  known, messages, bytes, seconds; unless `known`, as of the last contact `seconds` ago, with None
                        for what was not known then
            held_back   of a delayed follower, what it would leave out, as in the status
            set_aside   the report of what it left out, None if there was nothing

        Raises:
            LeveretError: it is no follower, or the promotion failed half-way.
        """

    @property
    def inspection(self) -> InspectionOperations:
        """The checks of this process's data."""


Answer: TypeAlias = Callable[[str, Any], Awaitable[dict[str, Any]]]
"""Answers another node's question: its name, and its argument."""


class ClusterOperations(Protocol):
    """An operator's view of the node's cluster, and the commands for it.

    `single_node.SingleNode` replaces it outside of a cluster. Methods that do not wait answer from memory.
    """

    @property
    def name(self) -> str:
        """This node's name."""

    @property
    def is_member(self) -> bool:
        """Whether the node belongs to a cluster; a forgotten one, or one that has not joined yet, does not."""

    def members(self) -> Sequence[str]:
        """The nodes of the cluster, in the order of joining; this one outside a cluster."""

    def alive(self) -> Collection[str]:
        """The running nodes, by their leases in etcd; this one too."""

    def status(self) -> dict[str, Any]:
        """The status of the cluster, cheap enough for each scrape of the metrics.

        cluster_id  drawn by the first node; empty outside a cluster
        state       `member`; `joining`, until everything was read; `suspended` without a lease, when nobody is
                    served; `forgotten`; `alone` outside a cluster
        members     a row each, in the order of `members`: name, alive, joined_at_ms, and of those alive uri,
                    http_uri, started_at_ms, version, connected (whether it answers here), else None
        pen         name of the node that may change definitions, None for nobody
        has_pen     whether it is this one
        lease_s     seconds for which the lease holds yet, 0 for none; None outside a cluster
        revision    etcd's, that this node has applied
        etcd        endpoints [text], endpoint (the one in use or None), error (None while it answers), is_full
                    (it refuses all writes for want of room); None outside a cluster
        partitions  {node: [nodes it cannot reach although they are alive]}, of this one
        """

    def placement(self, key: QueueKey) -> QueuePlacement:
        """The place of the queue of this vhost and name, which exists.

        It is called for each row of a list, so it costs about as much as a dictionary look-up.
        """

    def mirror_states(self, key: QueueKey) -> list[dict[str, Any]]:
        """For a queue that is led here, a row a running mirror, oldest first; for all others none.

        node           its name
        state          `synchronised`, `syncing`, `unsynchronised`
        lag_bytes      the leader's bytes that it has not acknowledged yet
        lag_records    the same in messages and settlements
        progress       while it is synchronised, else None: messages_done, messages_total, bytes_done,
                       bytes_total, rate_bytes_s, seconds_left (None while nothing is known of it)
        """

    async def ask(self, node: str, what: str, about: Any) -> Any:
        """The answer of another node's `Answer`.

        Questions and answers are values of None, bool, int, float, str, bytes, list and dict with keys of text, up to
        tens of megabytes. There is no time limit: the caller sets one, and may give up.

        Raises:
            LeveretError: the node is not running, not reachable, the link broke, or the answer failed.
        """

    def answer_with(self, answer: Answer) -> None:
        """Let this answer other nodes' questions to the management (`http`)."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        """Hold the definitions lock: inside, this node may change definitions. Several callers may be inside at once.

        Raises:
            LeveretError: at entry, if the definitions lock cannot be acquired.
        """

    async def sync_queue(self, vhost: str, name: str) -> None:
        """Begin to synchronise all mirrors of a queue that is led here.

        Raises:
            LeveretError: the queue is not mirrored, or not led here.
        """

    async def cancel_sync_queue(self, vhost: str, name: str) -> None:
        """Stop a synchronisation, if one runs; mirrors keep the received records.

        Raises:
            LeveretError: as above.
        """

    async def add_replica(self, vhost: str, name: str, node: str) -> None:
        """Have a node keep a copy of a stream that is led here.

        Raises:
            LeveretError: the node is no member of the cluster, or has a copy; or the stream is being placed anew.
        """

    async def delete_replica(self, vhost: str, name: str, node: str) -> None:
        """Have a node keep no copy of a stream that is led here.

        Raises:
            LeveretError: the node has none, or the last one; or the stream is being placed anew.
        """

    async def restart_stream(self, vhost: str, name: str, preferred: str) -> str:
        """Have another node lead a stream that is led here, or the preferred one; return the leader.

        Raises:
            LeveretError: no other synchronised copy runs, or not the preferred one.
        """

    async def copies(self, vhost: str, name: str) -> list[LogCopy]:
        """The copies of a queue's log at other nodes that are, or were, its mirrors."""

    async def quarantine_copies(self, vhost: str, name: str) -> None:
        """Quarantine these copies at the running nodes, because the queue will begin anew.

        Raises:
            LeveretError: a node cannot.
        """

    async def forget_node(self, name: str) -> list[dict[str, Any]]:
        """Remove a stopped member from the cluster; return a row for each queue that it led.

            vhost, name, leader (the node that leads it now, or once it starts; None if it was deleted)

        Raises:
            LeveretError: it is no member, it runs, or it is this one; or no node is known to have all of a queue.
        """

    async def join(self, node: str) -> bool:
        """Become a member of the configured cluster, of which `node` is one; False if this node is one already.

        The node's own data are quarantined first.

        Raises:
            LeveretError: no cluster is configured, or `node` is no member of it.
        """

    async def rebalance(self, kind: str, vhost_pattern: str, queue_pattern: str) -> list[dict[str, Any]]:
        """Move leaders to synchronised mirrors, so that all nodes lead about as many queues.

        Args:
            kind: `all`, `classic`, `quorum` or `stream`.
            vhost_pattern: a regular expression for the names of vhosts.
            queue_pattern: a regular expression for the names of queues.

        Returns:
            A row a node: node, classic, quorum, stream: the numbers of queues that it leads now.

        Raises:
            LeveretError: a pattern is invalid, or another node rebalances.
        """


class StreamListenerView(Protocol):
    """The stream listener and its connections."""

    @property
    def connections(self) -> Sequence[StreamPeer]:
        """The open connections."""


class AmqpService(Protocol):
    """The AMQP listener and its AMQP 1.0 connections."""

    @property
    def amqp10_connections(self) -> Sequence[Amqp10Connection]:
        """The open AMQP 1.0 connections."""


class MaintenanceOperations(Protocol):
    """The commands that take the node out of service for clients, and back."""

    @property
    def is_draining(self) -> bool:
        """Whether the node is out of service, by an operator's command or during a rejoin."""

    def suspend_listeners(self) -> None:
        """Accept no more clients."""

    async def resume_listeners(self) -> None:
        """Accept clients again."""

    async def drain(self) -> None:
        """Accept no clients, end the present connections, and notify the cluster."""

    async def revive(self) -> None:
        """Serve clients again."""


class ManagedNode(Protocol):
    """A node that is operated over HTTP."""

    config: Config
    data_dir: Path
    started_at_ms: int
    broker: Broker
    ended: asyncio.Event

    @property
    def uptime_ms(self) -> int:
        """The time since the start, whatever the time of day was set to meanwhile."""

    @property
    def is_open(self) -> bool:
        """Whether clients are served; a leader recovers its queues before."""

    @property
    def commits(self) -> GroupCommit:
        """The group commit."""

    @property
    def alarms(self) -> AlarmWatch:
        """The alarms of memory and disk."""

    @property
    def event_history(self) -> EventHistory:
        """What happened at the node, with who began it."""

    @property
    def loop_watch(self) -> LoopWatch:
        """The watch over long steps of the event loop."""

    @property
    def schema_sync(self) -> SchemaOperations:
        """Schema replication."""

    @property
    def upstream(self) -> UpstreamOperations:
        """Message replication, upstream."""

    @property
    def standby(self) -> StandbyOperations:
        """Message replication, downstream."""

    @property
    def rejoin(self) -> RejoinOperations:
        """The rejoin as a downstream."""

    @property
    def replication(self) -> ReplicationOperations:
        """Followers, and this node's role."""

    @property
    def cluster(self) -> ClusterOperations | None:
        """The node's cluster; None for none, see `single_node.cluster_of`."""

    @property
    def maintenance(self) -> MaintenanceOperations:
        """The maintenance mode."""

    @property
    def amqp(self) -> AmqpService:
        """The AMQP listener."""

    @property
    def streams(self) -> StreamListenerView:
        """The stream listener."""

    def log_sizes(self) -> Iterator[int]:
        """The octets of each durable log."""

    async def commit(self) -> None:
        """Return once everything applied so far is durable.

        Raises:
            StorageError: the disk refuses the changes of definitions; they hold, and are logged once it takes them.
        """

    async def messages_durable(self) -> None:
        """Return once all messages and settlements so far are durable; changes of definitions may wait for the disk."""

    def api_client(self, user: str | None, vhost: str) -> ApiClient:
        """Publish and get without a connection; user None is the operator."""

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """Check credentials; return the user's name."""
