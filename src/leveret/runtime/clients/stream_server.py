"""The node's answers to the stream protocol: streams, outgoing logs, recovered messages."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from leveret.config import Config
from leveret.config.kinds import Address
from leveret.config.uris import ANYWHERE
from leveret.core.broker.actor import Actor
from leveret.core.broker.alarms import Alarms
from leveret.core.broker.broker import Broker
from leveret.core.broker.limits import ConnectionRegistry, check_connection_limits
from leveret.core.broker.routing import no_headers
from leveret.core.queues.counters import Counters
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.core.queues.stream_groups import ConsumerGroups
from leveret.core.replication.new_queue_leader import LEADER_LOCATOR
from leveret.core.rules.super_streams import PARTITION_ORDER, SUPER_STREAM
from leveret.core.rules.validation import STREAM, queue_type
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model import definitions as d
from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    LedElsewhere,
    NotFound,
    PreconditionFailed,
)
from leveret.model.locators import BALANCED
from leveret.model.whole_number import whole_number
from leveret.runtime.clients.authority import Authority
from leveret.runtime.clients.recovery_forwarding import ForwardingIngest, RecoveryPort, recover_here
from leveret.runtime.clients.recovery_ingest import RecoveryIngest
from leveret.runtime.clients.segment_ingest import SegmentIngest
from leveret.runtime.clients.stream_host import OffsetFound, StreamHandle, StreamReplicating
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.log_coverage import coverage_of
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.committed_log import CommittedLog
from leveret.runtime.logs.engine import Engine
from leveret.runtime.logs.log_store import LogStore
from leveret.session.certificate import TlsPeer
from leveret.session.stream.types import Operation, StreamPlaces, UpstreamSite
from leveret.wire.record import (
    BEGINNING_PREFIX,
    EPOCH_PREFIX,
    FINGERPRINT_PREFIX,
    OUTGOING_STREAM,
    TRANSFERRED_FINGERPRINT_PREFIX,
    TRANSFERRED_PREFIX,
)
from leveret.wire.site_order import LogCoverage

_NUMBERS: Final = (
    "max-length-bytes",
    "stream-max-segment-size-bytes",
    "initial-cluster-size",
    "stream-filter-size-bytes",
)
_TEXTS: Final = ("max-age", "queue-leader-locator")
_U64_MAX: Final = 2**64 - 1
_SHOWN: Final = 100
"""The most characters of a client's text in an error."""


class StandbyBook(Protocol):
    """The records of a node that replaced another one, or may do so (runtime.standby.decisions.StandbyDecided)."""

    @property
    def mode(self) -> OperatingMode:
        """The node's operating mode."""

    def transferred(self, vhost: str, log_id: int) -> int | None:
        """The offset up to which the queues have a previous upstream's outgoing log; None if none has this log.

        0 means that the offset is unknown.
        """

    def transferred_fingerprint(self, vhost: str, log_id: int) -> int | None:
        """The fingerprint of the last chunk before that offset; None if there is none, or it was not stored."""

    def deleted_at(self, key: tuple[str, str], reference: str) -> int:
        """See recovery_ingest.DeletedAt."""


