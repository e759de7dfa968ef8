"""Queues that are due for the placement controller; exists before the parts that report them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from leveret.model.definitions import QueueKey


class DueQueues:
    """The due queues, oldest first; `placement_controller` handles them.

    Attributes:
        records: queues whose records are to be followed: their records were written, or their copies here are gone.
        looks: queues to be looked at: a node, policy or mirror that their records depend on has changed.
    """

    def __init__(self) -> None:
        """Nothing is due."""
        self.records: dict[QueueKey, None] = {}
        self.looks: dict[QueueKey, None] = {}
        self._changed = asyncio.Event()

    def follow(self, key: QueueKey) -> None:
        """Follow the record of a queue, and look at the queue after that."""
        self.records[key] = None
        self.add([key])

    def add(self, keys: Iterable[QueueKey]) -> None:
        """Look at these queues again."""
        self.looks.update(dict.fromkeys(keys))
        self.again()

    def again(self) -> None:
        """Start another pass over the due queues."""
        self._changed.set()

    async def wait(self) -> None:
        """Return once a queue became due since the last return."""
        await self._changed.wait()
        self._changed.clear()
