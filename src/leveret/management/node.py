"""What the HTTP API asks of its node: read `broker`, change it with `broker.apply`, then `await commit()`.

`runtime.node.node.Node` is one; the tests' fake is another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from leveret.config import Config
from leveret.core.broker.broker import Broker
from leveret.core.replication.placement import QueuePlacement
from leveret.runtime.integrity.log_copies import LogCopy
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.node.alarms import AlarmWatch
from leveret.runtime.process.event_history import EventHistory
from leveret.runtime.process.loop_watch import LoopWatch
from leveret.runtime.standby.recovery import Progress, RecoveryRequest, RecoveryTarget
from leveret.session.ingest import Outsider


class SchemaOperations(Protocol):
    """Schema replication, as an operator works it."""

    @property
    def follower(self) -> str:
        """Name of the node of this site that follows the upstream; empty if none is to."""

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
        """Add a user who may do all in the link's vhost."""

    async def sync(self, *, force: bool) -> dict[str, Any]:
        """Sync at once; what was put, deleted and left as it is."""

    async def diff(self) -> list[dict[str, Any]]:
        """What a sync would change, a row an entity."""

    def history(self) -> list[dict[str, Any]]:
        """The deltas that were applied, newest first."""

    def status(self) -> dict[str, Any]:
        """RabbitMQ's fields of `schema_replication_status`."""


class ArchiveOperations(Protocol):
    """What a downstream has transferred."""

    async def metrics(self) -> list[dict[str, Any]]:
        """One row a queue that was transferred."""

    async def list_vhosts_available(self) -> list[str]:
        """The vhosts with data to recover."""

    async def disk_usage(self) -> list[dict[str, Any]]:
        """One row a vhost: node, size, unit, vhost."""

    async def moments(self) -> list[dict[str, Any]]:
        """One row a vhost: from earliest_ms to newest_ms it is known how its queues stood."""

    async def messages(self, vhost: str, queue: str, from_ms: int, count: int) -> list[dict[str, Any]]:
        """Messages of a queue that came at `from_ms` or later; rows as those of divergent ones."""

    async def inspect(self, report: Progress) -> list[dict[str, Any]]:
        """One row a vhost, exchange and routing key, with the number of messages; tells how far it is."""


class StandbyRecoveries(Protocol):
    """Recoveries from a downstream's data that change nothing at this node; each tells how it goes."""

    async def dry_run(
        self, wanted: RecoveryRequest, target: RecoveryTarget | None, report: Progress
    ) -> dict[str, Any]:
        """What a recovery would bring back: `queues`, a row each, `vhosts`, with what would be lost."""

    async def into(
        self, wanted: RecoveryRequest, target: RecoveryTarget, report: Progress
    ) -> list[dict[str, Any]]:
        """Recover into another broker; a row a vhost."""

    async def rehearse(self, wanted: RecoveryRequest, report: Progress) -> dict[str, Any]:
        """Recover into scratch vhosts, compare, remove them; as a dry run, and how long it took."""


class StandbyOperations(Protocol):
    """Message replication on the downstream's side, as an operator works it."""

    async def connect(self) -> None:
        """Start or resume transferring messages from the upstream."""

    async def disconnect(self) -> None:
        """Stop transferring messages from the upstream."""

    async def set_mode(self, mode: str) -> None:
        """`upstream` or `downstream`."""

    async def promote(self, wanted: RecoveryRequest, on_progress: Progress) -> list[dict[str, Any]]:
        """Promote, telling `on_progress` how it goes; a row a vhost."""

    @property
    def recoveries(self) -> StandbyRecoveries:
        """Recoveries that change nothing here."""

    def status(self) -> dict[str, Any]:
        """Mode, state, endpoints, and `vhosts` with a row each."""

    async def details(self) -> dict[str, Any]:
        """The status, and of a promotion that has begun how much it has to recover."""

    def promotion_summary(self) -> list[dict[str, Any]]:
        """One row a vhost that was recovered."""

    async def delete_all_data(self) -> None:
        """Remove all that was transferred."""

    async def delete_orphaned_data(self) -> list[dict[str, Any]]:
        """Remove what is not this node's to recover; one row a vhost: vhost, bytes."""

    @property
    def archive(self) -> ArchiveOperations:
        """What was transferred."""


