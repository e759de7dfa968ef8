"""The logs of one scope, sent to one peer: compared with its copies, read from disk, then live.

core.replication.sender has the phase of a scope; each step of this class does a part of the phase's work. A whole node
(sent_node) and one log of a cluster (mirroring.source_stream) are such scopes. They differ in the results of a
comparison, in the amount that is sent in one turn, and in the way to go live.

core.replication.join decides a comparison log by log, with headers from disk. A header takes a read of its log's file,
so the comparison runs in slices, between other work: a decision holds for its moment, and later changes of the log are
noted (catching_up).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Check that a peer's name can name a log or state file.

    Raises:
        LinkError: it cannot, and might lead out of the data directory.
    """
    try:
        tree.path_of(name)
    except StorageError as error:
        raise LinkError(str(error)) from None


class SentLogs(ABC):
    """See the module; also sending_link.SteppedScope, and core.replication.join.LeaderLogs of this node.

    Attributes:
        link: the connection to the peer.
        tree: the leader's tree.
        scope: the account of the scope.
        plan: the missing records of the peer.
        pace: the pace of reading from disk for the peer.
        progress: the progress since the missing records are known.
        verdict: the result of the comparison so far.
    """

    def __init__(
        self,
        link: SendingLink,
        name: str,
        tree: Tree,
        pace: SyncPace,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Start without a comparison; `numbers` yields the numbers of logs in frames, see CatchUpPlan."""
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

    # -- differences of scopes ----------------------------------------------------------------

    @abstractmethod
    def paths(self) -> Iterable[str]:
        """Return the names of the logs that the peer is to have; see core.replication.join.LeaderLogs."""

    @abstractmethod
    def spared(self) -> set[str]:
        """Return the logs that this node cannot read: none of their records is sent."""

    @abstractmethod
    def unreadable(self, name: str, error: StorageError) -> None:
        """Take the error of an unreadable log, which is spared from now on, unless this raises."""

    def revised(self, step: Step) -> Step | None:
        """Return the step to take in place of one of the comparison; None for none."""
        return step

    def skip_closed(self) -> None:
        """Note the logs that are not open when the peer's missing records are noted, and are opened later."""
        return

    def compared(self) -> None:
        """Take the verdict at the end of the comparison."""
        self.scope.happens(self.verdict)

    def noted(self) -> None:
        """Begin the progress, now that all missing records are noted."""
        self.progress.total_bytes = self.plan.bytes_left()

    @property
    @abstractmethod
    def step_bytes(self) -> int:
        """The octets that are read and sent in one turn of the loop."""

    @property
    @abstractmethod
    def limit_bytes_s(self) -> int:
        """The most octets that are read from disk for the peer in a second; 0 for no limit."""

    @property
    def batch_records(self) -> int:
        """The most records that are sent in one step."""
        return 1 << 62

    @property
    def is_paced(self) -> bool:
        """Whether the limit applies to the next step."""
        return self.scope.phase is SendPhase.CATCHING_UP

    @abstractmethod
    def is_little(self) -> bool:
        """Return whether so little is missing that it is sent in one turn of the loop."""

    @abstractmethod
    def cut(self) -> None:
        """Send the records that were appended since the last cut."""

    @abstractmethod
    def send(self, frame: Frame) -> None:
        """Send a frame of records from disk."""

    @abstractmethod
    def go_live(self) -> None:
        """Send each cut from now on, because all missing records were sent."""

    # -- comparison ---------------------------------------------------------------------------

    def compare(self, extents: Sequence[LogExtent], *, is_clean: bool) -> None:
        """Begin to compare the peer's copies; from now on changes of the logs are noted.

        Raises:
            LinkError: a log comes twice.
        """
        spared = self.spared()
        self.plan = self._lacks({})
        self.verdict = SendEvent.COMPARED
        self._join = Join(self, is_clean=is_clean)
        for path in spared:
            self._join.spare(path)
        # `popitem` takes from the end: definitions come first.
        ordered = sorted(extents, key=lambda each: each.path == DEFINITIONS)
        self._due = {each.path: each for each in ordered}
        if len(self._due) < len(extents):
            raise LinkError("a log comes twice in an inventory")
        for path in spared:
            self._due.pop(path, None)
        self._is_compared = False

    def is_undecided(self, path: str) -> bool:
        """Return whether the peer's copy of a log may still prove divergent, and so must not be deleted."""
        return path in self._due or self._join.is_undecided(path)

    async def _compare_all(self) -> bool:
        """Compare all logs, once; return whether all decisions are made.

        Raises:
            LeveretError: the peer's report is impossible, or this node cannot go on without an unreadable log.
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
            # Only definitions delete logs. If the peer's are not a prefix of this node's, this node lost records: it
            # came back from an old copy, or empty.
            self._join.doubt()
        self._take(steps)

    def probed(self, found: wire.Headers) -> None:
        """Take the peer's answer to a `Probe`.

        Raises:
            PeerError: the answer is invalid, or not due.
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

    def ended(self, path: str) -> Mapping[int, int]:
        """See core.replication.join.LeaderLogs. Raises StorageError."""
        return self.tree.logs[path].ends_before_begin()

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
                # Not earlier: since the comparison the peer was asked for headers, and has quarantined.
                self.skip_closed()
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
        # Appended records before the cut are sent from disk: no later frame may contain them again.
        self.cut()
        while not self.plan.is_nothing and not self.is_ended:
            self._send_step(now_ms)
        if not self.is_ended:
            self.go_live()
            self.plan = self._lacks({})

    def _send_step(self, now_ms: Callable[[], int]) -> None:
        is_paced, limit = self.is_paced, self.limit_bytes_s
        # One step sends at most the octets of one second.
        frame = self.plan.step(min(self.step_bytes, limit or self.step_bytes), self.batch_records)
        self.send(frame)
        if is_paced:
            self.pace.sent(frame.octets, now_ms())

    def goes_back(self, cut: int, *, has: int, end: int) -> None:
        """Go back to catching up: everything up to that cut is in flight, and later records are sent from disk."""
        self.plan = self._lacks({name: self.tree.logs[name].next_offset for name in self.paths()})
        self.scope.falls_behind(cut, has=has, end=end)
        self.link.sender.waits(self.scope)
        self.link.wake(self)
