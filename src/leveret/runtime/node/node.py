"""The node: builds every room, passes each its collaborators, starts and stops them in order.

Start: definitions log, queues from their logs, outgoing logs completed from the queues, then the listeners; so no
client is served before all data are complete. Stop is the reverse: no new work, then promises become durable, then
files are closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator, Set
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from leveret.config import Config
from leveret.core.broker.broker import Broker
from leveret.core.broker.epochs import Epochs
from leveret.core.rules.descriptors import ListenerLimits
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model import definitions as d
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.clients.amqp_listener import AmqpListener
from leveret.runtime.clients.authority import AmqpHost, Authority, SchemaHost
from leveret.runtime.clients.maintenance import Maintenance
from leveret.runtime.clients.stream_listener import StreamListener
from leveret.runtime.clients.stream_server import StreamServer
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.upstream import UpstreamCollection
from leveret.runtime.definitions.boot import BootDefinitions
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.definitions_store import DefinitionsStore, policy_failed, refresh_policies
from leveret.runtime.logs.engine import Engine, EngineHooks
from leveret.runtime.logs.log_store import LogStore, log_name
from leveret.runtime.node.alarms import AlarmWatch
from leveret.runtime.node.cluster_side import ClusterSide
from leveret.runtime.node.delivered_positions import DeliveredPositions
from leveret.runtime.node.epoch_file import EpochFile
from leveret.runtime.node.first_start import seed
from leveret.runtime.node.read_only_view import ReadOnlyView
from leveret.runtime.node.upkeep import Upkeep
from leveret.runtime.process import garbage
from leveret.runtime.process.allocator import freeze_objects, keep_freed_memory
from leveret.runtime.process.clock import clock_ms, elapsed_ms
from leveret.runtime.process.event_history import FILE as EVENT_HISTORY_FILE
from leveret.runtime.process.event_history import EventHistory
from leveret.runtime.process.garbage import Garbage
from leveret.runtime.process.loop_watch import LoopWatch
from leveret.runtime.process.proc import used_memory_bytes
from leveret.runtime.process.work_slices import in_slices, others_first, result_of
from leveret.runtime.schema_sync.schema_sync import SchemaSync
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.runtime.sockets.tls import ListenerTls
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.runtime.standby.rejoin import STATE_FILE as REJOIN_FILE
from leveret.runtime.standby.rejoin import Rejoin
from leveret.runtime.standby.site_rejoin import SiteRejoin
from leveret.session.ingest import ApiClient
from leveret.storage.kernel_syncs import open_kernel_syncs
from leveret.storage.log import Log
from leveret.storage.sync import file_system_of
from leveret.storage.tree import Tree

logger = logging.getLogger(__name__)

_SETTLE_TIMEOUT_S: Final = 2.0
SWITCH_INTERVAL_S: Final = 0.0005
"""The time that a thread waits for the event loop's thread after an fdatasync. Python's own 5 ms tripled the latency of
confirms and halved the rate of a hundred queues; a shorter time gains nothing.
"""


def make_commits(config: Config, data_dir: Path, on_failure: Callable[[BaseException], None]) -> GroupCommit:
    """Make the group commit of a node's logs; `on_failure` is called once a sync has failed."""
    return GroupCommit(
        fsync=config.storage.durability == "fsync",
        on_failure=on_failure,
        logs_at_once=process_sockets().budget.syncing,
        file_system=file_system_of(data_dir),
        kernel_syncs=open_kernel_syncs(),
    )