class UpstreamOperations(Protocol):
    """Message replication on the upstream's side."""

    def metrics(self) -> list[dict[str, Any]]:
        """One row a replicated queue."""

    def collected(self) -> list[dict[str, Any]]:
        """One row a vhost that is collected for downstreams."""

    def untagged(self) -> list[str]:
        """Vhosts whose policies ask for that in vain, as they do not have the tag."""

    def downstreams(self) -> list[dict[str, Any]]:
        """One row a vhost and downstream that transfers it."""

    def forget_downstream(self, name: str) -> bool:
        """Keep nothing for a downstream any more; whether it was known."""

    def delete_logs(self) -> list[dict[str, Any]]:
        """Remove what is collected for downstreams; one row a vhost: vhost, bytes."""


class RejoinOperations(Protocol):
    """The way back of an upstream that lost its place."""

    async def rejoin(self, *, set_all_aside: bool = False) -> dict[str, Any]:
        """Come back as a downstream; what the new upstream never saw, or may not have, and where that is kept."""


class ReplicationOperations(Protocol):
    """Followers, and what this process is among them, as an operator works it.

    The names of fields end in units: "bytes" and "records" count stored data, "s" is seconds, "at_ms" is
    milliseconds since 1970. A value that is not known, or does not apply, is None.
    """

    @property
    def role(self) -> str:
        """`leader`, `follower` or `fenced`; only a leader is changed."""

    @property
    def epoch(self) -> int:
        """Raised by each promotion."""

    @property
    def state(self) -> str:
        """Of a follower: `connecting`, `joining`, `catching_up`, `streaming`, `delayed`, `failed`; else the role."""

    def status(self) -> dict[str, Any]:
        """All that is known, cheap enough for each scrape of the metrics.

            role, epoch, node_id, node, state, error, listener ("ip:port"), confirm, min_in_sync,
            below_min_in_sync, in_sync_count, is_short, position, records, in_sync [names], etcd {...}
            leader      of a follower: uri, name, epoch, state, error, connected_at_ms, position, applied_position,
                        lag_bytes, lag_records, lag_s, received_bytes, acked_position, apply_delay_s, held_back,
                        in_sync, progress
            followers   a row each: node_id, name, address, state, in_sync, connected_at_ms, lag_bytes, lag_records,
                        lag_s, apply_delay_s, sent_bytes, acked_bytes, compression_ratio, joined_ms, progress
            held_back   of a delayed follower, what it has and has not applied: messages, records, bytes,
                        oldest_at_ms, newest_at_ms (when the leader did the first and the last of it)
            progress    of a join: bytes_done, bytes_total, rate_bytes_s, seconds_left
            scrub       running, octets_done, octets_total, last_at_ms, chunks, damaged, repaired, error

        Lag is what was not applied yet, so that `apply_delay_s` is a part of a follower's own `lag_s`. Its leader's
        row tells what it has not on its disk.
        """

    async def promote(
        self, *, dry_run: bool, force: bool, apply_until_ms: int | None = None
    ) -> dict[str, Any]:
        """Make a leader of this follower, or only tell what would be lost.

        A delayed one that holds something back is not promoted before it is said what is to become of that: first it
        applies what its leader had done by `apply_until_ms`, and what is left is quarantined.

            promoted, state, epoch, took_ms, reason (why it was not promoted)
            would_lose  known, messages, bytes, seconds; unless `known`, as of the last contact `seconds` ago
            held_back   of a delayed follower, what it would not apply, as in the status
            set_aside   the report of what it has not applied, None if there was nothing

        Raises:
            LeveretError: it is none, or failed half-way.
        """

    async def verify(self, follower: str | None, deep: bool) -> list[dict[str, Any]]:
        """Compare with the other side, log by log; `deep` reads all that is stored. A row a follower and log.

            follower, log, vhost, queue, first_offset, next_offset, chunks, octets, match, detail

        Raises:
            NotFound: there is no such follower.
        """

    async def scrub(self) -> dict[str, Any]:
        """Read all that is stored and mend what is damaged: chunks, octets, damaged, repaired, unrepaired [...].

        Raises:
            LeveretError: it is going on already.
        """

    async def copies(self, path: str) -> list[LogCopy]:
        """What this node and its followers have of the log with this name in the tree, this node's first.

        Raises:
            StorageError: the disk does not let it be read.
        """

    async def quarantine_log(self, path: str) -> None:
        """Quarantine what can be read of that log, which nobody appends to and which is to be deleted.

        Raises:
            StorageError: the disk refuses it; the log must stay.
        """

    def divergent(self) -> list[dict[str, Any]]:
        """The reports of what was quarantined, as the leader did not have it.

        Fields: id, at_ms, from_epoch, logs, messages, octets, queues [{vhost, queue, messages}].
        """

    def divergent_messages(self, report_id: str | None) -> Iterator[dict[str, Any]]:
        """The messages of a report, or of all, read from disk one after the other.

        Fields: report, vhost, queue, offset, timestamp_ms, exchange, routing_key, properties, payload,
        payload_encoding (string, base64), settled.

        Raises:
            NotFound: there is no such report.
        """


