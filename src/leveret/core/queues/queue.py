"""A classic queue: ready messages, their consumers, and expiry, limits and dead letters.

The queue keeps no message for its backlog (`core.queues.backlog`); messages travel in runs (`core.queues.head`). A
message that was taken and is neither settled nor returned is unacked.

Events are the methods. Effects are `gathered` (runs to append), `settling` (ranges to log), `dying` (messages to
publish elsewhere before they are settled here), `deadline_ms` (the time of the next `dispatch` if no other event comes
first), and calls of `QueueConsumer.deliver`. Nothing here waits, and time is an argument of `dispatch`.
"""

from __future__ import annotations

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
from leveret.core.queues.consumers import Consumers, QueueConsumer
from leveret.core.queues.counters import Counters
from leveret.core.queues.dying import DEAD_AT_ONCE, NOT_STORED, DeadLetters, Dying
from leveret.core.queues.messages import MESSAGE_OVERHEAD_BYTES, Messages, Run, bytes_of, count_of, joined
from leveret.core.queues.queue_settings import DROP_HEAD, QueueSettings
from leveret.core.queues.relocated import Relocated
from leveret.core.queues.returns import Returns
from leveret.core.queues.sequences import NumberedRun, Sequences
from leveret.model.definitions import REHEARSAL_VHOSTS
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.reasons import Reason

UNBOUNDED: Final = 1 << 62
"""Room of a queue that takes whatever comes."""
DEALT_AT_ONCE: Final = 16_384
"""How many messages, about, one dispatch hands out; the next goes on, and others are served between."""
DEALT_SINGLY: Final = 4
"""Messages are dealt one at a time if there are fewer than so many for each consumer."""
DROPPED_AT_ONCE: Final = 8_192
"""How many expire or give way, or are read to be measured, in one dispatch, counted likewise."""
RUN_COSTS: Final = 32
"""A run takes as long to hand out, beside its messages, as so many that are alike."""
DIFFERENT_COSTS: Final = 4
"""A message of those that differ takes as long as so many."""
Reader = Callable[["Queue", int], list[Run]]
"""(queue, offset) -> runs at and after the offset, from the log; messages only, ascending."""

MakeBacklog = Callable[[Callable[[int], list[Run]], Callable[[Run], bool]], Backlog]