def settle_process() -> None:
    """Set the collector, threads and freed memory as a process that serves for long needs them."""
    freeze_objects()
    gc.set_threshold(*garbage.THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()


class Node:
    """One broker process.

    Attributes:
        broker: the definitions and queues; change it with `broker.apply`, then `await commit()`.
        schema_sync: schema replication, both sides.
        upstream: the upstream side of message replication.
        standby: the downstream side.
        replication: followers of this node, or its leader, for operators; None for neither.
        cluster: the cluster of this node, for operators; None for none.
        stores: the logs of its queues.
        read_only_view: the view while another node leads its data.
        event_history: the events of this node, each with the user who began it.
        loop_watch: measures long steps of the event loop.
        maintenance: takes the node out of service for clients.
        failed: set when the disk failed for good; the process must end.
        ended: set when the node serves no client any more, so that its callers stop waiting.
    """

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        tree: Tree | None = None,
        commits: GroupCommit | None = None,
        *,
        failed: asyncio.Event | None = None,
        replication: Any = None,
        cluster: Any = None,
    ) -> None:
        """Read the files of the data directory; open no listener yet.

        Args:
            config: of the process.
            data_dir: the data directory.
            tree: the content of `data_dir`; by default all of it.
            commits: makes changes durable; by default a group commit of its own.
            failed: of the process; by default of this node.
            replication: see above.
            cluster: a cluster that the node only shows, without a lease; `enter_cluster` is for a node that serves.

        Raises:
            Corrupt: the definitions cannot be read.
        """
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.config = config
        self.data_dir = data_dir
        self.started_at_ms, self._began_ms = clock_ms(), elapsed_ms()
        self.failed = failed or asyncio.Event()
        self.ended = asyncio.Event()
        self.replication = replication
        self.cluster = cluster
        self.tree = tree or Tree(data_dir, segments_open_max=process_sockets().budget.logs)
        self.commits = commits or make_commits(config, data_dir, self._disk_failed)
        self._cluster_side: ClusterSide | None = None
        self._opened = False
        self._tasks: list[asyncio.Task[None]] = []
        self._tls: ListenerTls | None = None
        self._wire_broker()
        self._wire_sites()
        self._wire_engine()
        self._wire_listeners()
        self._introduce()

    # -- wiring: the parts in the order in which they are made -------------------------------------

    def _wire_broker(self) -> None:
        """Make the broker, its logs, and the state files beside them."""
        config, data_dir, tree = self.config, self.data_dir, self.tree
        tree.removed.free = self.commits.free
        tree.removed.free_left()
        self.commits.unsynced_logs_max = tree.open_segments.count_max // 2
        self._definitions = DefinitionsStore(tree.log(data_dir / "definitions"), self.commits, clock_ms)
        self.log_store = LogStore(tree, self.commits, clock_ms, config.storage.segment_bytes_max)
        self._queues = self.log_store.queues
        self._epochs = EpochFile(tree.file(data_dir / "epochs.json"), self.commits)
        self.event_history = EventHistory(tree.file(data_dir / EVENT_HISTORY_FILE), clock_ms)
        self.broker = Broker(
            self.log_store.read,
            default_queue_type=config.objects.default_queue_type,
            queue_max=config.objects.queue_max,
            epochs=Epochs(self._epochs.reserve),
        )
        self._delivered_positions = DeliveredPositions(data_dir, tree.epoch)
        self._expected_logs: Callable[[], Set[str] | None] = lambda: None
        self.read_only_view = ReadOnlyView(tree, self.broker, self.log_store, self._definitions)
        self._boot_definitions = BootDefinitions(
            config.definitions, tree.file(data_dir / "boot_definitions.json")
        )

    def _wire_sites(self) -> None:
        """Make both sides of the replication to another site: of definitions and of messages."""
        data_dir, tree = self.data_dir, self.tree
        self.collector = Collector(
            tree, clock_ms, self.log_store.log, self._queues, self.commits, self.config
        )
        self.upstream = UpstreamCollection(self.broker, self.collector, self.log_store, clock_ms)
        self.schema_sync = SchemaSync(
            self, tree.file(data_dir / "schema_sync.json"), tree.file(data_dir / "schema_history.json")
        )
        self.standby = StandbyDownstream(self, tree.file(data_dir / "standby.json"))
        self.rejoin: Rejoin | SiteRejoin = Rejoin(self, tree.file(data_dir / REJOIN_FILE))

    def _wire_engine(self) -> None:
        """Make the engine that executes the broker's decisions, and the watches over its resources."""
        hooks = EngineHooks(
            on_bug=self.failed.set,
            on_deleted=self.standby.decided.note_deleted,
            on_replication=self.upstream.follow_tags,
            keeps_unused=self._keeps_unused,
        )
        self.engine = Engine(
            self.broker, self.commits, self.log_store, self._definitions, self.collector, clock_ms, hooks
        )
        self.alarms = AlarmWatch(self.config.watermarks, self.data_dir, self.config.storage.reserve_bytes)
        self.loop_watch = LoopWatch(Garbage(used_memory_bytes))
        self._upkeep = Upkeep(
            self.broker, self.engine, self.collector, self.upstream, self.log_store, self._log_gone
        )

    def _wire_listeners(self) -> None:
        """Make the listeners and the authority that they ask."""
        config = self.config
        self.authority = Authority(self.broker, config.access.loopback_users)
        self.amqp_host = AmqpHost(self.authority, self.engine, self.alarms, config)
        schema_host = SchemaHost(
            self.authority,
            config.node_name,
            self.schema_sync.is_ready,
            self.schema_sync.serve_request,
            self.schema_sync.state,
            config.amqp.connection_max,
        )
        self.amqp = AmqpListener(self.amqp_host, schema_host, self.engine, config.listeners)
        self.stream_server = StreamServer(
            self.authority,
            self.collector,
            self.log_store,
            self.engine,
            self.commits,
            self.alarms,
            self.standby.decided,
            config,
        )
        self.streams = StreamListener(
            self.stream_server,
            frame_max_bytes=config.streams.frame_max_bytes,
            heartbeat_s=config.streams.heartbeat_s,
            listener_limits=ListenerLimits(per_address=config.listeners.connection_max_per_address),
        )
        self.maintenance = Maintenance(self.amqp, self.streams)

    def _introduce(self) -> None:
        """Connect earlier parts to later ones: callbacks for events of the parts made before."""
        self.commits.on_gone = self._log_gone
        self.log_store.use_existence_records(
            self._definitions.has_log,
            self._definitions.record_existence,
            self._definitions.record_existence_once_synced,
        )
        self._queues.keep_from = self.collector.keep_from
        self._queues.needed_from = self.collector.needed_from
        self._queues.needs_data = self.collector.needs_data
        self._queues.when_safe = self.engine.when_safe
        self.engine.confirm_ports.append(self.collector.remote_dc_confirms)
        self.log_store.streams.downstreams = self.collector.remote_dc_confirms
        self.collector.released = self._queues.release
        self.log_store.streams.on_commit.append(self.stream_server.wake)
        self.log_store.streams.when_confirmable = self.engine.when_confirmable
        self.alarms.on_change += [self.amqp.go_on, self.streams.alarms_changed]

    def enter_cluster(self, side: ClusterSide) -> None:
        """Become a member of a cluster; to be called before the recovery."""
        self._cluster_side = side
        self.cluster = side.operations
        self.broker.make_queue = side.make_queue
        self.broker.shared = []
        self.log_store.forwarding = side.forwarding
        self.amqp_host.leaders = side.leaders
        self.engine.replication_port = side.replication_port
        self.commits.replication_barrier = side.barrier
        self.schema_sync.deciding = side.schema_decisions
        self.standby.enter_site(side.standby_site)
        assert self.standby.member is not None
        self.rejoin = rejoin = SiteRejoin(self, self.standby.member.parts)
        self.standby.member.obey_return = rejoin.obey
        self.stream_server.recovery_port = side.recovery_port
        self.maintenance.on_change = side.on_draining
        self.stream_server.find_node = side.find_streams
        self.stream_server.on_listening = side.on_streams
        self.stream_server.replicas = side.stream_replicas
        self.stream_server.site = side.site
        self.collector.enter_cluster(side.replication_port, side.incarnations)

    def _keeps_unused(self) -> bool:
        """Return whether unused queues are kept, because their users are at the upstream or have not come back yet."""
        return self.schema_sync.mode is OperatingMode.DOWNSTREAM or self.standby.decided.promoting is not None

    @property
    def uptime_ms(self) -> int:
        """See ManagedNode."""
        return elapsed_ms() - self._began_ms

    @property
    def is_open(self) -> bool:
        """Return whether the node serves clients: the recovery is over, and the listeners are open."""
        return self._opened and not self.ended.is_set()

    def occupied_address(self) -> str:
        """Why the listeners for clients could not be opened now; empty if they could, or if they are open."""
        plain, streams = self.config.listeners, self.config.streams
        return self.amqp.listening.occupied(
            (*plain.amqp, *plain.amqp_tls)
        ) or self.streams.listening.occupied((*plain.stream, *streams.listeners_tls))

    # -- start and stop -------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything, then open the listeners.

        Raises:
            LeveretError: a log is damaged, or an address is not available.
        """
        await self.recover()
        await self.open()

    async def recover(self) -> None:
        """Recover everything, and make it durable; no client is served yet.

        Raises:
            LeveretError: a log is damaged, or a certificate that is needed later cannot be used.
        """
        # Before everything else: the operator has to mend an unusable certificate.
        if self.config.listeners.amqp_tls or self.config.streams.listeners_tls:
            self._tls = ListenerTls(self.config.tls, "ssl_options")
        self._definitions.compact_at_start()
        await others_first()
        await self._unless_failed(self._restore())
        try:
            await self._unless_failed(self.commit())
        except StorageError as error:
            if (refusal := self.engine.definitions.refusal) is None:
                raise
            raise StorageError(
                f"{self.data_dir / 'definitions'}: the first definitions cannot be written: {refusal}"
            ) from error
        self._boot_definitions.remember()
        self.alarms.probe()

    async def open(self) -> None:
        """Open the listeners.

        Raises:
            LeveretError: an address is not available.
        """
        # Before the first client: it deletes queues.
        await self.rejoin.resume()
        for address in self.config.listeners.amqp:
            await self.amqp.start(address.ip, address.port)
        for address in self.config.listeners.amqp_tls:
            await self.amqp.start(address.ip, address.port, self._tls)
        for address in self.config.listeners.stream:
            await self.streams.start(address.ip, address.port)
            self.stream_server.listening(self.streams.addresses[-1])
        for address in self.config.streams.listeners_tls:
            await self.streams.start(address.ip, address.port, self._tls)
            self.stream_server.listening_tls(self.streams.addresses[-1])
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.collector.run()),
            loop.create_task(self._upkeep.retain()),
            loop.create_task(self._upkeep.watch_logs()),
            loop.create_task(self._upkeep.reclaim()),
            loop.create_task(self.alarms.run()),
            loop.create_task(self.loop_watch.run()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        await self.schema_sync.start()
        await self.standby.start()
        self._opened = True
        if self.replication is not None:
            await self.event_history.led(self.config.node_name, self.replication.epoch)
        settle_process()

    async def _unless_failed(self, step: Coroutine[None, None, None]) -> None:
        """Await a step of the start, but end at a failed disk: the step would wait for ever."""
        taken = asyncio.ensure_future(step)
        failed = asyncio.ensure_future(self.failed.wait())
        try:
            await asyncio.wait((taken, failed), return_when=asyncio.FIRST_COMPLETED)
            if not taken.done():
                raise StorageError(f"{self.data_dir}: the logs cannot be synced; see the log for the reason")
            await taken
        finally:
            taken.cancel()
            failed.cancel()

    async def _restore(self) -> None:
        broker = self.broker
        stored = self._definitions.definitions
        if not self._definitions.next_offset and self.log_store.has_logs():
            # If this counted as a first start, the logs would be removed as logs without a queue.
            raise StorageError(
                f"{self.data_dir / 'definitions'} is missing or empty, and yet there are logs of queues: restore "
                f"it from a copy, or move {self.data_dir} aside to start anew; nothing was changed"
            )
        epochs = {queue.epoch for queue in stored.by_kind["queues"].values() if isinstance(queue, d.Queue)}
        if self._cluster_side is None or self._cluster_side.is_founder:
            self._definitions.restore(broker)
        self.collector.has_resigned = self.rejoin.is_under_way
        self.upstream.open_logs()
        known = self.collector.epochs | self.log_store.epochs()
        broker.epochs.last = max(broker.epochs.last, self._epochs.last(), *known)
        if self._cluster_side is not None:
            epochs = self._cluster_side.take_definitions(stored)
        refresh_policies(broker, lambda: False, policy_failed)
        queues = broker.led_queues()
        self.log_store.remove_orphans(epochs, self.collector.by_reference_epochs)
        self._delivered_positions.load()
        await others_first()
        # A lease that was won is kept alive meanwhile. With thousands of queues, or a slow disk, it would end before
        # this does, and the node would begin anew for ever.
        async for queue in in_slices(queues):
            self.log_store.recover(queue)
            self._delivered_positions.redeliver(queue)
        await self.upstream.restore(queues)
        # Times to live, of messages and queues, go on.
        broker.dirty |= {queue: None for queue in queues if queue.damage is None}
        if self._cluster_side is not None and not self._cluster_side.is_founder:
            # The cluster has its own users and vhosts.
            return
        if self._boot_definitions.is_configured:
            self._boot_definitions.into(broker)
        elif not stored.by_kind["users"] and not stored.by_kind["vhosts"]:
            seed(self.broker, self.config.access)

    def show(self, expected_logs: Callable[[], Set[str] | None], *, in_turns: bool = False) -> None:
        """Recover everything for the read-only view, instead of `start`: another node leads these data.

        From now on, the caller reports each chunk appended to the tree's logs to `read_only_view`. `expected_logs`
        returns the logs that are a loss if they are missing; None for all that the definitions mark. `in_turns`: see
        ReadOnlyView.begin.
        """
        self._expected_logs = expected_logs
        self.read_only_view.begin(expected_logs(), in_turns=in_turns)
        self.alarms.probe()

    async def stop(self) -> None:
        """Close the listeners, keep all promises, close the files.

        Received changes are durable and confirmed before clients are told to go.
        """
        self.amqp.stop_reading()
        await self._settle()
        await self._close_listeners(self.config.process.shutdown_timeout_ms / 1000)
        await self._settle()
        self._delivered_positions.save(self.broker.led_queues())
        self.close()

    async def abandon(self) -> None:
        """Close the listeners at once and promise nothing more: another node leads.

        The barrier of the group commit ensures that nothing was promised before this call.
        """
        self.ended.set()
        self.amqp.stop_reading()
        await self._close_listeners(0)
        self.close()

    async def _close_listeners(self, timeout_s: float) -> None:
        await self.amqp.stop(timeout_s)
        await self.rejoin.stop()
        # A failed disk would let it wait for ever; its changes are settled with all others.
        await self.schema_sync.close()
        await self.standby.stop()
        await self.streams.stop()
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """Close the files of a node that serves no client."""
        self.ended.set()
        self.read_only_view.close()
        self.engine.stop()
        self.commits.close()
        self.collector.close()
        self.log_store.close()
        self._definitions.close()

    async def _settle(self) -> None:
        """Make received changes durable and confirm them.

        After a failure of the disk nothing is promised any more. Followers have a bounded time to acknowledge.
        """
        self.engine.flush()
        while self.broker.deferred_work:
            # Settlements and returns of clients are on disk as a whole.
            await asyncio.sleep(0)
            self.engine.flush()
        if not self.failed.is_set():
            failed = asyncio.create_task(self.failed.wait())
            settled = asyncio.create_task(self.commits.all_durable())
            timeout_s = self.config.followers.ack_timeout_ms / 1000 + _SETTLE_TIMEOUT_S
            await asyncio.wait(
                (failed, settled),
                return_when=asyncio.FIRST_COMPLETED,
                timeout=timeout_s if self.commits.replication_barrier else None,
            )
            for task in (failed, settled):
                task.cancel()

    def _disk_failed(self, error: BaseException) -> None:
        logger.critical("disk_failed error=%s action=stop", error)
        self.failed.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A task that runs as long as the node has ended early: a node that continued without it would be wrong."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("task_failed action=stop", exc_info=error)
            self.failed.set()

    def _log_gone(self, log: Log, error: Corrupt) -> bool:
        """The files of an open log were removed. If it is the definitions log, the node ends."""
        queue = self.log_store.queue_of(log)
        if queue is None:
            return self.copy_gone(log, error)
        self.engine.gone(queue, error)
        return True

    async def open_all_logs(self) -> None:
        """Open every log that no queue has opened, for followers; the others are the tree's `unreadable`."""
        already = set(self.tree.logs)
        unreadable: dict[str, StorageError] = {}
        await result_of(self.tree.opening_all(unreadable))
        for name, log in self.tree.logs.items():
            if name not in already:
                # Other nodes are told that it is here, also after a loss of power.
                self.commits.appended(log)
        for name, error in unreadable.items():
            logger.error("log_not_replicated log=%s error=%s", name, error)
        self.tree.unreadable.update(unreadable)

    def copy_gone(self, log: Log, error: Corrupt) -> bool:
        """Handle lost files of a log; return whether it is a mirror's copy, which is fetched again."""
        return self._cluster_side is not None and self._cluster_side.copy_gone(log, error)

    # -- for the listeners -------------------------------------------------------------------------

    def changing(self) -> AbstractAsyncContextManager[None]:
        """A context in which definitions may be changed. In a cluster it waits until this node may change them."""
        changing: AbstractAsyncContextManager[None] = (
            nullcontext() if self.cluster is None else self.cluster.changing()
        )
        return changing

    def log_sizes(self) -> Iterator[int]:
        """Return the octets of each durable log."""
        return (log.size_bytes for log in list(self.tree.logs.values()))

    def missing_logs(self) -> frozenset[int]:
        """Return the epochs of the queues that have a log, as the definitions record, and whose log is not here."""
        return frozenset(self.log_store.missing(self._definitions.marked, self._expected_logs()))

    def definitions_of(self, epochs: Set[int]) -> list[d.Queue]:
        """Return the definitions of the queues of these epochs."""
        queues = self._definitions.definitions.by_kind["queues"].values()
        return [queue for queue in queues if isinstance(queue, d.Queue) and queue.epoch in epochs]

    def former_queues(self) -> Iterator[d.Queue]:
        """Yield the definitions of all queues in the definitions' log, also of deleted ones.

        Raises:
            StorageError: it cannot be read.
        """
        return self._definitions.former_queues()

    @property
    def definitions_end(self) -> int:
        """The offset up to which the definitions are on disk."""
        return self._definitions.synced_offset

    def flush(self) -> None:
        """Log the changes applied so far, and do what follows from them."""
        self.engine.flush()

    async def commit(self) -> None:
        """Return when all changes applied so far are durable, and the outgoing logs that they need exist.

        Raises:
            StorageError: the definitions log refuses changes now, or the node ends before.
        """
        self.upstream.follow_tags()
        self._follow_cluster_name()
        await self.engine.refreshed()
        self.engine.flush()
        await self.engine.definitions.all_known()

    async def messages_durable(self) -> None:
        """Return when all messages and settlements so far are on disk; changes of definitions may wait for room there.

        Raises:
            StorageError: the node ends before.
        """
        self.engine.flush()
        await self.commits.all_durable()

    def _follow_cluster_name(self) -> None:
        """Tell AMQP clients the cluster name that an operator gave, else the configured one."""
        existing = self.broker.definitions.by_kind["global_parameters"].get(("cluster_name",))
        given = existing.value if isinstance(existing, d.GlobalParameter) else None
        self.amqp_host.cluster_name = given if isinstance(given, str) else self.config.cluster_name

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """See Authority."""
        return self.authority.authenticate(username, password, from_loopback)

    def api_client(self, user: str | None, vhost: str) -> ApiClient:
        """Return a way to publish and get without a connection, as a user or, for None, as the operator."""
        return ApiClient(self.amqp_host, user, vhost, now_ms=elapsed_ms(), touch=self.engine.touch)

    def internal_user(self, purpose: str) -> AbstractContextManager[tuple[str, str]]:
        """See Authority."""
        return self.authority.internal_user(purpose)

    def queue_of(self, name: str) -> tuple[str, str] | None:
        """Return vhost and name of the queue whose log has that name in the tree."""
        queue = self.read_only_view.queue_of(name) or next(
            (queue for queue in self.broker.queues.values() if log_name(queue) == name), None
        )
        return None if queue is None else queue.key
