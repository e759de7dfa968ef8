"""The flush: one pass over all work that the reads of one or a few turns of the event loop left.

The steps, and the reasons for their order:

1. Append the messages that queues gathered; appended messages have offsets.
2. Deliver messages to consumers (only a message with an offset can be delivered), and publish dead letters to other
   queues, which come next.
3. Append settlements, including those of step 2's no-ack deliveries (a settlement is always behind its message).
4. Append changed definitions.
5. Promise: confirms of publishes that need the disk, and replies that wait for definitions, are tied to the next sync;
   all other output is written now. The original of a dead letter is settled only when its copies are durable, so a
   crash may double a dead letter but never lose one.
6. Remove the logs of deleted queues once their deletion is durable.

A crash between any two steps loses only messages and changes that were never promised.

An unexpected error while a queue's messages, settlements or policies are handled takes that queue down, as a damaged
log does: other queues, and the node, go on. Its log is not written again, and the next start reads it. An unexpected
error while a client is told of its confirms ends that client's connection. An unexpected error elsewhere leaves no such
bound, so the process ends (decision 49).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple

from leveret.core.broker.broker import Broker
from leveret.core.broker.topology import ExchangeState
from leveret.core.queues.confirms import ConfirmBatch, ConfirmingChannel, ConfirmOutcome
from leveret.core.queues.queue import Queue
from leveret.model.definitions import QueueKey
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs.backpressure import Backpressure
from leveret.runtime.logs.changed_definitions import ChangedDefinitions
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.dead_letters import DeadLetterPublisher
from leveret.runtime.logs.deadlines import Deadlines
from leveret.runtime.logs.definitions_store import DefinitionsStore, policy_failed, refresh_policies
from leveret.runtime.logs.gathering import Gathering
from leveret.runtime.logs.log_home import take_down
from leveret.runtime.logs.log_store import QueueLogs
from leveret.runtime.logs.ports import Collecting, ConfirmPort, CopiedChunk, Peer, ReplicationPort
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.process.work_slices import others_first, time_slice
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.host import Sender
from leveret.wire.chunk import Header

logger = logging.getLogger(__name__)

DEATHS_MAX: Final = 16
"""The most times that a message dies and is published anew within one flush; the next flush goes on."""
TURN_S: Final = 0.002
"""The time of a flush for policies, for deferred work, and for removed logs; their consequences take longer."""
FOLLOWED_AT_ONCE: Final = 100
"""The most queues for which a flush begins or ends collecting."""
_REFUSALS_MAX: Final = 1000
"""The most queues whose last refusal is remembered, so that each is logged once a second."""
RETRY_MS: Final = 5_000
"""The wait before another look at a queue if the disk refused its log, or a target its dead letters."""


class EngineHooks(NamedTuple):
    """The node's callbacks and settings for the engine.

    Attributes:
        on_bug: called after a flush that failed half-way: the process must end.
        on_deleted: called with deleted queues before their deletion is durable, maybe again.
        on_replication: called before queues begin or end to be collected.
        keeps_unused: whether replicated queues do not expire here, because their uses are at their upstream.
    """

    on_bug: Callable[[], None]
    on_deleted: Callable[[list[Queue]], None]
    on_replication: Callable[[], None]
    keeps_unused: Callable[[], bool]


class Engine:
    """Carries out the core's decisions; see the module.

    Attributes:
        outbox: sessions that have octets to send.
        peers: the socket of each session.
        replication_port: the other nodes; None on a single node.
        confirm_ports: others that a publisher's confirm waits for beside them.
        definitions: the changes of definitions, and what waits for them.
        clock_ms, elapsed_ms: return the time of day, and one for durations.
    """

    def __init__(
        self,
        broker: Broker,
        commit: GroupCommit,
        queues: QueueLogs,
        definitions: DefinitionsStore,
        collector: Collecting,
        clock_ms: Callable[[], int],
        hooks: EngineHooks,
        elapsed_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        """Connect the parts; nothing runs before `touch`."""
        self.clock_ms, self.elapsed_ms = clock_ms, elapsed_ms
        self._deadlines = Deadlines(elapsed_ms, self._due)
        self._hooks = hooks
        self.replication_port: ReplicationPort | None = None
        self.confirm_ports: list[ConfirmPort] = []
        self._outcomes: list[tuple[ConfirmingChannel, ConfirmBatch, bool]] = []
        self.outbox: list[Sender] = []
        self.peers: dict[Sender, Peer] = {}
        self._backpressure = Backpressure(commit)
        self._broker = broker
        self._commit = commit
        self._queues = queues
        self.definitions = ChangedDefinitions(broker, commit, definitions, self.touch)
        self._collector = collector
        self._next_flush: asyncio.Handle | None = None
        self._gathering = Gathering()
        self._touched: dict[ClientConnection, None] = {}
        self._copies: list[CopiedChunk] = []
        self._replication_due: dict[Queue, None] = {}
        self._failed: set[Queue] = set()
        self._refusals_again_s: dict[tuple[str, QueueKey], float] = {}
        self._gone: set[Queue] = set()
        self._dead_letters = DeadLetterPublisher(
            broker,
            commit,
            self._gone,
            self._mark,
            self.definitions.once_known,
            lambda: self.elapsed_ms() + RETRY_MS,
        )
        self._flush_number = 0
        self._has_stopped = False
        self._holds: dict[Sender, int] = {}
        self._holding: list[tuple[ClientConnection, int]] = []
        self._appended_bytes = 0
        queues.on_append = self._note_append

    # -- scheduling ---------------------------------------------------------------------------

    def touch(self, session: ClientConnection | None = None) -> None:
        """Flush at the end of this turn of the loop, because something happened (to this session)."""
        if session is not None:
            self._touched[session] = None
        if self._next_flush is None:
            self._gathering.begin(monotonic())
            self._next_flush = asyncio.get_running_loop().call_soon(self._flush_or_gather)

    def published(self, session: ClientConnection, count: int) -> None:
        """Flush after a session's publishes, maybe together with following ones."""
        self.touch(session)
        self._gathering.add(count)

    def _flush_or_gather(self) -> None:
        if self._gathering.goes_on(len(self._broker.dirty), monotonic()):
            self._next_flush = asyncio.get_running_loop().call_soon(self._flush_or_gather)
        else:
            self._flush_or_stop()

    def _flush_or_stop(self) -> None:
        """Flush; a failure half-way is a bug, after which the node stops and recovers from the disk."""
        try:
            self.flush()
        except Exception:
            logger.critical("flush_failed action=stop", exc_info=True)
            self._hooks.on_bug()

    def stop(self) -> None:
        """Log nothing more, as of work that is left: the files may soon be another node's of this process."""
        self._has_stopped = True
        self._deadlines.stop()

    def is_overloaded(self) -> bool:
        """Whether publishers should wait for the disk, or for other nodes."""
        return self._backpressure.is_due(len(self._broker.dirty)) or (
            self.replication_port is not None and self.replication_port.is_overloaded()
        )

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once the disk, or the other nodes, have caught up."""
        if self.replication_port is not None and not self._backpressure.is_due(len(self._broker.dirty)):
            self.replication_port.when_relieved(callback)
        else:
            self._backpressure.when_relieved(callback)

    # -- the flush ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Run one flush; see the module."""
        if self._has_stopped:
            return
        if self._next_flush is not None:
            self._next_flush.cancel()
            self._next_flush = None
        self._flush_number += 1
        broker = self._broker
        if broker.has_chores:
            self._refresh_policies()
            self._go_on_with_chores()
        now_ms, elapsed_ms = self.clock_ms(), self.elapsed_ms()
        for _ in range(DEATHS_MAX):
            dirty, broker.dirty = broker.dirty, {}
            # All messages come before any settlement: a crash may keep a transaction's publishes without its acks,
            # but never its acks without its publishes.
            for queue in dirty:
                if queue.has_arrivals:
                    self.append_now(queue)
            for queue in dirty:
                self._flush_queue(queue, now_ms, elapsed_ms)
            if not broker.dirty:
                break
        else:
            self.touch()
        if broker.replication_changes or self._replication_due:
            self._follow_replication()
        self._append_definitions()
        self._promise()
        self.write_out()
        self._holds.clear()
        self._commit.begin()
        self._backpressure.relieve()
        if broker.dirty:
            self.touch()

    def _go_on_with_chores(self) -> None:
        """Do more of the long work, once the disk has caught up with what it appended."""
        deferred_work = self._broker.deferred_work
        if deferred_work and self._backpressure.has_many_logs():
            self._commit.when_synced(self.touch)
        elif deferred_work and deferred_work.go_on(time_slice(TURN_S)):
            self.touch()

    def _refresh_policies(self) -> bool:
        """Apply changed policies to some queues; return whether any are left for the next flush."""
        if not self._broker.has_stale_policies:
            return False
        are_left = refresh_policies(self._broker, time_slice(TURN_S), self._policy_failed)
        if are_left:
            self.touch()
        return are_left

    async def refreshed(self) -> None:
        """Return once changed policies are applied to all queues; their consequences wait for a flush."""
        while self._refresh_policies():
            await others_first()

    def append_now(self, queue: Queue) -> None:
        """Append a queue's gathered messages; if the disk refuses them, the flush nacks them, and all that follow."""
        if queue in self._failed:
            queue.gathered.take()
            queue.sequences.take_numbered()
            return
        try:
            self._queues.append_messages(queue)
        except StorageError as error:
            self._log_refusal("append_failed", queue, error)
            self._failed.add(queue)
            self._commit.refused(error)
            if isinstance(error, Corrupt) and queue.damage is None:
                self.gone(queue, error)
        except Exception as error:
            self.fail(queue, error)

    def _log_refusal(self, event: str, queue: Queue, error: StorageError) -> None:
        """Log what the disk refused, once a second for each queue: a full disk refuses each of very many flushes."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._refusals_again_s.get((event, queue.key), now_s):
            if len(self._refusals_again_s) >= _REFUSALS_MAX:
                self._refusals_again_s.clear()
            self._refusals_again_s[event, queue.key] = now_s + 1.0
            logger.error(event + " vhost=%s queue=%s error=%s", *queue.key, error)

    def _flush_queue(self, queue: Queue, now_ms: int, elapsed_ms: int) -> None:
        if queue in self._gone:
            return
        try:
            if queue.damage is None and self._broker.may_deliver():
                queue.dispatch(now_ms, elapsed_ms)
                self._dead_letters.publish(queue, now_ms)
            self._queues.append_settlements(queue)
            if self.replication_port is not None:
                self.replication_port.flushed(queue)
        except Corrupt as error:
            self.take_down(queue, error)
        except StorageError as error:
            self._log_refusal("settlements_not_logged", queue, error)
            queue.wait_ms = RETRY_MS
            self._commit.refused(error)
        except Exception as error:
            self.fail(queue, error)
        # A queue that was deleted, or is led elsewhere now, may still be touched by what was under way to it.
        has_deadline = queue.wait_ms is not None or queue.settings.expires_ms is not None
        is_there = has_deadline and self._broker.queues.get(queue.key) is queue
        if is_there and queue.damage is None and queue.is_unused(elapsed_ms):
            self._end_unused(queue)
        wait_ms = queue.wait_ms if is_there else None
        self._deadlines.set(queue, None if wait_ms is None else elapsed_ms + wait_ms)

    def _end_unused(self, queue: Queue) -> None:
        """Delete an unused queue; on a downstream its time begins anew, because its uses are at the upstream.

        The upstream deletes it in time, and the schema sync follows. If it were deleted here before a promotion,
        recovery would make it without its arguments and bindings.
        """
        queue.wait_ms = None
        if queue.replicated and self._hooks.keeps_unused():
            queue.touch()
            self._broker.dirty[queue] = None
            return
        logger.info("queue_expired vhost=%s queue=%s", *queue.key)
        self._broker.deletions.delete_when_writable([queue])

    def take_down(self, queue: Queue, error: StorageError) -> None:
        """Stop serving a queue whose log cannot be read."""
        take_down(queue, error)
        queue.wait_ms = None
        for consumer in list(queue.consumers):
            consumer.queue_deleted()
            queue.remove_consumer(consumer)
        if self.replication_port is not None:
            self.replication_port.taken_down(queue)

    def fail(self, queue: Queue, error: Exception) -> None:
        """Take down a queue that met a bug: its state in memory may be half changed, so nothing more of it is logged.

        This flush's messages may be in the log or not, so their publishers get a nack.
        """
        logger.critical("queue_failed vhost=%s queue=%s action=take_down", *queue.key, exc_info=error)
        self._failed.add(queue)
        self.gone(
            queue,
            StorageError(
                f"an unexpected error, {type(error).__name__}: {error}; its log is not affected, "
                "and the next start of the node reads it"
            ),
        )

    def _policy_failed(self, each: Queue | ExchangeState, error: Exception) -> None:
        if isinstance(each, Queue):
            self.fail(each, error)
        else:
            policy_failed(each, error)

    def gone(self, queue: Queue, error: StorageError) -> None:
        """Take down a queue whose log files were removed; its unconfirmed messages are never confirmed."""
        self._gone.add(queue)
        if queue.damage is None:
            self.take_down(queue, error)

    def stepped_down(self, queue: Queue) -> None:
        """Forget a queue that another node leads, so that its memory is free."""
        self._deadlines.set(queue, None)

    def _due(self, queues: list[Queue]) -> None:
        """Flush queues with expired messages, and queues that expired."""
        for queue in queues:
            if self._broker.queues.get(queue.key) is queue:
                self._broker.dirty[queue] = None
        self.touch()

    # -- promises --------------------------------------------------------------------------------

    def _is_refused_by_disk(self, batch: ConfirmBatch) -> bool:
        """Whether the disk has refused messages of the batch, or settlements of its transaction, which wait."""
        if self._failed and not self._failed.isdisjoint(batch.queues):
            return True
        dirty = self._broker.dirty
        return batch.settles and any(
            isinstance(queue, Queue) and queue.settling and queue not in dirty for queue in batch.queues
        )

    def waits_for_nodes(self, queues: Iterable[object]) -> bool:
        """Whether messages in these queues are not safe before other nodes have them, or know the queues."""
        port = self.replication_port
        # What is not flushed yet may be refused.
        has_changes = bool(self._broker.changes or self._broker.shared)
        return (
            has_changes
            or self.definitions.lack(queues)
            or (port is not None and any(map(port.concerns, queues)))
        )

    def when_safe(self, queue: Queue, then: Callable[[], None]) -> None:
        """Call back once this flush's records of a queue are safe wherever a confirm would wait; or never."""
        outcome = ConfirmOutcome(lambda ok: then() if ok else None)
        durable = outcome.part()
        self._commit.when_durable(
            lambda: self.definitions.once_known((queue,), lambda: durable(queue not in self._gone))
        )
        if self.replication_port is not None and self.replication_port.concerns(queue):
            self.replication_port.when_taken({queue}, outcome.part)
        outcome.seal()

    def when_confirmable(self, queue: Queue, then: Callable[[], None]) -> None:
        """Call back once this flush's records of a queue are where a confirm has to have them, or never."""
        port = self.replication_port
        if port is None or not port.concerns(queue):
            self._commit.when_confirmable(partial(self.definitions.once_known, (queue,), then))
            return
        outcome = ConfirmOutcome(lambda ok: then() if ok else None)
        durable = outcome.part()
        self._commit.when_confirmable(partial(self.definitions.once_known, (queue,), partial(durable, True)))
        port.when_taken({queue}, outcome.part)
        outcome.seal()

    def _mark(self, queue: Queue) -> None:
        if self._broker.queues.get(queue.key) is queue:
            self._broker.dirty[queue] = None
            self.touch()

    def _note_append(self, queue: Queue, header: Header, data: list[bytes], trailer: bytes) -> None:
        if queue.definition.durable:
            # The commit syncs no other log.
            self._appended_bytes += header.chunk_bytes
        if queue.replicated:
            self._copies.append((queue, header, data, trailer))

    def _follow_replication(self) -> None:
        """Begin or end the collecting of queues, a few in one flush, because a tag or a policy may concern all of them.

        A queue that is no longer replicated is not copied from now on, even if its end is logged later. If it is
        replicated again before that, its copy continues at its end without a gap.
        """
        broker = self._broker
        changes, broker.replication_changes = broker.replication_changes, []
        if changes:
            self._hooks.on_replication()
        for queue in changes:
            if not queue.is_remote:
                self._replication_due[queue] = None
                if not queue.replicated:
                    self._collector.pause(queue)
        due = list(islice(self._replication_due, FOLLOWED_AT_ONCE))
        for queue in due:
            del self._replication_due[queue]
        # `follow` copies this flush's chunks itself; they are skipped when they come again.
        wanted = {queue for queue in due if queue.replicated and broker.queues.get(queue.key) is queue}
        if wanted:
            self._collector.resume([queue for queue in due if queue in wanted])
        if len(wanted) < len(due):
            self._collector.unfollow([queue for queue in due if queue not in wanted])
        if self._replication_due:
            self.touch()

    def _append_definitions(self) -> None:
        broker = self._broker
        self._tell_notices()
        for queue in broker.deleted:
            self._deadlines.set(queue, None)
        if broker.deleted:
            self._hooks.on_deleted(broker.deleted)
        if not broker.changes and not broker.deleted and not broker.shared:
            return
        if not self.definitions.flush(self.replication_port):
            return
        deleted, broker.deleted = broker.deleted, []
        if deleted:
            for queue in deleted:
                self._gone.discard(queue)
            self._collector.unfollow(deleted, deleted=True)
            self.definitions.when_known(lambda: self._remove_logs(iter(deleted)))

    def _tell_notices(self) -> None:
        """Log what queues asked for and do not get."""
        broker = self._broker
        fewer_copies, broker.fewer_copies = broker.fewer_copies, []
        for less in fewer_copies:
            logger.warning("stream_with_fewer_copies error=%s", less)
        while broker.notices:
            logger.warning("queue_not_mirrored reason=%s", broker.notices.pop(0))
        # A policy that completes another one may apply later: what a queue gets is known once all have been applied.
        if broker.weak_dead_letters and not broker.has_stale_policies:
            self._dead_letters.tell_weak(broker.weak_dead_letters)
            broker.weak_dead_letters = {}

    def _remove_logs(self, deleted: Iterator[Queue]) -> None:
        """Remove the logs of deleted queues, in steps if they are many; a start removes the rest after a stop."""
        is_over = time_slice(TURN_S)
        for queue in deleted:
            try:
                self._queues.delete(queue)
            except StorageError as error:
                logger.error("log_not_removed vhost=%s queue=%s error=%s", *queue.key, error)
            if is_over():
                asyncio.get_running_loop().call_soon(self._remove_logs, deleted)
                break

    def _promise(self) -> None:
        """Tie confirms, copies to outgoing logs and held replies to the next fdatasync.

        A persistent message in a queue that a restart would not know is confirmed once that has changed.
        """
        commit = self._commit
        waiting: list[tuple[ConfirmingChannel, ConfirmBatch]] = []
        touched, self._touched = self._touched, {}
        batches = self._take_batches(touched)
        all_ports = self._all_ports() if batches else []
        for channel, batch in batches:
            if batch.refused or self._is_refused_by_disk(batch):
                self._confirm_batch(channel, batch, False)
            elif ports := [port for port in all_ports if any(map(port.concerns, batch.queues))]:
                self._await_all(channel, batch, ports)
            elif self.definitions.lack(batch.queues):
                self._await_all(channel, batch, ())
            elif batch.needs_sync:
                waiting.append((channel, batch))
            else:
                self._confirm_batch(channel, batch, True)
        if self._dead_letters.published:
            self._dead_letters.promise(self._failed, self.replication_port)
        self._failed.clear()
        copies: list[CopiedChunk] = []
        if self._copies:
            copies, self._copies = self._await_mirrors(self._copies), []
        appended, self._appended_bytes = self._appended_bytes, 0
        if copies or appended:
            # If much is unsynced, publishers are made to wait, and a later confirm would wait for all of it.
            is_much = self._backpressure.appended(appended)
            tie = commit.when_durable if is_much else commit.once_durable
            tie(lambda: self._durable(copies, appended))
        if waiting:
            commit.when_confirmable(
                lambda: self._confirm(waiting, ok=True), lambda: self._confirm(waiting, ok=False)
            )
        for session in touched:
            if session.waits_for_definitions:
                session.waits_for_definitions = False
                self._holds[session] = self._flush_number
                self._holding.append((session, self._flush_number))
        if self._holding:
            holding, self._holding = self._holding, []
            self.definitions.when_known(lambda: self._release(holding))

    def _await_mirrors(self, copies: list[CopiedChunk]) -> list[CopiedChunk]:
        """Collect chunks of mirrored queues when their confirms could go out; return the others.

        What a downstream has before that, the next leader may lack, and would give its offsets to other messages.
        """
        port = self.replication_port
        if port is None:
            return copies
        by_queue: dict[Queue, list[CopiedChunk]] = {}
        for copy in copies:
            if port.concerns(copy[0]):
                by_queue.setdefault(copy[0], []).append(copy)
        for queue, mine in by_queue.items():
            outcome = ConfirmOutcome(partial(self._collect_kept, mine))
            durable = outcome.part()
            self._commit.once_durable(partial(durable, True))
            port.when_taken((queue,), outcome.part)
            outcome.seal()
        return [copy for copy in copies if copy[0] not in by_queue]

    def _collect_kept(self, copies: list[CopiedChunk], ok: bool) -> None:
        for copy in copies if ok else ():
            self._collector.collect(*copy)

    def _take_batches(
        self, sessions: Iterable[ClientConnection]
    ) -> list[tuple[ConfirmingChannel, ConfirmBatch]]:
        """The batches of these sessions in this flush, and the batches of publishes in several steps."""
        batches: list[tuple[ConfirmingChannel, ConfirmBatch]] = []
        owners: list[Broker | ClientConnection] = [self._broker, *sessions]
        for owner in owners:
            if confirming := owner.confirming:
                batches += [(channel, batch) for channel in confirming for batch in channel.close_batches()]
                confirming.clear()
        return batches

    def _all_ports(self) -> list[ConfirmPort]:
        """Everybody that a confirm may wait for beside this node's disk."""
        return [*([self.replication_port] if self.replication_port is not None else []), *self.confirm_ports]

    def _await_all(
        self, channel: ConfirmingChannel, batch: ConfirmBatch, ports: Iterable[ConfirmPort]
    ) -> None:
        """Confirm a batch once the local disk and all others concerned have it, and all nodes know its queues."""
        outcome = ConfirmOutcome(lambda ok: self._notify_soon(channel, batch, ok=ok))
        if batch.needs_sync:
            durable = outcome.part()
            self._commit.when_confirmable(
                lambda: self.definitions.once_known(batch.queues, lambda: durable(self._is_kept(batch))),
                lambda: durable(False),
            )
        for port in ports:
            port.when_kept(batch, outcome.part)
        outcome.seal()

    def _notify_soon(self, channel: ConfirmingChannel, batch: ConfirmBatch, *, ok: bool) -> None:
        """Report outcomes together: one message of another node may make many batches safe; one write confirms them."""
        self._outcomes.append((channel, batch, ok))
        if len(self._outcomes) == 1:
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        for channel, batch, ok in outcomes:
            self._confirm_batch(channel, batch, ok)
        self.write_out()

    def _confirm(self, confirms: list[tuple[ConfirmingChannel, ConfirmBatch]], *, ok: bool) -> None:
        for channel, batch in confirms:
            self._confirm_batch(channel, batch, ok and self._is_kept(batch))
        self.write_out()

    def _confirm_batch(self, channel: ConfirmingChannel, batch: ConfirmBatch, ok: bool) -> None:
        """Tell the publisher; a bug there ends its connection, and the other promises are kept."""
        try:
            channel.confirm(batch, ok=ok)
        except Exception as error:
            self._end_client(getattr(channel, "connection", None), error)
        if self._broker.confirming or self._broker.deferred_work:
            # A commit settles behind its publishes.
            self.touch()

    def _end_client(self, session: Sender | None, error: Exception) -> None:
        """End the connection of a client whose session met a bug; without one, nothing bounds the bug."""
        peer = None if session is None else self.peers.get(session)
        if peer is None:
            raise error
        logger.critical("client_failed action=end", exc_info=error)
        peer.end()

    def _is_kept(self, batch: ConfirmBatch) -> bool:
        """Whether the synced files of the batch are where the next start finds them."""
        return not self._gone or self._gone.isdisjoint(batch.queues)

    def _durable(self, copies: list[CopiedChunk], appended: int) -> None:
        for copy in copies:
            self._collector.collect(*copy)
        self._backpressure.durable(appended)

    def _release(self, holding: list[tuple[ClientConnection, int]]) -> None:
        for session, hold in holding:
            peer = self.peers.get(session)
            if peer is not None:
                peer.release(hold)

    def write_out(self) -> None:
        """Write the sessions' output.

        Between flushes, a session that was read from waits for the next flush: its replies must not overtake earlier
        settlements that are not logged, or declarations that do not wait for the disk yet.
        """
        if not self.outbox:
            return
        outbox = self.outbox[:]
        self.outbox.clear()
        for session in outbox:
            if self._touched and isinstance(session, ClientConnection) and session in self._touched:
                self.outbox.append(session)
                continue
            try:
                pieces = session.take_output()
                peer = self.peers.get(session)
                if peer is not None:
                    peer.write(pieces, hold=self._holds.get(session, 0))
            except Exception as error:
                self._end_client(session, error)
