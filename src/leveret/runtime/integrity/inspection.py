"""Inspection of a node's data: comparison with another node, scrub, repair and quarantine.

A scrub in the background begins `interval_ms` after the last one. A state file of this node has the time of the
last scrub, so restarts do not delay the next. Damage that could not be repaired, perhaps because no other node was
connected, is tried again sooner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from leveret.model.errors import LeveretError, NotFound, PreconditionFailed, StorageError
from leveret.runtime.integrity.answers import Answers
from leveret.runtime.integrity.divergent import DivergentParts, divergent_messages, divergent_reports
from leveret.runtime.integrity.inspected_node import InspectedNode
from leveret.runtime.integrity.log_copies import CopyRole, LogCopy, copy_at, copy_of
from leveret.runtime.integrity.peers import InspectedPeer
from leveret.runtime.integrity.scrubbing import Pace, Scrubbed, Scrubber, Stopped
from leveret.runtime.integrity.verifying import Verification
from leveret.runtime.process.work_slices import in_thread_to_its_end
from leveret.storage.quarantine.count import contents
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

FILE: Final = "scrub.json"
BACKGROUND_SHARE: Final = 0.2
"""The share of its time in which a background scrub reads."""
RETRY_MS: Final = 600_000
"""The delay of the first new attempt on remaining damage. It doubles with each further attempt."""
_PUT_OFF_S: Final = 60.0
_LOOK_AGAIN_S: Final = 3600.0
"""The interval of checks: an operator may set the clock by which a scrub is due."""


class _ScrubTimes(msgspec.Struct):
    """Stored times: the schedule of the first scrub, and the end of the last one."""

    since_ms: int = 0
    last_at_ms: int | None = None

    def not_after(self, now_ms: int) -> _ScrubTimes:
        """The same without the future: a clock that was ahead does not put the next scrub off by the difference."""
        return _ScrubTimes(min(self.since_ms, now_ms), self.last_at_ms and min(self.last_at_ms, now_ms))


class _Comparing(NamedTuple):
    """A comparison that runs: with each side, and how many octets it will read in all."""

    work: list[Verification]
    octets_total: int


class Inspection:
    """See the module."""

    def __init__(
        self,
        data_dir: Path,
        node: InspectedNode,
        *,
        clock_ms: Callable[[], int],
        interval_ms: int | None,
    ) -> None:
        """Inspect nothing yet.

        Args:
            data_dir: the directory of the node's tree.
            node: the node.
            clock_ms: the time.
            interval_ms: the interval of scrubs in the background; None for none.
        """
        self._data_dir = data_dir
        self._node = node
        self._clock_ms = clock_ms
        self._interval_ms = interval_ms
        self._answers = Answers(lambda: node.tree, lambda: node.state)
        self._scrubber = Scrubber(node)
        self._file = StateFile(data_dir / FILE)
        self._past = self._load()
        self._total = Scrubbed()
        self._now: Scrubbed | None = None
        self._octets_total = 0
        self._verifying: list[_Comparing] = []
        self._pace: Pace | None = None
        self._unmended: set[str] = set()
        self._divergent_parts = DivergentParts(data_dir)
        self._retry_ms = RETRY_MS
        self._retry_at_ms = 0
        self._error = ""
        self._stops = False

    def stop(self) -> None:
        """End the running work soon, and begin no more."""
        self._stops = True
        if self._pace is not None:
            self._pace.stop()
        self._scrubber.close()

    # -- the other side -----------------------------------------------------------------------

    def answer(self, what: str, about: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of another node, see answering; for a thread.

        Raises:
            LeveretError: there is no answer.
        """
        return self._answers.answer(what, about)

    async def repaired(self) -> None:
        """Wait until no chunk is being repaired: a join that begins may truncate the repaired log."""
        await self._scrubber.repaired()

    # -- comparing ----------------------------------------------------------------------------

    async def verify(self, follower: str | None, deep: bool) -> list[dict[str, Any]]:
        """See management.node.InspectionOperations."""
        peers = [peer for peer in self._node.peers if follower in (None, *self._follower(peer))]
        if not peers and follower is not None:
            raise NotFound(f"no follower '{follower}' is connected")
        work = [
            Verification(self._answers, peer, self._node.name, self._node.queue_of, deep=deep)
            for peer in peers
        ]
        comparing = _Comparing(work, len(work) * self._stored_octets())
        self._verifying.append(comparing)
        try:
            return [row for each in work for row in [row async for row in each.rows()]]
        finally:
            self._verifying.remove(comparing)

    def verify_status(self) -> dict[str, Any]:
        """Return `verify` of the status: of all comparisons that run; see management.node.ReplicationOperations."""
        return {
            "running": bool(self._verifying),
            "octets_done": sum(each.octets_done for one in self._verifying for each in one.work),
            "octets_total": sum(one.octets_total for one in self._verifying),
        }

    def _stored_octets(self) -> int:
        return sum(log.size_bytes for log in list(self._node.tree.logs.values()))

    def _follower(self, peer: InspectedPeer) -> tuple[str, str]:
        """Return name and id of the follower of the two nodes."""
        return (self._node.name, self._node.node_id) if peer.is_leader else (peer.name, peer.node_id)

    # -- scrubbing ----------------------------------------------------------------------------

    async def scrub(self) -> dict[str, Any]:
        """See management.node.InspectionOperations."""
        return (await self._scrub(Pace(1.0), None)).shown()

    async def run(self) -> None:
        """Scrub in the background, for ever."""
        if self._interval_ms is None:
            return
        if not self._past.since_ms:
            await self._remember(_ScrubTimes(self._clock_ms(), self._past.last_at_ms))
        while not self._stops:
            due_s = self._due_ms(self._interval_ms) / 1000
            if due_s > 0:
                await asyncio.sleep(min(due_s, _LOOK_AGAIN_S))
                continue
            is_whole = self._is_whole_due(self._interval_ms)
            try:
                await self._scrub(Pace(BACKGROUND_SHARE), None if is_whole else sorted(self._unmended))
            except Stopped:
                return
            except LeveretError as error:
                logger.warning("scrub_put_off reason=%s", error)
                await asyncio.sleep(_PUT_OFF_S)

    def _whole_at_ms(self, interval_ms: int) -> int:
        past = self._past
        return (past.since_ms if past.last_at_ms is None else past.last_at_ms) + interval_ms

    def _is_whole_due(self, interval_ms: int) -> bool:
        return self._whole_at_ms(interval_ms) <= self._clock_ms()

    def _due_ms(self, interval_ms: int) -> int:
        now_ms = self._clock_ms()
        self._past = self._past.not_after(now_ms)
        self._retry_at_ms = min(self._retry_at_ms, now_ms + self._retry_ms)
        at_ms = self._whole_at_ms(interval_ms)
        return (min(at_ms, self._retry_at_ms) if self._unmended else at_ms) - now_ms

    async def _scrub(self, pace: Pace, names: Iterable[str] | None) -> Scrubbed:
        """Scrub these logs, or all.

        Raises:
            PreconditionFailed: a scrub is running already.
            Stopped: the node stops.
        """
        if self._now is not None:
            raise PreconditionFailed("a scrub is going on already; see leveretctl replication_status")
        if self._stops:
            raise Stopped("the node stops")
        scrubbed = self._now = Scrubbed()
        self._octets_total = self._stored_octets()
        self._pace = pace
        began_s = asyncio.get_running_loop().time()
        try:
            await self._scrubber.scrub(scrubbed, pace, names)
        except LeveretError as error:
            self._error = str(error)
            raise
        finally:
            self._now = self._pace = None
            self._total.add(scrubbed)
        self._error = "; ".join(scrubbed.unrepaired[:1])
        if len(scrubbed.unrepaired) > 1:
            self._error += f"; and {len(scrubbed.unrepaired) - 1} more are not repaired"
        self._unmended = scrubbed.unmended
        self._retry_ms = 2 * self._retry_ms if names is not None else RETRY_MS
        self._retry_at_ms = self._clock_ms() + self._retry_ms
        logger.log(
            logging.ERROR if scrubbed.unrepaired else logging.INFO,
            "scrubbed chunks=%d octets=%d damaged=%d repaired=%d unrepaired=%d took_s=%.1f",
            scrubbed.chunks,
            scrubbed.octets,
            scrubbed.damaged,
            scrubbed.repaired,
            len(scrubbed.unrepaired),
            asyncio.get_running_loop().time() - began_s,
        )
        if names is None:
            await self._remember(_ScrubTimes(self._past.since_ms, self._clock_ms()))
        return scrubbed

    def scrub_status(self) -> dict[str, Any]:
        """Return `scrub` of the status since the start of the node; see management.node.ReplicationOperations."""
        shown = Scrubbed()
        for each in (self._total, self._now or Scrubbed()):
            shown.add(each)
        return {
            "running": self._now is not None,
            "octets_done": 0 if self._now is None else self._now.octets,
            "octets_total": 0 if self._now is None else self._octets_total,
            "last_at_ms": self._past.last_at_ms,
            "chunks": shown.chunks,
            "damaged": shown.damaged,
            "repaired": shown.repaired,
            "error": self._error,
        }

    def _load(self) -> _ScrubTimes:
        try:
            past = msgspec.convert(self._file.load(), _ScrubTimes)
        except (StorageError, msgspec.ValidationError) as error:
            # The file holds only the time of the next scrub, so its damage must not stop a start.
            logger.warning("scrub_time_forgotten error=%s", error)
            return _ScrubTimes()
        return past.not_after(self._clock_ms())

    async def _remember(self, past: _ScrubTimes) -> None:
        self._past = past
        try:
            await asyncio.to_thread(self._file.save, msgspec.to_builtins(past))
        except StorageError as error:
            logger.warning("scrub_time_not_kept error=%s", error)

    # -- giving a log up ------------------------------------------------------------------------

    async def copies(self, path: str) -> list[LogCopy]:
        """See management.node.InspectionOperations."""
        found = await asyncio.to_thread(contents, self._node.tree.path_of(path), path)
        own = copy_of(self._node.name, CopyRole.LEADER, found, is_damaged=True)
        asked = [copy_at(peer, path) for peer in self._node.peers if not peer.is_leader]
        return [own, *await asyncio.gather(*asked)]

    async def quarantine_log(self, path: str) -> None:
        """See management.node.InspectionOperations."""
        epoch = self._node.tree.epoch
        node_id = self._node.node_id
        join = DivergentReport.begun(
            self._clock_ms(), from_epoch=epoch, to_epoch=epoch, node_id=node_id, leader_id=node_id
        )
        quarantine = Quarantine(self._data_dir, join, self._node.queue_of, is_lost=True)
        await in_thread_to_its_end(quarantine.add, path)
        await in_thread_to_its_end(quarantine.finish)

    # -- quarantined messages -------------------------------------------------------------------

    def divergent(self) -> list[dict[str, Any]]:
        """See management.node.InspectionOperations."""
        self._divergent_parts.forget_old()
        return divergent_reports(self._data_dir)

    def divergent_messages(self, report_id: str | None) -> Iterator[dict[str, Any]]:
        """See management.node.InspectionOperations."""
        return divergent_messages(self._data_dir, report_id)

    def divergent_part(self, report_id: str | None, first: int) -> Generator[dict[str, Any], None, None]:
        """See management.node.InspectionOperations."""
        return self._divergent_parts.read(report_id, first)
