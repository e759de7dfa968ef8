"""The placement controller: gives each queue its leader and mirrors, and records them in etcd.

One task looks at queues that are *due*: a node came or left, a policy changed, a mirror caught up or fell behind,
or a record was written. Its action depends on the queue's leader in the record:

- this node: it adapts the mirrors in the record to the policy and to their synchronisation
  (`core.replication.placement.following`). From before the write of the record until the write is known to stand,
  promises wait for the mirrors of the old record and of the new one.
- a node that does not run: the successor writes itself as the leader, on condition that neither the record nor the
  leader's absence has changed meanwhile. Only the record makes it the leader: the write of a second candidate, or of
  the previous leader that came back, fails.
- another node: this one copies the log if the record names it, and keeps its copy while the record names it at all.

A node that cannot read its copy does not lead. It removes itself from the record before its copy is quarantined,
because until then other nodes count the copy as complete (`core.replication.placement.withdrawn`; a leader hands
over to a complete mirror).

After a write that failed, or whose outcome is unknown, the task looks at the queue again: the record itself has the
outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from leveret.core.broker.broker import Broker
from leveret.core.replication.cluster import ClusterState, Placement, StoredPlacement, placement_write
from leveret.core.replication.election import StoreTransaction, Unchanged
from leveret.core.replication.election_turns import ElectionTurn, LocalCopy, RecordedLeader, Successor, turn
from leveret.core.replication.leader_and_mirrors import QueuePromotion, successor
from leveret.core.replication.placement import (
    ClusterView,
    RequiredMirrors,
    following,
    handed_over,
    is_lost,
    led_by_most_complete,
    must_be_gone,
    promotion,
    step,
    taken_over,
    with_loss,
    withdrawn,
)
from leveret.core.rules.mirror_policy import MirrorPolicy
from leveret.model import definitions as d
from leveret.model.definitions import QueueKey
from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.runtime.cluster.membership.store import ClusterStore, LeaseLost
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.cluster.placement.gathered_writes import AT_ONCE, GatheredWrites
from leveret.runtime.cluster.placement.local_queues import LocalQueues
from leveret.runtime.cluster.placement.queue_locations import QueueLocations
from leveret.runtime.process.outcomes import outcome_of
from leveret.runtime.process.work_slices import in_slices, others_first, time_slice

logger = logging.getLogger(__name__)

_MOVES_AT_ONCE: Final = 32
_RETRY_S: Final = 0.1
_FIRST_LISTED_S: Final = 1.0
HAND_OVER_S: Final = 10.0
"""The wait of an orderly stop for one queue: it would never end while etcd is too slow to report the writes."""


def report_mirrors(key: QueueKey, text: str) -> None:
    """Log an event of a mirrored queue in RabbitMQ's words."""
    logger.info("Mirrored queue '%s' in vhost '%s': %s", key[1], key[0], text)


class RecordWrite(NamedTuple):
    """A record to write, on condition that the previous record stands, and that the nodes in `absent` do not run."""

    key: QueueKey
    before: Placement
    after: Placement
    absent: tuple[str, ...] = ()


class _Found:
    """The result of a look at queues: records to write, queues to delete, nodes to ask first."""

    def __init__(self) -> None:
        self.writes: list[RecordWrite] = []
        self.lost: list[tuple[QueueKey, Placement]] = []
        self.asks: list[tuple[QueueKey, Placement, QueuePromotion]] = []


