"""A classic queue: a cursor over its log, what is settled, what came back.

The queue keeps no message for its backlog. Its state is three things: `settled` (offsets that are
never delivered again; settlement records count as settled themselves), `cursor` (everything from
here on is ready unless settled) and `returned` (offsets before the cursor that are ready again, and
are delivered as redelivered). `unacked` is what was taken and is neither settled nor returned.

Messages travel in runs (`core.head`). A window of runs from the cursor on is held in memory while
consumers keep up; what lies behind it is read from the log when it is wanted (`Reader`), so a
backlog costs no memory.

Events are the methods, effects are what they leave behind: `gathered` (runs to append), `settling`
(ranges to log), `dead` (messages to publish elsewhere before they are settled here), `deadline_ms`
(when `dispatch` wants to be called though nothing happened), and calls of `Consumer.deliver`.
Nothing here waits, and time is what `dispatch` is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from leveret.core.counters import Counters
from leveret.core.head import Head, Run, bytes_of, count_of
from leveret.core.offsets import OffsetSet
from leveret.core.queue_settings import DROP_HEAD, QueueSettings
from leveret.core.ranges import Ranges
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.reasons import Reason

__all__ = ["Consumer", "DeadLetters", "Head", "Queue", "Reader", "Run"]

WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
WINDOW_IDLE_BYTES_MAX: Final = 256 * 1024
DELIVERY_BYTES_MAX: Final = 1024 * 1024
"""One turn of a consumer at most, so that its socket's back-pressure is felt in time."""
DEAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Dead letters of one dispatch, about; the next goes on, so that a whole backlog may die without filling memory."""
NOT_STORED: Final = -1
"""First offset of a run that never stood in the log: refused at its publish, and dead-lettered."""
RUN_OVERHEAD_BYTES: Final = 64
DEATH_BYTES: Final = 1024
"""What burying one run costs beside its bodies, so that many heads in one dispatch do not hold up the node."""
UNBOUNDED: Final = 1 << 62
"""Room of a queue that takes whatever comes."""


class Consumer(Protocol):
    """Who takes messages; the session's side of a `basic.consume`."""

    no_ack: bool
    exclusive: bool
    priority: int

    def capacity(self) -> int:
        """How many more messages it may be sent now."""

    def queue_deleted(self) -> None:
        """The queue is gone; tell the client if it wants to know."""

    def deliver(self, queue: Queue, runs: Sequence[Run], redelivered: bool) -> None:
        """Take these runs; they are unacked from now on, or settled if `no_ack`."""


class DeadLetters(NamedTuple):
    """Messages that are to be published to the dead letter exchange; unacked here until they are safe there.

    `done` are queues that took them already, when others could not.
    """

    runs: list[Run]
    reason: str
    done: frozenset[Queue] = frozenset()


Reader = Callable[["Queue", int], list[Run]]
"""(queue, offset) -> runs at and after the offset, from the log; messages only, ascending."""


