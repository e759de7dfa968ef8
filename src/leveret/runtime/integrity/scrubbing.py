"""Reads again all that is stored, and mends what the disk lost from another node's copy.

One log after the other is read in a thread, which may rest between two reads (`Pace`). Damage is mended as it
is met: the chunks are asked of each side in turn, are checked, take the place of what is damaged, and are read
back. Only damage is ever written over, so nothing a side sends can harm what is whole.

**Beside a log that lives** that is safe as long as it only grows at its end and loses its begin. It is cut, or
begun anew, only when this node joins its leader. So nothing is mended before the join is over, and a join that
is about to begin waits for `settled`.

A missing segment is not mended. A copy of another node's log that lacks one is fetched again whole: `copy_damaged`.
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
from typing import Any, Final, TypeAlias, TypeVar

from leveret.model.errors import Corrupt, LeveretError, StorageError
from leveret.runtime.integrity.answers import CHUNKS_BYTES_MAX, need
from leveret.runtime.integrity.peers import JOINED, Side
from leveret.storage.inspection.scrub import Scrub, repair
from leveret.storage.inspection.walk import Damage
from leveret.storage.log import Log
from leveret.storage.tree import Tree

logger = logging.getLogger(__name__)

T = TypeVar("T")

CopyDamaged: TypeAlias = Callable[[Log, Corrupt], bool]
"""Told of an open log that cannot be gone on with; whether it is a copy of another node's, and is fetched again."""

_END_UNKNOWN: Final = 1 << 62
"""An offset that no log reaches."""


class Stopped(LeveretError):
    """Somebody ended it."""


class Pace:
    """Told of each read: rests so that only a share of the time is spent on reading, and ends it when it is stopped."""

    def __init__(self, share: float) -> None:
        """`share` of 1 does not rest."""
        self._rest = 1 / share - 1
        self._stopping = threading.Event()
        self._since_s = time.perf_counter()

    def __call__(self, octets: int) -> None:
        """So much was read.

        Raises:
            Stopped: that was all.
        """
        worked_s = time.perf_counter() - self._since_s
        if self._stopping.wait(worked_s * self._rest):
            raise Stopped("the scrub was stopped: the node stops")
        self._since_s = time.perf_counter()

    def stop(self) -> None:
        """The next read is the last."""
        self._stopping.set()


@dataclass(slots=True)
class Scrubbed:
    """The result of a scrub.

    Attributes:
        unrepaired: where damage is left, and why.
        unmended: the logs with damage that is left.
    """

    chunks: int = 0
    octets: int = 0
    damaged: int = 0
    repaired: int = 0
    unrepaired: list[str] = field(default_factory=list)
    unmended: set[str] = field(default_factory=set)

    def add(self, other: Scrubbed) -> None:
        """Count another one's as well."""
        self.chunks += other.chunks
        self.octets += other.octets
        self.damaged += other.damaged
        self.repaired += other.repaired

    def shown(self) -> dict[str, Any]:
        """See management.node.InspectionOperations."""
        return {
            "chunks": self.chunks,
            "octets": self.octets,
            "damaged": self.damaged,
            "repaired": self.repaired,
            "unrepaired": self.unrepaired,
        }


