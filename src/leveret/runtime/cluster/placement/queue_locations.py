"""The nodes of queues: present leaders and mirrors, the location of a new queue, and its policy's mirrors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from leveret.config.sections.cluster import Cluster
from leveret.core.broker.broker import Broker
from leveret.core.replication.cluster import ClusterState, Placement
from leveret.core.replication.new_queue_leader import CandidateNodes, leader_location, locator
from leveret.core.replication.placement import ClusterView, first
from leveret.core.replication.stream_members import COPIES, first_members, present_members
from leveret.core.rules.mirror_policy import (
    NOT_MIRRORED,
    MirrorPolicy,
    group_policy,
    mirror_policy,
    stream_policy,
)
from leveret.core.rules.queue_arguments import wanted_copies
from leveret.core.rules.validation import QUORUM, STREAM, queue_type
from leveret.model import definitions as d
from leveret.model.definitions import QueueKey
from leveret.model.locators import MIN_MASTERS


class QueueLocations:
    """See the module."""

    def __init__(
        self, settings: Cluster, state: ClusterState, broker: Broker, cluster_view: Callable[[], ClusterView]
    ) -> None:
        """Take all placements from the records."""
        self._settings = settings
        self._state = state
        self._broker = broker
        self._cluster_view = cluster_view
        self._fresh: dict[QueueKey, Placement] = {}
        """Placements of queues that were declared here and are not recorded yet."""
        self._is_taking = False

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Take over what other nodes declared: only their records place these queues."""
        self._is_taking = True
        try:
            yield
        finally:
            self._is_taking = False

    def placement_of(self, definition: d.Queue, exclusive: bool) -> Placement | None:
        """Return a queue's placement; a locator places a new queue, which is recorded with its definition.

        None for a queue of another node whose record is not here: if each node placed it, several would lead it.
        """
        key = definition.key
        placed = self._state.placements.get(key)
        if placed is not None and placed.placement.epoch == definition.epoch:
            return placed.placement
        if self._is_taking:
            return None
        found = self._fresh.get(key)
        if found is None or found.epoch != definition.epoch:
            found = self._first_placement(definition, exclusive)
            self._fresh[key] = found
        return found

    def _first_placement(self, definition: d.Queue, exclusive: bool) -> Placement:
        leader, cluster_view = self._locate(definition, exclusive), self._cluster_view()
        if exclusive or not _is_stream(definition):
            policy = NOT_MIRRORED if exclusive else self.policy(definition)
            return first(definition.epoch, leader, policy, cluster_view, exclusive=exclusive)
        copies = self._wanted_copies(definition)
        members = first_members(
            leader, copies, cluster_view.members, cluster_view.serving, cluster_view.shuffle
        )
        found = first(definition.epoch, leader, stream_policy(members), cluster_view, exclusive=False)
        return msgspec.structs.replace(found, members=members, copies=copies)

    def _wanted_copies(self, definition: d.Queue) -> int:
        topology = self._broker.topologies[definition.vhost]
        applied = topology.policies.for_queue(definition.name, STREAM).definition
        return wanted_copies(definition, applied) or COPIES

    def _locate(self, definition: d.Queue, exclusive: bool) -> str:
        cluster_view, settings = self._cluster_view(), self._settings
        topology = self._broker.topologies[definition.vhost]
        kind = queue_type(definition.arguments)
        applied = topology.policies.for_queue(definition.name, kind).definition
        strategy = locator(
            definition.arguments,
            applied,
            queue_master_locator=settings.queue_master_locator,
            queue_leader_locator=settings.queue_leader_locator,
        )
        serving = cluster_view.serving
        led: Counter[str] = Counter()
        if strategy == MIN_MASTERS:
            led.update(placed.placement.leader for placed in self._state.placements.values())
            led.update(placement.leader for placement in self._fresh.values())
        draining = [name for name in serving if cluster_view.alive[name].draining]
        nodes = CandidateNodes(
            client=cluster_view.me, alive=serving or [cluster_view.me], draining=draining, led=led
        )
        return leader_location(
            strategy,
            nodes,
            lambda among: cluster_view.shuffle(among)[0],
            policy=self.policy(definition, applied),
            is_exclusive=exclusive,
        )

    def policy(self, definition: d.Queue, applied: Mapping[str, Any] | None = None) -> MirrorPolicy:
        """Return the mirror policy of a queue. A queue that is not durable ends with its node, and has no mirrors."""
        kind = queue_type(definition.arguments)
        if not definition.durable:
            return NOT_MIRRORED
        if kind == STREAM:
            return self._stream_policy(definition)
        if applied is None:
            topology = self._broker.topologies[definition.vhost]
            applied = topology.policies.for_queue(definition.name, kind).definition
        batch_messages = self._settings.sync_batch_size
        if kind == QUORUM:
            size = self._settings.initial_group_size
            return group_policy(definition.arguments, applied, group_size=size, batch_messages=batch_messages)
        queue = self._broker.queues.get(definition.key)
        is_exclusive = queue is not None and queue.owner is not None
        return mirror_policy(applied, is_exclusive=is_exclusive, batch_messages=batch_messages)

    def _stream_policy(self, definition: d.Queue) -> MirrorPolicy:
        """Return the policy of a placed stream; for an earlier stream of that name, no mirrors."""
        placement = self.known(definition.key)
        if placement is None or placement.epoch != definition.epoch:
            return NOT_MIRRORED
        cluster_view = self._cluster_view()
        members = present_members(
            placement, self._wanted_copies(definition), cluster_view.members, cluster_view.alive
        )
        return stream_policy(members, batch_messages=self._settings.sync_batch_size)

    def known(self, key: QueueKey) -> Placement | None:
        """Return a queue's placement, about to be recorded or recorded."""
        placed = self._state.placements.get(key)
        return self._fresh.get(key) or (placed.placement if placed is not None else None)

    def first(self, definition: d.Queue) -> Placement:
        """Return the first record of a queue that was declared here."""
        key = definition.key
        return self._fresh.get(key) or self._state.placements[key].placement

    def recorded(self, key: QueueKey) -> None:
        """Drop the unrecorded placement if the record has it now.

        The record may be that of an earlier queue of that name, or its end: the queue was declared while the deletion
        of that one was being written.
        """
        placed, fresh = self._state.placements.get(key), self._fresh.get(key)
        if placed is not None and fresh is not None and placed.placement.epoch >= fresh.epoch:
            del self._fresh[key]

    def unrecorded(self, definition: d.Queue) -> None:
        """Drop the placement of a queue that was deleted before its record was written, or whose record was seen."""
        fresh = self._fresh.get(definition.key)
        if fresh is not None and fresh.epoch == definition.epoch:
            del self._fresh[definition.key]


def _is_stream(definition: d.Queue) -> bool:
    return queue_type(definition.arguments) == STREAM
