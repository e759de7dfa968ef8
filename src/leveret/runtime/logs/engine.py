"""The flush: one pass over everything that the reads of this turn of the event loop left behind, or of a few turns.

The steps, and the reasons for their order:

1. Append the messages that queues gathered; appended messages have offsets.
2. Deliver messages to consumers (only a message with an offset can be delivered), and publish dead letters to other
   queues, whose turn comes next.
3. Append settlements, including those of step 2's no-ack deliveries (a settlement stands behind its message).
4. Append changed definitions.
5. Promise: confirms of publishes that need the disk, and replies that wait for definitions, are tied to
   the next fdatasync; all other output is written now. The original of a dead letter is settled only when its
   copies are durable, so a crash may double a dead letter but never lose one.
6. Remove the logs of deleted queues once their deletion is durable.

A crash between any two steps loses only messages and changes that were never promised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple, Protocol, TypeAlias

from leveret.core.broker.broker import Broker
from leveret.core.broker.dead_letters import route_dead_letters
from leveret.core.queues.confirms import ConfirmBatch, ConfirmingChannel, ConfirmOutcome
from leveret.core.queues.dying import NOT_STORED, DeadLetters
from leveret.core.queues.queue import Queue
from leveret.model.definitions import Change
from leveret.model.errors import Corrupt, StorageError
from leveret.model.reasons import Reason
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.deadlines import Deadlines
from leveret.runtime.logs.definitions_store import DefinitionsStore
from leveret.runtime.logs.gathering import Gathering
from leveret.runtime.logs.log_home import take_down
from leveret.runtime.logs.log_store import QueueLogs
from leveret.runtime.process.work_slices import others_first, time_slice
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.host import Sender
from leveret.wire.chunk import Header

logger = logging.getLogger(__name__)

Part: TypeAlias = Callable[[], Callable[[bool], None]]
"""Makes one more part of an outcome (core.queues.confirms)."""

DeadLettered: TypeAlias = tuple[Queue, DeadLetters, set[Queue]]
"""Where messages died, which ones, and who is to have them."""

DEATHS_MAX: Final = 16
"""How often a message may die and be published anew within one flush; the next flush goes on."""
TURN_S: Final = 0.002
"""How long a flush goes on with policies, and with chores: what follows from that takes it several times as long."""
FOLLOWED_AT_ONCE: Final = 100
"""How many queues a flush begins to collect, or ends."""
REMOVED_AT_ONCE: Final = 100
"""How many logs are removed before others have their turn: each is a few calls of the file system."""
RETRY_MS: Final = 5_000
"""When a queue is looked at again whose log, or whose dead letters' new place, the disk refused."""
UNSYNCED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Publishers are not read from while more than this waits for the disk."""
UNAWAITED_BYTES_MAX: Final = 1024 * 1024
"""More than this waits for the disk only if the disk is at it, though nobody wants a confirm."""


class Peer(Protocol):
    """The socket of a session."""

    def write(self, octets: bytes, *, hold: int) -> None:
        """Send, after everything sent before; octets with a `hold`, and all after them, wait for its `release`."""

    def release(self, hold: int) -> None:
        """What writes up to this hold waited for is durable."""

    def end(self) -> None:
        """Close the socket after what was written."""


class ReplicationPort(Protocol):
    """Other nodes that have to keep what this one is told: the leader of a queue, or its mirrors."""

    def concerns(self, queue: object) -> bool:
        """Whether anybody else has to keep what goes to the queue."""

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        """For each that has to keep something of a batch which was flushed now: tell a part whether it does."""

    def when_taken(self, queues: Iterable[Queue], part: Part) -> None:
        """The same of all that these queues were given up to this flush."""

    def is_overloaded(self) -> bool:
        """Whether publishers should wait for other nodes."""

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once those have caught up."""

    def flushed(self, queue: Queue) -> None:
        """What is due for the queue in this flush was done."""

    def taken_down(self, queue: Queue) -> None:
        """The queue's log cannot be read here: it is served no more."""

    def share(self, changes: list[Change], known: Callable[[], None]) -> None:
        """Tell all nodes of changes of definitions; `known` when all that live have them."""


