"""A node of the model: its entry into the cluster, its decisions and its records (cluster.placement_controller)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.core.replication.cluster import Placement, Presence
from leveret.core.replication.mirroring import QueuePromotion, successor
from leveret.core.replication.placement import (
    ClusterView,
    RequiredMirrors,
    following,
    handed_over,
    led_by_most_complete,
    must_be_gone,
    promotion,
    step,
    taken_over,
    withdrawn,
)
from leveret.core.rules.mirror_policy import MAJORITY
from leveret.testing.mirror_model.parts import ModelLeaseLost, ModelStore, RequestFailed, StoreRequest, Task
from leveret.testing.mirror_model.queue_roles import ModelQueueRoles


class ModelNode(ModelQueueRoles):
    """See the module."""

    # -- start and end ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        self.starts += 1
        self._begin()
        self.is_up = self.holds = True
        self.world.note(f"{self.name} starts as {self.incarnation}")
        self._spawn(self._enter())

    def _end(self) -> None:
        for link in self.world.links:
            if self.name in (link.mirror, link.leader):
                link.cut()
        self.is_up = self.holds = self.is_open = self.is_serving = self.led = False
        self.tasks.clear()

    def crash(self) -> None:
        """End the process by a loss of power, with a part of the unsynced records."""
        log = self.log
        log.cut(self.world.rng.randint(max(log.durable, log.first), log.end))
        self.world.note(f"{self.name} crashes, and has up to {log.end}")
        self._end()

    def damage(self) -> None:
        """Make the copy of a stopped node unreadable."""
        self.world.note(f"{self.name}: its copy is damaged")
        self.is_damaged = True

    def begin_anew(self) -> None:
        """Begin again in the same process after the loss of the lease."""
        self._end()
        self.start()

    def stops(self) -> None:
        """Stop in order."""
        if self.is_serving and not self.is_held:
            self.is_held = True
            self._spawn(self._stop())

    def _stop(self) -> Task:
        placement = self.placement
        others = {name: each for name, each in self.alive.items() if name != self.name}
        if placement.leader == self.name:
            promoted = successor(
                self.policy, placement.mirrors, placement.synchronised, others, is_graceful=True
            )
            if promoted.leader is not None:
                yield from self._move(promoted.leader)
        self.world.note(f"{self.name} stops")
        self.log.durable = self.log.end
        self._end()
        presence = self.world.store.alive.get(self.name)
        if (
            presence is not None
            and presence.incarnation == self.incarnation
            and self.name not in self.world.away
        ):
            self.world.store.put(self.name, None)

    def _enter(self) -> Task:
        store, world = self.world.store, self.world
        yield lambda: self.name not in world.away
        self._look(store)
        presence = Presence(self.incarnation, self.name, "", 0, "")
        while True:
            yield lambda: self.name not in store.alive and self.name not in world.away
            revision = yield from self._transact(
                lambda store: self.name not in store.alive, self.name, presence
            )
            if revision is not None:
                break
        yield lambda: self.name not in world.away
        if not world.is_wrong("looked before it was announced"):
            self._look(store)
        self.is_open = self.is_changed = self.is_due = True
        if self.placement.leader == self.name:
            self._begin_to_lead(self.placement.term)
        if not world.is_wrong("served before it was followed"):
            yield from self._follow_records()
        self.is_serving = True
        self._spawn(self._place())

    def _look(self, store: ModelStore) -> None:
        self.placement, self.modified, self.policy = store.placement, store.modified, store.policy
        self.alive, self.revision, self.cursor = dict(store.alive), store.revision, len(store.events)

    # -- requests to the store ----------------------------------------------------------------

    def _transact(
        self,
        holds: Callable[[ModelStore], bool],
        key: str,
        value: Any,
        on_done: Callable[[], None] = lambda: None,
    ) -> Task:
        request = StoreRequest(self.name, self.incarnation, holds, key, value, on_done)
        self.world.requests.append(request)
        yield lambda: request.is_answered or not self.holds
        if not request.is_answered:
            raise ModelLeaseLost
        return request.revision

    def _cluster_view(self) -> ClusterView:
        alive = {self.name: Presence(self.incarnation, "", "", 0, "")} | self.alive
        return ClusterView(
            self.name,
            self.incarnation,
            self.world.names,
            alive,
            lambda some: self.world.rng.sample(list(some), len(some)),
        )

    # -- placing: runtime.cluster.placement_controller -----------------------------------------------------

    def _place(self) -> Task:
        while True:
            yield lambda: self.is_changed or self.is_due
            yield from self._follow_records()
            yield from self._write_records()

    def _follow_records(self) -> Task:
        while self.is_changed:
            self.is_changed = False
            self.in_flight = True
            yield from self._follow(self.placement, self.modified)
            self.in_flight = False
            if not self.world.is_wrong("what was fulfilled stays so"):
                self.fulfilled = None

    def _write_records(self) -> Task:
        self.is_due = False
        if self.is_moving or (
            self.unobserved and not self.world.is_wrong("a record that is not seen does not matter")
        ):
            return
        self.in_flight = True
        before, cluster_view = self.placement, self._cluster_view()
        move_to = ""
        if before.leader == self.name:
            if not self.is_held and self.is_damaged:
                others = {name: each for name, each in cluster_view.alive.items() if name != self.name}
                promoted = promotion(before, self.policy, others)
                if promoted.leader is not None and promoted.is_complete:
                    yield from self._follow_on(before, promoted)
            elif not self.is_held and self.led:
                wanted, move_to = following(before, self.policy, self._ready(), (), cluster_view)
                after = self._prepared(before, wanted)
                if after != before:
                    move_to = ""
                    yield from self._write(before, after)
        elif before.leader not in cluster_view.alive:
            if self.world.is_wrong("majority by policy"):
                promoted = successor(
                    self.policy, before.mirrors, before.synchronised, cluster_view.alive, is_graceful=False
                )
            else:
                promoted = promotion(before, self.policy, cluster_view.alive)
            if self.is_damaged:
                after = withdrawn(before, self.name)
                if after != before:
                    yield from self._write(before, after)
            elif promoted.leader == self.name:
                yield from self._follow_on(before, promoted)
        self.in_flight = False
        if move_to:
            yield from self._move(move_to)

    def _follow_on(self, before: Placement, promoted: QueuePromotion) -> Task:
        if not promoted.asks:
            yield from self._write(before, taken_over(before, promoted, self._cluster_view()), promoted)
            return
        try:
            yield from self._take_over_by_most_complete(before, promoted)
        except RequestFailed:
            self.is_due = True

    def _take_over_by_most_complete(self, before: Placement, promoted: QueuePromotion) -> Task:
        ends = {}
        for node in (promoted.leader or "", *promoted.asks):
            try:
                ends[node] = yield from self._end_of(node)
            except RequestFailed:
                continue
        after = led_by_most_complete(before, promoted, ends, self._cluster_view())
        if after is None:
            raise RequestFailed
        if self.world.is_wrong("all stay recorded after a majority"):
            kept = tuple(node for node in after.mirrors if node in before.synchronised)
            after = _replaced(after, synchronised=kept)
        yield from self._write(before, after, promoted)

    def _end_of(self, name: str) -> Task:
        """Request the end of a node's copy on disk."""
        node, world = self.world.nodes[name], self.world
        if node.is_damaged or (name != self.name and not world.can_reach(self.name, name)):
            raise RequestFailed
        incarnation, extent, is_synced = node.incarnation, node.log.extent(), [False]
        node.on_disk.append(lambda: is_synced.append(True))
        if world.is_wrong("ends are told before they are synced"):
            is_synced.append(True)
        yield lambda: is_synced[-1] or node.incarnation != incarnation or not node.is_up
        if not is_synced[-1]:
            raise RequestFailed
        yield lambda: True
        return extent

    def _prepared(self, before: Placement, wanted: Placement) -> Placement:
        world = self.world
        found = step(before, wanted, self.fulfilled)
        if world.is_wrong("a majority shrinks at once") and set(wanted.synchronised) < set(
            before.synchronised
        ):
            found = found._replace(placement=_replaced(wanted, majority=before.majority), is_open=False)
        if world.is_wrong("recorded before promises wait"):
            found = found._replace(
                placement=_replaced(wanted, majority=before.majority),
                waits=RequiredMirrors((frozenset(before.synchronised),), before.majority),
                is_open=False,
            )
        if world.is_wrong("promises wait no longer before the record shrinks"):
            both = frozenset(before.synchronised) & frozenset(wanted.synchronised)
            found = found._replace(waits=RequiredMirrors((both, *found.waits.sets[1:]), found.waits.majority))
        if world.is_wrong("majority by policy"):
            found = found._replace(waits=found.waits._replace(majority=self.policy.confirm == MAJORITY))
        if self.fulfilled != found.waits and not world.is_wrong("what was fulfilled stays so"):
            self.fulfilled = None

        def fulfilled() -> None:
            self.fulfilled = found.waits
            self.is_due = True

        self._lead_by(found.waits, fulfilled if found.is_open else None)
        return found.placement

    def _write(self, before: Placement, after: Placement, promoted: QueuePromotion | None = None) -> Task:
        modified, world = self.modified, self.world
        gone: tuple[str, ...] = () if before.leader == self.name else (before.leader,)
        if promoted is not None:
            gone += must_be_gone(before, promoted)

        def holds(store: ModelStore) -> bool:
            return store.modified == modified and not any(node in store.alive for node in gone)

        def done() -> None:
            if promoted is not None and not promoted.is_complete:
                world.lossy(before, after.leader)

        revision = yield from self._transact(holds, "placement", after, done)
        if revision is None:
            self.is_due = True
        elif self.revision < revision:
            self.unobserved = revision

    def moves(self, to: str) -> None:
        """Begin the move of the lead to another node, as an operator's command does."""
        self._spawn(self._move(to))

    def _move(self, to: str) -> Task:
        world = self.world
        if not world.is_wrong("a move and a record at once"):
            yield lambda: not (self.in_flight or self.unobserved or self.is_changed)
        placed, modified, cluster_view = self.placement, self.modified, self._cluster_view()
        is_here = placed.leader == self.name and self.led
        is_ready = to in self._ready() and to in placed.mirrors
        is_ready = is_ready or world.is_wrong("who is given a queue need not have it")
        if not is_here or to == self.name or to not in cluster_view.alive or self.is_moving or not is_ready:
            return
        world.note(f"{self.name} moves the queue to {to}")
        self.is_moving = True
        if not world.is_wrong("what was fulfilled stays so"):
            self.fulfilled = None
        revision = None
        try:
            complete = yield from self._hand_over_to(to, frozenset(placed.synchronised))
            cluster_view = self._cluster_view()
            is_ready = to in self._ready() or world.is_wrong("who is given a queue need not have it")
            if is_ready and self.placement == placed and to in cluster_view.alive:
                after = handed_over(placed, to, complete, cluster_view)
                if world.is_wrong("hands over to all"):
                    after = _replaced(
                        after, synchronised=tuple(n for n in after.mirrors if n in placed.synchronised)
                    )
                revision = yield from self._transact(
                    lambda store: store.modified == modified, "placement", after
                )
        except RequestFailed:
            pass
        self.is_moving = False
        if revision is None:
            self.given = False
            self.is_due = True
        elif self.revision < revision:
            self.unobserved = revision


def _replaced(placement: Placement, **changes: Any) -> Placement:
    return Placement(**{name: getattr(placement, name) for name in placement.__struct_fields__} | changes)