Answer: TypeAlias = Callable[[str, Any], Awaitable[Any]]
"""Answers another node's question: what is asked, and about what."""


class ClusterOperations(Protocol):
    """The cluster that the node is a member of, as an operator sees and works it.

    `single_node.SingleNode` stands for it where there is none. All that does not wait is answered from memory.
    """

    @property
    def name(self) -> str:
        """This node's."""

    @property
    def is_member(self) -> bool:
        """Whether the node belongs to a cluster; one that was forgotten, or has not joined yet, does not."""

    def members(self) -> Sequence[str]:
        """The nodes of the cluster, who joined first first; this one, if it is alone."""

    def alive(self) -> Collection[str]:
        """Those that run, by their leases in etcd; this one too."""

    def status(self) -> dict[str, Any]:
        """What only the cluster knows, cheap enough for each scrape of the metrics.

        cluster_id  drawn by the first node; empty outside a cluster
        state       `member`; `joining`, until everything was read; `suspended` without a lease, when nobody is
                    served; `forgotten`; `alone` outside a cluster
        members     a row each, in the order of `members`: name, alive, joined_at_ms, and of those alive uri,
                    http_uri, started_at_ms, version, connected (whether it answers here), else None
        pen         name of the node that may change definitions, None for nobody
        has_pen     whether it is this one
        lease_s     seconds for which the lease holds yet, 0 for none; None outside a cluster
        revision    etcd's, that this node has applied
        etcd        endpoints [text], endpoint (the one in use or None), error (None while it answers); None
                    outside a cluster
        partitions  {node: [nodes it cannot reach although they are alive]}, of this one
        """

    def placement(self, key: tuple[str, ...]) -> QueuePlacement:
        """Where the queue of this vhost and name is; the broker has it.

        Asked for each row of a list, so it costs about as much as a look into a dictionary.
        """

    def mirror_states(self, key: tuple[str, ...]) -> list[dict[str, Any]]:
        """Of a queue that is led here, a row a mirror that runs, oldest first; of all others none.

        node           its name
        state          `synchronised`, `syncing`, `unsynchronised`
        lag_bytes      what it has not acknowledged yet of what the leader has
        lag_records    the same in messages and settlements
        progress       while it is synchronised, else None: messages_done, messages_total, bytes_done,
                       bytes_total, rate_bytes_s, seconds_left (None while nothing is known of it)
        """

    async def ask(self, node: str, what: str, about: Any) -> Any:
        """What another node's `Answer` says.

        Both ways go values of None, bool, int, float, str, bytes, list and dict with keys of text, tens of
        megabytes if need be. There is no limit in time: whoever asks sets one, and is free to give up.

        Raises:
            LeveretError: the node is not alive, or not to be reached, or the link broke, or answering failed.
        """

    def answer_with(self, answer: Answer) -> None:
        """Let this answer what other nodes ask in words of the management (`http`)."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        """Hold the definitions lock: inside, this node may change definitions. Several callers may be inside at once.

        Raises:
            LeveretError: at entry: the definitions lock cannot be had.
        """

    async def sync_queue(self, vhost: str, name: str) -> None:
        """Have all mirrors of a queue that is led here synchronised: return once that has begun.

        Raises:
            LeveretError: it is not mirrored, or not led here.
        """

    async def cancel_sync_queue(self, vhost: str, name: str) -> None:
        """Stop it; what a mirror has got it keeps. Nothing happens if nothing goes on.

        Raises:
            LeveretError: as above.
        """

    async def copies(self, vhost: str, name: str) -> list[LogCopy]:
        """What the other nodes that are, or were, mirrors of a queue that is led here have of its log."""

    async def quarantine_copies(self, vhost: str, name: str) -> None:
        """Have those of them that run quarantine what they have, as the queue is to begin anew.

        Raises:
            LeveretError: one of them cannot.
        """

    async def forget_node(self, name: str) -> list[dict[str, Any]]:
        """Remove a stopped member from the cluster; what became of the queues it led, a row each.

            vhost, name, leader (who leads it now, or once it starts; None if it was deleted)

        Raises:
            LeveretError: it is no member, or it runs, or it is this one; or who has all of a queue is not known.
        """

    async def join(self, node: str) -> bool:
        """Become a member of the configured cluster, of which `node` is one; False if it is already.

        What the node has of its own is quarantined first.

        Raises:
            LeveretError: no cluster is configured, or `node` is no member of it.
        """

    async def rebalance(self, kind: str, vhost_pattern: str, queue_pattern: str) -> list[dict[str, Any]]:
        """Move leaders to synchronised mirrors, so that all nodes lead about as many queues.

        Args:
            kind: `all`, `classic`, `quorum` or `stream`.
            vhost_pattern: regular expression for the names of vhosts.
            queue_pattern: the same for those of queues.

        Returns:
            A row a node: node, classic, quorum, stream: how many queues it leads now.

        Raises:
            LeveretError: a pattern is none, or another node rebalances.
        """


class StreamListenerView(Protocol):
    """The stream listener, as far as its connections are shown."""

    @property
    def connections(self) -> Sequence[Any]:
        """Who is connected."""


class AmqpService(Protocol):
    """The AMQP listener, as far as connections are shown that are not the broker's."""

    @property
    def amqp10_connections(self) -> Sequence[Any]:
        """Who is connected over AMQP 1.0."""


