"""Records queues that changed from a lost leader to this node in the event history: one event for each loss."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from leveret.runtime.process.event_history import EventHistory

GATHERED_S: Final = 5.0
"""Thousands of queues change their leader within a second or two."""


class QueuesLedOn:
    """Counts these queues until no more come."""

    def __init__(self, history: EventHistory) -> None:
        """Start at zero."""
        self._history = history
        self._counts: Counter[str] = Counter()
        self._keeping: asyncio.Task[None] | None = None

    def take(self, node: str, queues: int) -> None:
        """Count further queues of a node that does not run, which this node leads now."""
        self._counts[node] += queues
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="queues led on")

    async def _keep(self) -> None:
        await asyncio.sleep(GATHERED_S)
        counts, self._counts, self._keeping = self._counts, Counter(), None
        for node, queues in counts.items():
            await self._history.add("queues_led_on", node=node, queues=queues)
