"""The logs of one scope on their way to one peer: compared with its copies, read from disk, then live.

core.replication.sender says in which phase a scope is; each step here does some of what its phase is for. A whole node
(sent_node) and one log of a cluster (mirroring.mirror_stream) are such scopes. They differ in what follows from a
comparison, in what is little enough to be sent in one turn, and in how they go live.

A comparison is decided log by log in core.replication.join, with headers from disk. A header takes a read of its log's
file, so it is done in slices, and all else goes on in between: a decision holds for the moment in which it is made,
and what happens to the log later is noted (catching_up).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from leveret.core.replication.join import Bounds, Continue, DropBefore, Join, Probe, Step
from leveret.core.replication.sender import SendEvent, SendPhase
from leveret.core.replication.sync_pace import SyncPace
from leveret.model.errors import StorageError
from leveret.runtime.replication.catching_up import CatchUpPlan
from leveret.runtime.replication.progress import SynchronisingProgress
from leveret.runtime.replication.sending_link import SendingLink
from leveret.storage.tree import Tree
from leveret.wire import link as wire
from leveret.wire.link import Frame, LinkError, LogExtent

DEFINITIONS: Final = "definitions"
SLICE_S: Final = 0.01


def check_name(tree: Tree, name: str) -> None:
    """See that a name from a peer can be one of a log or state file.

    Raises:
        LinkError: it cannot, and might lead out of the data directory.
    """
    try:
        tree.path_of(name)
    except StorageError as error:
        raise LinkError(str(error)) from None


class SentLogs(ABC):
    """See the module; also sending_link.SteppedScope, and core.replication.join.LeaderLogs for what is here.

    Attributes:
        link: the connection to the peer.
        tree: the leader's.
        scope: how far it is.
        plan: what the peer lacks.
        pace: of what is read from disk for the peer.
        progress: since it was known what the peer lacks.
        verdict: the result of the comparison, as far as it goes.
    """

    def __init__(
        self,
        link: SendingLink,
        name: str,
        tree: Tree,
        pace: SyncPace,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Nothing is compared; `numbers` are those that logs may get in frames, see CatchUpPlan."""
        self.link = link
        self.tree = tree
        self.scope = link.sender.begin(name)
        self.pace = pace
        self.progress = SynchronisingProgress()
        self.verdict = SendEvent.COMPARED
        self._numbers = numbers
        self.plan = self._lacks({})
        self._due: dict[str, LogExtent] = {}
        self._join = Join(self, is_clean=False)
        self._is_compared = False

    def _lacks(self, sent: dict[str, int]) -> CatchUpPlan:
        return CatchUpPlan(self.tree, sent, self.spared(), self.unreadable, self._numbers)

    # -- what differs -------------------------------------------------------------------------

    @abstractmethod
    def paths(self) -> Iterable[str]:
        """The names of the logs that the peer is to have; see core.replication.join.LeaderLogs."""

    @abstractmethod
    def spared(self) -> set[str]:
        """The logs that this node cannot read: nothing of them is sent."""

    @abstractmethod
    def unreadable(self, name: str, error: StorageError) -> None:
        """This node cannot read one of the logs, which is spared from now on; unless that raises."""

    def revised(self, step: Step) -> Step | None:
        """The step to take in place of one that the comparison has led to; None for none."""
        return step

    def compared(self) -> None:
        """The comparison has its verdict."""
        self.scope.happens(self.verdict)

    def noted(self) -> None:
        """It is known what the peer lacks."""
        self.progress.total_bytes = self.plan.bytes_left()

    @property
    @abstractmethod
    def step_bytes(self) -> int:
        """Read and sent in one turn of the loop."""

    @property
    @abstractmethod
    def limit_bytes_s(self) -> int:
        """Most that is read from disk for the peer in a second; 0 for no limit."""

    @property
    def batch_records(self) -> int:
        """Most records that are sent in one step."""
        return 1 << 62

    @property
    def is_paced(self) -> bool:
        """Whether the limit is for what is sent next."""
        return self.scope.phase is SendPhase.CATCHING_UP

    @abstractmethod
    def is_little(self) -> bool:
        """Whether so little is missing that it is sent in one turn of the loop."""

    @abstractmethod
    def cut(self) -> None:
        """Send what was appended since the last cut."""

    @abstractmethod
    def send(self, frame: Frame) -> None:
        """Send what was read from disk."""

    @abstractmethod
    def go_live(self) -> None:
        """All was sent: from here on each cut is."""

    # -- comparing ----------------------------------------------------------------------------

    def compare(self, extents: Sequence[LogExtent], *, is_clean: bool) -> None:
        """Begin to compare what the peer has; from now on what changes is noted.

        Raises:
            LinkError: a log comes twice.
        """
        spared = self.spared()
        self.plan = self._lacks({})
        self.verdict = SendEvent.COMPARED
        self._join = Join(self, is_clean=is_clean)
        for path in spared:
            self._join.spare(path)
        # Definitions go first: taken from the end.
        ordered = sorted(extents, key=lambda each: each.path == DEFINITIONS)
        self._due = {each.path: each for each in ordered}
        if len(self._due) < len(extents):
            raise LinkError("a log comes twice in an inventory")
        for path in spared:
            self._due.pop(path, None)
        self._is_compared = False

    def is_undecided(self, path: str) -> bool:
        """Whether what the peer has of a log may be divergent, for all that is known: it is not to be deleted."""
        return path in self._due or self._join.is_undecided(path)

    async def _compare_all(self) -> bool:
        """Compare all logs, once; whether all is decided.

        Raises:
            LeveretError: the peer told what cannot be, or this node is nothing without a log that it cannot read.
        """
        until_s = time.perf_counter() + SLICE_S
        while self._due and not self.is_ended:
            path, extent = self._due.popitem()
            with self._sparing(path):
                self._compare(extent)
            if time.perf_counter() >= until_s:
                await asyncio.sleep(0)
                until_s = time.perf_counter() + SLICE_S
        if not self._is_compared and not self.is_ended:
            self._take(self._join.rest())
            self._is_compared = True
        return self._is_compared and not self._join.is_probing and not self.is_ended

    def _compare(self, extent: LogExtent) -> None:
        if extent.path not in self.tree.logs:
            check_name(self.tree, extent.path)
        steps = self._join.compare(extent)
        if extent.path == DEFINITIONS and any(not isinstance(step, Continue | DropBefore) for step in steps):
            # That a log is gone is the definitions' word. If the peer's do not lead to this node's, it is this node
            # that lost something: it came back from an old copy, or with nothing.
            self._join.doubt()
        self._take(steps)

    def probed(self, found: wire.Headers) -> None:
        """The peer's answer.

        Raises:
            PeerError: it is none, or is not due.
        """
        if self.scope.phase is not SendPhase.COMPARING:
            raise LinkError(f"headers of log {found.path!r:.300} came that were not asked for")
        with self._sparing(found.path):
            self._take(self._join.probed(found.path, found.headers))
        self.link.wake(self)

    @contextmanager
    def _sparing(self, path: str) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self.unreadable(path, error)
            self.plan.spare(path)

    def _take(self, steps: Iterable[Step]) -> None:
        for decided in steps:
            match step := self.revised(decided):
                case None:
                    pass
                case Probe(path, before, chunks_max):
                    self.link.ask(wire.ProbeHeaders(path, before, chunks_max))
                case _:
                    self.plan.take(step)

    def bounds(self, path: str) -> Bounds | None:
        """See core.replication.join.LeaderLogs."""
        log = self.tree.logs.get(path)
        return None if log is None else Bounds(log.first_offset, log.next_offset)

    def header_at(self, path: str, chunk_id: int) -> bytes | None:
        """See core.replication.join.LeaderLogs. Raises StorageError."""
        for header, octets in self.tree.logs[path].headers_before(chunk_id + 1, 1):
            return octets if header.chunk_id == chunk_id else None
        return None

    # -- steps: sending_link.SteppedScope -----------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """See sending_link.SteppedScope."""
        return self.scope.phase is SendPhase.ENDED or self.link.peer.is_closed

    def wait_ms(self, now_ms: int) -> int:
        """See sending_link.SteppedScope."""
        return self.pace.wait_ms(self.limit_bytes_s, now_ms) if self.is_paced else 0

    async def step(self, now_ms: Callable[[], int]) -> bool:
        """See sending_link.SteppedScope."""
        match self.scope.phase:
            case SendPhase.COMPARING:
                if not await self._compare_all():
                    return False
                self.compared()
                return True
            case SendPhase.QUARANTINING:
                self.send(self.plan.step(self.step_bytes))
                return False
            case SendPhase.CATCHING_UP if not self.plan.is_noted:
                await self.plan.note_all(self.paths())
                self.noted()
                return True
            case SendPhase.CATCHING_UP:
                self._catch_up(now_ms)
                return True
            case _:
                return False

    def _catch_up(self, now_ms: Callable[[], int]) -> None:
        if self.link.is_congested:
            return
        if not self.is_little():
            self._send_step(now_ms)
            return
        # What was appended and not cut is on disk, and sent from there: no later frame may have it too.
        self.cut()
        while not self.plan.is_nothing and not self.is_ended:
            self._send_step(now_ms)
        if not self.is_ended:
            self.go_live()
            self.plan = self._lacks({})

    def _send_step(self, now_ms: Callable[[], int]) -> None:
        is_paced, limit = self.is_paced, self.limit_bytes_s
        # What may be sent in a second is sent at once, at most.
        frame = self.plan.step(min(self.step_bytes, limit or self.step_bytes), self.batch_records)
        self.send(frame)
        if is_paced:
            self.pace.sent(frame.octets, now_ms())

    def goes_back(self, cut: int, *, has: int, end: int) -> None:
        """Everything up to that cut is on its way; from here on the peer is sent what follows from disk again."""
        self.plan = self._lacks({name: self.tree.logs[name].next_offset for name in self.paths()})
        self.scope.falls_behind(cut, has=has, end=end)
        self.link.sender.waits(self.scope)
        self.link.wake(self)