class MaintenanceOperations(Protocol):
    """Taking the node out of service for clients, and back."""

    is_draining: bool

    def suspend_listeners(self) -> None:
        """Let no client in any more."""

    async def resume_listeners(self) -> None:
        """Let clients in again."""

    async def drain(self) -> None:
        """Let no client in, end the connections there are, and tell the cluster."""

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
    def is_open(self) -> bool:
        """Whether clients are served; one that leads recovers its queues before."""

    @property
    def commits(self) -> GroupCommit:
        """Who waits for the disk."""

    @property
    def alarms(self) -> AlarmWatch:
        """Memory and disk, and whether publishers are blocked for want of them."""

    @property
    def event_history(self) -> EventHistory:
        """What happened at the node, with who began it."""

    @property
    def loop_watch(self) -> LoopWatch:
        """How long the event loop was held up."""

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
        """Coming back as a downstream."""

    @property
    def replication(self) -> ReplicationOperations:
        """Followers, and this node's role."""

    @property
    def cluster(self) -> ClusterOperations | None:
        """The cluster it belongs to; None for none, see `single_node.cluster_of`."""

    @property
    def maintenance(self) -> MaintenanceOperations:
        """Whether clients are served."""

    @property
    def amqp(self) -> AmqpService:
        """The AMQP listener."""

    @property
    def streams(self) -> StreamListenerView:
        """The stream listener."""

    def log_sizes(self) -> Iterator[int]:
        """The octets of each durable log."""

    async def commit(self) -> None:
        """Return once everything applied so far is durable."""

    def outsider(self, user: str | None, vhost: str) -> Outsider:
        """A way to publish and to get without a connection; user None is the operator."""

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """Check credentials; return the user's name."""
