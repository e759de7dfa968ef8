"""Puts queues of a lost node that are led on here into the node's history: one event a loss, not one a queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from leveret.runtime.process.event_history import EventHistory

GATHERED_S: Final = 5.0
"""Thousands of queues are led on within a second or two."""


class QueuesLedOn:
    """Counts them until no more come."""

    def __init__(self, history: EventHistory) -> None:
        """None yet."""
        self._history = history
        self._counts: Counter[str] = Counter()
        self._keeping: asyncio.Task[None] | None = None

    def take(self, node: str, queues: int) -> None:
        """So many more queues of a node that does not run are led here."""
        self._counts[node] += queues
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="queues led on")

    async def _keep(self) -> None:
        await asyncio.sleep(GATHERED_S)
        counts, self._counts, self._keeping = self._counts, Counter(), None
        for node, queues in counts.items():
            await self._history.add("queues_led_on", node=node, queues=queues)
