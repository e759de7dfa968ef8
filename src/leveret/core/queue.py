"""A classic queue: a cursor over its log, what is settled, what came back.

The queue keeps no message for its backlog. Its state is three things: `settled` (offsets that are
never delivered again; settlement records count as settled themselves), `cursor` (everything from
here on is ready unless settled) and `returned` (offsets before the cursor that are ready again, and
are delivered as redelivered). `unacked` is what was taken and is neither settled nor returned.

Messages travel in **runs**: bodies that share one `Head` and have consecutive offsets. A window of
runs from the cursor on is held in memory while consumers keep up; what lies behind it is read from
the log when it is wanted (`Reader`), so a backlog costs no memory.

Events are the methods, effects are what they leave behind: `gathered` (runs to append), `settling`
(ranges to log), and calls of `Consumer.deliver`. Nothing here waits.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from leveret.core.offsets import OffsetSet
from leveret.core.queue_settings import QueueSettings
from leveret.model.definitions import Queue as QueueDefinition

WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
WINDOW_IDLE_BYTES_MAX: Final = 256 * 1024
DELIVERY_BYTES_MAX: Final = 1024 * 1024
"""One turn of a consumer at most, so that its socket's back-pressure is felt in time."""


class Head:
    """What messages of one shape share: all of a stored message but its body.

    `entry` precedes each body in a chunk (length and message head); `route` is exchange and routing
    key as two short strings; `header` the content header payload. `frames` is for the session, which
    caches what it puts before a body here, by channel.
    """

    __slots__ = ("body_bytes", "entry", "frames", "header", "persistent", "route")

    def __init__(self, entry: bytes, route: bytes, header: bytes, body_bytes: int, persistent: bool) -> None:
        """Take the encoded parts; see the class."""
        self.entry = entry
        self.route = route
        self.header = header
        self.body_bytes = body_bytes
        self.persistent = persistent
        self.frames: dict[int, bytes] = {}


class Run:
    """Bodies of one head at consecutive offsets from `first` on."""

    __slots__ = ("bodies", "first", "head")

    def __init__(self, first: int, head: Head, bodies: list[bytes]) -> None:
        """Take a list that is the run's own from now on."""
        self.first = first
        self.head = head
        self.bodies = bodies

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.first + len(self.bodies)