class Queue:
    """One queue's decisions; see the module."""

    def __init__(self, definition: QueueDefinition, read: Reader) -> None:
        """An empty queue; `restore` gives it what its log holds."""
        self.definition = definition
        self.key = definition.key
        self.name_octets = definition.name.encode()
        self.epoch = definition.epoch
        self.owner: object | None = None
        self.replicated = False
        self.policy: str | None = None
        self.settings = QueueSettings()
        self.counters = Counters()
        self.next_offset = 0
        self.cursor = 0
        self.settled = OffsetSet()
        self.unacked_count = 0
        self.ready_bytes = 0
        self.unacked_bytes = 0
        self.returned = Ranges()
        self.consumers: list[Consumer] = []
        self.active_consumer: Consumer | None = None
        self.is_single_active = definition.arguments.get("x-single-active-consumer") is True
        self.had_consumer = False
        self.gathered: list[tuple[Head, list[bytes]]] = []
        self.gathered_count = 0
        self.gathered_bytes = 0
        self.settling: list[list[int]] = []
        self.dead: list[DeadLetters] = []
        self._dead_bytes = 0
        self.deadline_ms: int | None = None
        self.may_expire = False
        self.sequences: dict[bytes, int] = {}
        self.unlogged_sequences: dict[bytes, int] = {}
        self.damage: str | None = None
        self.published_total = 0
        self.settled_total = 0
        self._read = read
        self._window: deque[Run] = deque()
        self._window_bytes = 0
        self._reread: list[Run] = []
        self._turn = 0
        self._now_ms = 0
        self._offered = 0
        self._rejected: deque[tuple[int, int, str]] = deque()
        self._unsized: list[tuple[int, int]] = []
        self._used_ms: int | None = None
        self._must_count_bytes = False

    def configure(self, settings: QueueSettings) -> None:
        """Take effective settings, at declaration and when a policy changed them."""
        if settings.max_length_bytes is not None and self.settings.max_length_bytes is None:
            self._must_count_bytes = bool(self.ready_count)
        if settings.expires_ms != self.settings.expires_ms:
            self.touch()
        self.settings = settings
        self.may_expire = self.may_expire or settings.message_ttl_ms is not None

    # -- what is there ------------------------------------------------------------------------

    @property
    def message_count(self) -> int:
        """Ready and unacked."""
        return self.settled.count_missing(self.next_offset)

    @property
    def ready_count(self) -> int:
        """Messages that a consumer could get now."""
        return self.message_count - self.unacked_count

    @property
    def message_bytes(self) -> int:
        """Octets of the bodies held; an estimate after a restart and among bodies of different sizes."""
        return max(0, self.ready_bytes) + self.unacked_bytes if self.message_count else 0

    @property
    def is_behind(self) -> bool:
        """Whether there are consumers, and more is ready than is held in memory for them."""
        return (
            bool(self.consumers)
            and self.ready_bytes + self.ready_count * RUN_OVERHEAD_BYTES > WINDOW_BYTES_MAX
        )

    @property
    def window_bytes(self) -> int:
        """Octets of messages held in memory, about: those to be handed out soon, and those to be appended."""
        return self._window_bytes + self.gathered_bytes

    @property
    def front_head(self) -> Head | None:
        """What the first message at the cursor is under; None if it is not in memory."""
        return self._window[0].head if self._window and not self.returned.count else None

    @property
    def consumer_count(self) -> int:
        """Consumers that are registered."""
        return len(self.consumers)

    def restore(self, first_offset: int, next_offset: int, settled: OffsetSet, body_bytes: int = 0) -> None:
        """Take the state that a scan of the log found; everything unsettled is ready.

        `body_bytes` is what the bodies of all unsettled messages hold, about.
        """
        self.settled = settled
        self.settled.add(0, first_offset)
        self.next_offset = self._offered = next_offset
        self.cursor = self.settled.floor
        self.ready_bytes = body_bytes
        self._must_count_bytes = self.settings.max_length_bytes is not None

    # -- publishing ---------------------------------------------------------------------------

    def advance_sequence(self, reference: bytes, sequence: int) -> None:
        """What is gathered now includes a publisher's messages up to `sequence` (deduplication)."""
        self.unlogged_sequences[reference] = sequence

    def gather(self, head: Head, bodies: list[bytes]) -> None:
        """Take messages to be appended at the next flush; the list may be shared between queues."""
        gathered = self.gathered
        if gathered and gathered[-1][0] is head:
            gathered[-1] = (head, gathered[-1][1] + bodies)
        else:
            gathered.append((head, bodies))
        self.gathered_count += len(bodies)
        self.gathered_bytes += len(bodies) * head.body_bytes

    def take_gathered(self) -> list[tuple[Head, list[bytes]]]:
        """What is to be appended, once."""
        gathered, self.gathered = self.gathered, []
        self.gathered_count = self.gathered_bytes = 0
        return gathered

    def must_keep(self, head: Head) -> bool:
        """Whether a confirm of such messages waits for the disk."""
        return head.persistent and self.definition.durable

    def room(self, body_bytes: int) -> int:
        """How many more messages of a size may be published; UNBOUNDED but for an overflow that rejects.

        What goes straight to a consumer does not count.
        """
        settings = self.settings
        if settings.overflow == DROP_HEAD:
            return UNBOUNDED
        held, room = self.ready_count + self.gathered_count, UNBOUNDED
        if settings.max_length is not None:
            room = settings.max_length - held
        if settings.max_length_bytes is not None:
            left = settings.max_length_bytes - self.ready_bytes - self.gathered_bytes
            room = min(room, left // body_bytes if body_bytes else UNBOUNDED if left >= 0 else 0)
        if room <= 0 and self.consumers:
            room = sum(each.capacity() for each in self.consumers if self.is_active(each)) - held
        return max(0, room)

    def appended(self, first: int, batch: Sequence[tuple[Head, list[bytes]]], now_ms: int = 0) -> None:
        """The gathered messages stand in the log, from offset `first` on, in a chunk of `now_ms`."""
        window = self._window
        limit = WINDOW_BYTES_MAX if self.consumers else WINDOW_IDLE_BYTES_MAX
        offset = first
        keep = self._window_reaches(window[-1].end if window else self.cursor, first)
        for head, bodies in batch:
            if keep and self._window_bytes < limit:
                window.append(Run(offset, head, bodies, now_ms))
                self._window_bytes += len(bodies) * (head.body_bytes + RUN_OVERHEAD_BYTES)
            else:
                keep = False
            offset += len(bodies)
        self._note_appended(first, offset, batch)

    def _note_appended(self, first: int, end: int, batch: Sequence[tuple[Head, list[bytes]]]) -> None:
        for head, bodies in batch:
            self.ready_bytes += len(bodies) * head.body_bytes
            if head.expiration_ms is not None:
                self.may_expire = True
        self.next_offset = end
        self.published_total += end - first
        self.counters.publish += end - first

    def _window_reaches(self, end: int, first: int) -> bool:
        """Whether no message lies between the window's end and `first` (settlements do not count)."""
        return end >= first or next(self.settled.gaps(end, first), None) is None

    def refuse(self, head: Head, bodies: list[bytes]) -> None:
        """Publishes that the queue has no room for are dead-lettered (overflow `reject-publish-dlx`)."""
        if self.settings.dead_letter_exchange is not None:
            self._bury([Run(NOT_STORED, head, bodies)], "maxlen")

    # -- settling -----------------------------------------------------------------------------

    def settle(self, first: int, count: int, reason: int = Reason.ACKED) -> None:
        """Taken messages are done with: never delivered again once this is logged."""
        self._forget_unacked(count)
        self._settle(first, first + count, reason)

    def check_refusable(self) -> None:
        """Refuse nack and reject where a queue of this kind does not take them (Unsupported)."""

    def reject(self, first: int, count: int) -> None:
        """Taken messages are refused for good: dead-lettered at the next dispatch, or dropped."""
        if self.settings.dead_letter_exchange is None:
            self.settle(first, count, Reason.DROPPED)
        else:
            self._condemn(first, first + count, "rejected")

    def _condemn(self, first: int, end: int, death: str) -> None:
        """Note what the next dispatch is to dead-letter, in runs."""
        rejected = self._rejected
        if rejected and rejected[-1][1:] == (first, death):
            rejected[-1] = (rejected[-1][0], end, death)
        else:
            rejected.append((first, end, death))

    def _settle(self, first: int, end: int, reason: int) -> None:
        self.settled.add(first, end)
        self.settled_total += end - first
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
        self.settled.add(offset, offset + 1)
        self.next_offset = offset + 1
        if self.cursor == offset:
            self.cursor = offset + 1

    def drop_ready(self, reason: int) -> int:
        """Settle every ready message (purge, deletion); return how many."""
        dropped = 0
        for first, end in list(self._ready_ranges()):
            self._settle(first, end, reason)
            dropped += end - first
        self._forget_ready()
        self._unsized.clear()
        self.ready_bytes = 0
        return dropped

    def _ready_ranges(self) -> Iterator[tuple[int, int]]:
        yield from self.returned
        yield from self.settled.gaps(self.cursor, self.next_offset)

    def _forget_ready(self) -> None:
        self.returned.clear()
        self.cursor = self.next_offset
        self._forget_window()

    def requeue(self, first: int, count: int) -> None:
        """Taken messages come back to their place and count as redelivered."""
        size = self._forget_unacked(count)
        if self.settings.max_length_bytes is None:
            self.ready_bytes += size
        else:
            self._unsized.append((first, first + count))
        self._return(first, first + count)

    def _return(self, first: int, end: int) -> None:
        self.returned.add(first, end)

    # -- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Register a consumer, behind those of its priority; the next dispatch serves it."""
        place = len(self.consumers)
        while place and self.consumers[place - 1].priority < consumer.priority:
            place -= 1
        self.consumers.insert(place, consumer)
        self.had_consumer = True
        self.touch()
        if self.active_consumer is None:
            self.active_consumer = consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        """Forget a consumer; what it holds stays unacked until its channel says so."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.touch()
        if consumer is self.active_consumer:
            self.active_consumer = self.consumers[0] if self.consumers else None

    def is_active(self, consumer: Consumer) -> bool:
        """Whether it is served: any, or the one of a queue with a single active consumer."""
        return not self.is_single_active or consumer is self.active_consumer

    def _willing(self) -> list[Consumer]:
        """Consumers of the highest priority that may take something now."""
        willing: list[Consumer] = []
        for consumer in self.consumers:
            if willing and consumer.priority < willing[0].priority:
                break
            if consumer.capacity() > 0 and self.is_active(consumer):
                willing.append(consumer)
        return willing

    @property
    def has_willing_consumer(self) -> bool:
        """Whether somebody may take something now."""
        return bool(self._willing())

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
        self._now_ms = now_ms
        if self._used_ms is None or self.consumers:
            self._used_ms = now_ms
        if self._rejected:
            self._bury_rejected()
        if self._unsized or self._must_count_bytes:
            self._count_bytes()
        if self.may_expire:
            self.expire(now_ms, self._offered)
        self._deal()
        self._offered = self.next_offset
        if self.may_expire:
            self.expire(now_ms, self.next_offset)
        self.give_way()
        self._set_deadline()

    def _deal(self) -> None:
        """Hand out ready messages, oldest first, in turns, until none is left or nobody may take more."""
        willing = self._willing()
        while willing and (ready := self.ready_count) > 0:
            place = self._turn % len(willing)
            consumer = willing[place]
            capacity = consumer.capacity()
            if capacity <= 0:
                del willing[place]
                willing = willing or self._willing()
                continue
            self._turn = place + 1
            # A few messages are dealt one at a time, as RabbitMQ deals them; a backlog in ever smaller shares.
            share = ready if len(willing) == 1 else ready // (4 * len(willing)) or 1
            if self.may_expire:
                self.expire(self._now_ms, self._offered)
                if self._is_held_up(self._offered):
                    return
            runs, redelivered = self.take(min(capacity, share))
            if not runs:
                return
            self._count_delivery(count_of(runs), consumer.no_ack, redelivered)
            consumer.deliver(self, runs, redelivered)
            if consumer.no_ack:
                for run in runs:
                    self.settle(run.first, len(run.bodies))

    def _count_delivery(self, count: int, no_ack: bool, redelivered: bool) -> None:
        counters = self.counters
        if no_ack:
            counters.deliver_no_ack += count
        else:
            counters.deliver += count
        if redelivered:
            counters.redeliver += count

    def _set_deadline(self) -> None:
        deadlines: list[int] = []
        if self._dead_bytes >= DEAD_BYTES_MAX:
            deadlines.append(self._now_ms)
        if self.may_expire and (head := self._head()) is not None:
            head_deadline_ms = self._deadline_of(head[0])
            if head_deadline_ms is not None:
                deadlines.append(head_deadline_ms)
        if self.settings.expires_ms is not None and not self.consumers and self._used_ms is not None:
            deadlines.append(self._used_ms + self.settings.expires_ms)
        self.deadline_ms = min(deadlines, default=None)

    # -- expiry, limits, dead letters ---------------------------------------------------------

    def expire(self, now_ms: int, before: int) -> None:
        """Drop or dead-letter messages at the head, below offset `before`, whose time has come (RabbitMQ's rule)."""
        while self._dead_bytes < DEAD_BYTES_MAX and (head := self._head()) is not None:
            run, count = head
            if run.first >= before:
                return
            deadline_ms = self._deadline_of(run)
            if deadline_ms is None or deadline_ms > now_ms:
                return
            runs, _ = self.take(min(count, before - run.first))
            self._discard(runs, Reason.EXPIRED, "expired")

    def _is_held_up(self, before: int) -> bool:
        """Whether the first message has expired and stays because enough died for now: nobody may have it."""
        if self._dead_bytes < DEAD_BYTES_MAX or (head := self._head()) is None:
            return False
        deadline_ms = self._deadline_of(head[0])
        return head[0].first < before and deadline_ms is not None and deadline_ms <= self._now_ms

    def _deadline_of(self, run: Run) -> int | None:
        """When these messages expire: the shorter of the queue's and their own time to live."""
        own, queue = run.head.expiration_ms, self.settings.message_ttl_ms
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
                and self._dead_bytes < DEAD_BYTES_MAX
            ):
                self._drop_bytes(self.ready_bytes - settings.max_length_bytes)

    def _drop_bytes(self, excess: int) -> None:
        """Drop from the first run as many messages as hold so much, but one at least."""
        head = self._head()
        size = head[0].head.body_bytes if head is not None else 0
        self._discard(self.take(-(-excess // size) if size else 1)[0], Reason.DROPPED, "maxlen")

    def _drop_head(self, count: int) -> None:
        if self.settings.dead_letter_exchange is None and self.settings.max_length_bytes is None:
            self._skip(count)
            return
        while count > 0 and self._dead_bytes < DEAD_BYTES_MAX:
            runs, _ = self.take(count)
            if not runs:
                return
            count -= count_of(runs)
            self._discard(runs, Reason.DROPPED, "maxlen")

    def _skip(self, count: int) -> None:
        """Settle the oldest ready messages without looking at them."""
        self.ready_bytes -= self.ready_bytes * count // self.ready_count
        while count > 0 and self.returned.count:
            first, end = self.returned.take(count)
            self._settle(first, end, Reason.DROPPED)
            count -= end - first
        while count > 0:
            first, end = next(self.settled.gaps(self.cursor, self.next_offset))
            end = min(end, first + count)
            self._settle(first, end, Reason.DROPPED)
            self.cursor = end
            count -= end - first
        while self._window and self._window[0].first < self.cursor:
            run = self._window[0]
            self._split(run, min(self.cursor, run.end) - run.first)

    def _count_bytes(self) -> None:
        """Find the exact size of what is ready, from the log; a queue with such a limit holds little."""
        if self._must_count_bytes:
            ready = list(self._ready_ranges())
            self.ready_bytes = sum(self._bytes_between(first, end) for first, end in ready)
            self._must_count_bytes = False
            self._unsized.clear()
        while self._unsized:
            self.ready_bytes += self._bytes_between(*self._unsized[-1])
            self._unsized.pop()

    def _bytes_between(self, first: int, end: int) -> int:
        return sum(bytes_of([run]) for run in self._each(first, end))

    def _discard(self, runs: list[Run], reason: Reason, death: str) -> None:
        """Taken messages go: to the dead letter exchange if there is one."""
        if self.settings.dead_letter_exchange is not None:
            self._bury(runs, death)
            return
        for run in runs:
            self.settle(run.first, len(run.bodies), reason)

    def _bury(self, runs: list[Run], death: str) -> None:
        self.bury_again(DeadLetters(runs, death))

    def bury_again(self, letters: DeadLetters) -> None:
        """Not every queue could take them: the next dispatch tries once more, with those that are not `done`."""
        runs = letters.runs
        self.dead.append(letters)
        self._dead_bytes += bytes_of(runs) + RUN_OVERHEAD_BYTES * count_of(runs) + DEATH_BYTES * len(runs)

    def take_dead(self) -> list[DeadLetters]:
        """What is to be dead-lettered, once; each message is settled here when it is safe there."""
        dead, self.dead = self.dead, []
        self._dead_bytes = 0
        return dead

    def _bury_rejected(self) -> None:
        """Fetch what is refused for good, to be dead-lettered; not when it was refused, for reading may fail."""
        while self._rejected and self._dead_bytes < DEAD_BYTES_MAX:
            first, end, death = self._rejected[0]
            run = self._find(first)
            run = run.cut(first, min(end, run.end))
            self._bury([run], death)
            if run.end == end:
                self._rejected.popleft()
            else:
                self._rejected[0] = (run.end, end, death)

    def _each(self, first: int, end: int) -> Iterator[Run]:
        """Messages by their offsets, whether ready or not, run by run: there may be more than memory holds."""
        while first < end:
            run = self._find(first)
            yield run.cut(first, min(end, run.end))
            first = run.end

    def take_one(self, now_ms: int) -> tuple[list[Run], bool]:
        """Take the first ready message that has not expired, none of an empty queue (basic.get)."""
        self._now_ms = now_ms
        self.touch()
        if self.may_expire:
            self.expire(now_ms, self.next_offset)
        if not self.ready_count or self._is_held_up(self.next_offset):
            return [], False
        return self.take(1)

    # -- taking -------------------------------------------------------------------------------

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """Take up to `limit` ready messages, oldest first: (runs, whether they are redelivered).

        Returned messages older than the cursor come first, by themselves.
        """
        runs, redelivered = self._take_front(limit)
        size = bytes_of(runs)
        self.unacked_count += count_of(runs)
        self.unacked_bytes += size
        self.ready_bytes -= size
        return runs, redelivered

    def _take_front(self, limit: int) -> tuple[list[Run], bool]:
        if self.returned.count:
            return self._take_ranges(self.returned, limit), True
        return self._take_window(limit), False

    def _head(self) -> tuple[Run, int] | None:
        """The run with the first ready message, cut to it, and how many messages of it are ready."""
        front = self.returned.first()
        if front is not None:
            return self._at_front(front)
        if not self.ready_count or not (self._window or self._fill()):
            return None
        return self._window[0], len(self._window[0].bodies)

    def _at_front(self, front: tuple[int, int]) -> tuple[Run, int]:
        run = self._find(front[0])
        end = min(front[1], run.end)
        return run.cut(front[0], end), end - front[0]

    def _take_ranges(self, ranges: Ranges, limit: int) -> list[Run]:
        """Take messages by offset; a second read of the log may fail, so what is taken before it goes first."""
        taken: list[Run] = []
        size = 0
        while limit and size < DELIVERY_BYTES_MAX and (front := ranges.first()) is not None:
            if taken and self._in_memory(front[0]) is None:
                break
            run = self._find(front[0])
            if taken and self._has_expired(run):
                break
            room = max(1, (DELIVERY_BYTES_MAX - size) // (run.head.body_bytes + 1))
            first, end = ranges.take(min(limit, room, run.end - front[0]))
            taken.append(run.cut(first, end))
            limit -= end - first
            size += (end - first) * run.head.body_bytes
        return taken

    def _in_memory(self, offset: int) -> Run | None:
        at = bisect_right(self._reread, offset, key=_first_of) - 1
        return self._reread[at] if at >= 0 and offset < self._reread[at].end else None

    def _find(self, offset: int) -> Run:
        """The run in the log that holds a message."""
        found = self._in_memory(offset)
        if found is None:
            self._reread = self._read(self, offset)
            found = self._reread[0]
        return found

    def _take_window(self, limit: int) -> list[Run]:
        taken: list[Run] = []
        size = 0
        while limit and size < DELIVERY_BYTES_MAX:
            if not self._window and (taken or not self._fill()):
                # Reading may fail, and what is taken already must not go with it: at most one read, the first.
                break
            run = self._window[0]
            if taken and self._has_expired(run):
                break
            room = max(1, (DELIVERY_BYTES_MAX - size) // (run.head.body_bytes + 1))
            run = self._split(run, min(limit, room))
            taken.append(run)
            count = len(run.bodies)
            limit -= count
            size += count * run.head.body_bytes
            self.cursor = run.end
        return taken

    def _split(self, run: Run, count: int) -> Run:
        """Take `count` messages off the window's first run."""
        count = min(count, len(run.bodies))
        self._window_bytes -= count * (run.head.body_bytes + RUN_OVERHEAD_BYTES)
        if count == len(run.bodies):
            return self._window.popleft()
        self._window[0] = run.cut(run.first + count, run.end)
        return run.cut(run.first, run.first + count)

    def _fill(self) -> bool:
        """Read the window anew from the log at the cursor; tell whether there is anything."""
        self._forget_window()
        gap = next(self.settled.gaps(self.cursor, self.next_offset), None)
        if gap is None:
            self.cursor = self.next_offset
            return False
        self.cursor = gap[0]
        for run in self._read(self, gap[0]):
            for first, end in self.settled.gaps(run.first, run.end):
                self._window.append(run.cut(first, end))
                self._window_bytes += (end - first) * (run.head.body_bytes + RUN_OVERHEAD_BYTES)
        return bool(self._window)

    def _forget_window(self) -> None:
        self._window.clear()
        self._window_bytes = 0


def _first_of(run: Run) -> int:
    return run.first
