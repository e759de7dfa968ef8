"""The transfer of the log to one mirror: runtime.mirroring.mirror_stream and source_link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from leveret.core.replication.join import Begin, Bounds, Continue, DropBefore, Join, Probe, Step, Truncate
from leveret.core.replication.replica_set import Acks
from leveret.testing.mirror_model.environment import ModelCopy
from leveret.testing.mirror_model.parts import ModelLink
from leveret.wire.chunk import decode_header
from leveret.wire.link import LogExtent

Q: Final = "queues/1"


class ModelStream:
    """See the module."""

    def __init__(self, owner: ModelCopy, link: ModelLink, held: LogExtent, followed: int) -> None:
        """Begin for a mirror that has the extent `held`, and has followed the records up to the revision `followed`."""
        self.owner, self.link, self.held, self.followed = owner, link, held, followed
        self.first = held.first_offset
        self.top = 0
        self.next = 0
        self.joined_at = 0
        self.is_live = self.is_joined = self.quarantines = False
        self.begins: list[Step] | None = None
        self.is_decided = False
        self.owed: deque[tuple[int, int]] = deque()
        self.acks = Acks()
        self.is_asked = False
        log = owner.log
        oldest = log.records[0].epoch if log.records else owner.stamp
        theirs = decode_header(held.last).epoch if held.last else 0
        is_late = theirs == oldest
        if not owner.world.is_wrong("late by the oldest chunk alone"):
            is_late = is_late or held.next_offset <= log.ends.get(theirs, 0)
        self.join = Join(self, is_clean=bool(held.last) and is_late)

    def paths(self) -> list[str]:
        """See core.replication.join.LeaderLogs."""
        return [Q]

    def bounds(self, path: str) -> Bounds:
        """See core.replication.join.LeaderLogs."""
        return Bounds(self.owner.log.first, self.owner.log.end)

    def header_at(self, path: str, chunk_id: int) -> bytes:
        """See core.replication.join.LeaderLogs."""
        log = self.owner.log
        return log.records[chunk_id - log.first].header(chunk_id)

    @property
    def is_ready(self) -> bool:
        """Whether the mirror has all records, and its report is not outdated."""
        since = self.owner.since.get(self.link.mirror, 0)
        is_old = self.followed < since and not self.owner.world.is_wrong("an older answer counts")
        return self.is_live and self.is_joined and not self.lacks_head and not is_old

    @property
    def lacks_head(self) -> bool:
        """Whether unsettled records precede the mirror's copy."""
        log = self.owner.log
        return self.first > max(log.first, log.floor(log.records))

    def due(self) -> list[Callable[[], None]]:
        """Return the stream's steps that may happen now."""
        if not self.is_decided and not self.is_asked:
            return [self.compare] if self.begins is None or self._may_begin else []
        if self.is_decided and not self.quarantines and not self.is_live:
            return [self.go_live]
        if self.is_live and self.top > self.owner.log.first and self.lacks_head:
            return [self.send_head]
        return []

    @property
    def _may_begin(self) -> bool:
        """Whether the copy may begin anew: a mirror that is recorded as synchronised keeps its copy."""
        owner = self.owner
        if owner.world.is_wrong("begun anew while recorded"):
            return True
        return self.link.mirror not in owner.placement.synchronised and not owner.unobserved

    def compare(self) -> None:
        """Decide which records the mirror lacks."""
        steps, self.begins = self.begins, None
        if steps is None:
            held = self.held
            steps = self.join.compare(held) if held.last or held.next_offset else self.join.rest()
        self._take(steps)

    def probed(self, headers: Sequence[bytes]) -> None:
        """Take further headers of the mirror's copy."""
        self.is_asked = False
        self._take(self.join.probed(Q, headers))

    def _take(self, steps: list[Step]) -> None:
        if any(isinstance(each, Begin) for each in steps) and not self._may_begin:
            self.begins = steps
            self.owner.is_due = True
            return
        frame: list[tuple[Any, ...]] = []
        for each in steps:
            match each:
                case Continue(_, at):
                    self.next = at
                case Begin(_, _):
                    log = self.owner.log
                    self.first = self.next = self.owner.world.rng.choice((log.first, log.end))
                    self._mark(log.end)
                    frame.append(("begin", self.first))
                case Truncate(_, at):
                    self.quarantines = True
                    self.send([("cut", at)], None)
                    break
                case DropBefore(_, at):
                    self.first = max(self.first, at)
                    frame.append(("drop", at))
                case Probe(_, before, count):
                    self.is_asked = True
                    self.link.to_mirror.append(("probe", before, count))
                    return
        self.is_decided = True
        self.top = self.first
        if frame and not self.quarantines:
            self.send(frame, None)

    def _mark(self, end: int) -> None:
        """Append a record for a copy that begins at the end, so that the copy is not empty."""
        world = self.owner.world
        is_wrong = world.is_wrong("an empty copy leaves nothing on the disk")
        if world.drains and end and self.first == end and not is_wrong:
            self.owner.mark()

    def go_live(self) -> None:
        """Send the missing records; from now on, each change is sent."""
        log = self.owner.log
        if self.next < log.first:
            # The next record to send was dropped meanwhile.
            self.send([("begin", log.first)], None)
            self.first = self.top = self.next = log.first
        self.is_live, self.joined_at = True, log.end
        self.send([("append", at, log.records[at - log.first]) for at in range(self.next, log.end)], log.end)

    def send_head(self) -> None:
        """Send the prefix."""
        log = self.owner.log
        some = log.records[: self.top - log.first]
        self.top = log.first
        self.send([("head", self.top, some)], -self.top - 1)

    def send(self, frame: list[tuple[Any, ...]], end: int | None) -> None:
        """Send a frame; its ack means that the mirror has the log up to `end`, or, if negative, the prefix."""
        if self.link.is_up:
            self.link.sent += 1
            if end is not None:
                self.owed.append((self.link.sent, end))
            self.link.to_mirror.append(("frame", self.link.sent, frame))

    def acked(self, position: int) -> None:
        """Take the mirror's ack: it has all frames up to this position on disk."""
        owner = self.owner
        while self.owed and self.owed[0][0] <= position:
            end = self.owed.popleft()[1]
            if end < 0:
                self.first = min(self.first, max(-end - 1, owner.log.first))
                owner.is_due = True
                continue
            self.acks.cut = end
            if self.is_live and not self.is_joined and end >= self.joined_at:
                self.is_joined = owner.is_due = True
                owner.promises.replicas[Q].joined(self.link.mirror, self.acks, self.joined_at)
            owner.keep(owner.promises.acked(self.link.mirror))
