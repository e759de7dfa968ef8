"""What a follower has beside what the leader has, log by log: decided in core.replication.join, with headers from disk.

A header takes a read of its log's file, so it is done in slices, and all else goes on in between: what is decided
of a log holds for the moment in which it is, and what happens to it later is noted (see catching_up).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from leveret.core.replication.join import (
    Begin,
    Bounds,
    Continue,
    DeleteLog,
    DropBefore,
    Join,
    Probe,
    QuarantineLog,
    Step,
    Truncate,
)
from leveret.model.errors import StorageError
from leveret.storage.tree import Tree
from leveret.wire import link
from leveret.wire.link import LinkError, LogExtent

DEFINITIONS: Final = "definitions"
SLICE_S: Final = 0.01


class Notes(Protocol):
    """Who notes what is to be done, log by log: a catching_up.CatchUpPlan, or what stands in front of one."""

    def go_on(self, name: str, offset: int) -> None:
        """The follower's records up to this offset are the leader's."""

    def begin(self, name: str, offset: int) -> None:
        """The follower has nothing of it that is of use."""

    def cut(self, name: str, offset: int) -> None:
        """The follower's records from this offset on are divergent."""

    def drop(self, name: str, first_offset: int) -> None:
        """The follower's records before this offset are superfluous."""

    def delete(self, name: str) -> None:
        """The leader has deleted the log."""

    def quarantine(self, name: str) -> None:
        """The whole log is divergent."""

    def spare(self, name: str) -> None:
        """The leader cannot read the log."""


def check_name(tree: Tree, name: str) -> None:
    """See that a name from a peer can be one of a log or state file.

    Raises:
        LinkError: it cannot, and might lead out of the data directory.
    """
    try:
        tree.path_of(name)
    except StorageError as error:
        raise LinkError(str(error)) from None


class Reconciliation:
    """One follower's logs; also core.replication.join.LeaderLogs, for what is here."""

    def __init__(
        self,
        tree: Tree,
        plan: Notes,
        extent: Sequence[LogExtent],
        spared: set[str],
        *,
        is_clean: bool,
        unreadable: Callable[[str, StorageError], None],
        ask: Callable[[link.ProbeHeaders], None],
        paths: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Of a follower that has `extent`; `plan` is told what to do.

        Args:
            tree: the leader's.
            plan: notes what the follower lacks, from now on.
            extent: the follower's logs.
            spared: logs that the leader cannot read.
            is_clean: see core.replication.join.
            unreadable: told of another one that the leader cannot read, which is spared then, unless that raises.
            ask: sends a question to the follower, whose answer is for `probed`.
            paths: the logs that the follower is to have; without it all.

        Raises:
            LinkError: a log comes twice.
        """
        self._tree = tree
        self._plan = plan
        self._unreadable = unreadable
        self._ask = ask
        self._paths = paths
        self._join = Join(self, is_clean=is_clean)
        self._is_compared = False
        for path in spared:
            self._join.spare(path)
        # Definitions go first: taken from the end.
        ordered = sorted(extent, key=lambda each: each.path == DEFINITIONS)
        self._due = {each.path: each for each in ordered}
        if len(self._due) < len(extent):
            raise LinkError("a log comes twice in an inventory")
        for path in spared:
            self._due.pop(path, None)

    @property
    def is_over(self) -> bool:
        """Whether all is decided."""
        return self._is_compared and not self._join.is_probing

    def is_undecided(self, path: str) -> bool:
        """Whether what the follower has of a log may be divergent, for all that is known: it is not to be deleted."""
        return path in self._due or self._join.is_undecided(path)

    async def run(self, is_closed: Callable[[], bool]) -> None:
        """Compare all logs, once, for as long as the link is not closed.

        Raises:
            LeveretError: the follower told what cannot be, or the leader is nothing without a log it cannot read.
        """
        if self._is_compared:
            return
        until_s = time.perf_counter() + SLICE_S
        while self._due and not is_closed():
            path, extent = self._due.popitem()
            with self._sparing(path):
                self._compare(extent)
            if time.perf_counter() >= until_s:
                await asyncio.sleep(0)
                until_s = time.perf_counter() + SLICE_S
        if not is_closed():
            self._take(self._join.rest())
            self._is_compared = True

    def _compare(self, extent: LogExtent) -> None:
        if extent.path not in self._tree.logs:
            check_name(self._tree, extent.path)
        steps = self._join.compare(extent)
        if extent.path == DEFINITIONS and any(not isinstance(step, Continue | DropBefore) for step in steps):
            # That a log is gone is the definitions' word. If the follower's do not lead to this node's, it
            # is this node that lost something: it came back from an old copy, or with nothing.
            self._join.doubt()
        self._take(steps)

    def probed(self, found: link.Headers) -> None:
        """The follower's answer.

        Raises:
            PeerError: it is none.
        """
        with self._sparing(found.path):
            self._take(self._join.probed(found.path, found.headers))

    @contextmanager
    def _sparing(self, path: str) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self._unreadable(path, error)
            self._plan.spare(path)

    def _take(self, steps: list[Step]) -> None:
        plan = self._plan
        for step in steps:
            match step:
                case Continue(path, at):
                    plan.go_on(path, at)
                case Begin(path, at):
                    plan.begin(path, at)
                case Truncate(path, at):
                    plan.cut(path, at)
                case DropBefore(path, at):
                    plan.drop(path, at)
                case DeleteLog(path):
                    plan.delete(path)
                case QuarantineLog(path):
                    plan.quarantine(path)
                case Probe(path, before, chunks_max):
                    self._ask(link.ProbeHeaders(path, before, chunks_max))

    # -- what is here: core.replication.join.LeaderLogs -------------------------------------------------------

    def paths(self) -> Iterable[str]:
        """See core.replication.join.LeaderLogs."""
        return list(self._tree.logs if self._paths is None else self._paths())

    def bounds(self, path: str) -> Bounds | None:
        """See core.replication.join.LeaderLogs."""
        log = self._tree.logs.get(path)
        return None if log is None else Bounds(log.first_offset, log.next_offset)

    def header_at(self, path: str, chunk_id: int) -> bytes | None:
        """See core.replication.join.LeaderLogs. Raises StorageError."""
        for header, octets in self._tree.logs[path].headers_before(chunk_id + 1, 1):
            return octets if header.chunk_id == chunk_id else None
        return None
