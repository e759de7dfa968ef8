"""The steps in which a peer is sent what it lacks: one step of one scope after the other, beside live traffic.

A step takes about a millisecond of the event loop, and the next one waits until the socket has taken it. So nothing
here delays a publisher, and what is live waits behind one step at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from leveret.model.errors import LeveretError
from leveret.runtime.link.peer import LinkPeer

logger = logging.getLogger(__name__)

_REST_MS_MAX: Final = 1000


class SteppedScope(Protocol):
    """A scope that is compared, or caught up: a whole node, or one log."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing of it is sent any more."""

    def wait_ms(self, now_ms: int) -> int:
        """How long its next step has to wait."""

    async def step(self, now_ms: Callable[[], int]) -> bool:
        """Do some of what is to be done; whether there is more. Raises LeveretError."""


class SendingSteps:
    """See the module; of one link."""

    def __init__(self, peer: LinkPeer, now_ms: Callable[[], int], name: str) -> None:
        """Nothing is to be done; `name` is the other node, and `now_ms` a time that never goes back."""
        self._peer = peer
        self._now_ms = now_ms
        self._name = name
        self._busy: dict[SteppedScope, None] = {}
        self._work = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self, scope: SteppedScope) -> None:
        """It has something to do."""
        self._busy[scope] = None
        self._work.set()

    def drop(self, scope: SteppedScope) -> None:
        """It has nothing to do any more."""
        self._busy.pop(scope, None)

    def cancel(self) -> None:
        """The link has ended."""
        self._task.cancel()

    async def _run(self) -> None:
        try:
            while not self._peer.is_closed:
                wait_ms = _REST_MS_MAX
                for scope in list(self._busy):
                    due_ms = scope.wait_ms(self._now_ms())
                    if due_ms:
                        wait_ms = min(wait_ms, due_ms)
                        continue
                    wait_ms = 0
                    self._busy.pop(scope, None)
                    if not scope.is_ended and await scope.step(self._now_ms) and not scope.is_ended:
                        self._busy[scope] = None
                    await self._peer.drain()
                    await asyncio.sleep(0)
                if wait_ms:
                    await self._rest(wait_ms)
        except Exception as error:
            # Whatever it is, a link that goes on without this would never be caught up.
            is_bug = not isinstance(error, LeveretError | OSError)
            logger.error("replica_not_caught_up node=%s error=%s", self._name, error, exc_info=is_bug)
            self._peer.close(error)

    async def _rest(self, wait_ms: int) -> None:
        """Until there is something new to be done, or what waits is due."""
        self._work.clear()
        try:
            async with asyncio.timeout(wait_ms / 1000 if self._busy else None):
                await self._work.wait()
        except TimeoutError:
            pass
