"""Simulated applications that wait for each answer as long as their connection lasts.

An application that gives up after some seconds hides that nobody would ever have answered. These wait; at rest, the
world asks each which answers it still waits for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from leveret.testing.simulation.applications.application import SimulatedApplication
from leveret.testing.simulation.applications.client import SimulatedClient
from leveret.testing.simulation.machine.waiting import wait_until

_HEARTBEAT_S: Final = 3
_SILENT_S: Final = 9.0
_LONG_S: Final = 3600.0


async def until(holds: Callable[[], bool]) -> None:
    """Return once `holds` returns True, however long that takes."""
    while not await wait_until(holds, _LONG_S):
        pass


class PatientApplication(SimulatedApplication):
    """See the module.

    Attributes:
        has_ended: whether the application has done its work, after `is_stopping`.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        """Begin idle."""
        super().__init__(*args, **given)
        self.has_ended = False
        self.heartbeat_s = _HEARTBEAT_S
        self._awaited: Counter[str] = Counter()

    async def _run(self) -> None:
        await super()._run()
        self.has_ended = True

    def awaited(self) -> str:
        """Return the answers for which the application waits."""
        return ", ".join(f"{count} x {text}" for text, count in self._awaited.items() if count) or "nothing"

    @contextmanager
    def waiting_for(self, text: str) -> Iterator[None]:
        """Note that the block waits for an answer."""
        self._awaited[text] += 1
        try:
            yield
        finally:
            self._awaited[text] -= 1

    async def answer(self, client: SimulatedClient, method: Any) -> Any:
        """See SimulatedApplication; without a limit."""
        with self.waiting_for(f"{method.name} {getattr(method, 'queue', '')}".rstrip()):
            return await client.call(method)

    async def _beat(self, client: SimulatedClient) -> None:
        """Close a connection over which nothing has come for some heartbeats: the node's machine has lost power."""
        beating = asyncio.get_running_loop().create_task(super()._beat(client))
        heard = -1
        try:
            while heard != client.heard:
                heard = client.heard
                await asyncio.sleep(_SILENT_S)
        finally:
            beating.cancel()
        client.close()

    async def leave(self, client: SimulatedClient, after_s: float) -> None:
        """Close the connection after a while, so the next one is to another node."""
        await asyncio.sleep(after_s)
        client.close()