class Collecting(Protocol):
    """The upstream of message replication: it copies what replicated queues appended (see runtime.collecting)."""

    def collect(self, queue: Queue, header: Header, data: bytes, trailer: bytes) -> None:
        """A chunk of a replicated queue is durable: copy it. Never fails the broker."""

    def resume(self, queues: list[Queue]) -> None:
        """Begin to collect what should be and is not."""

    def pause(self, queue: Queue) -> None:
        """Copy nothing more of the queue, until it is to be collected again, or no more."""

    def unfollow(self, queues: list[Queue], *, deleted: bool = False) -> None:
        """Stop collecting the queues; downstreams learn that nothing of them is to be recovered."""


class _DefinitionsPublication:
    """Changes of definitions that other nodes are being told of, and what waits until they know."""

    __slots__ = ("is_known", "then")

    def __init__(self) -> None:
        self.is_known = False
        self.then: list[Callable[[], None]] = []

    def known(self) -> None:
        self.is_known = True
        then, self.then = self.then, []
        for step in then:
            step()


class EngineHooks(NamedTuple):
    """What the engine asks of the node and tells it.

    Attributes:
        on_bug: told of a flush that failed half-way: the process must end.
        on_deleted: told of queues before it is durable that they are deleted, maybe again.
        on_replication: called before queues begin or end to be collected.
        keeps_unused: whether replicated queues do not expire here: they are used at their upstream.
    """

    on_bug: Callable[[], None]
    on_deleted: Callable[[list[Queue]], None]
    on_replication: Callable[[], None]
    keeps_unused: Callable[[], bool]