class PlacementController:
    """See the module.

    Attributes:
        is_held: whether the queues led here must not change, because the node stops.
        led_on: called with a node that does not run, and the number of its queues that this node leads from now on.
    """

    def __init__(
        self,
        store: ClusterStore,
        state: ClusterState,
        broker: Broker,
        locations: QueueLocations,
        local_queues: LocalQueues,
        cluster_view: Callable[[], ClusterView],
        due: DueQueues,
    ) -> None:
        """Do nothing yet; other parts add queues to `due`."""
        self.is_held = False
        self.led_on: Callable[[str, int], None] = lambda node, queues: None
        self._locations = locations
        self._store = store
        self._gathered = GatheredWrites(store)
        self._state = state
        self._broker = broker
        self._local_queues = local_queues
        self._cluster_view = cluster_view
        self._due = due
        self._fulfilled: dict[QueueKey, RequiredMirrors] = {}
        self._in_flight: set[QueueKey] = set()
        self._unobserved: dict[QueueKey, int] = {}
        self._moves: dict[QueueKey, str] = {}
        """The queues to move by their policies, each with its next leader."""
        self._is_move_wanted = asyncio.Event()
        self._moving: set[QueueKey] = set()
        self._patient_since_s: dict[QueueKey, float] = {}
        self._calm = asyncio.Event()

    # -- due queues ---------------------------------------------------------------------------

    def changed(self, key: QueueKey) -> None:
        """The record of a queue was written."""
        self._locations.recorded(key)
        self._due.follow(key)

    def unrecorded(self, definition: d.Queue) -> None:
        """See definitions_publication: of a queue that has no record by now, nothing else tells this node the end."""
        self._locations.unrecorded(definition)
        if definition.key not in self._state.placements:
            self._due.follow(definition.key)

    def node_changed(self, name: str) -> None:
        """Look at all queues that a node has, or that are led here, because the node came or went."""
        me = self._cluster_view().me
        self._due.add(
            key
            for key, (placement, _) in self._state.placements.items()
            if placement.leader in (me, name) or name in placement.mirrors
        )

    def is_at_rest(self, key: QueueKey) -> bool:
        """Whether the record of a queue led here was followed, and no write of it is under way."""
        return not self._is_changing(key) and key not in self._due.looks

    def _is_changing(self, key: QueueKey) -> bool:
        """Whether the record of a queue is being written, or was not followed yet."""
        return key in self._in_flight or self._is_outdated(key)

    def _is_outdated(self, key: QueueKey) -> bool:
        """Whether the record of a queue was replaced, or not followed yet, so that it decides nothing."""
        return key in self._unobserved or key in self._due.records

    def definition_changed(self, change: d.Change) -> None:
        """Look at the queues of a vhost again, because a change may alter what policies say of their mirrors."""
        match change:
            case d.Put(d.Policy(vhost=vhost)) | d.Put(d.Parameter(vhost=vhost, component=d.OPERATOR_POLICY)):
                self._vhost_changed(vhost)
            case d.Delete("policies" | "parameters", key):
                self._vhost_changed(key[0])

    def _vhost_changed(self, vhost: str) -> None:
        self._due.add(key for key in self._state.placements if key[0] == vhost)

    async def run(self) -> None:
        """Handle due queues, and move others, for ever."""
        await asyncio.gather(self._handle_due(), self._move_wanted())

    async def _handle_due(self) -> None:
        while True:
            # Wakes the present waiters; later ones wait for the next pass.
            self._calm.set()
            self._calm.clear()
            await self._due.wait()
            try:
                await self._follow_records()
                await self._write_records()
            except LeveretError as error:
                logger.warning("queues_not_placed error=%s action=retry", error)
                await asyncio.sleep(_RETRY_S)
                self._due.again()

    async def _move_wanted(self) -> None:
        """Move one queue after the other; records are followed and written meanwhile, and lost leaders succeeded."""
        while True:
            self._is_move_wanted.clear()
            while self._moves:
                key, to = next(iter(self._moves.items()))
                try:
                    await self._prepare(key, to)
                    # The policy may have changed meanwhile.
                    if self._moves.get(key) == to:
                        del self._moves[key]
                        await self._move(key, to, loses=False)
                except LeveretError as error:
                    self._moves.pop(key, None)
                    self._retry(key, error)
            await self._is_move_wanted.wait()

    async def begin(self) -> None:
        """Follow all records before clients are let in: the queues led here must wait for their mirrors."""
        for key in self._state.placements:
            self.changed(key)
        await self._follow_records()
        await self._local_queues.all_followed()

    async def _follow_records(self) -> None:
        records, is_over = self._due.records, time_slice()
        while records:
            if is_over():
                # The lease is kept alive meanwhile: at a start there may be thousands of records.
                await others_first()
                is_over = time_slice()
            key = next(iter(records))
            del records[key]
            if self._unobserved.get(key, 0) > self._state.revision:
                # This record was replaced; its successor is followed once it arrives.
                continue
            self._unobserved.pop(key, None)
            placed = self._state.placements.get(key)
            if placed is None or placed.placement.leader != self._cluster_view().me:
                self._patient_since_s.pop(key, None)
            self._in_flight.add(key)
            try:
                await self._local_queues.follow(key, placed.placement if placed is not None else None)
            except LeveretError as error:
                self._retry(key, error)
            finally:
                self._in_flight.discard(key)
                # Confirms wait for another set now, even if the same set returns later.
                self._fulfilled.pop(key, None)

    async def _write_records(self) -> None:
        due, self._due.looks = self._due.looks, {}
        found = _Found()
        self._in_flight.update(due)
        try:
            async for key in in_slices(due):
                placed = self._state.placements.get(key)
                queue = self._broker.queues.get(key)
                if placed is not None and queue is not None:
                    self._look_at(key, queue.definition, placed.placement, found)
            await self._write(found.writes)
            for key, placement, promoted in found.asks:
                await self._take_over(key, placement, promoted)
        except BaseException:
            self._due.looks = due | self._due.looks
            raise
        finally:
            self._in_flight.clear()
        self._delete(found.lost)

    async def _take_over(self, key: QueueKey, placement: Placement, promoted: QueuePromotion) -> None:
        try:
            after = await self._most_advanced(key, placement, promoted)
        except LeveretError as error:
            self._retry(key, error)
        else:
            after = self._with_loss(key, placement, promoted, after)
            await self._write([RecordWrite(key, placement, after, must_be_gone(placement, promoted))])

    def _retry(self, key: QueueKey, error: LeveretError) -> None:
        """Retry one queue later: other queues need not wait for it."""
        logger.warning("queue_not_placed vhost=%s queue=%s error=%s action=retry", *key, error)
        asyncio.get_running_loop().call_later(_RETRY_S, self.changed, key)

    def _look_at(self, key: QueueKey, definition: d.Queue, placement: Placement, found: _Found) -> None:
        if key in self._moving or self._is_outdated(key):
            # The queue is looked at again once that is over.
            return
        cluster_view = self._cluster_view()
        me, alive = cluster_view.me, cluster_view.alive
        leader, policy = RecordedLeader.seen(placement.leader, me, alive), self._locations.policy(definition)
        lost = is_lost(placement, alive, durable=definition.durable)
        if leader is RecordedLeader.HERE and (lost or self.is_held):
            if lost:
                found.lost.append((key, placement))
            return
        copy = LocalCopy.UNREADABLE if self._local_queues.is_damaged(key) else LocalCopy.WHOLE
        promoted = QueuePromotion(None)
        if leader is RecordedLeader.GONE:
            late = self._state.begun_since(self._leader_wrote(key))
            promoted = promotion(placement, policy, alive, late)
        elif leader is RecordedLeader.HERE and copy is LocalCopy.UNREADABLE:
            promoted = promotion(placement, policy, alive.keys() - {me})
        match turn(leader, copy, Successor.by(promoted, me)):
            case ElectionTurn.LEAD:
                self._look_at_led(key, placement, policy, found)
            case ElectionTurn.TAKE_OVER | ElectionTurn.HAND_OVER:
                self._follow_on(key, placement, promoted, found)
            case ElectionTurn.GIVE_WAY:
                after = withdrawn(placement, me, self._leader_wrote(key))
                if after != placement:
                    found.writes.append(RecordWrite(key, placement, after))
        if leader is RecordedLeader.ELSEWHERE or (leader is RecordedLeader.GONE and promoted.leader is None):
            self._local_queues.leader_is(key, alive=leader is RecordedLeader.ELSEWHERE)
            if self._is_first(cluster_view) and lost:
                found.lost.append((key, placement))

    def _leader_wrote(self, key: QueueKey) -> int:
        """Return the revision of the last record that a leader of the queue wrote; of none, the present one."""
        placed = self._state.placements.get(key)
        return placed.leader_wrote if placed is not None else self._state.revision

    def _look_at_led(self, key: QueueKey, placement: Placement, policy: MirrorPolicy, found: _Found) -> None:
        local = self._local_queues
        wanted, move_to = following(
            placement, policy, local.ready(key), local.joined(key), self._cluster_view()
        )
        after = self._prepared(key, placement, wanted, policy)
        waits_for = self._moves.pop(key, "")
        if not move_to:
            self._patient_since_s.pop(key, None)
        if after != placement:
            found.writes.append(RecordWrite(key, placement, after))
        elif move_to and (waits_for == move_to or self._is_turn_of(key, move_to, policy)):
            self._moves[key] = move_to
            self._is_move_wanted.set()

    def _is_turn_of(self, key: QueueKey, node: str, policy: MirrorPolicy) -> bool:
        """Whether a queue moves to this node now: the first node of its policy has a moment to become ready before."""
        cluster_view, loop = self._cluster_view(), asyncio.get_running_loop()
        listed = policy.params if isinstance(policy.params, tuple) else ()
        since_s = self._patient_since_s.setdefault(key, loop.time())
        is_first = next((each for each in listed if each in cluster_view.alive), node) == node
        if is_first or loop.time() - since_s >= _FIRST_LISTED_S:
            del self._patient_since_s[key]
            return True
        loop.call_later(_FIRST_LISTED_S, self._due.add, [key])
        return False

    def _follow_on(
        self, key: QueueKey, placement: Placement, promoted: QueuePromotion, found: _Found
    ) -> None:
        report_mirrors(key, promoted.log)
        if promoted.asks:
            found.asks.append((key, placement, promoted))
        else:
            after = taken_over(placement, promoted, self._cluster_view())
            after = self._with_loss(key, placement, promoted, after)
            found.writes.append(RecordWrite(key, placement, after, must_be_gone(placement, promoted)))

    def _with_loss(
        self, key: QueueKey, before: Placement, promoted: QueuePromotion, after: Placement
    ) -> Placement:
        """Note lost messages in the record, so that copies from before keep them when they come back."""
        if promoted.is_complete:
            return after
        begins_at = (
            self._local_queues.begins_at(key, before) if after.leader == self._cluster_view().me else 0
        )
        return with_loss(before, after, begins_at)

    async def _most_advanced(
        self, key: QueueKey, placement: Placement, promoted: QueuePromotion
    ) -> Placement:
        """See core.replication.placement.led_by_most_complete. Raises LeveretError if too few nodes answer."""
        asked = (promoted.leader or "", *promoted.asks)
        ends = await self.ends(asked, key, placement)
        after = led_by_most_complete(placement, promoted, ends, self._cluster_view())
        if after is None:
            silent = ", ".join(node for node in asked if node not in ends)
            raise LeveretError(
                f"the node with the most complete copy is unknown until these answer: {silent}"
            )
        return after

    async def ends(
        self, nodes: Sequence[str], key: QueueKey, placement: Placement
    ) -> dict[str, tuple[int, int]]:
        """Return the ends of a queue at those of these nodes that answer; see placement.led_by_most_complete."""
        found = await asyncio.gather(
            *(self._local_queues.end_of(node, key, placement) for node in nodes), return_exceptions=True
        )
        ends: dict[str, tuple[int, int]] = {}
        for node, end in zip(nodes, found, strict=True):
            if not isinstance(end, BaseException):
                ends[node] = end
            elif not isinstance(end, LeveretError):
                raise end
        return ends

    def _prepared(
        self, key: QueueKey, before: Placement, wanted: Placement, policy: MirrorPolicy
    ) -> Placement:
        """Return the next permitted step to the wanted record (replication.placement.step); confirms wait for it."""
        found = step(before, wanted, self._fulfilled.get(key))
        if self._fulfilled.get(key) != found.waits:
            self._fulfilled.pop(key, None)

        def fulfilled() -> None:
            self._fulfilled[key] = found.waits
            self._due.add([key])

        self._local_queues.lead_by(key, policy, found.waits, fulfilled if found.is_open else None)
        return found.placement

    def _is_first(self, cluster_view: ClusterView) -> bool:
        """Whether this node cleans up the records of nodes that are gone."""
        return (
            next((name for name in cluster_view.members if name in cluster_view.alive), "") == cluster_view.me
        )

    def _delete(self, lost: list[tuple[QueueKey, Placement]]) -> None:
        for key, placement in lost:
            queue = self._broker.queues.get(key)
            if queue is not None and self._stands(key, placement):
                logger.info("queue_gone_with_its_node vhost=%s queue=%s", *key)
                self._broker.deletions.delete_when_writable([queue])

    # -- writing ------------------------------------------------------------------------------

    async def _write(self, writes: list[RecordWrite]) -> None:
        for at in range(0, len(writes), AT_ONCE):
            await self._write_some(writes[at : at + AT_ONCE])

    def _stands(self, key: QueueKey, looked_at: Placement) -> bool:
        """Whether the record still is the one that was looked at: a newer one was not decided upon."""
        placed = self._state.placements.get(key)
        return placed is not None and placed.placement is looked_at

    async def _write_some(self, writes: list[RecordWrite]) -> None:
        # A record that arrived meanwhile is due itself.
        writes = [each for each in writes if self._stands(each.key, each.before)]
        if not writes:
            return
        cluster_view, keys = self._cluster_view(), self._state.keys
        conditions: dict[Unchanged, None] = {}
        for key, before, _, absent in writes:
            conditions[self._state.unchanged(keys.placement(*key))] = None
            gone = absent if before.leader == cluster_view.me else (before.leader, *absent)
            conditions |= {Unchanged(keys.alive(node), 0): None for node in gone}
        puts = tuple(placement_write(keys, write.key, write.after) for write in writes)
        revision = await self._store.transact(StoreTransaction(tuple(conditions), puts))
        if revision is not None:
            for write in writes:
                self._wrote(write.key, revision)
            self._tell_led_on(writes, cluster_view.me)
            return
        if len(writes) > 1:
            # One of the records or nodes has changed; the other writes may succeed.
            for write in writes:
                await self._write_some([write])
        else:
            # The newer record has not arrived yet.
            asyncio.get_running_loop().call_later(_RETRY_S, self._due.add, [writes[0].key])

    def _tell_led_on(self, writes: Sequence[RecordWrite], me: str) -> None:
        taken = Counter(
            each.before.leader for each in writes if each.after.leader == me != each.before.leader
        )
        for node, queues in taken.items():
            self.led_on(node, queues)

    def _wrote(self, key: QueueKey, revision: int) -> None:
        """Let no older record of that queue decide anything from now on."""
        if self._state.revision < revision:
            self._unobserved[key] = revision

    async def move(self, key: QueueKey, to: str, *, loses: bool = False) -> bool:
        """Hand a queue that is led here over to a complete mirror, or to one that `loses` the rest.

        Returns:
            Whether the mirror leads now.

        Raises:
            LeveretError: the mirror did not become complete.
        """
        if not loses:
            await self._prepare(key, to)
        return await self._move(key, to, loses=loses)

    async def _prepare(self, key: QueueKey, to: str) -> None:
        """Have the mirror read what it can before it leads: the queue is served meanwhile, and paused briefly then."""
        await self._until_at_rest(key)
        if self._movable(key, to, loses=False) is not None:
            await self._local_queues.prepare(key, to)

    async def _move(self, key: QueueKey, to: str, *, loses: bool) -> bool:
        await self._until_at_rest(key)
        placed = self._movable(key, to, loses=loses)
        if placed is None:
            return False
        report_mirrors(key, f"Moving leader to {to}")
        self._moving.add(key)
        self._fulfilled.pop(key, None)
        writing: asyncio.Task[int | None] | None = None
        try:
            complete = await self._local_queues.hand_over_to(
                key, to, frozenset(placed.placement.synchronised), loses=loses
            )
            has_all = loses or to in self._local_queues.ready(key)
            stands = self._state.placements.get(key) == placed
            if not (has_all and stands and to in self._cluster_view().alive):
                return False
            after = self._handed_over(key, placed.placement, to, complete, loses=loses)
            conditions = (self._state.unchanged(self._state.keys.placement(*key)),)
            write = placement_write(self._state.keys, key, after)
            transaction = self._gathered.transact(StoreTransaction(conditions, (write,)))
            writing = asyncio.get_running_loop().create_task(transaction)
            return await outcome_of(writing) is not None
        finally:
            if writing is None:
                self._is_moved(key, None)
            elif writing.done():
                self._wrote_move(key, writing)
            else:
                # Its caller waits no longer. Until the outcome is known, no node may serve the queue.
                writing.add_done_callback(lambda task: self._wrote_move(key, task))

    def _handed_over(
        self, key: QueueKey, before: Placement, to: str, complete: frozenset[str], *, loses: bool
    ) -> Placement:
        """Return the record of a queue that is handed over; `complete` are its recorded mirrors with all messages."""
        cluster_view = self._cluster_view()
        delivered_before = None if loses else self._local_queues.delivered_before(key)
        after = handed_over(before, to, complete, cluster_view, delivered_before)
        lack = self._local_queues.lacks(key, to)
        if lack is None:
            return after
        if lack.messages:
            logger.warning(
                "messages_lost vhost=%s queue=%s messages=%d from=%s to=%s reason=unsynchronised_hand_over",
                *key,
                lack.messages,
                cluster_view.me,
                to,
            )
        # Also without a message to lose: the node may have no copy, and then begins one.
        return with_loss(before, after, lack.begins_at)

    def _wrote_move(self, key: QueueKey, writing: asyncio.Task[int | None]) -> None:
        """Take the outcome of the write of a move."""
        if writing.cancelled() or isinstance(writing.exception(), LeaseLost):
            # Whether it was done is unknown, and nothing is promised here any more.
            self._moving.discard(key)
        else:
            self._is_moved(key, writing.result() if writing.exception() is None else None)

    def _is_moved(self, key: QueueKey, revision: int | None) -> None:
        """Note the revision of the record that moves a queue; with None, lead the queue on."""
        self._moving.discard(key)
        if revision is not None:
            self._wrote(key, revision)
        else:
            self._local_queues.take_back(key)
            self._due.add([key])

    def _movable(self, key: QueueKey, to: str, *, loses: bool) -> StoredPlacement | None:
        """Return the record of a queue that can be handed over to a node now, else None."""
        placed, cluster_view = self._state.placements.get(key), self._cluster_view()
        if placed is None or placed.placement.leader != cluster_view.me or key in self._moving:
            return None
        if to not in cluster_view.alive or to not in placed.placement.mirrors:
            return None
        return placed if loses or to in self._local_queues.ready(key) else None

    async def change(self, key: QueueKey, change: Callable[[Placement], Placement]) -> None:
        """Apply an operator's change to the record of a queue that is led here.

        `change` returns the next record, or raises an error that says why it cannot.

        Raises:
            PreconditionFailed: the record has changed meanwhile.
        """
        await self._until_at_rest(key)
        placed = self._state.placements.get(key)
        busy = PreconditionFailed(
            f"the placement of queue '{key[1]}' in vhost '{key[0]}' is changing: try again"
        )
        if placed is None or placed.placement.leader != self._cluster_view().me or key in self._moving:
            raise busy
        before = placed.placement
        write = placement_write(self._state.keys, key, change(before))
        conditions = (self._state.unchanged(self._state.keys.placement(*key)),)
        self._moving.add(key)
        try:
            revision = await self._gathered.transact(StoreTransaction(conditions, (write,)))
        finally:
            self._moving.discard(key)
            self._due.add([key])
        if revision is None:
            raise busy
        self._wrote(key, revision)

    async def _until_at_rest(self, key: QueueKey) -> None:
        while self._is_changing(key):
            await self._calm.wait()

    async def leave(self) -> None:
        """Hand over all queues at an orderly stop, and record the stop for those that no mirror may lead."""
        self.is_held = True
        closed = await self.hand_over()
        try:
            await self._write(closed)
        except LeveretError as error:
            # Without the record, this stop counts as a failure, and `ha-promote-on-failure` decides.
            logger.warning("closed_not_recorded queues=%d error=%s", len(closed), error)

    async def hand_over(self) -> list[RecordWrite]:
        """Hand each queue that is led here over to its successor by policy; return records for queues without one."""
        me = self._cluster_view().me
        moves, staying = await self._successors()
        waiting = iter(moves)

        async def move_one_by_one() -> None:
            for key, to, loses in waiting:
                try:
                    async with asyncio.timeout(HAND_OVER_S):
                        await self.move(key, to, loses=loses)
                except (LeveretError, TimeoutError) as error:
                    reason = (
                        str(error)
                        or f"not within {HAND_OVER_S:g} s: etcd does not answer, or shows no changes"
                    )
                    logger.warning("queue_not_handed_over vhost=%s queue=%s error=%s", *key, reason)

        await asyncio.gather(*(move_one_by_one() for _ in range(_MOVES_AT_ONCE)))
        # From the present records: a mirror may have been removed meanwhile.
        found = [(key, placed.placement) for key in staying if (placed := self._state.placements.get(key))]
        return [
            RecordWrite(key, placement, msgspec.structs.replace(placement, closed=True))
            for key, placement in found
            if placement.leader == me
        ]

    async def _successors(self) -> tuple[list[tuple[QueueKey, str, bool]], list[QueueKey]]:
        """Return each queue that is led here with its successor by policy, and whether that loses messages.

        The second list has the queues with mirrors of which none may lead.
        """
        cluster_view = self._cluster_view()
        others = {name: presence for name, presence in cluster_view.alive.items() if name != cluster_view.me}
        moves: list[tuple[QueueKey, str, bool]] = []
        staying: list[QueueKey] = []
        async for key, (placement, _) in in_slices(list(self._state.placements.items())):
            queue = self._broker.queues.get(key)
            if placement.leader != cluster_view.me or queue is None:
                continue
            policy = self._locations.policy(queue.definition)
            promoted = successor(policy, placement.mirrors, placement.synchronised, others, is_graceful=True)
            if promoted.log:
                report_mirrors(key, promoted.log)
            if promoted.leader is not None:
                moves.append((key, promoted.leader, not promoted.is_complete))
            elif placement.mirrors:
                staying.append(key)
        return moves, staying
