"""A node and the cluster it is a member of, brought together.

What others decide comes as changes, in the order in which they became so, and is done at once as far as it needs no
waiting: definitions are applied, queues are due to be placed. What this node decides goes out through the engine
(engine.ReplicationPort): changes of definitions to all nodes, messages to the leaders of their queues and to mirrors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.core.broker.broker import Broker
from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.cluster import (
    AliveChanged,
    Changed,
    DefinitionChanged,
    MemberChanged,
    PlacementChanged,
    SchemaSyncDecided,
)
from leveret.core.replication.mirror_events import MirrorEvents
from leveret.core.schema.schema import UPSTREAM_PARAMETER
from leveret.model import definitions as d
from leveret.model.errors import LeveretError, NotFound, Refusal
from leveret.runtime.cluster.definitions_publication import DefinitionsPublication
from leveret.runtime.cluster.forwarding import Forwarding
from leveret.runtime.cluster.links import MemberLinks
from leveret.runtime.cluster.listener import ClusterListener, ClusterPeer, Handler, NodeCredentials
from leveret.runtime.cluster.local_queues import QueueKey
from leveret.runtime.cluster.member import ClusterMember
from leveret.runtime.cluster.placement_controller import PlacementController
from leveret.runtime.cluster.queue_locations import QueueLocations
from leveret.runtime.cluster.queue_roles import QueueRoles
from leveret.runtime.cluster.queues import ClusterQueues
from leveret.runtime.cluster.schema_decisions import ForAll
from leveret.runtime.logs.engine import Part
from leveret.runtime.logs.log_store import epoch_of
from leveret.runtime.mirroring.copies import MirrorCopies
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.sources import MirrorSources
from leveret.session.forwarding.remote_ports import RemotePorts
from leveret.session.link_handshake import Kind
from leveret.storage.secret_file import Secret

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.05
_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Publishers are not read from while a mirror has so much before it that it was sent."""


class ClusterBarrier:
    """commit.ReplicationBarrier: nothing is promised without the lease, and each round cuts a batch for the mirrors."""

    def __init__(self, holds_lease: Callable[[], bool], cut: Callable[[], int]) -> None:
        """`cut` sends what was appended since the last cut."""
        self._holds_lease = holds_lease
        self._cut = cut

    def cut(self) -> int:
        """See commit.ReplicationBarrier; positions are not used."""
        return self._cut()

    def committed(self) -> int:
        """See commit.ReplicationBarrier."""
        return 0 if self._holds_lease() else -1

    def confirmable(self) -> int:
        """See commit.ReplicationBarrier."""
        return self.committed()