class StreamServer:
    """runtime.clients.stream_host.StreamHost.

    Attributes:
        advertised_host, advertised_port: this node's address for clients. advertised_tls_host, advertised_tls_port: the
            same for clients that use TLS.
        groups: the groups of subscriptions with a single active consumer.
        find_node: returns host and port of another node's stream listener, with TLS or not; None if it has not reported
            them, or does not run.
        on_listening: called when there is one more listener.
        replicas: copies of streams that other nodes lead; None on a single node.
        site: the cluster that this node belongs to; None for a single node.
    """

    def __init__(
        self,
        authority: Authority,
        collector: Collector,
        stores: LogStore,
        engine: Engine,
        commit: GroupCommit,
        alarms: Alarms,
        standby: StandbyBook,
        config: Config,
    ) -> None:
        """Advertised addresses that are not configured are the listeners'; see `listening`."""
        self.node_name = config.node_name
        self.mechanisms = config.amqp.auth_mechanisms
        self.advertised_host, self.advertised_port = "127.0.0.1", 0
        self.advertised_tls_host, self.advertised_tls_port = "127.0.0.1", 0
        self.find_node: Callable[[str, bool], tuple[str, int] | None] = _no_other_node
        self.on_listening: Callable[[], None] = lambda: None
        self.replicas: StreamReplicating | None = None
        self.site: UpstreamSite | None = None
        self._config = config.streams
        self._alarms = alarms
        self._standby = standby
        self.recovery_port: RecoveryPort | None = None
        self._certificate_login = config.certificate_login
        self._connection_max = config.amqp.connection_max
        self.groups = ConsumerGroups()
        self._authority = authority
        self._collector = collector
        self._stores = stores
        self._engine = engine
        self._commit = commit
        self._login = authority.over("stream")
        self.authenticate = self._login.authenticate

    def open_vhost(self, user: str, vhost: str) -> None:
        """See StreamAuthority."""
        if user not in self._authority.internal:
            check_connection_limits(
                self._broker.definitions, self._broker.connections, user, vhost, self._connection_max
            )
        self._authority.open_vhost(user, vhost)

    @property
    def connections(self) -> ConnectionRegistry:
        """See StreamHost."""
        return self._broker.connections

    @property
    def stream_counters(self) -> Counters:
        """See StreamHost."""
        return self._broker.stream_counters

    @property
    def stream_errors(self) -> Counter[int]:
        """See StreamHost."""
        return self._broker.stream_errors

    @property
    def refuses_publishes(self) -> bool:
        """See stream_host."""
        return self._broker.refuses_durable

    @property
    def is_blocked(self) -> bool:
        """See StreamHost."""
        return bool(self._alarms.active)

    def listening(self, address: Address) -> None:
        """Note a listener at this address."""
        config = self._config
        self.advertised_host = config.advertised_host or _reached_at(address)
        self.advertised_port = config.advertised_port or address.port
        self.on_listening()

    def listening_tls(self, address: Address) -> None:
        """Note a TLS listener at this address."""
        config = self._config
        self.advertised_tls_host = (
            config.advertised_tls_host or config.advertised_host or _reached_at(address)
        )
        self.advertised_tls_port = config.advertised_tls_port or address.port
        self.on_listening()

    def external_user(self, tls: TlsPeer, from_loopback: bool) -> str:
        """See StreamAuthority."""
        name = tls.login_name(self._certificate_login)
        if name is None:
            raise AuthenticationFailed("the connection presented no certificate that names a user")
        return self._login.authenticate_external(name, from_loopback)

    # -- streams ------------------------------------------------------------------------------

    @property
    def _broker(self) -> Broker:
        return self._authority.broker

    def check(self, user: str, vhost: str, operation: Operation, name: str) -> None:
        """See StreamAuthority."""
        self._actor(user, vhost).require(operation, "queue", name)

    def _actor(self, user: str, vhost: str) -> Actor:
        return Actor(self._broker, user, vhost)

    def _find_any(self, vhost: str, name: str) -> Queue:
        """The stream, led by any node."""
        found = self._broker.queue(vhost, name)
        if not _is_stream(found):
            raise NotFound(f"queue '{name}' in vhost '{vhost}' is not a stream")
        return found

    def places_of(self, vhost: str, name: str, *, tls: bool) -> StreamPlaces:
        """See StreamAuthority."""
        found = self._find_any(vhost, name)
        if isinstance(found, Stream):
            self._stores.streams.committed(found)
            leader: tuple[str, int] | None = self._own_place(tls)
        else:
            leader = self.find_node(_leader(found), tls)
        nodes = self.replicas.nodes(found) if self.replicas is not None else ()
        places = (
            self._own_place(tls) if node == self.node_name else self.find_node(node, tls) for node in nodes
        )
        return StreamPlaces(leader, tuple(place for place in places if place is not None))

    def _own_place(self, tls: bool) -> tuple[str, int]:
        if tls:
            return self.advertised_tls_host, self.advertised_tls_port
        return self.advertised_host, self.advertised_port

    @property
    def may_change(self) -> bool:
        """See StreamAuthority: in a cluster the node needs the definitions lock."""
        return self._broker.definitions_lock.is_here

    def when_may_change(self, change: Callable[[], None]) -> None:
        """See StreamHost."""
        self._broker.definitions_lock.when_here(change)

    def stream(self, vhost: str, name: str) -> StreamHandle:
        """See StreamHost."""
        found = self._find_any(vhost, name)
        if isinstance(found, Stream):
            log = self._stores.streams.committed(found)
            return OpenStream(found, log, self._broker, self._engine, self.groups)
        if self.replicas is None:
            raise LedElsewhere(f"stream '{name}' in vhost '{vhost}' is led by node '{_leader(found)}'")
        return self.replicas.handle(found)

    def wake(self, stream: Stream) -> None:
        """Serve a stream's AMQP 0-9-1 consumers, because more of it is durable."""
        if stream.consumers and self._broker.queues.get(stream.key) is stream:
            self._broker.dirty[stream] = None
            self._engine.touch()

    def create_stream(self, user: str, vhost: str, name: str, arguments: Mapping[str, str]) -> bool:
        """See StreamAuthority."""
        exists = (vhost, name) in self._broker.queues
        wanted = d.Queue(name=name, vhost=vhost, arguments=_queue_arguments(arguments))
        self._actor(user, vhost).declare_queue(wanted)
        return not exists

    def delete_stream(self, user: str, vhost: str, name: str) -> None:
        """See StreamAuthority."""
        actor = self._actor(user, vhost)
        actor.require("configure", "queue", name)
        actor.delete_queue(self._find_any(vhost, name))

    def when_durable(self, done: Callable[[], None]) -> None:
        """See StreamHost."""
        self._engine.flush()
        self._engine.definitions.when_known(done)
        self._commit.begin()

    # -- super streams ------------------------------------------------------------------------

    def create_super_stream(
        self, user: str, vhost: str, name: str, partitions: Mapping[str, str], arguments: Mapping[str, str]
    ) -> bool:
        """See StreamAuthority."""
        broker, actor = self._broker, self._actor(user, vhost)
        actor.require("configure", "exchange", name)
        if name in broker.topology(vhost).exchanges or any(
            (vhost, each) in broker.queues for each in partitions
        ):
            return False
        given = _queue_arguments(arguments)
        if self.replicas is not None:
            # Partitions are there to spread the work over the nodes of a cluster.
            given.setdefault(f"x-{LEADER_LOCATOR}", BALANCED)
        queues = [d.Queue(name=each, vhost=vhost, arguments=given) for each in partitions]
        exchange = d.Exchange(name=name, vhost=vhost, type="direct", arguments={SUPER_STREAM: True})
        bindings = [
            d.Binding(
                vhost=vhost,
                source=name,
                destination=stream,
                destination_type="queue",
                routing_key=key,
                arguments={PARTITION_ORDER: order},
            )
            for order, (stream, key) in enumerate(partitions.items())
        ]
        actor.declare_super_stream(exchange, queues, bindings)
        return True

    def delete_super_stream(self, user: str, vhost: str, name: str) -> None:
        """See StreamAuthority."""
        actor = self._actor(user, vhost)
        actor.require("configure", "exchange", name)
        streams = {each: self._find_any(vhost, each) for each in self.partitions(vhost, name)}
        actor.delete_super_stream(name, streams)

    def partitions(self, vhost: str, super_stream: str) -> list[str]:
        """See StreamAuthority."""
        self._broker.exchange(vhost, super_stream)
        bindings = self._broker.topology(vhost).exchanges[super_stream].bindings.values()
        found = [
            binding
            for binding in bindings
            if binding.destination_type == "queue" and self._is_stream(vhost, binding.destination)
        ]
        found.sort(key=_order_of)
        return [binding.destination for binding in found]

    def _is_stream(self, vhost: str, name: str) -> bool:
        queue = self._broker.queues.get((vhost, name))
        return queue is not None and _is_stream(queue)

    def route(self, vhost: str, super_stream: str, routing_key: str) -> list[str]:
        """See StreamAuthority."""
        queues = self._broker.route(vhost, super_stream, routing_key, no_headers)
        return [queue.definition.name for queue in queues if _is_stream(queue)]

    # -- standby ------------------------------------------------------------------------------

    @property
    def is_downstream(self) -> bool:
        """See StreamAuthority."""
        return self._standby.mode is OperatingMode.DOWNSTREAM

    def outgoing_log(self, user: str, vhost: str) -> OutgoingLog:
        """See StreamHost."""
        log = self._collector.logs.get(vhost)
        if log is None:
            raise NotFound(
                f"vhost '{vhost}' has no outgoing log: it is not tagged standby_replication, or the disk refused it"
            )
        if not self._authority.may_read(user, vhost, OUTGOING_STREAM):
            raise AccessRefused(
                f"access to queue '{OUTGOING_STREAM}' in vhost '{vhost}' refused for user '{user}'"
            )
        return log

    def log_coverage(self, user: str, vhost: str) -> LogCoverage:
        """See StreamAuthority."""
        log, barrier = self.outgoing_log(user, vhost), self._commit.replication_barrier
        may_promise = barrier is None or barrier.committed() >= 0
        return coverage_of(vhost, log, self._broker, self._collector, may_promise=may_promise)

    def may_recover(self, user: str) -> bool:
        """See StreamAuthority: this node's own recovery jobs and administrators may."""
        existing = self._broker.definitions.by_kind["users"].get((user,))
        return user in self._authority.internal or "administrator" in getattr(existing, "tags", ())

    def recovery_queue(self, user: str, vhost: str, queue: str) -> RecoveryIngest | ForwardingIngest:
        """See StreamHost."""
        if not self.may_recover(user):
            raise AccessRefused(f"recovery into queue '{queue}' in vhost '{vhost}' refused for user '{user}'")
        ingest = self._ingest((vhost, queue))
        if self.recovery_port is not None:
            return ForwardingIngest(self._broker, (vhost, queue), ingest, self.recovery_port)
        ingest.check()
        return ingest

    def _ingest(self, key: tuple[str, str]) -> RecoveryIngest:
        broker = self._authority.broker
        return RecoveryIngest(broker, key, self._engine, self._commit, self._standby.deleted_at)

    async def recover(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Take recovered messages from another node of the cluster, into a queue that this node leads.

        Raises:
            LeveretError: it does not lead the queue, or does not take them.
        """
        key = about["vhost"], about["queue"]
        queue = self._authority.broker.queues.get(key)
        if queue is None or queue.is_remote or self.recovery_port is None:
            raise LedElsewhere(f"queue '{key[1]}' in vhost '{key[0]}' is not led by this node (any more)")
        return await recover_here(self._ingest(key), self.recovery_port, about)

    def staged_queue(self, user: str, vhost: str, queue: str) -> SegmentIngest:
        """See StreamHost."""
        self.recovery_queue(user, vhost, queue)
        if (port := self.recovery_port) is not None:
            port.check_recoverer(vhost, port.name, port.term_of(vhost))
        key, broker = (vhost, queue), self._authority.broker
        return SegmentIngest(broker, key, self._engine, self._commit, self._stores.queues, self._ingest(key))

    def store_offset(self, vhost: str, reference: str, offset: int) -> None:
        """See StreamHost."""
        self._collector.note_downstream(vhost, reference, offset)

    def downstream_came(self, vhost: str, reference: str) -> None:
        """See StreamHost."""
        self._collector.remote_dc_confirms.came(vhost, reference)

    def downstream_left(self, vhost: str, reference: str) -> None:
        """See StreamHost."""
        self._collector.remote_dc_confirms.left(vhost, reference)

    def query_offset(self, vhost: str, reference: str) -> int | None:
        """See StreamHost."""
        if reference.startswith(TRANSFERRED_PREFIX):
            log_id = _offset_in(reference, TRANSFERRED_PREFIX)
            return None if log_id is None else self._standby.transferred(vhost, log_id)
        if reference.startswith(TRANSFERRED_FINGERPRINT_PREFIX):
            log_id = _offset_in(reference, TRANSFERRED_FINGERPRINT_PREFIX)
            return None if log_id is None else self._standby.transferred_fingerprint(vhost, log_id)
        if reference.startswith(BEGINNING_PREFIX):
            return self._collector.begin_downstream(vhost, reference.removeprefix(BEGINNING_PREFIX))
        log = self._collector.logs.get(vhost)
        for prefix, ask in (
            (EPOCH_PREFIX, OutgoingLog.epoch_before),
            (FINGERPRINT_PREFIX, OutgoingLog.fingerprint_before),
        ):
            if reference.startswith(prefix):
                at = _offset_in(reference, prefix)
                return None if log is None or at is None else ask(log, at)
        known = log.downstreams.by_reference.get(reference) if log is not None else None
        return known.offset if known is not None else None


def _offset_in(reference: str, prefix: str) -> int | None:
    """The number behind the prefix of a reader's reference; None if it is none."""
    return whole_number(reference.removeprefix(prefix), most=_U64_MAX)


def _no_other_node(name: str, tls: bool) -> tuple[str, int] | None:
    """Return None: a single node knows no other one."""
    return None


def _is_stream(queue: Queue) -> bool:
    """Whether a queue is a stream, led here or elsewhere."""
    return queue_type(queue.definition.arguments) == STREAM


def _order_of(partition: d.Binding) -> int:
    """The place of a partition; an application may have bound the stream, with anything in that argument."""
    order = partition.arguments.get(PARTITION_ORDER, 0)
    return order if isinstance(order, int) else 0


def _leader(queue: Queue) -> str:
    return queue.leader if isinstance(queue, RemoteQueue) else ""


class OpenStream:
    """runtime.clients.stream_host.StreamHandle: one stream, for one connection.

    Attributes:
        log: its served log.
        groups: the node's.
    """

    is_replica = False
    is_readable = is_writable = True

    def __init__(
        self, stream: Stream, log: CommittedLog, broker: Broker, engine: Engine, groups: ConsumerGroups
    ) -> None:
        """Open `stream`, whose served log is `log`."""
        self.log = log
        self.groups = groups
        self._stream = stream
        self._broker = broker
        self._engine = engine

    def last_sequence(self, reference: str) -> int:
        """See SequenceBook."""
        return max(self._stream.sequences.logged.get(reference.encode(), 0), 0)

    def stored_offset(self, reference: str) -> int | None:
        """See StreamBook."""
        return self._stream.offset_of(reference.encode())

    def publish(self, batch: StreamBatch) -> None:
        """See StreamHandle."""
        present = self._broker.queues.get(self._stream.key)
        if self.log.is_closed or present is None or present.epoch != self._stream.epoch:
            batch.done(self.log.ended)
            return
        # While it is handed over, nothing is appended: its publishers hear of the next leader, or it is taken back.
        self._stream.publish(batch)
        if not self._is_gone:
            self._mark()

    def store_offset(self, reference: str, offset: int) -> None:
        """See StreamHandle."""
        if not self._is_gone:
            self._stream.store_offset(reference.encode(), offset)
            self._mark()

    def ask_offset(self, reference: str, then: OffsetFound) -> None:
        """See StreamHandle."""
        then(self.stored_offset(reference))

    def ask_sequence(self, reference: str, then: OffsetFound) -> None:
        """See StreamHandle."""
        then(self.last_sequence(reference))

    @property
    def _is_gone(self) -> bool:
        return self._broker.queues.get(self._stream.key) is not self._stream

    def _mark(self) -> None:
        self._broker.dirty[self._stream] = None
        self._engine.touch()


def _queue_arguments(given: Mapping[str, str]) -> dict[str, Any]:
    """A stream's arguments in the form of a queue's; unknown ones are left out, as in RabbitMQ.

    Raises:
        PreconditionFailed: an argument that has to be a number is none.
    """
    arguments: dict[str, Any] = {"x-queue-type": "stream"}
    for name in _NUMBERS:
        if name in given:
            number = whole_number(given[name], most=_U64_MAX)
            if number is None:
                raise PreconditionFailed(
                    f"stream argument '{name}' is {given[name][:_SHOWN]!r}, expected a whole number"
                )
            arguments[f"x-{name}"] = number
    for name in _TEXTS:
        if name in given:
            arguments[f"x-{name}"] = given[name]
    return arguments


def _reached_at(address: Address) -> str:
    """Where clients on other machines reach a listener: one on all addresses at the machine's name, as RabbitMQ's."""
    return socket.gethostname() if address.ip in ANYWHERE else address.ip
