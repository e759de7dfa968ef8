"""Reads all stored data again, and repairs damage from another node's copy.

A thread reads one log after the other, and may rest between two reads (`Pace`). A scrub repairs damage as soon as it
meets it: it asks each side in turn for the chunks, checks them, writes them in the place of the damaged octets, and
reads them back. It overwrites damaged octets only, so no answer of a side can harm undamaged ones.

A repair **beside a live log** is safe as long as the log grows at its end and loses segments at its begin only. A log
is truncated, or begun anew, only when this node joins its leader. So no repair begins before the end of the join, and a
join waits for `settled`.

A missing segment is not repaired. A copy of another node's log that lacks a segment is fetched again as a whole:
`InspectedNode.copy_damaged`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from leveret.model.errors import LeveretError, StorageError
from leveret.runtime.integrity.answers import CHUNKS_BYTES_MAX, need
from leveret.runtime.integrity.inspected_node import InspectedNode
from leveret.runtime.integrity.peers import JOINED, InspectedPeer
from leveret.storage.inspection.scrub import Scrub, repair
from leveret.storage.inspection.walk import Damage
from leveret.storage.log import Log

logger = logging.getLogger(__name__)

T = TypeVar("T")

_END_UNKNOWN: Final = 1 << 62
"""An offset beyond all logs."""


class Stopped(LeveretError):
    """The scrub was stopped."""


class Pace:
    """Called at each read: rests so that reading takes only a share of the time, and ends a scrub that is stopped."""

    def __init__(self, share: float) -> None:
        """A `share` of 1 does not rest."""
        self._rest = 1 / share - 1
        self._stopping = threading.Event()
        self._since_s = time.perf_counter()

    def __call__(self, octets: int) -> None:
        """Account for a read of this size.

        Raises:
            Stopped: the scrub was stopped.
        """
        worked_s = time.perf_counter() - self._since_s
        if self._stopping.wait(worked_s * self._rest):
            raise Stopped("the scrub was stopped: the node stops")
        self._since_s = time.perf_counter()

    def stop(self) -> None:
        """Stop the scrub at its next read."""
        self._stopping.set()


@dataclass(slots=True)
class Scrubbed:
    """The result of a scrub.

    Attributes:
        unrepaired: the places of remaining damage, with the reasons.
        unmended: the logs with remaining damage.
    """

    chunks: int = 0
    octets: int = 0
    damaged: int = 0
    repaired: int = 0
    unrepaired: list[str] = field(default_factory=list)
    unmended: set[str] = field(default_factory=set)

    def add(self, other: Scrubbed) -> None:
        """Add another result."""
        self.chunks += other.chunks
        self.octets += other.octets
        self.damaged += other.damaged
        self.repaired += other.repaired

    def shown(self) -> dict[str, Any]:
        """Return the JSON form; see management.node.InspectionOperations."""
        return {
            "chunks": self.chunks,
            "octets": self.octets,
            "damaged": self.damaged,
            "repaired": self.repaired,
            "unrepaired": self.unrepaired,
        }


class Scrubber:
    """See the module."""

    def __init__(self, node: InspectedNode) -> None:
        """Read nothing yet."""
        self._node = node
        self._writing = asyncio.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scrub")

    async def scrub(self, scrubbed: Scrubbed, pace: Pace, names: Iterable[str] | None = None) -> None:
        """Scrub these logs, or all, and repair them; `scrubbed` is always up to date.

        Raises:
            Stopped: by `pace`.
        """
        if names is None:
            names = await self._in_thread(pace, self._all)
        for name in names:
            try:
                await self._log(name, scrubbed, pace)
            except StorageError as error:
                logger.error("log_not_scrubbed log=%s error=%s", name, error)
                scrubbed.unrepaired.append(f"{name}: {error}")
                scrubbed.unmended.add(name)

    def _all(self) -> list[str]:
        """Return all logs, including those that could not be opened: a damaged log takes its queue down."""
        tree = self._node.tree
        return sorted({*tree.logs.copy(), *tree.unopened()})

    async def _in_thread(self, pace: Pace, work: Callable[[], T]) -> T:
        """Run in the thread. A cancelled caller leaves no reading thread behind."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except asyncio.CancelledError:
            pace.stop()
            raise

    async def repaired(self) -> None:
        """Wait until no repair is being written."""
        async with self._writing:
            pass

    def close(self) -> None:
        """End the thread after its present work."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    # -- one log --------------------------------------------------------------------------------

    async def _log(self, name: str, scrubbed: Scrubbed, pace: Pace) -> None:
        tree = self._node.tree
        log = tree.logs.get(name)
        until = log.synced_offset if log is not None else None
        scrub = Scrub(tree.path_of(name), until, on_read=pace, name=name)
        before = scrubbed.chunks, scrubbed.octets, scrubbed.repaired
        damages = iter(scrub)
        while tree.logs.get(name) is log:
            try:
                damage = await self._in_thread(pace, partial(next, damages, None))
            finally:
                scrubbed.chunks, scrubbed.octets = before[0] + scrub.chunks, before[1] + scrub.octets
            if damage is None:
                break
            if self._still_has_segment(name, log, damage):
                await self._damaged(name, log, damage, scrubbed)
        if scrubbed.repaired > before[2] and name not in scrubbed.unmended:
            self._say_mended(name, log)

    def _still_has_segment(self, name: str, log: Log | None, damage: Damage) -> bool:
        """Return whether the log is the one that was read, and still has that segment."""
        return self._node.tree.logs.get(name) is log and (log is None or log.first_offset <= damage.segment)

    async def _damaged(self, name: str, log: Log | None, damage: Damage, scrubbed: Scrubbed) -> None:
        scrubbed.damaged += 1
        vhost, queue = self._node.queue_of(name) or ("", "")
        logger.error(
            "chunk_damaged log=%s vhost=%s queue=%s offset=%d next_offset=%d segment=%d error=%s",
            name,
            vhost,
            queue,
            damage.offset,
            damage.next_offset,
            damage.segment,
            damage.what,
        )
        reasons = await self._mend(name, log, damage)
        if reasons is None:
            scrubbed.repaired += 1
        elif self._still_has_segment(name, log, damage):
            why = "; ".join(reasons)
            logger.error("chunk_not_repaired log=%s offset=%d reason=%s", name, damage.offset, why)
            scrubbed.unrepaired.append(
                f"{name} at offset {damage.offset} of segment {damage.segment} ({damage.what}): {why}"
            )
            scrubbed.unmended.add(name)

    def _say_mended(self, name: str, log: Log | None) -> None:
        queue = self._node.queue_of(name)
        if log is None or (queue is not None and self._node.is_down(*queue)):
            logger.warning(
                "log_mended log=%s vhost=%s queue=%s hint=restart this node: it serves the queue again",
                name,
                *(queue or ("", "")),
            )

    # -- repair ---------------------------------------------------------------------------------

    async def _mend(self, name: str, log: Log | None, damage: Damage) -> list[str] | None:
        """Return why no side's chunks could replace the damage; None if some did."""
        if self._node.state not in JOINED:
            return [f"this node is {self._node.state}, it mends nothing before it streams"]
        if damage.position < 0:
            if log is not None and self._node.copy_damaged(log, damage.error(log.directory)):
                return ["a segment is missing: this copy is quarantined and fetched again from its leader"]
            return ["a segment is missing, and a scrub repairs chunks within segments only"]
        reasons = []
        for peer in self._node.peers:
            try:
                octets = await self._fetch(peer, name, damage)
                await self._write(name, log, damage, octets)
            except LeveretError as error:
                reasons.append(f"{peer.name}: {error}")
            else:
                logger.warning(
                    "chunk_repaired log=%s offset=%d octets=%d from=%s",
                    name,
                    damage.offset,
                    len(octets),
                    peer.name,
                )
                return None
        return reasons or ["no other node is connected that has it"]

    async def _fetch(self, peer: InspectedPeer, name: str, damage: Damage) -> bytes:
        """Return all chunks of the damaged range from the other side.

        Raises:
            LeveretError: the other side lacks some of them, or has others.
        """
        if peer.state not in JOINED:
            raise LeveretError(f"it is {peer.state}")
        octets, offset = bytearray(), damage.offset
        # The end of a log that could not be opened is unknown; then its octets must tell.
        to = damage.next_offset if damage.next_offset > damage.offset else _END_UNKNOWN
        room = damage.length if damage.length is not None else _END_UNKNOWN
        if to == room == _END_UNKNOWN:
            raise LeveretError("the end of the log is missing here")
        while offset < to and len(octets) < room:
            left = min(room - len(octets), CHUNKS_BYTES_MAX)
            found = await peer.ask("chunk", {"path": name, "offset": offset, "to": to, "octets_max": left})
            for why in ("damage", "gone"):
                if why in found:
                    raise LeveretError(str(found[why]))
            octets += need(found, "octets", bytes)
            next_offset = need(found, "next_offset", int)
            if len(octets) > room or next_offset <= offset:
                raise LeveretError(f"its chunks do not fit in {room} octets")
            offset = next_offset
        return bytes(octets)

    async def _write(self, name: str, log: Log | None, damage: Damage, octets: bytes) -> None:
        """Write the chunks. A write that has begun is finished, even if its caller is cancelled.

        Raises:
            StorageError: the chunks were not written.
        """
        await asyncio.shield(asyncio.ensure_future(self._write_settled(name, log, damage, octets)))

    async def _write_settled(self, name: str, log: Log | None, damage: Damage, octets: bytes) -> None:
        async with self._writing:
            if self._node.state not in JOINED or not self._still_has_segment(name, log, damage):
                raise StorageError(f"log {name}: it was cut or dropped meanwhile")
            directory = self._node.tree.path_of(name)
            await asyncio.to_thread(repair, directory, damage.offset, octets)