class Coordinator:
    """See the module; engine.ReplicationPort.

    Attributes:
        member: the node's membership.
        locations: where its queues are.
        placement_controller: sees to that.
    """

    def __init__(self, member: ClusterMember, node: Node, secret: Secret) -> None:
        """Be asked by this node, which has not recovered anything yet."""
        self.member = member
        self.answer_management: Callable[[str, Any], Awaitable[Any]] = _unknown
        self._node = node
        self._tasks: list[asyncio.Task[None]] = []
        self._slowed: list[Callable[[], None]] = []
        self._mirror_events = MirrorEvents(member.name)
        broker, state, settings = node.broker, member.state, node.config.cluster
        credentials = NodeCredentials(secret, member.node_id, member.name, member.incarnation)
        self.links = MemberLinks(settings, credentials, self.answer)
        self.sources = MirrorSources(
            node.tree,
            node.commits,
            node.engine.clock_ms,
            self._mirror_changed,
            lambda name: self._roles.begin_segment(name),
            sync_bytes_s_max=settings.sync_bytes_s_max,
            ack_timeout_ms=settings.mirroring_ack_timeout_ms,
        )
        self.copies = MirrorCopies(
            node.tree,
            node.commits,
            node.data_dir,
            lambda node_name, kind: self.links.dial(node_name, "mirror"),
            node=member.name,
            name_of=lambda name: self._roles.key_of(name),
            is_led=lambda name: self._roles.is_led(name),
            has_log=lambda name: node.log_store.queues.home.has_log(epoch_of(name)),
            record_existence=lambda name: node.log_store.queues.home.record_existence(epoch_of(name)),
            begin_anew=self._follow_again,
            clock_ms=node.engine.clock_ms,
        )
        node.copy_gone = self.copies.gone
        self.forwarding = Forwarding(member.name, node, self.links.dial, member.incarnation)
        self.locations = QueueLocations(settings, state, broker, member.cluster_view)
        self._roles = self._make_roles()
        self.placement_controller = PlacementController(
            member.store, state, broker, self.locations, self._roles, member.cluster_view, self._report
        )
        self.publication = DefinitionsPublication(
            member.store,
            state,
            broker.epochs,
            lock_condition=lambda: member.definitions_lock.lock_condition,
            placed=self.locations.first,
            all_have=member.all_have,
            on_idle=member.definitions_lock.look,
            on_lost=member.lost,
        )
        handlers: dict[Kind, Handler] = {
            "member": self.links.accept,
            "relay": self.forwarding.accept,
            "mirror": lambda peer, caller: self.sources.accept(peer, caller.name, caller.incarnation),
        }
        self.listener = ClusterListener(settings, credentials, handlers, self._why_not)
        broker.shared = []
        node.log_store.forwarding = self.forwarding
        node.engine.replication_port = self
        node.commits.replication_barrier = ClusterBarrier(member.store.holds_lease_now, self.sources.cut)
        node.maintenance.on_change = self._drained
        node.stream_server.find_node = self._streams_of
        node.stream_server.on_listening = self._streams_open
        member.definitions_lock.serve(broker.definitions_lock, self._has_changes, self._go_on)
        self._schema_deciding = ForAll(member, node.schema_sync.deciding)
        node.schema_sync.deciding = self._schema_deciding

    def _follow_again(self, name: str) -> None:
        """What the record of a queue says is to be done once more, as its log here is damaged or gone."""
        key = self._roles.key_of(name)
        if key is not None:
            self.placement_controller.changed(key)

    def _why_not(self, caller: ClusterPeer) -> str:
        """Only who runs, as far as is known here, may come; who is not known yet comes again."""
        presence = self.member.state.alive.get(caller.name)
        if presence is None or presence.incarnation != caller.incarnation:
            return f"node {caller.name} is not known to run"
        return ""

    def _make_roles(self) -> QueueRoles:
        node = self._node
        queues = ClusterQueues(
            self.member.name,
            node.broker,
            node.log_store,
            node.tree,
            node.commits,
            node.engine,
            self.locations.placement_of,
        )
        return QueueRoles(
            self.member.name,
            node.broker,
            node.engine,
            node.commits,
            queues,
            self.sources,
            self.copies,
            self.forwarding,
            self.locations.policy,
            self.member.ask,
            lambda keys: self.placement_controller.due(keys),
            hand_over_timeout_s=node.config.cluster.slave_wait_timeout_ms / 1000,
        )

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_founder(self) -> bool:
        """Whether the cluster begins with what this node has."""
        return self.member.is_founder

    def take_definitions(self, stored: d.Definitions) -> None:
        """Give the broker what the cluster has; what the node's own log has otherwise is logged with the next flush.

        The founder has what it has, and shares it.
        """
        broker = self._node.broker
        broker.epochs.last = max(broker.epochs.last, self.member.state.epoch)
        if self.member.is_founder:
            return
        self._apply(self.member.pending())
        known = {
            (change.entity.kind, change.entity.key) for change in broker.changes if isinstance(change, d.Put)
        }
        new = [
            change
            for change in broker.changes
            if isinstance(change, d.Put)
            and stored.by_kind[change.entity.kind].get(change.entity.key) != change.entity
        ]
        gone = [
            d.Delete(entity.kind, entity.key)
            for entity in reversed(stored.entities())
            if (entity.kind, entity.key) not in known
        ]
        broker.changes = [*gone, *new]

    async def begin(self) -> None:
        """The node has recovered: follow what happens, and see to its queues.

        Raises:
            LeveretError: etcd does not answer.
        """
        await self.member.joined()
        self._mirror_events.begin(self.member.state.placements)
        self.member.take_with(self._take)
        self.links.know(self.member.state.alive)
        await self.listener.start()
        # Before others come: what they publish waits for the mirrors of its queue from the first message on.
        await self.placement_controller.begin()
        await self.member.serve(self.links, str(self.listener.uri))
        self._tasks += [self._spawn(self.placement_controller.run()), self._spawn(self._tick())]
        await self._schema_deciding.keep()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that lasts as long as the node: without it the node is none."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.critical("cluster_failed action=stop", exc_info=task.exception())
            self._node.failed.set()

    async def _tick(self) -> None:
        """Keep promises that a renewed lease allows, and tell mirrors what no flush tells them."""
        while True:
            await asyncio.sleep(_TICK_S)
            self.sources.cut()
            self._node.commits.keep()
            self.member.definitions_lock.look()
            if self._slowed and not self._mirrors_are_slow():
                slowed, self._slowed = self._slowed, []
                for callback in slowed:
                    callback()

    async def stop(self) -> None:
        """Decide nothing more."""
        for task in self._tasks:
            task.cancel()
        self.publication.stop()
        self._roles.stop()
        self.links.stop()
        await self.listener.stop()
        await self.copies.close()
        self.sources.close()
        await self.forwarding.stop()

    async def hand_over_all(self) -> None:
        """The node stops in order: whoever has all of a queue leads it from now on."""
        await self.placement_controller.leave()

    def _go_on(self) -> None:
        """This node may change definitions: clients that wait for that go on, here and at other nodes."""
        self._node.amqp.go_on()
        self.forwarding.go_on()

    def _has_changes(self) -> bool:
        broker = self._node.broker
        return self.publication.is_busy or bool(broker.shared) or bool(broker.changes_in_flight)

    # -- what others decide -------------------------------------------------------------------

    def _take(self, changes: list[Changed]) -> None:
        # Who came and went while this node saw nothing left no trace but in this.
        epochs = self._node.broker.epochs
        epochs.last = max(epochs.last, self.member.state.epoch)
        self._apply(changes)
        for change in changes:
            match change:
                case AliveChanged(name, presence):
                    self.links.know(self.member.state.alive)
                    self.sources.runs(name, presence.incarnation if presence is not None else "")
                    self.placement_controller.node_changed(name)
                case MemberChanged(name):
                    self.placement_controller.node_changed(name)
                case SchemaSyncDecided():
                    self._tasks.append(self._spawn(self._schema_deciding.keep()))
                case DefinitionChanged(d.Put(d.GlobalParameter(name=name))) if name == UPSTREAM_PARAMETER:
                    self._node.schema_sync.endpoints_changed()
                case PlacementChanged(key):
                    for text in self._mirror_events.changed(change):
                        self._report(key, text)
                    self.placement_controller.changed(key)
        self._node.schema_sync.look()
        self._node.engine.touch()

    def _apply(self, changes: list[Changed]) -> None:
        """Definitions that another node decided on; to be logged here, and not shared again."""
        broker = self._node.broker
        for each in changes:
            if isinstance(each, DefinitionChanged):
                try:
                    take(broker, each.change)
                except Refusal as error:
                    logger.error("definition_not_taken change=%s error=%s", each.change, error)
                self._policies_changed(each.change)

    def _policies_changed(self, change: d.Change) -> None:
        match change:
            case d.Put(d.Policy(vhost=vhost)) | d.Put(d.Parameter(vhost=vhost, component=d.OPERATOR_POLICY)):
                self.placement_controller.vhost_changed(vhost)
            case d.Delete("policies" | "parameters", key):
                self.placement_controller.vhost_changed(key[0])

    def _mirror_changed(self, name: str, node: str, state: MirrorState) -> None:
        key = self._roles.key_of(name)
        if key is not None:
            if state in (MirrorState.GONE, MirrorState.UNSYNCHRONISED):
                self._roles.mirror_lacks(key, node)
            self.placement_controller.due([key])

    def _drained(self, draining: bool) -> None:
        """The node goes into maintenance, or is back: it gets no new queues, and gives away those it can."""
        self._tasks.append(self._spawn(self._drain(draining)))

    async def _drain(self, draining: bool) -> None:
        try:
            await self.member.set_draining(draining)
            if draining:
                await self.placement_controller.hand_over()
        except LeveretError as error:
            logger.error("maintenance_not_announced error=%s", error)

    def _streams_of(self, name: str, tls: bool) -> tuple[str, int] | None:
        """Where clients of streams find another node."""
        presence = self.member.state.alive.get(name)
        if presence is None:
            return None
        return presence.streams_tls if tls else presence.streams

    def _streams_open(self) -> None:
        """Clients of streams may come here: all nodes are told where."""
        self._tasks.append(self._spawn(self._announce_streams()))

    async def _announce_streams(self) -> None:
        listener = self._node.stream_server
        place = (listener.advertised_host, listener.advertised_port) if listener.advertised_port else None
        tls_place = (
            (listener.advertised_tls_host, listener.advertised_tls_port)
            if listener.advertised_tls_port
            else None
        )
        try:
            await self.member.set_streams(place, tls_place)
        except LeveretError as error:
            # Without etcd the lease ends, and the node begins anew.
            logger.warning("streams_not_announced error=%s", error)

    def _report(self, key: QueueKey, text: str) -> None:
        logger.info("Mirrored queue '%s' in vhost '%s': %s", key[1], key[0], text)

    # -- what others ask ----------------------------------------------------------------------

    async def answer(self, node: str, what: str, about: Any) -> Any:
        """Answer another node, or this one.

        Raises:
            LeveretError: it cannot be answered.
        """
        match what:
            case "applied":
                await self.member.has_taken(int(about["revision"]))
                await self._node.engine.refreshed()
                self._node.engine.touch()
                return {}
            case "end":
                epoch, next_offset = await self._roles.end(str(about["log"]))
                return {"epoch": epoch, "next_offset": next_offset}
            case "may_discard":
                name = str(about["log"])
                key = self._roles.key_of(name)
                is_at_rest = key is not None and self.placement_controller.is_at_rest(key)
                return {"may": is_at_rest and self._roles.may_discard(name, node)}
            case "move":
                key = str(about["vhost"]), str(about["name"])
                return {"moved": await self.placement_controller.move(key, str(about["to"]))}
        return await self.answer_management(what, about)

    def queue(self, key: QueueKey) -> Queue | None:
        """The queue, or what stands for it; None if there is none."""
        return self._node.broker.queues.get(key)

    def is_synchronising(self, key: QueueKey) -> bool:
        """Whether a mirror of a queue that is led here is being sent what it lacks."""
        return self._roles.is_synchronising(key)

    def delete_queue(self, queue: Queue) -> None:
        """Delete a queue that nobody has any more."""
        self._node.broker.delete_when_writable(queue)
        self._node.engine.touch()

    # -- engine.ReplicationPort ------------------------------------------------------------------------

    def concerns(self, queue: object) -> bool:
        """See engine.ReplicationPort."""
        if isinstance(queue, RemoteQueue | RemotePorts):
            return True
        return isinstance(queue, Queue) and self._roles.led_name(queue) is not None

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        """See engine.ReplicationPort."""
        if any(isinstance(each, RemoteQueue | RemotePorts) for each in batch.queues):
            self.forwarding.when_batch_confirmed(batch, part())
        self._when_mirrored(batch.queues, part)

    def when_taken(self, queues: Iterable[Queue], part: Part) -> None:
        """See engine.ReplicationPort."""
        for queue in queues:
            if isinstance(queue, RemoteQueue):
                self.forwarding.when_confirmed(queue, part())
        self._when_mirrored(queues, part)

    def _when_mirrored(self, queues: Iterable[object], part: Part) -> None:
        names = [name for each in queues if isinstance(each, Queue) and (name := self._roles.led_name(each))]
        if names:
            has_all = part()

            def notify() -> None:
                # The disk's part asked for the lease when the disk was done; mirrors may be done long after that.
                if self.member.store.holds_lease_now():
                    has_all(True)

            self.sources.when_acked(names, notify)

    def is_overloaded(self) -> bool:
        """See engine.ReplicationPort."""
        return self.forwarding.is_overloaded() or self._mirrors_are_slow()

    def _mirrors_are_slow(self) -> bool:
        return (
            self._node.config.cluster.mirroring_flow_control
            and self.sources.waiting_bytes > _WAITING_BYTES_MAX
        )

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """See engine.ReplicationPort."""
        if self._mirrors_are_slow():
            self._slowed.append(callback)
        else:
            self.forwarding.when_relieved(callback)

    def taken_down(self, queue: Queue) -> None:
        """See engine.ReplicationPort: a mirror that has all of it leads instead."""
        self.placement_controller.due([(queue.key[0], queue.key[1])])

    def flushed(self, queue: Queue) -> None:
        """See engine.ReplicationPort: mirrors are told what consumers may have, and need not have what is settled."""
        name = self._roles.led_name(queue)
        if name is not None:
            self.sources.delivered(name, queue.backlog.cursor)
            self.sources.floor(name, queue.log_floor)

    def share(self, changes: list[d.Change], known: Callable[[], None]) -> None:
        """See engine.ReplicationPort."""
        for change in changes:
            self._policies_changed(change)
        self.publication.share(changes, known)