class Engine:
    """Runs what the core decided; see the module.

    Attributes:
        outbox: sessions that have octets to send.
        peers: the socket of each session.
        replication_port: other nodes; None for a node alone.
        clock_ms: the time.
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
    ) -> None:
        """Wire the rooms together; nothing runs until `touch`."""
        self.clock_ms = clock_ms
        self._deadlines = Deadlines(clock_ms, self._due)
        self._hooks = hooks
        self.replication_port: ReplicationPort | None = None
        self._publication: _DefinitionsPublication | None = None
        self._reported: list[tuple[ConfirmingChannel, ConfirmBatch, bool]] = []
        self.outbox: list[Sender] = []
        self.peers: dict[Sender, Peer] = {}
        self.unsynced_bytes = 0
        self._broker = broker
        self._commit = commit
        self._queues = queues
        self._definitions = definitions
        self._collector = collector
        self._next_flush: asyncio.Handle | None = None
        self._gathering = Gathering()
        self._touched: dict[ClientConnection, None] = {}
        self._copies: list[tuple[Queue, Header, bytes, bytes]] = []
        self._replication_due: dict[Queue, None] = {}
        self._failed: set[Queue] = set()
        self._gone: set[Queue] = set()
        self._dead_lettered: list[DeadLettered] = []
        self._flush_number = 0
        self._holds: dict[Sender, int] = {}
        self._holding: list[tuple[ClientConnection, int]] = []
        self._relieved: list[Callable[[], None]] = []
        self._appended_bytes = 0
        queues.on_append = self._note_append

    # -- scheduling ---------------------------------------------------------------------------

    def touch(self, session: ClientConnection | None = None) -> None:
        """Something happened (to this session): flush at the end of this turn of the loop."""
        if session is not None:
            self._touched[session] = None
        if self._next_flush is None:
            self._gathering.begin(monotonic())
            self._next_flush = asyncio.get_running_loop().call_soon(self._flush_or_gather)

    def published(self, session: ClientConnection, count: int) -> None:
        """A session published so many messages: flush, maybe together with what follows at once."""
        self.touch(session)
        self._gathering.add(count)

    def _flush_or_gather(self) -> None:
        if self._gathering.goes_on(len(self._broker.dirty), monotonic()):
            self._next_flush = asyncio.get_running_loop().call_soon(self._flush_or_gather)
        else:
            self._flush_or_stop()

    def _flush_or_stop(self) -> None:
        """A flush that fails half-way is a bug: the node stops, and starts again from what is on disk."""
        try:
            self.flush()
        except Exception:
            logger.critical("flush_failed action=stop", exc_info=True)
            self._hooks.on_bug()

    def stop(self) -> None:
        """Flush no more because time goes by."""
        self._deadlines.stop()

    def is_overloaded(self) -> bool:
        """Whether publishers should wait for the disk, or for other nodes."""
        return self._waits_for_disk() or (
            self.replication_port is not None and self.replication_port.is_overloaded()
        )

    def _waits_for_disk(self) -> bool:
        return self.unsynced_bytes > UNSYNCED_BYTES_MAX

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once what publishers wait for has caught up."""
        if self.replication_port is not None and not self._waits_for_disk():
            self.replication_port.when_relieved(callback)
        else:
            self._relieved.append(callback)

    # -- the flush ----------------------------------------------------------------------------

    def flush(self) -> None:
        """See the module."""
        if self._next_flush is not None:
            self._next_flush.cancel()
            self._next_flush = None
        self._flush_number += 1
        broker = self._broker
        self._refresh_policies()
        if broker.chores.go_on(time_slice(TURN_S)):
            self.touch()
        now_ms = self.clock_ms()
        for _ in range(DEATHS_MAX):
            dirty, broker.dirty = broker.dirty, {}
            # All messages before any settlement: a crash may keep the publishes of a transaction without its
            # acks, never its acks without the publishes.
            for queue in dirty:
                self.append_now(queue)
            for queue in dirty:
                self._flush_queue(queue, now_ms)
            if not broker.dirty:
                break
        else:
            self.touch()
        self._follow_replication()
        self._append_definitions()
        self._promise()
        self.write_out()
        self._holds.clear()
        self._commit.begin()
        if broker.dirty:
            self.touch()

    def _refresh_policies(self) -> bool:
        """Give some queues what applies to them since policies changed; whether any are left, for the next flush."""
        are_left = self._broker.refresh_policies(time_slice(TURN_S))
        if are_left:
            self.touch()
        return are_left

    async def refreshed(self) -> None:
        """Return once all queues have what applies to them since policies changed; what follows is for a flush."""
        while self._refresh_policies():
            await others_first()

    def append_now(self, queue: Queue) -> None:
        """Append what the queue gathered; a publish that the disk refuses is nacked by the flush."""
        try:
            self._queues.append_messages(queue)
        except StorageError as error:
            logger.error("append_failed vhost=%s queue=%s error=%s", *queue.key, error)
            self._failed.add(queue)
            if isinstance(error, Corrupt) and queue.damage is None:
                self.gone(queue, error)

    def _flush_queue(self, queue: Queue, now_ms: int) -> None:
        try:
            if queue.damage is None:
                queue.dispatch(now_ms)
                self._dead_letter(queue, now_ms)
            self._queues.append_settlements(queue)
            if self.replication_port is not None:
                self.replication_port.flushed(queue)
        except Corrupt as error:
            self.take_down(queue, error)
        except StorageError as error:
            logger.error("settlements_not_logged vhost=%s queue=%s error=%s", *queue.key, error)
            queue.deadline_ms = now_ms + RETRY_MS
        if queue.damage is None and queue.is_unused(now_ms) and self._broker.queues.get(queue.key) is queue:
            self._end_unused(queue)
        self._deadlines.set(queue, queue.deadline_ms)

    def _end_unused(self, queue: Queue) -> None:
        """Delete a queue that nobody used; on a downstream its time begins anew, for what is unused here is used there.

        There it is deleted when it is time, and the schema sync follows. One that was gone before a promotion would
        come back without its arguments and bindings.
        """
        queue.deadline_ms = None
        if queue.replicated and self._hooks.keeps_unused():
            queue.touch()
            self._broker.dirty[queue] = None
            return
        logger.info("queue_expired vhost=%s queue=%s", *queue.key)
        self._broker.deletions.delete_when_writable([queue])

    def take_down(self, queue: Queue, error: StorageError) -> None:
        """Serve the queue no more: its log cannot be read."""
        take_down(queue, error)
        queue.deadline_ms = None
        for consumer in list(queue.consumers):
            consumer.queue_deleted()
            queue.remove_consumer(consumer)
        if self.replication_port is not None:
            self.replication_port.taken_down(queue)

    def gone(self, queue: Queue, error: StorageError) -> None:
        """The files of its log were removed: the queue is down, and what is not confirmed yet never is."""
        self._gone.add(queue)
        if queue.damage is None:
            self.take_down(queue, error)

    def _due(self, queues: list[Queue]) -> None:
        """Messages or queues expire."""
        for queue in queues:
            if self._broker.queues.get(queue.key) is queue:
                self._broker.dirty[queue] = None
        self.touch()

    # -- the dead -----------------------------------------------------------------------------

    def _dead_letter(self, queue: Queue, now_ms: int) -> None:
        """Publish a queue's dead letters; `_promise` sees to it that they are safe before they are settled here."""
        for letters in queue.dying.take():
            takers = route_dead_letters(self._broker, queue, letters, now_ms // 1000)
            self._dead_lettered.append((queue, letters, takers))

    def _settle_buried(self, dead_lettered: list[DeadLettered]) -> None:
        for queue, letters, _ in dead_lettered:
            for run in letters.runs:
                if run.first != NOT_STORED:
                    queue.settle(run.first, len(run.bodies), Reason.DEAD_LETTERED)
            self._mark(queue)

    def _is_refused_by_disk(self, batch: ConfirmBatch) -> bool:
        """Whether the disk has refused messages of the batch, or settlements of its transaction, which wait."""
        if self._failed and not self._failed.isdisjoint(batch.queues):
            return True
        dirty = self._broker.dirty
        return batch.settles and any(
            isinstance(queue, Queue) and queue.settling and queue not in dirty for queue in batch.queues
        )

    def _promise_dead_lettered(self) -> None:
        """The dead stay where they died until all who are to have them have them; the disk may refuse for hours."""
        dead_lettered, self._dead_lettered = self._dead_lettered, []
        waiting: list[DeadLettered] = []
        for letter in dead_lettered:
            queue, letters, takers = letter
            failed = takers & self._failed
            if failed:
                self._dead_letter_later(queue, letters._replace(done=letters.done | (takers - failed)))
            elif self.replication_port is not None and any(map(self.replication_port.concerns, takers)):
                self._await_takers(letter)
            else:
                waiting.append(letter)
        if waiting:
            self._commit.when_durable(lambda: self._dead_letter_or_settle(waiting))

    def _await_takers(self, letter: DeadLettered) -> None:
        """As above, where other nodes have to keep what is dead here; a leader that refuses it is asked again."""
        queue, letters, takers = letter
        outcome = ConfirmOutcome(
            lambda ok: self._settle_buried([letter]) if ok else self._dead_letter_later(queue, letters)
        )
        durable = outcome.part()
        self._commit.when_durable(lambda: durable(self._gone.isdisjoint(takers)))
        if self.replication_port is not None:
            self.replication_port.when_taken(takers, outcome.part)
        outcome.seal()

    def _dead_letter_or_settle(self, dead_lettered: list[DeadLettered]) -> None:
        lost = [letter for letter in dead_lettered if not self._gone.isdisjoint(letter[2])]
        for queue, letters, takers in lost:
            self._dead_letter_later(queue, letters._replace(done=letters.done | (takers - self._gone)))
        self._settle_buried(
            [letter for letter in dead_lettered if letter not in lost] if lost else dead_lettered
        )

    def _dead_letter_later(self, queue: Queue, letters: DeadLetters) -> None:
        queue.dying.add(letters)
        self._deadlines.set(queue, self.clock_ms() + RETRY_MS)

    def when_safe(self, queue: Queue, then: Callable[[], None]) -> None:
        """Call back once all that this flush appends to a queue is where a confirm would wait for it; or never."""
        outcome = ConfirmOutcome(lambda ok: then() if ok else None)
        durable = outcome.part()
        self._commit.when_durable(lambda: durable(queue not in self._gone))
        if self.replication_port is not None and self.replication_port.concerns(queue):
            self.replication_port.when_taken({queue}, outcome.part)
        outcome.seal()

    def _mark(self, queue: Queue) -> None:
        if self._broker.queues.get(queue.key) is queue:
            self._broker.dirty[queue] = None
            self.touch()

    def _note_append(self, queue: Queue, header: Header, data: bytes, trailer: bytes) -> None:
        self._appended_bytes += header.chunk_bytes
        if queue.replicated:
            self._copies.append((queue, header, data, trailer))

    def _follow_replication(self) -> None:
        """Begin to collect queues, or end it, a few in one flush: a tag or a policy may concern all there are.

        One that is replicated no more is not copied from now on, whenever its end is logged. So if it is replicated
        again before that, it is copied from where its copy ends, and nothing in between is missing.
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
        # What was appended in this flush is copied by `follow` itself, and skipped when it comes again.
        wanted = {queue for queue in due if queue.replicated and broker.queues.get(queue.key) is queue}
        if wanted:
            self._collector.resume([queue for queue in due if queue in wanted])
        if len(wanted) < len(due):
            self._collector.unfollow([queue for queue in due if queue not in wanted])
        if self._replication_due:
            self.touch()

    def _append_definitions(self) -> None:
        broker = self._broker
        for queue in broker.deleted:
            self._deadlines.set(queue, None)
        if broker.deleted:
            self._hooks.on_deleted(broker.deleted)
        if not broker.changes and not broker.deleted and not broker.shared:
            return
        changes, broker.changes = broker.changes, []
        try:
            self._definitions.append(changes)
        except StorageError as error:
            logger.error("definitions_not_logged error=%s", error)
            broker.changes = changes + broker.changes
            asyncio.get_running_loop().call_later(1.0, self.touch)
            return
        if self.replication_port is not None and broker.shared:
            shared, broker.shared = broker.shared, []
            self._publication = _DefinitionsPublication()
            self.replication_port.share(shared, self._publication.known)
        broker.changes_in_flight += 1
        self.when_known(self._definitions_known)
        deleted, broker.deleted = broker.deleted, []
        if deleted:
            for queue in deleted:
                self._gone.discard(queue)
            self._collector.unfollow(deleted, deleted=True)
            self.when_known(lambda: self._remove_logs(deleted))

    def when_known(self, promise: Callable[[], None]) -> None:
        """Keep a promise once all definitions so far are durable here, and with every other node there is."""
        publication = self._publication
        if publication is None or publication.is_known:
            self._commit.when_durable(promise)
        else:
            self._commit.when_durable(
                lambda: promise() if publication.is_known else publication.then.append(promise)
            )

    async def all_known(self) -> None:
        """Return once all nodes know of the definitions that were flushed so far."""
        publication = self._publication
        if publication is not None and not publication.is_known:
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            publication.then.append(lambda: None if known.done() else known.set_result(None))
            await known

    def _definitions_known(self) -> None:
        self._broker.changes_in_flight -= 1

    def _remove_logs(self, deleted: list[Queue]) -> None:
        """Remove the logs of queues that are gone, in turns if they are many: what a stop leaves, a start removes."""
        if len(deleted) > REMOVED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._remove_logs, deleted[REMOVED_AT_ONCE:])
        for queue in deleted[:REMOVED_AT_ONCE]:
            try:
                self._queues.delete(queue)
            except StorageError as error:
                logger.error("log_not_removed vhost=%s queue=%s error=%s", *queue.key, error)

    def _promise(self) -> None:
        """Tie confirms, copies to outgoing logs and held replies to the next fdatasync.

        While the definitions log refuses what is to be logged, nothing persistent is confirmed: the message may
        be in a queue that a restart would not know.
        """
        commit = self._commit
        unlogged = bool(self._broker.changes)
        waiting: list[tuple[ConfirmingChannel, ConfirmBatch]] = []
        touched, self._touched = self._touched, {}
        for channel, batch in self._take_batches(touched):
            refused = batch.refused or (unlogged and batch.needs_sync)
            if refused or self._is_refused_by_disk(batch):
                channel.confirm(batch, ok=False)
            elif self.replication_port is not None and any(map(self.replication_port.concerns, batch.queues)):
                self._await_all(channel, batch)
            elif batch.needs_sync:
                waiting.append((channel, batch))
            else:
                channel.confirm(batch, ok=True)
        self._promise_dead_lettered()
        self._failed.clear()
        copies, self._copies = self._copies, []
        appended, self._appended_bytes = self._appended_bytes, 0
        if copies or appended:
            self.unsynced_bytes += appended
            # Publishers are made to wait if much is unsynced, and a confirm that comes then would wait for all of it.
            is_much = self.unsynced_bytes > UNAWAITED_BYTES_MAX
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
        if self._holding and not unlogged:
            holding, self._holding = self._holding, []
            self.when_known(lambda: self._release(holding))

    def _take_batches(
        self, sessions: Iterable[ClientConnection]
    ) -> list[tuple[ConfirmingChannel, ConfirmBatch]]:
        """What these sessions published in this flush, and what was published in it for others, whose turn it was."""
        in_turns = self._broker.confirming
        batches = [(channel, batch) for channel in in_turns for batch in channel.close_batches()]
        in_turns.clear()
        for session in sessions:
            confirming, session.confirming = session.confirming, {}
            batches += [(channel, batch) for channel in confirming for batch in channel.close_batches()]
        return batches

    def _await_all(self, channel: ConfirmingChannel, batch: ConfirmBatch) -> None:
        """Confirm once the local disk and every other node that has to keep something of it do."""
        outcome = ConfirmOutcome(lambda ok: self._notify_soon(channel, batch, ok=ok))
        if batch.needs_sync:
            durable = outcome.part()
            self._commit.when_confirmable(lambda: durable(self._is_kept(batch)), lambda: durable(False))
        if self.replication_port is not None:
            self.replication_port.when_kept(batch, outcome.part)
        outcome.seal()

    def _notify_soon(self, channel: ConfirmingChannel, batch: ConfirmBatch, *, ok: bool) -> None:
        """Many batches become safe with one message of another node: what is told of them is written at once."""
        self._reported.append((channel, batch, ok))
        if len(self._reported) == 1:
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        reported, self._reported = self._reported, []
        for channel, batch, ok in reported:
            channel.confirm(batch, ok=ok)
        self.write_out()

    def _confirm(self, confirms: list[tuple[ConfirmingChannel, ConfirmBatch]], *, ok: bool) -> None:
        for channel, batch in confirms:
            channel.confirm(batch, ok=ok and self._is_kept(batch))
        self.write_out()

    def _is_kept(self, batch: ConfirmBatch) -> bool:
        """Whether what was synced is where the next start finds it."""
        return not self._gone or self._gone.isdisjoint(batch.queues)

    def _durable(self, copies: list[tuple[Queue, Header, bytes, bytes]], appended: int) -> None:
        for copy in copies:
            self._collector.collect(*copy)
        self.unsynced_bytes -= appended
        if self._relieved and not self._waits_for_disk():
            relieved, self._relieved = self._relieved, []
            for callback in relieved:
                callback()

    def _release(self, holding: list[tuple[ClientConnection, int]]) -> None:
        for session, hold in holding:
            peer = self.peers.get(session)
            if peer is not None:
                peer.release(hold)

    def write_out(self) -> None:
        """Write what sessions have to send.

        Between flushes a session that was read from waits for the next one: its replies must not overtake what
        came before them (settlements that are not logged, declarations that are not tied to the disk).
        """
        outbox = self.outbox[:]
        self.outbox.clear()
        for session in outbox:
            if isinstance(session, ClientConnection) and session in self._touched:
                self.outbox.append(session)
                continue
            octets = session.take_output()
            peer = self.peers.get(session)
            if peer is not None:
                peer.write(octets, hold=self._holds.get(session, 0))
