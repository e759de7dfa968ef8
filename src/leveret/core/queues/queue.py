"""A classic queue: ready messages, their consumers, and expiry, limits and dead letters.

The queue keeps no message for its backlog (`core.queues.backlog`); messages travel in runs (`core.queues.head`). A
message that was taken and is neither settled nor returned is unacked.

Events are the methods. Effects are `gathered` (messages to append), `settling` (ranges to log), `dead_lettering`
(messages to publish elsewhere before they are settled here), `wait_ms` (the time until the next `dispatch` if no other
event comes first), and calls of `QueueConsumer.deliver`. Nothing here waits, and time is an argument of `dispatch`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from leveret.core.queues.backlog.backlog import (
    WINDOW_BYTES_MAX,
    WINDOW_IDLE_BYTES_MAX,
    Backlog,
    Batch,
)
from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.backlog.pending_returns import PendingReturns
from leveret.core.queues.chunk_epochs import ChunkEpochs
from leveret.core.queues.consumers import Consumers, QueueConsumer, share_of
from leveret.core.queues.counters import Counters, RemoteConfirms
from leveret.core.queues.dead_lettering import DEAD_AT_ONCE, NOT_STORED, DeadLettering, DeadLetters
from leveret.core.queues.gathered import Gathered
from leveret.core.queues.messages import (
    MESSAGE_OVERHEAD_BYTES,
    RUN_COSTS,
    Messages,
    Run,
    bytes_of,
    cost_of,
    count_of,
)
from leveret.core.queues.queue_settings import DROP_HEAD, UNBOUNDED, QueueSettings
from leveret.core.queues.relocated import Relocated
from leveret.core.queues.return_counts import ReturnCounts
from leveret.core.queues.sequences import NumberedRun, Sequences
from leveret.core.queues.unmeasured import UnmeasuredMessages
from leveret.model.definitions import REHEARSAL_VHOSTS
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.reasons import Reason

DEALT_AT_ONCE: Final = 16_384
"""The number of messages, about, that one dispatch delivers; then other clients are served."""
BEHIND_BYTES: Final = WINDOW_BYTES_MAX // 2
"""With more ready messages than this, consumers are behind: messages that overtake the window are read from the log."""
DROPPED_AT_ONCE: Final = 8_192
"""The number of messages, about, that expire, are dropped or are measured in one dispatch."""
Reader = Callable[["Queue", int], list[Run]]
"""(queue, offset) -> the runs from the offset on, from the log; messages only, ascending."""

MakeBacklog = Callable[[Callable[[int], list[Run]], Callable[[Run], bool]], Backlog]


class Queue:
    """One queue's decisions; see the module.

    Attributes:
        is_remote: whether another node leads it.
        log_kind: the directory of logs of its kind.
        sequences: the last numbers of publishers that number their messages.
        chunk_epochs: the ends of each epoch's chunks in its log.
        relocated: the places of relocated messages.
        relocated_before: the offset before which the log is not needed for unsettled messages.
        dead_lettering: the messages to dead-letter.
        return_counts: the counts of messages' returns, in a queue that counts them.
        pending_returns: unfinished returns; nothing is delivered meanwhile.
        is_resting: whether consumers get nothing for a moment, because the queue is about to have another leader.
    """

    is_remote: ClassVar[bool] = False
    log_kind: ClassVar[str] = "queues"

    def __init__(
        self, definition: QueueDefinition, read: Reader, make_backlog: MakeBacklog = Backlog
    ) -> None:
        """Make an empty queue; `restore` gives it the content of its log."""
        self.definition = definition
        self.key = definition.key
        self.name_octets = definition.name.encode()
        self.epoch = definition.epoch
        self.owner: object | None = None
        self._is_rehearsed = definition.vhost.startswith(REHEARSAL_VHOSTS)
        self.replicated = False
        self.policy: str | None = None
        self.settings = QueueSettings()
        self.counters = Counters()
        self.remote_confirms = RemoteConfirms()
        # Weakly: a deleted queue is freed at once, not by a pass of the garbage collector over all objects.
        me = weakref.ref(self)
        self.backlog = make_backlog(partial(_read, read, me), partial(_has_expired, me))
        self.unacked_count = 0
        self.ready_bytes = 0
        self.unacked_bytes = 0
        self.consumers = Consumers(single_active=definition.arguments.get("x-single-active-consumer") is True)
        self.gathered = Gathered()
        self.settling: list[list[int]] = []
        self.dead_lettering = DeadLettering()
        self.return_counts = ReturnCounts()
        self.pending_returns = PendingReturns()
        self.is_resting = False
        self.wait_ms: int | None = None
        self.may_expire = False
        self.sequences = Sequences()
        self.chunk_epochs = ChunkEpochs()
        self.relocated = Relocated()
        self.relocated_before = 0
        self._gathered_again = 0
        self.damage: str | None = None
        self.published_total = 0
        self._now_ms = 0
        self._offered = 0
        self._unmeasured = UnmeasuredMessages()
        self._used_ms: int | None = None
        self._deals_on = False
        self._dropped = 0

    def configure(self, settings: QueueSettings) -> None:
        """Take effective settings, at declaration and after a change of policies."""
        if settings.max_length_bytes is not None and self.settings.max_length_bytes is None:
            self._unmeasured.are_all = True
        if settings.expires_ms != self.settings.expires_ms:
            self.touch()
        self.settings = settings
        self.dead_lettering.configure(keeps=settings.keeps_dead_letters)
        self.may_expire = self.may_expire or settings.message_ttl_ms is not None

    # -- what is there ------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The end offset of the log."""
        return self.backlog.next_offset

    @property
    def settled(self) -> OffsetSet:
        """Offsets that are never delivered again; settlement records count as settled themselves."""
        return self.backlog.settled

    @property
    def delivered_before(self) -> int:
        """The offset before which clients may have had any message; mirrors are told of it."""
        return self.backlog.cursor

    @property
    def log_floor(self) -> int:
        """The offset before which every record of the log is settled or relocated behind it."""
        return max(self.backlog.settled.floor, self.relocated_before)

    @property
    def message_count(self) -> int:
        """The number of ready and unacked messages."""
        return self.backlog.settled.count_missing(self.backlog.next_offset)

    @property
    def ready_count(self) -> int:
        """The number of messages that a consumer could get now."""
        return self.backlog.settled.count_missing(self.backlog.next_offset) - self.unacked_count

    @property
    def unsettled_count(self) -> int:
        """The number of messages for clients: dead ones count only if the queue keeps them for as long as it takes."""
        return self.message_count - self.dead_lettering.count + self.kept_count

    @property
    def kept_count(self) -> int:
        """The number of dead messages that count: those of a queue with at-least-once."""
        return self.dead_lettering.count if self.dead_lettering.keeps else 0

    @property
    def delivered_count(self) -> int:
        """The number of messages that clients have and have not acknowledged."""
        return self.unacked_count - self.dead_lettering.count

    @property
    def has_arrivals(self) -> bool:
        """Whether messages, or numbers of publishers, wait for the next append."""
        return bool(self.gathered.parts or self.sequences.unlogged)

    @property
    def dead_bytes(self) -> int:
        """The octets of the bodies of dead messages, by the average of all unacked ones."""
        return (
            self.unacked_bytes * self.dead_lettering.count // self.unacked_count if self.unacked_count else 0
        )

    @property
    def may_hold_messages(self) -> bool:
        """Whether deleting the queue could lose messages, also ones not appended yet or unreadable."""
        return self.damage is not None or bool(self.gathered) or self.message_count > 0

    @property
    def message_bytes(self) -> int:
        """The octets of the bodies; an estimate after a restart, and for bodies of different sizes."""
        return max(0, self.ready_bytes) + self.unacked_bytes if self.message_count else 0

    @property
    def is_behind(self) -> bool:
        """Whether there are consumers, and so many ready messages that memory may soon not hold all of them."""
        return (
            bool(self.consumers)
            and self.ready_bytes + self.ready_count * MESSAGE_OVERHEAD_BYTES > BEHIND_BYTES
        )

    @property
    def window_bytes(self) -> int:
        """The octets of messages in memory, about: those to be delivered soon, and those to be appended."""
        return self.backlog.window_bytes + self.gathered.body_bytes

    @property
    def consumer_count(self) -> int:
        """The number of consumers."""
        return len(self.consumers)

    def restore(self, first_offset: int, next_offset: int, settled: OffsetSet, body_bytes: int = 0) -> None:
        """Take the state found by a scan of the log; every unsettled message is ready, unless it is noted as dead.

        `body_bytes` are the octets of all unsettled bodies, about.
        """
        self.begin_log(first_offset, settled)
        self.backlog.restore(next_offset, settled)
        self._offered = next_offset
        for first, end in self.dead_lettering.restored(settled):
            self.backlog.take_range(first, end)
            self.unacked_count += end - first
        self.unacked_bytes = body_bytes * self.unacked_count // max(1, self.message_count)
        self.ready_bytes = body_bytes - self.unacked_bytes
        self._unmeasured.are_all = self.settings.max_length_bytes is not None

    def show(self, first_offset: int, next_offset: int, settled: OffsetSet, body_bytes: int) -> None:
        """As `restore`, for a queue that another node serves: it has counts, and no message is taken from it."""
        self.begin_log(first_offset, settled)
        Backlog.restore(self.backlog, next_offset, settled)
        self._offered = next_offset
        self.ready_bytes = body_bytes
        self.unacked_bytes = 0
        self.unacked_count = self.dead_lettering.count = self.dead_lettering.notes.count

    def begin_log(self, first_offset: int, settled: OffsetSet) -> None:
        """Count records before the log's begin as settled, unless they are relocated."""
        begin = max(self.relocated_before, settled.floor)
        for first, end in list(self.relocated.outside(begin, first_offset)):
            settled.add(first, end)
        self.relocated_before = max(self.relocated_before, first_offset)

    # -- publishing ---------------------------------------------------------------------------

    @property
    def place(self) -> int:
        """The number of messages ever gathered, which is the place of the last one in the order of all of them."""
        return self.published_total + len(self.gathered)

    def last_sequence(self, reference: bytes) -> int:
        """The last number of a publisher, 0 for none."""
        return self.sequences.last(reference)

    def advance_sequence(self, reference: bytes, sequence: int, count: int = 0) -> None:
        """Note that a publisher's messages up to `sequence` are gathered (deduplication).

        Its last `count` messages were gathered last, numbered without gaps: if they go into several chunks, each
        chunk has the number of its own last one. With 0 the last chunk of the flush has the number.
        """
        self.sequences.advance(NumberedRun(len(self.gathered), count, reference, sequence))

    def gathered_again(self) -> None:
        """Mark the gathered messages as redelivered, because a lost leader or site may have delivered them."""
        self._gathered_again = len(self.gathered)

    def arranged(self, batch: Batch) -> Batch:
        """The gathered messages of a chunk in the order in which the log is to have them.

        Those that are gathered again come first, and are counted off its begin.
        """
        return batch if self._gathered_again else self.backlog.arranged(batch)

    def must_keep(self, is_persistent: bool) -> bool:
        """Whether a confirm of messages waits for the disk if any of them is persistent, or none."""
        return self.definition.durable and is_persistent

    def room(self, body_bytes: int) -> int:
        """The number of further messages of a size that may be published; UNBOUNDED unless overflow rejects publishes.

        Messages that go straight to a consumer do not count, but each must fit into the empty queue, as in RabbitMQ.
        Kept dead ones do count: else rejections could fill the disk.
        """
        settings = self.settings
        if not settings.may_reject:
            return UNBOUNDED
        waiting, octets = self.ready_count + len(self.gathered), self.ready_bytes + self.gathered.body_bytes
        dead, straight = self.kept_count, 0
        if self.consumers.count:
            straight = self.consumers.capacity() - waiting
            waiting, octets = max(0, -straight), octets if straight < 0 else 0
        room = settings.room(waiting + dead, octets + (self.dead_bytes if dead else 0), body_bytes)
        return max(0, straight) + room if room > 0 else 0

    def appended(self, first: int, batch: Batch, now_ms: int = 0) -> None:
        """Note that the gathered messages are in the log, from offset `first` on, in a chunk of `now_ms`."""
        self.backlog.append(
            first, batch, now_ms, WINDOW_BYTES_MAX if self.consumers else WINDOW_IDLE_BYTES_MAX
        )
        for messages in batch:
            self.ready_bytes += messages.body_bytes
            if messages.expiration_ms is not None:
                self.may_expire = True
        count = self.next_offset - first
        if self._gathered_again:
            again = min(self._gathered_again, count)
            self.backlog.give_back_before(first + again)
            self._gathered_again -= again
        self.published_total += count
        self.counters.publish += count

    def taken_in(self, end: int, body_bytes: int, *, expires: bool) -> None:
        """Note that recovered messages are in the log, up to the offset `end`, that never were in memory.

        They count as redelivered, as `gathered_again`. `expires`: whether some have a time to live of their own.
        """
        count = end - self.next_offset
        self.backlog.taken_in(end)
        self.backlog.give_back_before(end)
        self.ready_bytes += body_bytes
        self.may_expire = self.may_expire or expires
        self.published_total += count
        self.counters.publish += count

    def refuse(self, messages: Messages) -> None:
        """Dead-letter publishes that the queue has no room for (overflow `reject-publish-dlx`)."""
        if self.settings.dead_letter_exchange is not None:
            self.dead_lettering.add(DeadLetters([Run(NOT_STORED, messages)], "maxlen"))

    # -- settling -----------------------------------------------------------------------------

    def settle(self, first: int, count: int, reason: int = Reason.ACKED) -> None:
        """Settle taken messages: they are never delivered again once this is logged."""
        if reason == Reason.DEAD_LETTERED:
            self.dead_lettering.settled(first, count)
        self._forget_unacked(count)
        self._settle(first, first + count, reason)

    def why_not_settled(self) -> str:
        """See core.queues.consumers.DeliverySource: taken messages can be settled while the queue exists."""
        return ""

    def check_refusable(self) -> None:
        """Refuse nack and reject if this kind of queue does not support them (Unsupported)."""

    def reject(self, first: int, count: int) -> None:
        """Reject taken messages for good: they are dead-lettered at the next dispatch, or dropped."""
        if self.settings.dead_letter_exchange is None:
            self.settle(first, count, Reason.DROPPED)
        else:
            self.dead_lettering.declare_dead(first, first + count, "rejected")

    def _settle(self, first: int, end: int, reason: int) -> None:
        self.settled.add(first, end)
        self.return_counts.forget(first, end)
        settling = self.settling
        if settling and settling[-1][2] == first and settling[-1][0] == reason:
            settling[-1][2] = end
        else:
            settling.append([reason, first, end])

    def _forget_unacked(self, count: int) -> int:
        """Count fewer unacked messages; return their octets, by the average."""
        size = self.unacked_bytes * count // self.unacked_count if self.unacked_count > 0 else 0
        self.unacked_count -= count
        self.unacked_bytes -= size
        return size

    def logged_settlement(self, offset: int) -> None:
        """Note a settlement record at `offset`, which is no message."""
        self.backlog.pass_record(offset)

    def drop_ready(self, reason: int) -> int:
        """Settle every ready message (purge, deletion); return their number."""
        dropped = 0
        # Without unacked messages, all unsettled ones are ready, in fewer ranges.
        are_all = self.unacked_count == 0
        ready = self.settled.gaps(0, self.next_offset) if are_all else self.backlog.ready_ranges()
        for first, end in list(ready):
            self._settle(first, end, reason)
            dropped += end - first
        self.backlog.clear()
        self._unmeasured.ranges.clear()
        self.ready_bytes = 0
        return dropped

    def requeue(self, first: int, count: int) -> None:
        """Return taken messages to their place; they count as redelivered."""
        size = self._forget_unacked(count)
        if self.settings.max_length_bytes is None:
            self.ready_bytes += size
        else:
            self._unmeasured.ranges.append((first, first + count))
        self.backlog.put_back(first, first + count)

    # -- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """Register a consumer; the next dispatch serves it."""
        self.consumers.add(consumer)
        self.touch()

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Remove a consumer; its messages stay unacked until its channel settles or returns them."""
        if self.consumers.remove(consumer):
            self.touch()

    # -- use ----------------------------------------------------------------------------------

    def touch(self) -> None:
        """Note a use of the queue: its `expires` begins anew at the next dispatch."""
        self._used_ms = None

    def is_unused(self, elapsed_ms: int) -> bool:
        """Whether the queue was unused for its `expires` time."""
        expires_ms = self.settings.expires_ms
        if expires_ms is None or self.consumers or self._used_ms is None:
            return False
        return elapsed_ms - self._used_ms >= expires_ms

    # -- dispatch -----------------------------------------------------------------------------

    def dispatch(self, now_ms: int = 0, elapsed_ms: int = 0) -> None:
        """Expire, deliver and drop messages, and set the time until the next dispatch.

        Messages expire by the time of day, `now_ms`, because it is stored with them. The time without a use is taken
        by a clock that nobody sets, `elapsed_ms`: otherwise a clock set forward would delete queues in use.

        Messages published since the last dispatch are offered to consumers once before they may expire, so that a
        time to live of 0 means "now or never".
        """
        if self.pending_returns or self.is_resting:
            # Its end marks the queue.
            self.wait_ms = None
            return
        self._now_ms = now_ms
        self._dropped = 0
        if self._used_ms is None or self.consumers.count:
            self._used_ms = elapsed_ms
        dead = self.dead_lettering
        if dead.has_declared_dead:
            dead.add_declared_dead(self.backlog.find, elapsed_ms)
        if not self.prepare():
            self.wait_ms = 0
            return
        if self.may_expire:
            self.expire(now_ms, self._offered)
        self._deal()
        if not self._deals_on:
            # Messages that were not offered yet neither expire nor count against the limits.
            self._offered = self.backlog.next_offset
            if self.may_expire:
                self.expire(now_ms, self._offered)
            self.give_way()
            if self.may_expire:
                # Messages behind the dropped ones may have expired.
                self.expire(self._now_ms, self._offered)
        if dead.keeps and dead.declared_dead:
            dead.add_declared_dead(self.backlog.find, elapsed_ms)
        self._set_wait(elapsed_ms)

    def offer(self, now_ms: int) -> None:
        """Deliver ready messages as the next dispatch would; all else is left to it."""
        if not (self.pending_returns or self.is_resting or self.damage) and self.prepare():
            self._now_ms = now_ms
            self._deal()

    def prepare(self) -> bool:
        """Sort and measure some of the messages; return whether the first one, and the number to drop, are known.

        Before that none may be taken: it might be gone before it is measured. It may take many steps, for which a
        backlog of any length is read.
        """
        if not (self.backlog.unsorted or self._unmeasured.ranges or self._unmeasured.are_all):
            return True
        return not (self.backlog.unsorted and self.backlog.sort_some()) and self._count_bytes()

    def _deal(self) -> None:
        """Deliver ready messages, oldest first, in turns, until messages, capacity or this dispatch's share end."""
        dealt, self._deals_on = 0, False
        if not self.consumers.count:
            return
        share = turns_left = 0
        ready = self.ready_count
        while ready > 0 and (turn := self.consumers.next()) is not None:
            if dealt >= DEALT_AT_ONCE:
                self._deals_on = True
                return
            consumer, capacity, willing_count = turn
            if not turns_left:
                share, turns_left = share_of(ready, willing_count), willing_count
            turns_left -= 1
            read_before = self.backlog.runs_read
            runs = self._deal_to(consumer, min(capacity, share, DEALT_AT_ONCE))
            if not runs:
                return
            self.consumers.had_turn(consumer)
            # Finding messages of one priority may have read many more.
            read = self.backlog.runs_read - read_before - len(runs)
            dealt += sum(map(cost_of, runs)) + max(0, read) * RUN_COSTS
            ready = self.ready_count if self.may_expire else ready - count_of(runs)

    def _deal_to(self, consumer: QueueConsumer, share: int) -> list[Run]:
        """Deliver a consumer's share; none if nothing may be delivered now."""
        if self.may_expire:
            self.expire(self._now_ms, self._offered)
            if self._is_hindered(self._offered):
                return []
        runs, redelivered = self.take(share)
        if runs:
            self._count_delivery(count_of(runs), consumer.no_ack, redelivered)
            consumer.deliver(self, runs, redelivered)
            if consumer.no_ack:
                for run in runs:
                    self.settle(run.first, len(run))
        return runs

    def _count_delivery(self, count: int, no_ack: bool, redelivered: bool) -> None:
        counters = self.counters
        if no_ack:
            counters.deliver_no_ack += count
        else:
            counters.deliver += count
        if redelivered:
            counters.redeliver += count

    def _set_wait(self, elapsed_ms: int) -> None:
        dead, self.wait_ms = self.dead_lettering, 0
        is_much_unlogged = self.return_counts.is_much_unlogged or dead.notes.is_much_unlogged
        if self._dropped_enough or self._deals_on or is_much_unlogged:
            return
        self.wait_ms = None
        if not self.may_expire and self.settings.expires_ms is None and dead.repeat_at_ms is None:
            return
        waits_ms: list[int] = []
        if dead.repeat_at_ms is not None:
            waits_ms.append(max(0, dead.repeat_at_ms - elapsed_ms))
        if self.may_expire and (head := self.backlog.head()) is not None:
            head_deadline_ms = self._deadline_of(head[0])
            if head_deadline_ms is not None:
                waits_ms.append(head_deadline_ms - self._now_ms)
        if self.settings.expires_ms is not None and not self.consumers and self._used_ms is not None:
            waits_ms.append(self._used_ms + self.settings.expires_ms - elapsed_ms)
        self.wait_ms = min(waits_ms, default=None)

    # -- expiry, limits, dead letters ---------------------------------------------------------

    @property
    def _dropped_enough(self) -> bool:
        """Whether this dispatch has dropped or expired enough messages."""
        return self._dropped >= DROPPED_AT_ONCE or self.dead_lettering.is_full

    def _dropped_together(self, count: int) -> int:
        """The number of first ready messages, of `count`, that are dropped together."""
        if self.settings.dead_letter_exchange is None or self.dead_lettering.keeps:
            return min(count, DROPPED_AT_ONCE)
        head = self.backlog.head()
        if head is None or not head[1]:
            return min(count, DEAD_AT_ONCE)
        return self.dead_lettering.fitting(head[0], min(count, head[1], DEAD_AT_ONCE))

    def expire(self, now_ms: int, before: int) -> None:
        """Drop or dead-letter expired messages at the head, below offset `before` (RabbitMQ's rule)."""
        while not self._dropped_enough and (head := self.backlog.head()) is not None:
            run, count = head
            if run.first >= before:
                return
            deadline_ms = self._deadline_of(run)
            if deadline_ms is None or deadline_ms > now_ms:
                return
            self._discard(min(count, before - run.first), Reason.EXPIRED, "expired")

    def _is_hindered(self, before: int) -> bool:
        """Whether the first message has expired but stays for the next dispatch, so that it must not be delivered."""
        if not self._dropped_enough or (head := self.backlog.head()) is None:
            return False
        deadline_ms = self._deadline_of(head[0])
        return head[0].first < before and deadline_ms is not None and deadline_ms <= self._now_ms

    def _deadline_of(self, run: Run) -> int | None:
        """The time at which messages expire, by the shorter of the queue's and their own time to live.

        In a rehearsal their own does not count, because the messages are compared with the recovered ones.
        """
        own = None if self._is_rehearsed else run.messages.expiration_ms
        queue = self.settings.message_ttl_ms
        if own is None and queue is None:
            return None
        return run.arrived_ms + min(ttl for ttl in (own, queue) if ttl is not None)

    def has_expired(self, run: Run) -> bool:
        """Whether all messages of a run are due to die now."""
        if not self.may_expire or run.first >= self._offered:
            return False
        deadline_ms = self._deadline_of(run)
        return deadline_ms is not None and deadline_ms <= self._now_ms

    def give_way(self) -> None:
        """Drop messages from the head until the queue's length limits hold."""
        settings = self.settings
        if settings.overflow != DROP_HEAD:
            return
        if settings.max_length is not None and self.ready_count > settings.max_length:
            self._drop_head(self.ready_count - settings.max_length)
        if settings.max_length_bytes is not None:
            while (
                self.ready_bytes > settings.max_length_bytes
                and self.ready_count > 0
                and not self._dropped_enough
            ):
                self._drop_bytes(self.ready_bytes - settings.max_length_bytes)

    def _drop_bytes(self, excess: int) -> None:
        """Drop the first messages of the first run whose bodies hold so many octets, at least one."""
        head = self.backlog.head()
        count = head[0].holding(excess) if head is not None else 1
        self._discard(count, Reason.DROPPED, "maxlen")

    def _drop_head(self, count: int) -> None:
        if self.settings.dead_letter_exchange is None and self.settings.max_length_bytes is None:
            self.ready_bytes -= self.ready_bytes * count // self.ready_count
            for first, end in self.backlog.skip(count):
                self._settle(first, end, Reason.DROPPED)
            return
        while count > 0 and not self._dropped_enough:
            if not (dropped := self._discard(count, Reason.DROPPED, "maxlen")):
                return
            count -= dropped

    def _count_bytes(self) -> bool:
        """Measure some of the ready messages; return whether the size of all is known."""
        unmeasured = self._unmeasured
        if unmeasured.are_all:
            unmeasured.begin(self.backlog.ready_ranges())
            self.ready_bytes = 0
        self.ready_bytes += unmeasured.measure(self.backlog.find, DROPPED_AT_ONCE)
        return not unmeasured.ranges

    def _discard(self, limit: int, reason: Reason, death: str) -> int:
        """Dead-letter ready messages, or drop them if there is no dead letter exchange; return their number."""
        # They are taken as they are stored: what a kind of queue adds for its consumers would go again at once.
        runs, _ = Queue.take(self, self._dropped_together(limit))
        if self.settings.dead_letter_exchange is not None and not self.dead_lettering.keeps:
            self.dead_lettering.count += count_of(runs)
            self.dead_lettering.add(DeadLetters(runs, death))
            return count_of(runs)
        for run in runs:
            self._dropped += cost_of(run)
            if self.dead_lettering.keeps:
                self.dead_lettering.declare_dead(run.first, run.end, death)
            else:
                self.settle(run.first, len(run), reason)
        return count_of(runs)

    def take_one(self, now_ms: int) -> tuple[list[Run], bool]:
        """Take the first ready message that has not expired (basic.get); none from an empty queue."""
        self._now_ms = now_ms
        self.touch()
        while not self.prepare():
            pass
        if self.may_expire:
            self.expire(now_ms, self.next_offset)
            if self._is_hindered(self.next_offset):
                return [], False
        if not self.ready_count:
            return [], False
        return self.take(1)

    # -- taking -------------------------------------------------------------------------------

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """Take up to `limit` ready messages, oldest first: (runs, whether they are redelivered).

        Returned messages come first, by themselves.
        """
        runs, redelivered = self.backlog.take(limit)
        size = bytes_of(runs)
        self.unacked_count += count_of(runs)
        self.unacked_bytes += size
        self.ready_bytes -= size
        return runs, redelivered


def _read(read: Reader, me: weakref.ref[Queue], offset: int) -> list[Run]:
    """The runs of a queue's log from an offset on; none of a queue that is gone."""
    queue = me()
    return [] if queue is None else read(queue, offset)


def _has_expired(me: weakref.ref[Queue], run: Run) -> bool:
    queue = me()
    return queue is not None and queue.has_expired(run)
