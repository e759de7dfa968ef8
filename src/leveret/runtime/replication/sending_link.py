"""The leader's end of a link: the account of sent and acked frames, and the steps that send missing records.

A step takes about a millisecond of the event loop, and the next one waits until the socket has taken it. So no step
delays a publisher, and live frames wait behind one step at most. Several scopes take turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from leveret.core.replication.sender import ReplicationSender
from leveret.model.errors import LeveretError
from leveret.runtime.link.peer import WRITE_BUFFER_BYTES, LinkPeer
from leveret.wire import link as wire
from leveret.wire.link import Type, pack

logger = logging.getLogger(__name__)

LIVE_BYTES_MAX: Final = 64 * 1024 * 1024
"""If more octets of live frames wait for the socket, the peer goes back to catching up from disk."""
_REST_MS_MAX: Final = 1000


class SteppedScope(Protocol):
    """A scope that is compared, or caught up: sent_logs.SentLogs."""

    @property
    def is_ended(self) -> bool:
        """Whether the scope sends no more."""

    def wait_ms(self, now_ms: int) -> int:
        """Return the milliseconds that its next step has to wait."""

    async def step(self, now_ms: Callable[[], int]) -> bool:
        """Do a part of the work; return whether more is left. Raises LeveretError."""


class SendingLink:
    """See the module. A subclass knows the messages of its kind of peer (link.peer.Receiver).

    Attributes:
        node: the other node, empty before it is known.
        peer: the connection.
        sender: the account of sent and acked frames.
    """

    def __init__(self, peer: LinkPeer, node: str, said: str, now_ms: Callable[[], int]) -> None:
        """Start without a sent frame; `said` names the node in errors, and `now_ms` is a clock that never goes back."""
        self.node = node
        self.peer = peer
        self.sender = ReplicationSender(said)
        self.now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._busy: dict[SteppedScope, None] = {}
        self._work = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None
        self._takes_steps = True

    def ask(self, probe: wire.ProbeHeaders) -> None:
        """Request headers of the peer's copy."""
        self.peer.write(pack(Type.PROBE, probe))

    @property
    def is_congested(self) -> bool:
        """Whether a step has to wait for the socket."""
        return self.peer.waiting_bytes > WRITE_BUFFER_BYTES

    @property
    def is_too_slow(self) -> bool:
        """Whether too many octets of live frames wait for the socket."""
        return self.peer.waiting_bytes > LIVE_BYTES_MAX

    # -- steps --------------------------------------------------------------------------------

    def wake(self, scope: SteppedScope) -> None:
        """Schedule the scope's steps."""
        self._busy[scope] = None
        self._work.set()
        if self._stepping is None and self._takes_steps:
            self._stepping = self._loop.create_task(self._take_steps())

    def drop(self, scope: SteppedScope) -> None:
        """Cancel the scope's steps."""
        self._busy.pop(scope, None)

    def stop_steps(self) -> None:
        """End all steps."""
        self._takes_steps = False
        if self._stepping is not None:
            self._stepping.cancel()

    async def _take_steps(self) -> None:
        try:
            while not self.peer.is_closed:
                wait_ms = _REST_MS_MAX
                for scope in list(self._busy):
                    due_ms = scope.wait_ms(self.now_ms())
                    if due_ms:
                        wait_ms = min(wait_ms, due_ms)
                        continue
                    wait_ms = 0
                    self._busy.pop(scope, None)
                    if not scope.is_ended and await scope.step(self.now_ms) and not scope.is_ended:
                        self._busy[scope] = None
                    await self.peer.drain()
                    await asyncio.sleep(0)
                if wait_ms:
                    await self._rest(wait_ms)
        except Exception as error:
            # Without the steps the peer would never catch up: any error ends the link.
            is_bug = not isinstance(error, LeveretError | OSError)
            logger.error("replica_not_caught_up node=%s error=%s", self.node, error, exc_info=is_bug)
            self.peer.close(error)

    async def _rest(self, wait_ms: int) -> None:
        """Wait for new work, or until a waiting step is due."""
        self._work.clear()
        try:
            async with asyncio.timeout(wait_ms / 1000 if self._busy else None):
                await self._work.wait()
        except TimeoutError:
            pass