class Scrubber:
    """See the module.

    Attributes:
        sides: the nodes that may be asked for chunks.
        is_down: whether a queue is not served for the damage of its log, by vhost and name.
    """

    def __init__(
        self,
        tree: Callable[[], Tree],
        state: Callable[[], str],
        queue_of: Callable[[str], tuple[str, str] | None],
        is_down: Callable[[str, str], bool],
        sides: Callable[[], Iterable[Side]],
        copy_damaged: CopyDamaged,
    ) -> None:
        """Read nothing yet; `state` is what this node is at, `queue_of` gives a log's vhost and queue."""
        self._tree = tree
        self._state = state
        self._queue_of = queue_of
        self._is_down = is_down
        self._sides = sides
        self._copy_damaged = copy_damaged
        self._writing = asyncio.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scrub")

    async def scrub(self, scrubbed: Scrubbed, pace: Pace, names: Iterable[str] | None = None) -> None:
        """Read these logs, or all, and mend them; `scrubbed` is up to date all the time.

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
        """All logs, those that nobody could open too: a damaged one takes its queue down."""
        tree = self._tree()
        return sorted({*tree.logs.copy(), *tree.unopened()})

    async def _in_thread(self, pace: Pace, work: Callable[[], T]) -> T:
        """Who is cancelled does not leave a thread behind that reads on."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except asyncio.CancelledError:
            pace.stop()
            raise

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        async with self._writing:
            pass

    def close(self) -> None:
        """End the thread, once it has ended what it does."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    # -- a log --------------------------------------------------------------------------------

    async def _log(self, name: str, scrubbed: Scrubbed, pace: Pace) -> None:
        tree = self._tree()
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
            if self._is_named_by_a_queue(name, log, damage):
                await self._damaged(name, log, damage, scrubbed)
        if scrubbed.repaired > before[2] and name not in scrubbed.unmended:
            self._say_mended(name, log)

    def _is_named_by_a_queue(self, name: str, log: Log | None, damage: Damage) -> bool:
        """Whether the log is the one that was read, and has that segment still."""
        return self._tree().logs.get(name) is log and (log is None or log.first_offset <= damage.segment)

    async def _damaged(self, name: str, log: Log | None, damage: Damage, scrubbed: Scrubbed) -> None:
        scrubbed.damaged += 1
        vhost, queue = self._queue_of(name) or ("", "")
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
        elif self._is_named_by_a_queue(name, log, damage):
            why = "; ".join(reasons)
            logger.error("chunk_not_repaired log=%s offset=%d reason=%s", name, damage.offset, why)
            scrubbed.unrepaired.append(
                f"{name} at offset {damage.offset} of segment {damage.segment} ({damage.what}): {why}"
            )
            scrubbed.unmended.add(name)

    def _say_mended(self, name: str, log: Log | None) -> None:
        queue = self._queue_of(name)
        if log is None or (queue is not None and self._is_down(*queue)):
            logger.warning(
                "log_mended log=%s vhost=%s queue=%s hint=restart this node: it serves the queue again",
                name,
                *(queue or ("", "")),
            )

    # -- mending ------------------------------------------------------------------------------

    async def _mend(self, name: str, log: Log | None, damage: Damage) -> list[str] | None:
        """Why nobody's chunks could take the place of this; None if somebody's did."""
        if self._state() not in JOINED:
            return [f"this node is {self._state()}, it mends nothing before it streams"]
        if damage.position < 0:
            if log is not None and self._copy_damaged(log, damage.error(log.directory)):
                return ["a segment is missing: this copy is put away and fetched again from its leader"]
            return ["a segment is missing, and only what is damaged inside of one is mended"]
        reasons = []
        for side in self._sides():
            try:
                octets = await self._fetch(side, name, damage)
                await self._write(name, log, damage, octets)
            except LeveretError as error:
                reasons.append(f"{side.name}: {error}")
            else:
                logger.warning(
                    "chunk_repaired log=%s offset=%d octets=%d from=%s",
                    name,
                    damage.offset,
                    len(octets),
                    side.name,
                )
                return None
        return reasons or ["no other node is connected that has it"]

    async def _fetch(self, side: Side, name: str, damage: Damage) -> bytes:
        """All chunks of the damage, as the other side has them.

        Raises:
            LeveretError: it has not all of them, or others than would fit.
        """
        if side.state not in JOINED:
            raise LeveretError(f"it is {side.state}")
        octets, offset = bytearray(), damage.offset
        # The end of a log that nobody could open is not known; then its octets must tell.
        to = damage.next_offset if damage.next_offset > damage.offset else _END_UNKNOWN
        room = damage.length if damage.length is not None else _END_UNKNOWN
        if to == room == _END_UNKNOWN:
            raise LeveretError("the end of the log is missing here")
        while offset < to and len(octets) < room:
            left = min(room - len(octets), CHUNKS_BYTES_MAX)
            found = await side.ask("chunk", {"path": name, "offset": offset, "to": to, "octets_max": left})
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
        """Put the chunks there; once begun it is ended, whoever waits for it.

        Raises:
            StorageError: they were not written.
        """
        await asyncio.shield(asyncio.ensure_future(self._write_settled(name, log, damage, octets)))

    async def _write_settled(self, name: str, log: Log | None, damage: Damage, octets: bytes) -> None:
        async with self._writing:
            if self._state() not in JOINED or not self._is_named_by_a_queue(name, log, damage):
                raise StorageError(f"log {name}: it was cut or dropped meanwhile")
            directory = self._tree().path_of(name)
            await asyncio.to_thread(repair, directory, damage.offset, octets)
