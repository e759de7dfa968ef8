"""The parts of the model of a mirrored queue: copies of a log, the store, links, and the wrong orders of steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

from leveret.core.replication.cluster import Placement, Presence
from leveret.core.rules.mirror_policy import MirrorPolicy
from leveret.wire.chunk import encode_header

WRONG: Final = {
    "recorded before promises wait": "a mirror is recorded as soon as it is in step, and waited for afterwards",
    "promises wait no longer before the record shrinks": "who is to be dropped is waited for no more at once",
    "a record that is not seen does not matter": "a leader decides by a record that it has itself replaced",
    "what was fulfilled stays so": "that a mirror had all is remembered when another set was waited for since",
    "majority by policy": "who asks and who waits goes by the policy, not by the record",
    "a majority shrinks at once": "a mirror is taken out of a record whose mirrors have everything only together",
    "all stay recorded after a majority": "who takes over keeps everybody in the record, whatever they have",
    "hands over to all": "who gets a queue keeps everybody in the record, whatever they have",
    "who is given a queue need not have it": "an operator may give it to a node that is no mirror, or lacks its head",
    "mirrors' acks need no lease": "a promise is told when mirrors have it, whether there is a lease or not",
    "the lease outlives itself": "the store ends a lease that its holder still counts on",
    "served before it was followed": "a leader that comes back confirms before it has looked at the record",
    "looked before it was announced": "what the store held before a node was announced is all it knows when it starts",
    "ends are told before they are synced": "a mirror is asked what it has, and tells what is on no disk",
    "begun anew while recorded": "a mirror that may have to lead begins at the end, and lacks what is before",
    "an older answer counts": "what a mirror told before it heard that it was one again is taken for what it has",
    "a move and a record at once": "a queue is given away while its record is being written",
    "acks before the disk": "a mirror acks what is on no disk",
    "an empty copy leaves nothing on the disk": "a mirror that begins where all is settled has no chunk, and no file",
    "late by the oldest chunk alone": "who led before the oldest chunk that is held is divergent, whatever it has",
    "a damaged copy is put away while it is recorded": "who cannot read its copy begins anew, and is taken to have all",
}


class Violation(AssertionError):
    """An invariant does not hold."""


class Stuck(Violation):
    """The healed model does not reach the expected state."""


class ModelLeaseLost(Exception):  # it is an event of the model, not a fault
    """A node has lost its lease during a task."""


class RequestFailed(Exception):
    """Another node's answer is missing."""


class Record(NamedTuple):
    """A chunk of one record; `settles` is the number of the message that it settles, 0 for a message."""

    epoch: int
    number: int
    settles: int = 0

    def header(self, offset: int) -> bytes:
        """Return the header that core.replication.join compares."""
        return encode_header(0, 1, 1, self.number, self.epoch, offset, self.number, 8)


class ModelLog:
    """A node's copy of the log; the disk has all records before `durable`.

    Attributes:
        ends: by epoch, the end of its records of that epoch (core.queues.chunk_epochs).
        past: the numbers of all records that were ever in it, for the checks.
    """

    def __init__(self, first: int = 0, like: ModelLog | None = None) -> None:
        """Begin empty at `first`; the dropped records before it are those of the log `like`."""
        self.first = first
        self.records: list[Record] = []
        self.durable = first
        self.ends: dict[int, int] = dict(like.ends) if like is not None else {}
        self.past: set[int] = set(like.past) if like is not None else set()

    def append(self, record: Record) -> None:
        """Append a record."""
        self.records.append(record)
        self.ends[record.epoch] = self.end
        self.past.add(record.number)

    def forget_where_it_begins(self) -> None:
        """Reset the begin of an empty log, as an open without a file does."""
        if not self.records:
            self.first = self.durable = 0

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.first + len(self.records)

    @property
    def on_disk(self) -> list[Record]:
        """The records that survive a loss of power."""
        return self.records[: max(0, self.durable - self.first)]

    def extent(self) -> tuple[int, int]:
        """Return the epoch of the last chunk, and the offset after it."""
        return (self.records[-1].epoch if self.records else 0, self.end if self.records else 0)

    def drop(self, first: int) -> None:
        """Remove the records before `first`."""
        if first > self.first:
            del self.records[: first - self.first]
            self.first, self.durable = max(first, self.first), max(first, self.durable)

    def cut(self, at: int) -> None:
        """Remove the records from `at` on."""
        gone = self.records[max(0, at - self.first) :]
        del self.records[max(0, at - self.first) :]
        self.past -= {each.number for each in gone}
        self.ends = {epoch: min(end, self.end) for epoch, end in self.ends.items()}
        self.durable = min(self.durable, self.end)

    def floor(self, records: Iterable[Record]) -> int:
        """Return the first offset that these records do not settle."""
        settled = {each.settles for each in records}
        for index, each in enumerate(self.records):
            if not each.settles and each.number not in settled:
                return self.first + index
        return self.first + len(self.on_disk)


class StoreRequest:
    """A transaction on its way to the store and back."""

    def __init__(
        self,
        node: str,
        incarnation: str,
        holds: Callable[[ModelStore], bool],
        key: str,
        value: Any,
        on_done: Callable[[], None],
    ) -> None:
        """Request that `value` is put at `key` if the condition `holds`."""
        self.node, self.incarnation, self.holds, self.key, self.value = node, incarnation, holds, key, value
        self.on_done = on_done
        self.revision: int | None = None
        self.is_done = self.is_answered = False


class ModelStore:
    """etcd: keys, leases, and all events."""

    def __init__(self, placement: Placement, policy: MirrorPolicy) -> None:
        """Begin without a node."""
        self.revision = 1
        self.modified = 1
        self.placement = placement
        self.policy = policy
        self.alive: dict[str, Presence] = {}
        self.events: list[tuple[str, Any]] = []

    def put(self, key: str, value: Any) -> int:
        """Write a key: `placement`, `policy`, or a node's name, which None deletes."""
        self.revision += 1
        if key == "placement":
            self.placement, self.modified = value, self.revision
        elif key == "policy":
            self.policy = value
        elif value is None:
            del self.alive[key]
        else:
            self.alive[key] = value
        self.events.append((key, value))
        return self.revision


class ModelLink:
    """A link from a mirror to a leader; a cut loses the messages in flight."""

    def __init__(self, mirror: str, leader: str, speed: float) -> None:
        """Begin connected."""
        self.mirror, self.leader, self.speed = mirror, leader, speed
        self.is_up = True
        self.to_leader: deque[tuple[Any, ...]] = deque()
        self.to_mirror: deque[tuple[Any, ...]] = deque()
        self.sent = 0

    def cut(self) -> None:
        """Cut the link; its ends learn of that when they check it."""
        self.is_up = False
        self.to_leader.clear()
        self.to_mirror.clear()


class ModelReport(NamedTuple):
    """The counts of a run."""

    confirmed: int
    promotions: int
    losses: int
    steps: int


Task = Generator[Callable[[], bool], None, Any]
