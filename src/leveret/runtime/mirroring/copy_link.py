"""A mirror's end of the link to one leader: it connects, reports its logs, and writes and acks received records.

If a log cannot be written, only that log is affected: its leader learns of that, and the copy begins anew a little
later. An invalid frame ends the link, and the link is dialled again: records that are here already are never sent
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from leveret.core.replication.join import Bounds
from leveret.core.replication.receiver import Copied, ReceivePhase
from leveret.model.errors import Corrupt, LeveretError, StorageError
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.mirroring.mirror_copy import MirrorCopy
from leveret.runtime.process.sparse_log import SparseLog
from leveret.runtime.replication.receiving_link import ReceivingLink
from leveret.runtime.sockets.backoff import RETRY_S, delay_s
from leveret.session.link_handshake import Kind
from leveret.wire import link as wire
from leveret.wire.link import FrameHead, LinkError, LogChange, Type, decode, pack

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 256
_NAMES_MAX: Final = 1024
Dial = Callable[[str, Kind], Awaitable[LinkPeer]]
"""Connects to a node, for a kind of link, and returns after the handshake.

Raises OSError, TimeoutError, LeveretError.
"""


class LinkedCopies(Protocol):
    """The state that all links of a mirror node share: copies.MirrorCopies."""

    commits: GroupCommit
    dial: Dial

    def change(self, copy: MirrorCopy, change: LogChange) -> None:
        """Apply a change to a copy. Raises StorageError, LinkError."""

    def drop_due(self) -> None:
        """Drop the segments that waited for more records to become durable."""

    def describe(self, copy: MirrorCopy) -> wire.Copy:
        """Return the report of a copy to its leader. Raises StorageError."""

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """Return the headers of up to `count` chunks before an offset, newest first. Raises StorageError."""

    def damaged_copy(self, copy: MirrorCopy) -> None:
        """Let a copy that is damaged or gone begin anew."""

    def idle(self, link: CopyLink) -> None:
        """Forget a link that has no log to mirror any more."""


class CopyLink:
    """See the module; link.peer.Receiver.

    Attributes:
        node: the leader's name.
        copies: the logs to mirror from that node, by name.
        is_connected: whether the link is up.
        error: the reason why the link is down; empty if it is up.
    """

    def __init__(self, shared: LinkedCopies, node: str) -> None:
        """Connect for as long as there are logs to mirror."""
        self.node = node
        self.copies: dict[str, MirrorCopy] = {}
        self.error = ""
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._link: ReceivingLink | None = None
        self._ended = asyncio.Event()
        self._failures = 0
        self._unwritten = SparseLog()
        self._wanted = asyncio.Event()
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._running = self._loop.create_task(self._run())

    @property
    def is_connected(self) -> bool:
        """See the class."""
        return self._link is not None

    # -- begin and end of the link ------------------------------------------------------------

    async def _run(self) -> None:
        while self.copies:
            try:
                await self._once()
            except Exception as error:
                # Any error: without this loop the copies would receive nothing from this leader any more.
                logger.exception("mirroring_link_failed leader=%s", self.node)
                self._note_error(str(error) or type(error).__name__)
            if self.copies:
                self._wanted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay_s(RETRY_S, self._failures)):
                        await self._wanted.wait()
                self._failures += 1
        self._shared.idle(self)

    async def _once(self) -> None:
        try:
            peer = await self._shared.dial(self.node, "mirror")
        except (OSError, TimeoutError, LeveretError) as error:
            self._note_error(f"cannot connect to {self.node}: {str(error) or 'no answer'}")
            return
        if peer.is_closed:
            self._note_error(f"{self.node} closed the link")
            return
        self._ended.clear()
        commits = self._shared.commits
        link = ReceivingLink(peer, self, ReceivePhase.PER_LOG, commits, lambda _: self._shared.drop_due())
        self._link, peer.receiver = link, self
        self.error = ""
        logger.info("mirroring leader=%s address=%s", self.node, peer.address)
        try:
            await self._report_all(link)
            if self.copies:
                await link.beat(self._ended)
        finally:
            peer.close()
            self._forget(link)

    def stop(self) -> None:
        """End the link for good."""
        self._running.cancel()
        link = self._link
        if link is not None:
            link.peer.close()
            self._forget(link)

    def _note_error(self, error: str) -> None:
        if error != self.error:
            logger.warning("mirroring_link_lost leader=%s error=%s", self.node, error)
        self.error = error

    def _forget(self, link: ReceivingLink) -> None:
        """Ignore all that this link delivers from now on."""
        if self._link is not link:
            return
        self._link = None
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        for copy in self.copies.values():
            copy.pause()
        self._ended.set()

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        if self._link is not None:
            self._note_error(str(error or "the leader closed the link"))
            self._forget(self._link)

    # -- reports to the leader ----------------------------------------------------------------

    async def _report_all(self, link: ReceivingLink) -> None:
        """Report all copies in slices: of each of thousands of logs a header is read."""
        names = list(self.copies)
        for at in range(0, len(names), _AT_ONCE):
            if link is self._link:
                self._report(names[at : at + _AT_ONCE])
                await asyncio.sleep(0)

    def _report(self, names: list[str]) -> None:
        describe = []
        for name in names:
            copy = self.copies.get(name)
            if copy is not None and not copy.is_busy and copy.damage is None:
                try:
                    describe.append(self._shared.describe(copy))
                except StorageError as error:
                    self.fail(copy, error)
        if describe and self._link is not None:
            self._link.peer.write(pack(Type.COPIES, wire.MirrorInventory(describe)))

    def report(self, name: str) -> None:
        """Report a copy to the leader over the present link; a new link reports all copies."""
        retry = self._retries.pop(name, None)
        if retry is not None:
            retry.cancel()
        if self._link is not None:
            self._report([name])

    def add(self, copy: MirrorCopy) -> None:
        """Mirror one more log; its leader is likely to be reachable."""
        self.copies[copy.name] = copy
        self._wanted.set()
        self.report(copy.name)

    def remove(self, name: str) -> None:
        """Mirror a log no longer."""
        copy = self.copies.pop(name, None)
        retry = self._retries.pop(name, None)
        if retry is not None:
            retry.cancel()
        link = self._link
        if copy is None or link is None:
            return
        link.peer.write(pack(Type.RELEASED, wire.LogNames([name])))
        names = link.receiver.names
        if len(names) > 2 * len(self.copies) + _NAMES_MAX:
            # The leader never uses the numbers of these logs again.
            for number in [at for at, each in names.items() if each != name and each not in self.copies]:
                del names[number]
        if not self.copies:
            self._ended.set()

    def fail(self, copy: MirrorCopy, error: Exception) -> None:
        """Take no more records of a copy, a write of which failed, until it is reported anew."""
        others = 0 if isinstance(error, Corrupt) else self._unwritten.others()
        if others is not None:
            logger.error(
                "mirror_not_written log=%s leader=%s error=%s others=%d", copy.name, self.node, error, others
            )
        copy.failed(error)
        if self._link is not None:
            # Before any ack of records that came with the failed one: from here on the leader does not count on this
            # copy.
            self._link.peer.write(pack(Type.FAILED, wire.CopyFailed(copy.name, str(error))))
        if isinstance(error, Corrupt):
            self._shared.damaged_copy(copy)
            return
        # Writes that succeed in between do not count: beside a full disk small ones may, and each try costs the leader
        # what it sends.
        wait_s = copy.waits.failed(self._loop.time())
        if copy.name not in self._retries:
            self._retries[copy.name] = self._loop.call_later(wait_s, self.report, copy.name)

    # -- messages of the leader ---------------------------------------------------------------

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        link = self._link
        if link is None:
            return
        match kind:
            case Type.FRAME:
                link.take(payload, self._make)
            case Type.MIRRORING:
                said = decode(kind, payload, wire.Mirroring)
                copy = self.copies.get(said.path)
                if copy is not None and copy.serial == said.serial:
                    copy.answered(said)
                    self._failures = 0
            case Type.PROBE:
                self._answer(link.peer, decode(kind, payload, wire.ProbeHeaders))
            case Type.REPORT_AGAIN:
                for name in decode(kind, payload, wire.LogNames).paths:
                    self.report(name)
            case _:
                raise LinkError(f"message {kind.name} is not due from a leader")

    def _answer(self, peer: LinkPeer, probe: wire.ProbeHeaders) -> None:
        copy = self.copies.get(probe.path)
        if copy is None or not copy.is_accepting:
            return
        try:
            found = self._shared.headers(probe.path, probe.before, probe.count)
        except StorageError as error:
            self.fail(copy, error)
            return
        peer.write(pack(Type.HEADERS, wire.Headers(probe.path, found)))

    def copied(self, name: str) -> Copied | None:
        """See core.replication.receiver.CopiedLogs."""
        copy = self.copies.get(name)
        if copy is None or not copy.is_accepting:
            return None
        log = copy.log
        return Copied(Bounds(log.first_offset, log.next_offset) if log is not None else None, copy.epoch)

    def _make(self, head: FrameHead, changes: list[LogChange]) -> None:
        for change in changes:
            copy = self.copies.get(change.name)
            if copy is None or not copy.is_accepting:
                # The change answers an earlier report; only the answer to the next report counts.
                continue
            try:
                self._shared.change(copy, change)
            except StorageError as error:
                self.fail(copy, error)

    def row(self) -> dict[str, Any]:
        """The state of the link."""
        link = self._link
        return {
            "node": self.node,
            "connected": link is not None,
            "error": self.error,
            "received_bytes": link.peer.received_bytes if link is not None else 0,
        }