class Consumer(Protocol):
    """Who takes messages; the session's side of a `basic.consume`."""

    no_ack: bool
    exclusive: bool

    def capacity(self) -> int:
        """How many more messages it may be sent now."""

    def queue_deleted(self) -> None:
        """The queue is gone; tell the client if it wants to know."""

    def deliver(self, queue: Queue, runs: Sequence[Run], redelivered: bool) -> None:
        """Take these runs; they are unacked from now on, or settled if `no_ack`."""


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
        self.next_offset = 0
        self.cursor = 0
        self.settled = OffsetSet()
        self.unacked_count = 0
        self.returned: list[int] = []
        self.consumers: list[Consumer] = []
        self.had_consumer = False
        self.gathered: list[tuple[Head, list[bytes]]] = []
        self.settling: list[list[int]] = []
        self.sequences: dict[bytes, int] = {}
        self.unlogged_sequences: dict[bytes, int] = {}
        self.damage: str | None = None
        self.published_total = 0
        self.settled_total = 0
        self._read = read
        self._window: deque[Run] = deque()
        self._window_bytes = 0
        self._turn = 0
        self._reread: list[Run] = []

    def configure(self, settings: QueueSettings) -> None:
        """Take effective settings, at declaration and when a policy changed them."""
        self.settings = settings

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
    def consumer_count(self) -> int:
        """Consumers that are registered."""
        return len(self.consumers)

    def restore(self, first_offset: int, next_offset: int, settled: OffsetSet) -> None:
        """Take the state that a scan of the log found; everything unsettled is ready."""
        self.settled = settled
        self.settled.add(0, first_offset)
        self.next_offset = next_offset
        self.cursor = self.settled.floor

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

    def appended(self, first: int, batch: Sequence[tuple[Head, list[bytes]]]) -> None:
        """The gathered messages stand in the log, from offset `first` on."""
        window = self._window
        limit = WINDOW_BYTES_MAX if self.consumers else WINDOW_IDLE_BYTES_MAX
        offset = first
        keep = self._window_reaches(window[-1].end if window else self.cursor, first)
        for head, bodies in batch:
            if keep and self._window_bytes < limit:
                window.append(Run(offset, head, bodies))
                self._window_bytes += len(bodies) * (head.body_bytes + 64)
            else:
                keep = False
            offset += len(bodies)
        self.next_offset = offset
        self.published_total += offset - first

    def _window_reaches(self, end: int, first: int) -> bool:
        """Whether no message lies between the window's end and `first` (settlements do not count)."""
        return end >= first or next(self.settled.gaps(end, first), None) is None

    # -- settling -----------------------------------------------------------------------------

    def settle(self, first: int, count: int) -> None:
        """Taken messages are done with: never delivered again once this is logged."""
        self.unacked_count -= count
        self._settle(first, first + count, 0)
        self.settled_total += count

    def _settle(self, first: int, end: int, reason: int) -> None:
        self.settled.add(first, end)
        settling = self.settling
        if settling and settling[-1][2] == first and settling[-1][0] == reason:
            settling[-1][2] = end
        else:
            settling.append([reason, first, end])

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
        self.returned.clear()
        self.cursor = self.next_offset
        self._forget_window()
        self.settled_total += dropped
        return dropped

    def _ready_ranges(self) -> Iterator[tuple[int, int]]:
        for offset in self.returned:
            yield offset, offset + 1
        yield from self.settled.gaps(self.cursor, self.next_offset)

    def requeue(self, first: int, count: int) -> None:
        """Taken messages come back to their place and count as redelivered."""
        self.unacked_count -= count
        returned = self.returned
        if not returned or returned[-1] < first:
            returned.extend(range(first, first + count))
        else:
            for offset in range(first, first + count):
                insort(returned, offset)

    # -- consuming ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Register a consumer; the next dispatch serves it."""
        self.consumers.append(consumer)
        self.had_consumer = True

    def remove_consumer(self, consumer: Consumer) -> None:
        """Forget a consumer; what it holds stays unacked until its channel says so."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    def dispatch(self) -> None:
        """Hand out ready messages, oldest first, in turns, until none is left or nobody may take more."""
        while True:
            willing = [consumer for consumer in self.consumers if consumer.capacity() > 0]
            if not willing or not self.ready_count:
                return
            consumer = willing[self._turn % len(willing)]
            self._turn += 1
            # A few messages are dealt one at a time, as RabbitMQ deals them; a backlog in ever smaller shares.
            share = self.ready_count if len(willing) == 1 else self.ready_count // (4 * len(willing)) or 1
            runs, redelivered = self.take(min(consumer.capacity(), share))
            if not runs:
                return
            consumer.deliver(self, runs, redelivered)
            if consumer.no_ack:
                for run in runs:
                    self.settle(run.first, len(run.bodies))

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """Take up to `limit` ready messages, oldest first: (runs, whether they are redelivered).

        Returned messages older than the cursor come first, by themselves.
        """
        if self.returned:
            runs = self._take_returned(limit)
            redelivered = True
        else:
            runs = self._take_window(limit)
            redelivered = False
        self.unacked_count += sum(len(run.bodies) for run in runs)
        return runs, redelivered

    def _take_returned(self, limit: int) -> list[Run]:
        taken: list[Run] = []
        size = 0
        for offset in self.returned[:limit]:
            run = self._find(offset)
            body = run.bodies[offset - run.first]
            if taken and taken[-1].end == offset and taken[-1].head is run.head:
                taken[-1].bodies.append(body)
            else:
                taken.append(Run(offset, run.head, [body]))
            size += len(body)
            if size >= DELIVERY_BYTES_MAX:
                break
        del self.returned[: sum(len(run.bodies) for run in taken)]
        return taken

    def _find(self, offset: int) -> Run:
        """The run in the log that holds a message that came back."""
        for run in self._reread:
            if run.first <= offset < run.end:
                return run
        self._reread = self._read(self, offset)
        return self._reread[0]

    def _take_window(self, limit: int) -> list[Run]:
        taken: list[Run] = []
        size = 0
        while limit and size < DELIVERY_BYTES_MAX:
            if not self._window and (taken or not self._fill()):
                # Reading may fail, and what is taken already must not go with it: at most one read, the first.
                break
            run = self._window[0]
            room = max(1, (DELIVERY_BYTES_MAX - size) // (run.head.body_bytes + 1))
            run = self._split(run, min(limit, room))
            taken.append(run)
            count = len(run.bodies)
            limit -= count
            size += count * run.head.body_bytes
            self._window_bytes -= count * (run.head.body_bytes + 64)
            self.cursor = run.end
        return taken

    def _split(self, run: Run, count: int) -> Run:
        """Take `count` messages off the window's first run."""
        if count >= len(run.bodies):
            return self._window.popleft()
        first = Run(run.first, run.head, run.bodies[:count])
        self._window[0] = Run(run.first + count, run.head, run.bodies[count:])
        return first

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
                bodies = run.bodies[first - run.first : end - run.first]
                self._window.append(Run(first, run.head, bodies))
                self._window_bytes += len(bodies) * (run.head.body_bytes + 64)
        return bool(self._window)

    def _forget_window(self) -> None:
        self._window.clear()
        self._window_bytes = 0
