"""The coordinator connects a node with its cluster.

Changes made by other nodes arrive in etcd's order. They are applied immediately unless they need I/O: definitions
change, and queues become due for placement. Changes made by this node leave through the engine
(`replication_port`). `wiring` makes the parts of a coordinator and connects them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.core.broker.broker import Broker
from leveret.core.broker.epochs import is_next_incarnation
from leveret.core.replication.cluster import (
    AliveChanged,
    Changed,
    CollectedChanged,
    DefinitionChanged,
    MemberChanged,
    PlacementChanged,
    SchemaSyncDecided,
    StandbyChanged,
)
from leveret.core.replication.mirror_events import MirrorEvents
from leveret.core.schema.delta import SCHEMA_UPSTREAM
from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.runtime.cluster.parts import ClusterParts
from leveret.runtime.cluster.placement.placement_controller import report_mirrors
from leveret.runtime.logs.definitions_store import place_of, take_over

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.05


class Coordinator:
    """See the module."""

    def __init__(self, node: Node, parts: ClusterParts) -> None:
        """Take the parts of a node that has not recovered anything yet."""
        self._node = node
        self._member = parts.member
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._mirror_events = MirrorEvents(parts.member.name)

    # -- begin and end ------------------------------------------------------------------------

    def take_definitions(self, stored: d.Definitions) -> set[int]:
        """Apply the cluster's definitions to the broker; the next flush logs how they differ from the node's, `stored`.

        The founder keeps its own definitions, and publishes them.

        Returns:
            The epochs of all of the cluster's queues, also of those that this broker could not take: their logs stay.
        """
        broker = self._node.broker
        broker.epochs.last = max(broker.epochs.last, self._member.state.epoch)
        if self._member.is_founder:
            return _epochs_of(stored.by_kind["queues"].values())
        pending = self._member.pending()
        self._apply(pending)
        # Only the last change of each place counts: a node reads etcd, and then waits until its earlier lease ends.
        last = {place_of(each.change): each.change for each in pending if isinstance(each, DefinitionChanged)}
        puts = [change.entity for change in last.values() if isinstance(change, d.Put)]
        known = {(entity.kind, entity.key) for entity in puts}
        new = [
            change
            for change in broker.changes
            if isinstance(change, d.Put)
            and broker.definitions.by_kind[change.entity.kind].get(change.entity.key) == change.entity
            and stored.by_kind[change.entity.kind].get(change.entity.key) != change.entity
        ]
        gone = [
            d.Delete(entity.kind, entity.key)
            for entity in reversed(stored.entities())
            if (entity.kind, entity.key) not in known
        ]
        broker.changes = [*gone, *new]
        return _epochs_of([*puts, *broker.definitions.by_kind["queues"].values()])

    async def begin(self) -> None:
        """Apply changes and place queues from now on; the node has recovered.

        Raises:
            LeveretError: etcd does not answer.
        """
        await self._member.joined()
        self._mirror_events.begin(self._member.state.placements)
        self._member.take_with(self._take)
        self._parts.links.know(self._member.state.alive)
        await self._parts.listener.start()
        # Before other nodes connect: their messages wait for the mirrors of the queue from the first message on.
        await self._parts.placement_controller.begin()
        await self._member.serve(self._parts.links, str(self._parts.listener.uri))
        self._spawn(self._parts.placement_controller.run())
        self._spawn(self._parts.standby_site.run())
        self._spawn(self._tick())
        await self._parts.schema_decisions.keep()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the node at the latest; its failure stops the node."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            logger.critical("cluster_failed action=stop", exc_info=task.exception())
            self._node.failed.set()

    async def _tick(self) -> None:
        """Keep promises that a renewed lease allows, and send mirrors the updates that no flush sends."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._parts.sources.cut()
            self._node.commits.keep()
            self._member.definitions_lock.check()
            self._parts.port.tick()

    async def stop(self) -> None:
        """Stop all tasks and links."""
        for task in tuple(self._tasks):
            task.cancel()
        self._parts.publication.stop()
        self._parts.roles.stop()
        self._parts.stream_replicas.offsets.stop()
        self._parts.stream_groups.stop()
        self._parts.links.stop()
        self._parts.asked.stop()
        await self._parts.listener.stop()
        await self._parts.copies.close()
        self._parts.sources.close()
        await self._parts.forwarding.stop()

    async def hand_over_all(self) -> None:
        """Hand over the queues at an orderly stop: from now on a complete mirror of each one leads it."""
        await self._parts.placement_controller.leave()

    def go_on(self) -> None:
        """Continue the clients' requests, here and at other nodes, that waited for this node's definitions lock."""
        self._node.amqp.go_on()
        self._parts.forwarding.go_on()

    # -- changes of other nodes ---------------------------------------------------------------

    def _take(self, changes: list[Changed]) -> None:
        # This number alone remembers queues that came and went while this node saw no changes.
        epochs = self._node.broker.epochs
        epochs.last = max(epochs.last, self._member.state.epoch)
        self._apply(changes)
        for change in changes:
            match change:
                case StandbyChanged():
                    self._parts.standby_site.check_owners()
                case AliveChanged(name, presence):
                    self._parts.standby_site.check_owners()
                    self._parts.links.know(self._member.state.alive)
                    self._parts.sources.runs(name, presence.run_id if presence is not None else "")
                    self._parts.placement_controller.node_changed(name)
                    self._parts.stream_groups.node_changed(name)
                case MemberChanged(name):
                    self._parts.placement_controller.node_changed(name)
                case SchemaSyncDecided():
                    self._spawn(self._parts.schema_decisions.keep())
                case DefinitionChanged(d.Put(d.GlobalParameter(name=name))) if name == SCHEMA_UPSTREAM:
                    self._node.schema_sync.endpoints_changed()
                case CollectedChanged(epoch):
                    self._node.collector.incarnation_changed(epoch)
                case PlacementChanged(key):
                    for text in self._mirror_events.changed(change):
                        report_mirrors(key, text)
                    self._parts.placement_controller.changed(key)
        if any(isinstance(each, DefinitionChanged) and _is_vhost(each.change) for each in changes):
            # A tag alone changes no queue: without queues here, nothing else opens or removes the vhost's outgoing log.
            self._node.upstream.follow_tags()
        self._node.schema_sync.obey_decisions()
        self._node.engine.touch()

    def _apply(self, changes: list[Changed]) -> None:
        """Apply definitions that another node changed: this node logs them, and does not publish them again."""
        broker = self._node.broker
        for each in changes:
            if isinstance(each, DefinitionChanged):
                with self._parts.locations.taking():
                    error = take_over(broker, each.change, take)
                queue = broker.queues.get(place_of(each.change)[1])
                if error is not None and queue is not None and place_of(each.change)[0] == "queues":
                    self._node.engine.fail(queue, error)
                self._parts.placement_controller.definition_changed(each.change)

    async def drained(self, draining: bool) -> None:
        """Begin or end maintenance: the node gets no new queues meanwhile, and hands over those it can.

        On return etcd has the change, so other nodes place no queue here, and other nodes lead what can be handed over.
        The hand-over goes on if its caller ends.
        """
        try:
            await self._member.set_draining(draining)
        except LeveretError as error:
            logger.error("maintenance_not_announced error=%s", error)
            return
        if draining:
            await asyncio.shield(self._spawn(self._hand_over()))

    async def _hand_over(self) -> None:
        try:
            await self._parts.placement_controller.hand_over()
        except LeveretError as error:
            logger.error("leaders_not_handed_over error=%s", error)

    def streams_of(self, name: str, tls: bool) -> tuple[str, int] | None:
        """Return host and port of another node's stream listener; None if it has none."""
        presence = self._member.state.alive.get(name)
        if presence is None:
            return None
        return presence.streams_tls if tls else presence.streams

    def streams_open(self) -> None:
        """Announce this node's stream listeners to all nodes: clients may connect now."""
        self._spawn(self._announce_streams())

    async def _announce_streams(self) -> None:
        listener = self._node.stream_server
        place = (listener.advertised_host, listener.advertised_port) if listener.advertised_port else None
        tls_place = (
            (listener.advertised_tls_host, listener.advertised_tls_port)
            if listener.advertised_tls_port
            else None
        )
        try:
            await self._member.set_streams(place, tls_place)
        except LeveretError as error:
            # Without etcd the lease ends, and the node begins anew.
            logger.warning("streams_not_announced error=%s", error)