async def _unknown(what: str, about: Any) -> Any:
    raise NotFound(f"no answer to {what!r} is known here")


def take(broker: Broker, change: d.Change) -> None:
    """Apply what another node decided, and share it with nobody; what is still to be shared is left as it is.

    Who was cut off for a while may see one put where there were a delete and a put.

    Raises:
        Refusal: it contradicts what is here.
    """
    own = len(broker.shared or ())
    try:
        _take(broker, change)
    finally:
        if broker.shared:
            del broker.shared[own:]


def _take(broker: Broker, change: d.Change) -> None:
    match change:
        case d.Put(d.Queue() as queue):
            lock_condition = broker.queues.get(queue.key)
            if lock_condition is not None and lock_condition.epoch != queue.epoch:
                broker.apply(d.Delete("queues", queue.key))
        case d.Put(d.Exchange() as exchange):
            _make_way(broker, exchange)
    broker.apply(change)


def _make_way(broker: Broker, exchange: d.Exchange) -> None:
    """Replace an exchange that is there otherwise; bindings that stayed as they were are not told again."""
    topology = broker.topology(exchange.vhost)
    state = topology.exchanges.get(exchange.name)
    if state is None or state.definition == exchange:
        return
    bindings = [*state.bindings.values(), *topology.bindings_into("exchange", exchange.name)]
    broker.apply(d.Delete("exchanges", exchange.key))
    broker.apply(d.Put(exchange))
    for binding in bindings:
        broker.apply(d.Put(binding))
