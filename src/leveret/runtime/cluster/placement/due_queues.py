"""Queues that are due for the placement controller; made before the parts that report them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from leveret.runtime.cluster.placement.local_queues import QueueKey


class DueQueues:
    """The due queues, oldest first; `placement_controller` handles them.

    Attributes:
        records: queues whose records are to be followed: they were written, or their copies here are gone.
        looks: queues that are to be looked at: something that their records depend on has changed.
    """

    def __init__(self) -> None:
        """Nothing is due."""
        self.records: dict[QueueKey, None] = {}
        self.looks: dict[QueueKey, None] = {}
        self._changed = asyncio.Event()

    def follow(self, key: QueueKey) -> None:
        """Do what the record of a queue says, and look at the queue after that."""
        self.records[key] = None
        self.look([key])

    def look(self, keys: Iterable[QueueKey]) -> None:
        """Look at these queues again."""
        self.looks.update(dict.fromkeys(keys))
        self.again()

    def again(self) -> None:
        """Begin another pass over what is due."""
        self._changed.set()

    async def wait(self) -> None:
        """Return once anything became due since the last return."""
        await self._changed.wait()
        self._changed.clear()