def _epochs_of(entities: Iterable[d.AnyEntity]) -> set[int]:
    return {each.epoch for each in entities if isinstance(each, d.Queue)}


def _is_vhost(change: d.Change) -> bool:
    return change.kind == "vhosts" if isinstance(change, d.Delete) else isinstance(change.entity, d.Vhost)


def take(broker: Broker, change: d.Change) -> None:
    """Apply a change of another node without publishing it; this node's own unpublished changes stay unpublished.

    A node that was cut off for a while may see one put in place of a delete and a put.

    Raises:
        Refusal: the change contradicts a definition here.
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
            existing = broker.queues.get(queue.key)
            if (
                existing is not None
                and existing.epoch != queue.epoch
                and (existing.owner is not None or not is_next_incarnation(queue, existing.definition))
            ):
                broker.apply_decided(d.Delete("queues", queue.key))
        case d.Put(d.Exchange() as exchange):
            _make_way(broker, exchange)
    broker.apply_decided(change)


def _make_way(broker: Broker, exchange: d.Exchange) -> None:
    """Replace an exchange that has another definition; unchanged bindings are not announced again."""
    topology = broker.topology(exchange.vhost)
    state = topology.exchanges.get(exchange.name)
    if state is None or state.definition == exchange:
        return
    bindings = [*state.bindings.values(), *topology.bindings_into("exchange", exchange.name)]
    broker.apply_decided(d.Delete("exchanges", exchange.key))
    broker.apply_decided(d.Put(exchange))
    for binding in bindings:
        broker.apply_decided(d.Put(binding))
