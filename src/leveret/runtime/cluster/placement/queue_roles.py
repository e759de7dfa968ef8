"""This node's roles in queues, as the records demand: lead, mirror, represent, hand over (local_queues.LocalQueues)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.core.replication.cluster import Placement, first_epoch
from leveret.core.replication.placement import RequiredMirrors
from leveret.core.rules.mirror_policy import MirrorPolicy
from leveret.model import definitions as d
from leveret.model.definitions import QueueKey
from leveret.model.errors import LeveretError, NotFound
from leveret.runtime.cluster.forwarding import Forwarding
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.placement.local_queues import Lack
from leveret.runtime.cluster.placement.mirror_grace_period import MirrorGracePeriod
from leveret.runtime.cluster.placement.queue_locations import QueueLocations
from leveret.runtime.cluster.placement.queues import ELSEWHERE, ClusterQueues
from leveret.runtime.logs.log_store import epoch_of, log_name
from leveret.runtime.mirroring.copies import MirrorCopies
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.source_link import MirroredLog
from leveret.runtime.mirroring.sources import MirrorSources
from leveret.storage.summary import SUMMARY_BYTES_MIN

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

logger = logging.getLogger(__name__)

_ALL: Final = 1 << 63
"""An offset behind all others."""
_ASK_AGAIN_S: Final = 0.2
_LOOK_S: Final = 0.01
_REST_S: Final = 0.1
"""The most time, in seconds, that consumers get to acknowledge what they have before the queue is handed over."""
_RESTS_S: Final = 1.0
"""The most time, in seconds, for all queues that are handed over together: some consumers acknowledge much later."""
_REST_AGAIN_S: Final = 10.0
_PREPARED_S: Final = 2.0
"""The most time, in seconds, that the next leader of a queue gets to prepare, while this node serves the queue."""
_LOSING_S: Final = 3.0
"""The time, in seconds, that an incomplete next leader is sent missing records, while no node serves the queue."""


class QueueRoles:
    """See the module."""

    def __init__(
        self,
        member: ClusterMember,
        node: Node,
        queues: ClusterQueues,
        locations: QueueLocations,
        grace: MirrorGracePeriod,
        sources: MirrorSources,
        copies: MirrorCopies,
        forwarding: Forwarding,
        on_other_leader: Callable[[QueueKey], None],
    ) -> None:
        """Start without a role in any queue; this node is `member` of a cluster.

        `on_other_leader` is called with each queue that gets another leader, this node included.
        """
        self._me = member.name
        self._ask = member.ask
        self._hand_over_timeout_s = node.config.cluster.slave_wait_timeout_ms / 1000
        self._broker = node.broker
        self._engine = node.engine
        self._commits = node.commits
        self._queues = queues
        self._locations = locations
        self._grace = grace
        self._sources = sources
        self._copies = copies
        self._forwarding = forwarding
        self._on_other_leader = on_other_leader
        self._collector = node.collector
        self._discarding: dict[str, asyncio.Task[None]] = {}
        self._rests_end_s = float("-inf")

    def make_queue(self, definition: d.Queue, read: Reader, exclusive: bool = False) -> Queue:
        """See Broker.make_queue: make the queue if it is led here, else its placeholder.

        A queue that is declared now, and is led here, waits for its mirrors from the first message on.
        """
        placement = self._locations.placement_of(definition, exclusive)
        queue = self._queues.new(definition, read, placement)
        if placement is None or queue.is_remote:
            if definition.durable:
                # A copy from before is deleted with the queue, also if that comes before its record is followed.
                self._queues.name(definition)
            return queue
        is_mirrored = definition.durable and bool(placement.mirrors)
        if is_mirrored and self._queues.has_nothing(queue):
            key = definition.key
            name = self._queues.name(definition)
            self._begin_leading(key, name, self._locations.policy(definition), placement)
        return queue

    def led_name(self, queue: Queue) -> str | None:
        """Return the log name of a queue that is led here and may have mirrors; else None."""
        name = self._queues.names.get(queue.key)
        return name if name is not None and not queue.is_remote and name in self._sources.led else None

    def _led(self, key: QueueKey) -> MirroredLog | None:
        """The log of a queue that is led here and may have mirrors; else None."""
        return self._sources.led.get(self._queues.names.get(key, ""))

    def is_synchronising(self, key: QueueKey) -> bool:
        """Whether a mirror of a queue that is led here is receiving missing records."""
        led = self._led(key)
        return led is not None and any(
            each.state is MirrorState.SYNCHRONISING for each in led.streams.values()
        )

    # -- state for the placement controller ---------------------------------------------------

    def ready(self, key: QueueKey) -> frozenset[str]:
        """See local_queues.LocalQueues."""
        led = self._led(key)
        if led is None:
            return frozenset()
        live = frozenset(node for node, stream in led.streams.items() if stream.state is MirrorState.LIVE)
        return live | self._grace.expected(key)

    def joined(self, key: QueueKey) -> frozenset[str]:
        """See local_queues.LocalQueues."""
        led = self._led(key)
        streams = led.streams.items() if led is not None else ()
        return frozenset(
            node for node, stream in streams if stream.state not in (MirrorState.JOINING, MirrorState.GONE)
        )

    def is_damaged(self, key: QueueKey) -> bool:
        """See local_queues.LocalQueues."""
        queue = self._broker.queues.get(key)
        return (queue is not None and queue.damage is not None) or self._queues.names.get(
            key
        ) in self._copies.damaged

    def _begin_leading(self, key: QueueKey, name: str, policy: MirrorPolicy, placement: Placement) -> None:
        if name not in self._sources.led:
            self._grace.begin(key, placement.synchronised)
        self._lead_by(
            key, name, policy, RequiredMirrors((frozenset(placement.synchronised),), majority=False)
        )

    async def follow(self, key: QueueKey, placement: Placement | None) -> None:
        """See local_queues.LocalQueues."""
        queue = self._broker.queues.get(key)
        name = log_name(queue) if queue is not None else ""
        known = self._queues.names.get(key, name)
        # A log whose deletion etcd does not have yet stays: the record counts on it, and the deletion may fail.
        is_counted_on = placement is not None and known != "" and epoch_of(known) == placement.epoch
        is_gone = queue is None and placement is None
        if is_gone or (known != name and not is_counted_on):
            # Not a queue that was declared since: it may be led here before its record has arrived.
            await self._forget(key)
        if placement is None or (queue is not None and queue.epoch == placement.epoch):
            # The records of earlier queues have ended.
            for before in self._queues.take_replaced(key):
                self._sources.let_go(before)
                await self._copies.discard(before)
        if placement is None or queue is None or queue.epoch != placement.epoch:
            return
        self._queues.records[key] = placement
        if queue.definition.durable:
            self._queues.name(queue.definition)
        if placement.leader == self._me:
            await self._lead(key, queue, placement)
        else:
            await self._stand_by(key, queue, placement)

    async def all_followed(self) -> None:
        """See local_queues.LocalQueues."""
        # Of a queue that was deleted while this node entered neither a record nor its end is told.
        gone = [key for key in self._queues.names if key not in self._broker.queues]
        for key in gone:
            if self._locations.known(key) is None:
                await self._forget(key)
        self._queues.all_followed()

    async def _forget(self, key: QueueKey) -> None:
        """Forget a deleted queue; if it was led here, the engine removes its log, and may not have done so yet."""
        name = self._queues.forget(key)
        self._grace.forget(key)
        if name is not None:
            self._sources.let_go(name)
            await self._copies.discard(name)

    async def _lead(self, key: QueueKey, queue: Queue, placement: Placement) -> None:
        name = self._queues.names.get(key)
        committed = 0
        if isinstance(queue, RemoteQueue) and key not in self._queues.handed_over:
            if name is not None:
                await self._copies.release(name)
                await self._commits.all_durable()
            if self._broker.queues.get(key) is not queue:
                # It was deleted meanwhile. It was never served here, so the engine knows nothing of its log.
                if name is not None:
                    self._queues.replaced(key, name)
                return
            if name is not None:
                # Only now: records received before may raise the cursor.
                committed = self._copies.take_cursor(name) or 0
            queue = self._begin_serving(key, name, queue, placement)
        if self.is_damaged(key):
            # Mirrors get nothing of a damaged log: they would take themselves for divergent.
            return
        if name is not None:
            self._queues.complete.add(name)
            policy = self._locations.policy(queue.definition)
            # Wait for all mirrors until the placement controller has looked at the queue; not during a hand-over. A
            # node that is no mirror any more has its copy compared before its deletion, if messages were lost.
            is_mirrored = policy.is_mirrored or bool(placement.mirrors) or placement.lost is not None
            if key not in self._queues.handed_over and (is_mirrored or name in self._sources.led):
                self._begin_leading(key, name, policy, placement)
            if not is_mirrored:
                self._sources.let_go(name)
        if not queue.is_remote:
            self._queues.commit_recovered(queue, committed)
        served = self._broker.queues.get(key)
        if served is not None and not served.is_remote:
            # Only once promises wait for its mirrors: a downstream gets the records that they have.
            self._collector.led(served)

    def _begin_serving(
        self, key: QueueKey, name: str | None, stands: RemoteQueue, placement: Placement
    ) -> Queue:
        """Serve a queue from the copy here, which is released, in the place of its placeholder `stands`."""
        is_lossy = placement.lost is not None and placement.lost.term == placement.term
        if name is not None and is_lossy:
            # This node may never have received a record; but its copy is all there is now.
            self._queues.begin_if_missing(name)
        # Only a leader that had stopped serving knows what it delivered. Otherwise any message may have been, by a
        # leader that was lost or that this node never heard of; also of a quorum queue, whose consumers do not wait for
        # mirrors.
        given = placement.hand_over
        delivered = given.delivered_before if given and given.term == placement.term else _ALL
        led = self._queues.lead(stands, placement.term, delivered)
        if is_lossy:
            logger.warning(
                "led_without_all vhost=%s queue=%s term=%d from=%s messages=%d",
                *key,
                placement.term,
                stands.leader,
                led.message_count,
            )
        self._forwarding.led_here(stands, led)
        self._on_other_leader(key)
        logger.info("queue_led vhost=%s queue=%s term=%d from=%s", *key, placement.term, stands.leader)
        return led

    async def _stand_by(self, key: QueueKey, queue: Queue, placement: Placement) -> None:
        name = self._queues.names.get(key)
        if not isinstance(queue, RemoteQueue):
            self._engine.flush()
            self._queues.handed_over[key] = queue
            queue = self._stand_in(queue)
        if placement.exclusive and queue.owner is None:
            # It was made before its record was here.
            queue.owner = ELSEWHERE
        led = self._queues.handed_over.pop(key, None)
        if led is not None:
            await self._commits.all_durable()
            if name is not None:
                self._sources.cease(name)
            self._queues.step_down(led)
            if name is not None and led.damage is not None:
                self._copies.put_away(name, led.damage)
            logger.info(
                "queue_handed_over vhost=%s queue=%s term=%d to=%s", *key, placement.term, placement.leader
            )
        if led is not None or queue.leader != placement.leader:
            self._forwarding.led_by(queue, placement.leader)
            self._on_other_leader(key)
        if name is None:
            return
        if self._me in placement.synchronised:
            self._queues.complete.add(name)
        elif self._me not in placement.stopped:
            self._queues.complete.discard(name)
        if self._me in placement.mirrors:
            self._copies.mirror(name, placement.leader, is_counted_on=self._me in placement.synchronised)
        elif self._me in placement.stopped:
            await self._copies.release(name)
            self._copies.hold(name)
        elif self._copies.ends(name) is not None:
            await self._copies.release(name)
            self._copies.hold(name)
            self._discard_later(key, name)

    def _discard_later(self, key: QueueKey, name: str) -> None:
        """Delete a copy that the record does not name once its leader agrees, unless the record names it again.

        Not at once: the leader may have added this node again, and counted on its copy, before this node learned of
        its removal.
        """
        if name not in self._discarding:
            work = self._discard(key, name)
            self._discarding[name] = asyncio.get_running_loop().create_task(work)

    async def _discard(self, key: QueueKey, name: str) -> None:
        compared: Placement | None = None
        while self._queues.key_of(name) == key and not self._is_named(key, self._me):
            try:
                record = self._queues.records[key]
                found = await self._ask(record.leader, "may_discard", {"log": name})
                # An agreement on an older record does not count: this node may since have been added and removed again.
                if found["may"] and self._queues.records.get(key) is record:
                    if record is compared or not self._may_have_lost(name, record):
                        await self._copies.discard(name)
                        break
                    is_compared = await self._copies.compare(name, record.leader)
                    if is_compared and self._queues.records.get(key) is record:
                        # The leader is asked once more: meanwhile it may have added this node again.
                        compared = record
                        await self._copies.release(name)
                        self._copies.hold(name)
            except Exception as error:
                # Any error: without this loop the copy would stay for good.
                is_bug = not isinstance(error, LeveretError)
                level = logging.ERROR if is_bug else logging.INFO
                logger.log(level, "mirror_not_deleted_yet log=%s error=%s", name, error, exc_info=is_bug)
            await asyncio.sleep(_ASK_AGAIN_S)
        del self._discarding[name]

    def _may_have_lost(self, name: str, record: Placement) -> bool:
        """Whether the copy here may have messages without which the queue was led on."""
        lost = record.lost
        return lost is not None and self._copies.may_be_the_only_one(name, first_epoch(lost.term))

    def _is_named(self, key: QueueKey, node: str) -> bool:
        placement = self._queues.records.get(key)
        return placement is not None and node in (
            placement.leader,
            *placement.mirrors,
            *placement.stopped,
        )

    def may_discard(self, name: str, node: str) -> bool:
        """Whether a node may delete its copy of a log that is led here: no record counts on that copy, nor will one."""
        key = self._queues.key_of(name)
        placement = self._queues.records.get(key) if key is not None else None
        if key is None or placement is None or placement.leader != self._me:
            return False
        return not self._is_named(key, node) and self._sources.state(name, node) is MirrorState.GONE

    def stop(self) -> None:
        """Stop all deletions."""
        self._queues.complete.stop()
        for task in self._discarding.values():
            task.cancel()

    # -- handing over -------------------------------------------------------------------------

    def leader_is(self, key: QueueKey, *, alive: bool) -> None:
        """See local_queues.LocalQueues."""
        queue = self._broker.queues.get(key)
        if isinstance(queue, RemoteQueue) and queue.is_down == alive:
            if alive:
                self._forwarding.led_by(queue, queue.leader)
            else:
                logger.warning("queue_down vhost=%s queue=%s leader=%s", *key, queue.leader)
                self._forwarding.down(queue)

    async def end_of(self, node: str, key: QueueKey, placement: Placement) -> tuple[int, int]:
        """See local_queues.LocalQueues."""
        name = self._queues.log_of(key, placement)
        if node == self._me:
            return await self.end(name)
        found = await self._ask(node, "end", {"log": name})
        return found["epoch"], found["next_offset"]

    async def end(self, name: str) -> tuple[int, int]:
        """Return the epoch of the last durable chunk of a log that this node does not lead, and the offset behind it.

        Raises:
            StorageError: the node stops.
        """
        ends = self._copies.ends(name)
        await self._commits.all_durable()
        return (ends.epoch, ends.next_offset) if ends is not None else (0, 0)

    def lead_by(
        self,
        key: QueueKey,
        policy: MirrorPolicy,
        waits: RequiredMirrors,
        then: Callable[[], None] | None = None,
    ) -> None:
        """See local_queues.LocalQueues."""
        name = self._queues.names.get(key)
        if name is not None and (policy.is_mirrored or name in self._sources.led):
            self._lead_by(key, name, policy, waits, then)
        elif then is not None:
            then()

    def _lead_by(
        self,
        key: QueueKey,
        name: str,
        policy: MirrorPolicy,
        waits: RequiredMirrors,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._sources.lead(
            name,
            automatic=policy.is_automatic,
            batch_messages=policy.sync_batch_size,
            lost=self._lost(key),
        )
        self._sources.wait_for(name, *waits.sets, majority=waits.majority, then=then)

    def begins_at(self, key: QueueKey, placement: Placement) -> int:
        """See local_queues.LocalQueues."""
        ends = self._copies.ends(self._queues.log_of(key, placement))
        return ends.first_offset if ends is not None else 0

    def lacks(self, key: QueueKey, node: str) -> Lack | None:
        """See local_queues.LocalQueues."""
        queue, led = self._queues.handed_over.get(key), self._led(key)
        stream = led.streams.get(node) if led is not None else None
        if queue is None or (stream is not None and stream.state is MirrorState.LIVE):
            return None
        first, has = (stream.first, stream.has) if stream is not None else (0, 0)
        gaps = queue.settled.gaps
        front = gaps(0, first) if first > queue.log_floor else ()
        missing = (*front, *gaps(max(first, has), queue.next_offset))
        return Lack(first, sum(end - start for start, end in missing))

    async def prepare(self, key: QueueKey, node: str) -> None:
        """See local_queues.LocalQueues.

        The newest segment ends here. Then the mirror has a summary of it, and reads no message of it again. The other
        mirrors and this node have theirs as well, because the hand-over waits for all of them.
        """
        name = self._queues.names.get(key, "")
        if self._queues.newest_bytes(name) < SUMMARY_BYTES_MIN:
            return
        try:
            about = {"log": name, "offset": self._queues.begin_segment(name)}
            async with asyncio.timeout(_PREPARED_S):
                asked = [self._ask(each, "summarised", about) for each in self.ready(key) | {node}]
                await asyncio.gather(*asked)
                await self._commits.summarised()
        except (LeveretError, TimeoutError) as error:
            # It takes longer then, and loses nothing.
            reason = str(error) or f"not within {_PREPARED_S:g} s"
            logger.info("hand_over_not_prepared vhost=%s queue=%s to=%s error=%s", *key, node, reason)

    async def summarised(self, name: str, offset: int) -> None:
        """Wait until a copy here has a segment that begins at an offset, and summaries of the segments before it.

        Raises:
            LeveretError: the segment did not come in time, or the node stops.
        """
        try:
            async with asyncio.timeout(_PREPARED_S):
                while True:
                    log = self._copies.readable(name)
                    if log is not None and log.next_offset > offset:
                        break
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise LeveretError(f"log {name} did not get offset {offset} in time") from None
        # The segment before is sealed once this one is durable.
        await self._commits.all_durable()
        await self._commits.summarised()

    async def hand_over_to(
        self, key: QueueKey, node: str, recorded: frozenset[str], *, loses: bool = False
    ) -> frozenset[str]:
        """See local_queues.LocalQueues: messages that arrive from here on wait for the next leader."""
        async with self._resting(key):
            self._engine.flush()
            queue, name = self._broker.queues.get(key), self._queues.names.get(key)
            if queue is None or name is None or queue.is_remote or log_name(queue) != name:
                # Its record ends only once all nodes have been told.
                raise NotFound(f"queue '{key[1]}' in vhost '{key[0]}' was deleted here, or declared anew")
            self._queues.handed_over[key] = queue
            self._stand_in(queue)
        has_all: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def notify(ok: bool) -> None:
            if not has_all.done():
                has_all.set_result(ok)

        # Every recorded mirror must have all confirmed messages, whichever of them leads next.
        self._sources.wait_for(name, recorded, frozenset({node}))
        self._sources.when_acked([name], notify)
        self._commits.begin()
        if loses:
            self._sources.synchronise(name)
        try:
            async with asyncio.timeout(
                min(_LOSING_S, self._hand_over_timeout_s) if loses else self._hand_over_timeout_s
            ):
                if not await has_all:
                    raise LeveretError(f"queue '{key[1]}' has another leader already")
                await self._commits.all_durable()
        except TimeoutError:
            if loses:
                return frozenset()
            raise LeveretError(f"node {node} did not take all of queue '{key[1]}' in time") from None
        return frozenset(each for each in recorded & self.ready(key) if self._sources.has_all(name, each))

    @asynccontextmanager
    async def _resting(self, key: QueueKey) -> AsyncIterator[None]:
        """Deliver nothing of a queue, once its consumers have had a moment to acknowledge what they have.

        What they acknowledge after a hand-over is forgotten, and comes again from the next leader.
        """
        queue = self._broker.queues.get(key)
        if queue is None or queue.is_remote or isinstance(queue, Stream):
            yield
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s > self._rests_end_s + _REST_AGAIN_S:
            self._rests_end_s = now_s + _RESTS_S
        until_s = min(now_s + _REST_S, self._rests_end_s)
        queue.is_resting = True
        try:
            while queue.delivered_count:
                if loop.time() >= until_s:
                    break
                await asyncio.sleep(_LOOK_S)
            yield
        finally:
            queue.is_resting = False
            if self._broker.queues.get(key) is queue:
                self._broker.dirty[queue] = None
                self._engine.touch()

    def _lost(self, key: QueueKey) -> tuple[int, int]:
        """Return `lost_before` and `lost_epoch` of a queue (wire.link.Mirroring); (0, 0) if it lost nothing."""
        placement = self._queues.records.get(key)
        lost = placement.lost if placement is not None else None
        return (lost.before, first_epoch(lost.term)) if lost is not None else (0, 0)

    def _stand_in(self, led: Queue) -> RemoteQueue:
        """Stop serving a queue: unsettled deliveries return to it, and gathered settlements are logged."""
        self._collector.pause(led)
        stands = self._queues.stand_in(led, self._me)
        self._forwarding.waits(led, stands)
        return stands

    def delivered_before(self, key: QueueKey) -> int | None:
        """See local_queues.LocalQueues."""
        queue = self._queues.handed_over.get(key)
        if queue is None or isinstance(queue, Stream) or queue.damage is not None:
            return None
        return queue.backlog.delivered_before

    def take_back(self, key: QueueKey) -> None:
        """See local_queues.LocalQueues."""
        queue = self._queues.handed_over.pop(key, None)
        stands = self._broker.queues.get(key)
        if queue is None:
            return
        if stands is None or stands.epoch != queue.epoch:
            # It was deleted here meanwhile; its log stays until etcd has the deletion.
            self._queues.step_down(queue)
        else:
            self._broker.replace_queue(queue)
            self._forwarding.led_here(stands, queue)
            self._collector.resume([queue])
            self._broker.dirty[queue] = None
            self._engine.touch()
