"""A simulated application that replaces queues, or declares a crowd of them, when a situation asks for that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from pamqp import commands

from leveret.testing.simulation.applications.churners import SimulatedChurner
from leveret.testing.simulation.applications.client import SimulatedClient
from leveret.testing.simulation.applications.fleet import LASTING, STREAM, kind_of

_CROWD: Final = 70
"""As many queues have more records than one transaction takes."""
_LOOK_S: Final = 0.02
_STAYS_S: Final = 3.0
_ENDS_S: Final = 0.3


class SimulatedReplacer(SimulatedChurner):
    """See the module. It changes its connection often, so that any node is asked."""

    def __init__(self, *args: Any, **given: Any) -> None:
        """Begin idle."""
        super().__init__(*args, **given)
        self._asked: deque[Callable[[SimulatedClient], Awaitable[None]]] = deque()
        self._answered = 0
        self._given = 0

    def replace(self, names: Collection[str]) -> Callable[[], bool]:
        """Replace those of these queues that are there; return what tells whether that was answered, or given up."""
        return self._ask(lambda client: self._replace_all(client, names))

    def declare_crowd(self) -> None:
        """Declare an exchange, and more queues than fit into one transaction, and delete the queues after a moment."""
        self._ask(self._declare_crowd)

    def _ask(self, work: Callable[[SimulatedClient], Awaitable[None]]) -> Callable[[], bool]:
        self._given += 1
        number = self._given
        self._asked.append(work)
        return lambda: self._answered >= number

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.random.expovariate(1 / _STAYS_S)
        while not (self.is_stopping or client.is_closed or self.fault) and loop.time() < until_s:
            if self._asked:
                work = self._asked.popleft()
                try:
                    await work(client)
                finally:
                    self._answered = self._given - len(self._asked)
            await asyncio.sleep(_LOOK_S)

    async def _replace_all(self, client: SimulatedClient, names: Collection[str]) -> None:
        fleet = self._fleet
        present = sorted(name for name in names if name in fleet.names and kind_of(name) in LASTING)
        if self.random.random() < 0.7:
            for _ in range(self.random.randint(1, 2)):
                await self._together(self._replace_one(client, name) for name in present)
            return
        # The answers to the deletions come first.
        await self._together(self._delete_one(client, name) for name in present)
        fleet.names += present
        await self._declare(client, present)

    async def _declare_crowd(self, client: SimulatedClient) -> None:
        fleet, former = self._fleet, self._fleet.exchange
        kinds = [kind for kind in LASTING if kind != STREAM]
        crowd = [fleet.fresh(self.random.choice(kinds)) for _ in range(_CROWD)]
        extra = commands.Exchange.Declare(0, f"{former}.{crowd[0]}", "fanout", durable=True)
        await self._together(
            [self.answer(client, extra), *(self._declare_one(client, name) for name in crowd)]
        )
        await asyncio.sleep(self.random.expovariate(1 / _ENDS_S))
        await self._together(self._delete_one(client, name) for name in crowd)