class Queue:
    """One queue's decisions; see the module.

    Attributes:
        is_remote: whether another node leads it.
        log_kind: what the logs of its kind are kept under.
        sequences: how far publishers are that number their messages.
        chunk_epochs: up to where its log has chunks of each epoch.
        relocated: where messages stand that were stored again.
        relocated_before: nothing unsettled needs what stands in the log before this offset.
        dying: what is to be dead-lettered.
        returns: how often messages came back, of a queue that counts it.
        pending_returns: what is still coming back; nothing is handed out meanwhile.
    """

    is_remote: ClassVar[bool] = False
    log_kind: ClassVar[str] = "queues"

    def __init__(
        self, definition: QueueDefinition, read: Reader, make_backlog: MakeBacklog = Backlog
    ) -> None:
        """An empty queue; `restore` gives it what its log holds."""
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
        self.backlog = make_backlog(partial(read, self), self._has_expired)
        self.unacked_count = 0
        self.ready_bytes = 0
        self.unacked_bytes = 0
        self.consumers = Consumers(single_active=definition.arguments.get("x-single-active-consumer") is True)
        self.gathered: list[Messages] = []
        self.gathered_count = 0
        self.gathered_bytes = 0
        self.settling: list[list[int]] = []
        self.dying = Dying()
        self.returns = Returns()
        self.pending_returns = PendingReturns()
        self.deadline_ms: int | None = None
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
        self._unsized: list[tuple[int, int]] = []
        self._used_ms: int | None = None
        self._deals_on = False
        self._dropped = 0
        self._must_count_bytes = False

    def configure(self, settings: QueueSettings) -> None:
        """Take effective settings, at declaration and when a policy changed them."""
        if settings.max_length_bytes is not None and self.settings.max_length_bytes is None:
            self._must_count_bytes = True
        if settings.expires_ms != self.settings.expires_ms:
            self.touch()
        self.settings = settings
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
    def log_floor(self) -> int:
        """The offset in its log before which nothing stands that is not settled, or stored again behind it."""
        return max(self.backlog.settled.floor, self.relocated_before)

    @property
    def message_count(self) -> int:
        """Ready and unacked."""
        return self.backlog.settled.count_missing(self.backlog.next_offset)

    @property
    def ready_count(self) -> int:
        """Messages that a consumer could get now."""
        return self.message_count - self.unacked_count

    @property
    def unsettled_count(self) -> int:
        """Messages that are here for clients: all but the dead, which stay until they are safe where they go."""
        return self.message_count - self.dying.count

    @property
    def delivered_count(self) -> int:
        """Messages that clients have and did not acknowledge."""
        return self.unacked_count - self.dying.count

    @property
    def may_hold_messages(self) -> bool:
        """Whether any could go with the queue: those that are not appended yet, or that cannot be read, too."""
        return self.damage is not None or self.gathered_count > 0 or self.message_count > 0

    @property
    def message_bytes(self) -> int:
        """Octets of the bodies held; an estimate after a restart and among bodies of different sizes."""
        return max(0, self.ready_bytes) + self.unacked_bytes if self.message_count else 0

    @property
    def is_behind(self) -> bool:
        """Whether there are consumers, and more is ready than is held in memory for them."""
        return (
            bool(self.consumers)
            and self.ready_bytes + self.ready_count * MESSAGE_OVERHEAD_BYTES > WINDOW_BYTES_MAX
        )

    @property
    def window_bytes(self) -> int:
        """Octets of messages held in memory, about: those to be handed out soon, and those to be appended."""
        return self.backlog.window_bytes + self.gathered_bytes

    @property
    def consumer_count(self) -> int:
        """Consumers that are registered."""
        return len(self.consumers)

    def restore(self, first_offset: int, next_offset: int, settled: OffsetSet, body_bytes: int = 0) -> None:
        """Take the state that a scan of the log found; everything unsettled is ready.

        `body_bytes` is what the bodies of all unsettled messages hold, about.
        """
        self.begin_log(first_offset, settled)
        self.backlog.restore(next_offset, settled)
        self._offered = next_offset
        self.ready_bytes = body_bytes
        self._must_count_bytes = self.settings.max_length_bytes is not None

    def show(self, first_offset: int, next_offset: int, settled: OffsetSet, body_bytes: int) -> None:
        """As `restore`, of a queue that another node serves: it can be counted, and nothing is taken from it."""
        self.begin_log(first_offset, settled)
        Backlog.restore(self.backlog, next_offset, settled)
        self._offered = next_offset
        self.ready_bytes = body_bytes

    def begin_log(self, first_offset: int, settled: OffsetSet) -> None:
        """What the log does not hold was settled, but for what it holds elsewhere."""
        begin = max(self.relocated_before, settled.floor)
        for first, end in list(self.relocated.outside(begin, first_offset)):
            settled.add(first, end)
        self.relocated_before = max(self.relocated_before, first_offset)

    # -- publishing ---------------------------------------------------------------------------

    def last_sequence(self, reference: bytes) -> int:
        """The last message of a publisher that was taken, 0 for none."""
        return self.sequences.last(reference)

    def advance_sequence(self, reference: bytes, sequence: int, count: int = 0) -> None:
        """The gathered messages include those of a publisher up to `sequence` (deduplication).

        Its last `count` are what was gathered last, numbered without gaps: if they go into several chunks, each of
        these tells of those in it. With 0 the last chunk of the flush tells of all of them.
        """
        self.sequences.advance(NumberedRun(self.gathered_count, count, reference, sequence))

    def gather(self, messages: Messages) -> None:
        """Take messages to be appended at the next flush; queues may share them."""
        self.gathered.append(messages)
        self.gathered_count += len(messages)
        self.gathered_bytes += messages.body_bytes

    def gathered_again(self) -> None:
        """A lost leader may have delivered the gathered messages: they count as redelivered."""
        self._gathered_again = self.gathered_count

    def take_gathered(self) -> list[Messages]:
        """The messages to append, once, in as few parts as possible."""
        gathered, self.gathered = self.gathered, []
        self.gathered_count = self.gathered_bytes = 0
        return joined(gathered)

    def must_keep(self, messages: Messages) -> bool:
        """Whether a confirm of such messages waits for the disk."""
        return self.definition.durable and messages.is_persistent

    def room(self, body_bytes: int) -> int:
        """The number of further messages of a size that may be published; UNBOUNDED unless overflow rejects publishes.

        What goes straight to a consumer does not count.
        """
        settings = self.settings
        if settings.overflow == DROP_HEAD:
            return UNBOUNDED
        ready, room = self.ready_count + self.gathered_count, UNBOUNDED
        if settings.max_length is not None:
            room = settings.max_length - ready
        if settings.max_length_bytes is not None:
            left = settings.max_length_bytes - self.ready_bytes - self.gathered_bytes
            room = min(room, left // body_bytes if body_bytes else UNBOUNDED if left >= 0 else 0)
        if room <= 0 and self.consumers:
            active = self.consumers.is_active
            room = sum(each.capacity() for each in self.consumers if active(each)) - ready
        return max(0, room)

    def appended(self, first: int, batch: Batch, now_ms: int = 0) -> None:
        """The gathered messages stand in the log, from offset `first` on, in a chunk of `now_ms`."""
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

    def refuse(self, messages: Messages) -> None:
        """Publishes that the queue has no room for are dead-lettered (overflow `reject-publish-dlx`)."""
        if self.settings.dead_letter_exchange is not None:
            self.dying.add(DeadLetters([Run(NOT_STORED, messages)], "maxlen"))

    # -- settling -----------------------------------------------------------------------------

    def settle(self, first: int, count: int, reason: int = Reason.ACKED) -> None:
        """Taken messages are done with: never delivered again once this is logged."""
        if reason == Reason.DEAD_LETTERED:
            self.dying.count -= count
        self._forget_unacked(count)
        self._settle(first, first + count, reason)

    def why_not_settled(self) -> str:
        """See session.amqp091.delivery.Source: what was taken can be settled as long as the queue is here."""
        return ""

    def check_refusable(self) -> None:
        """Refuse nack and reject where a queue of this kind does not take them (Unsupported)."""

    def reject(self, first: int, count: int) -> None:
        """Taken messages are refused for good: dead-lettered at the next dispatch, or dropped."""
        if self.settings.dead_letter_exchange is None:
            self.settle(first, count, Reason.DROPPED)
        else:
            self.dying.declare_dead(first, first + count, "rejected")

    def _settle(self, first: int, end: int, reason: int) -> None:
        self.settled.add(first, end)
        self.returns.forget(first, end)
        settling = self.settling
        if settling and settling[-1][2] == first and settling[-1][0] == reason:
            settling[-1][2] = end
        else:
            settling.append([reason, first, end])

    def _forget_unacked(self, count: int) -> int:
        """Fewer messages are unacked; return how many octets they had, as an average."""
        size = self.unacked_bytes * count // self.unacked_count if self.unacked_count > 0 else 0
        self.unacked_count -= count
        self.unacked_bytes -= size
        return size

    def logged_settlement(self, offset: int) -> None:
        """A settlement record stands at `offset`; it is no message."""
        self.backlog.pass_record(offset)

    def drop_ready(self, reason: int) -> int:
        """Settle every ready message (purge, deletion); return how many."""
        dropped = 0
        # If nothing is unacked, all that is not settled is ready, in fewer ranges.
        are_all = self.unacked_count == 0
        ready = self.settled.gaps(0, self.next_offset) if are_all else self.backlog.ready_ranges()
        for first, end in list(ready):
            self._settle(first, end, reason)
            dropped += end - first
        self.backlog.clear()
        self._unsized.clear()
        self.ready_bytes = 0
        return dropped

    def requeue(self, first: int, count: int) -> None:
        """Taken messages come back to their place and count as redelivered."""
        size = self._forget_unacked(count)
        if self.settings.max_length_bytes is None:
            self.ready_bytes += size
        else:
            self._unsized.append((first, first + count))
        self.backlog.put_back(first, first + count)

    # -- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """Register a consumer; the next dispatch serves it."""
        self.consumers.add(consumer)
        self.touch()

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Forget a consumer; what it holds stays unacked until its channel says so."""
        if self.consumers.remove(consumer):
            self.touch()

    # -- use ----------------------------------------------------------------------------------

    def touch(self) -> None:
        """Somebody used the queue: its `expires` begins anew at the next dispatch."""
        self._used_ms = None

    def is_unused(self, now_ms: int) -> bool:
        """Whether nobody used the queue for as long as its `expires` says."""
        expires_ms = self.settings.expires_ms
        if expires_ms is None or self.consumers or self._used_ms is None:
            return False
        return now_ms - self._used_ms >= expires_ms

    # -- dispatch -----------------------------------------------------------------------------

    def dispatch(self, now_ms: int = 0) -> None:
        """Do all that is due: expire, hand out, give way, and say when to come again.

        What was published since the last dispatch is offered to consumers once before it may expire, so that a
        time to live of 0 means "now or never".
        """
        if self.pending_returns:
            # Its end marks the queue.
            self.deadline_ms = None
            return
        self._now_ms = now_ms
        self._dropped = 0
        if self._used_ms is None or self.consumers:
            self._used_ms = now_ms
        if self.dying.condemned:
            self.dying.add_condemned(self.backlog.find)
        if self.backlog.unsorted and self.backlog.sort_some():
            # Which message is the first is not known yet.
            self.deadline_ms = now_ms
            return
        if not self._count_bytes():
            # How many have to give way is not known yet.
            self.deadline_ms = now_ms
            return
        if self.may_expire:
            self.expire(now_ms, self._offered)
        self._deal()
        if not self._deals_on:
            # What was not offered yet is neither too old nor too much.
            self._offered = self.next_offset
            if self.may_expire:
                self.expire(now_ms, self.next_offset)
            self.give_way()
            if self.may_expire:
                # What stood behind what gave way may be too old.
                self.expire(self._now_ms, self.next_offset)
        self._set_deadline()

    def _deal(self) -> None:
        """Hand out ready messages, oldest first, in turns, until none is left, nobody takes more, or it is enough."""
        dealt, self._deals_on = 0, False
        share = turns_left = 0
        ready = self.ready_count
        while ready > 0 and (turn := self.consumers.next()) is not None:
            if dealt >= DEALT_AT_ONCE:
                self._deals_on = True
                return
            consumer, capacity, willing_count = turn
            if not turns_left:
                share, turns_left = _share_of(ready, willing_count), willing_count
            turns_left -= 1
            read_before = self.backlog.runs_read
            runs = self._deal_to(consumer, min(capacity, share, DEALT_AT_ONCE))
            if not runs:
                return
            self.consumers.had_turn(consumer)
            # To find those of one priority, many more may have been read.
            read = self.backlog.runs_read - read_before - len(runs)
            dealt += sum(map(_cost_of, runs)) + max(0, read) * RUN_COSTS
            ready = self.ready_count if self.may_expire else ready - count_of(runs)

    def _deal_to(self, consumer: QueueConsumer, share: int) -> list[Run]:
        """Hand a consumer its share; none if nothing may be handed out now."""
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

    def _set_deadline(self) -> None:
        self.deadline_ms = None
        if self._dropped_enough or self._deals_on or self.returns.is_much_unlogged:
            self.deadline_ms = self._now_ms
            return
        if not self.may_expire and self.settings.expires_ms is None:
            return
        deadlines: list[int] = []
        if self.may_expire and (head := self.backlog.head()) is not None:
            head_deadline_ms = self._deadline_of(head[0])
            if head_deadline_ms is not None:
                deadlines.append(head_deadline_ms)
        if self.settings.expires_ms is not None and not self.consumers and self._used_ms is not None:
            deadlines.append(self._used_ms + self.settings.expires_ms)
        self.deadline_ms = min(deadlines, default=None)

    # -- expiry, limits, dead letters ---------------------------------------------------------

    @property
    def _dropped_enough(self) -> bool:
        """Whether as many expired or gave way as may in one dispatch; the next goes on."""
        return self._dropped >= DROPPED_AT_ONCE or self.dying.is_full

    @property
    def _dropped_together(self) -> int:
        """How many may go in one piece."""
        return DROPPED_AT_ONCE if self.settings.dead_letter_exchange is None else DEAD_AT_ONCE

    def expire(self, now_ms: int, before: int) -> None:
        """Drop or dead-letter messages at the head, below offset `before`, whose time has come (RabbitMQ's rule)."""
        while not self._dropped_enough and (head := self.backlog.head()) is not None:
            run, count = head
            if run.first >= before:
                return
            deadline_ms = self._deadline_of(run)
            if deadline_ms is None or deadline_ms > now_ms:
                return
            runs, _ = self.take(min(count, before - run.first, self._dropped_together))
            self._discard(runs, Reason.EXPIRED, "expired")

    def _is_hindered(self, before: int) -> bool:
        """Whether the first message has expired and stays because enough went for now: nobody may have it."""
        if not self._dropped_enough or (head := self.backlog.head()) is None:
            return False
        deadline_ms = self._deadline_of(head[0])
        return head[0].first < before and deadline_ms is not None and deadline_ms <= self._now_ms

    def _deadline_of(self, run: Run) -> int | None:
        """When these messages expire: the shorter of the queue's and their own time to live.

        In a rehearsal none does by its own: it is to be compared with what was recovered.
        """
        own = None if self._is_rehearsed else run.messages.expiration_ms
        queue = self.settings.message_ttl_ms
        if own is None and queue is None:
            return None
        return run.arrived_ms + min(ttl for ttl in (own, queue) if ttl is not None)

    def _has_expired(self, run: Run) -> bool:
        if not self.may_expire or run.first >= self._offered:
            return False
        deadline_ms = self._deadline_of(run)
        return deadline_ms is not None and deadline_ms <= self._now_ms

    def give_way(self) -> None:
        """Drop from the head what the queue's length limits do not allow."""
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
        """Drop from the first run as many messages as hold so much, but one at least."""
        head = self.backlog.head()
        count = head[0].holding(excess) if head is not None else 1
        self._discard(self.take(min(count, self._dropped_together))[0], Reason.DROPPED, "maxlen")

    def _drop_head(self, count: int) -> None:
        if self.settings.dead_letter_exchange is None and self.settings.max_length_bytes is None:
            self.ready_bytes -= self.ready_bytes * count // self.ready_count
            for first, end in self.backlog.skip(count):
                self._settle(first, end, Reason.DROPPED)
            return
        while count > 0 and not self._dropped_enough:
            runs, _ = self.take(min(count, self._dropped_together))
            if not runs:
                return
            count -= count_of(runs)
            self._discard(runs, Reason.DROPPED, "maxlen")

    def _count_bytes(self) -> bool:
        """Find the exact size of what is ready, from the log, some in each dispatch; whether all of it is known."""
        if self._must_count_bytes:
            self._must_count_bytes = False
            self.ready_bytes, self._unsized = 0, list(self.backlog.ready_ranges())
        counted = 0
        while self._unsized and counted < DROPPED_AT_ONCE:
            first, end = self._unsized[-1]
            run = self.backlog.find(first)
            run = run.cut(first, min(end, run.end))
            self.ready_bytes += run.body_bytes
            counted += _cost_of(run)
            if run.end == end:
                self._unsized.pop()
            else:
                self._unsized[-1] = (run.end, end)
        return not self._unsized

    def _discard(self, runs: list[Run], reason: Reason, death: str) -> None:
        """Taken messages go: to the dead letter exchange if there is one."""
        if self.settings.dead_letter_exchange is not None:
            self.dying.count += count_of(runs)
            self.dying.add(DeadLetters(runs, death))
            return
        for run in runs:
            self._dropped += _cost_of(run)
            self.settle(run.first, len(run), reason)

    def take_one(self, now_ms: int) -> tuple[list[Run], bool]:
        """Take the first ready message that has not expired, none of an empty queue (basic.get)."""
        self._now_ms = now_ms
        self.touch()
        while not self._count_bytes():
            # What is taken before it is measured might be gone by then.
            pass
        if self.may_expire:
            self.expire(now_ms, self.next_offset)
        if not self.ready_count or self._is_hindered(self.next_offset):
            return [], False
        return self.take(1)

    # -- taking -------------------------------------------------------------------------------

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """Take up to `limit` ready messages, oldest first: (runs, whether they are redelivered).

        Messages that came back come first, by themselves.
        """
        runs, redelivered = self.backlog.take(limit)
        size = bytes_of(runs)
        self.unacked_count += count_of(runs)
        self.unacked_bytes += size
        self.ready_bytes -= size
        return runs, redelivered


def _share_of(ready: int, willing_count: int) -> int:
    """How many of the ready messages each of so many consumers is handed in its turn.

    A few are dealt one at a time, as RabbitMQ deals them. Of more each consumer has its part at once: to hand out ten
    messages that follow each other, and to settle them, costs little more than one.
    """
    return ready // willing_count if ready >= DEALT_SINGLY * willing_count or willing_count == 1 else 1


def _cost_of(run: Run) -> int:
    """What it takes to hand out a run, in messages that are alike."""
    return RUN_COSTS + (len(run) if run.messages.head is not None else len(run) * DIFFERENT_COSTS)
