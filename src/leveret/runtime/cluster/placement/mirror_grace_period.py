"""Reports on the mirrors of queues led here, and the time that mirrors have to connect to a new leader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from leveret.model.definitions import QueueKey
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.log_table import LogTable

_GRACE_PERIOD_S: Final = 3.0
"""The time, in seconds, that a mirror recorded as synchronised has to connect to a new leader."""


class MirrorGracePeriod:
    """Counts recorded mirrors as synchronised for a moment, before they have connected."""

    def __init__(self, logs: LogTable, due: DueQueues) -> None:
        """Start for a node that leads nothing yet."""
        self._logs = logs
        self._due = due
        self._expected: dict[QueueKey, tuple[set[str], float]] = {}

    def begin(self, key: QueueKey, nodes: Iterable[str]) -> None:
        """Start the grace of these mirrors: this node leads the queue, whose record has them as synchronised."""
        loop = asyncio.get_running_loop()
        self._expected[key] = set(nodes), loop.time() + _GRACE_PERIOD_S
        loop.call_later(_GRACE_PERIOD_S + 0.01, self._due.add, [key])

    def expected(self, key: QueueKey) -> frozenset[str]:
        """Return the mirrors that have not connected yet, while they still have time."""
        nodes, until_s = self._expected.get(key, (set(), 0.0))
        return frozenset(nodes) if nodes and asyncio.get_running_loop().time() < until_s else frozenset()

    def forget(self, key: QueueKey) -> None:
        """Forget a deleted queue."""
        self._expected.pop(key, None)

    def mirror_changed(self, name: str, node: str, state: MirrorState) -> None:
        """See sources.OnState. A mirror that left again, or is incomplete, has no grace any more."""
        key = self._logs.key_of(name)
        if key is not None:
            if state in (MirrorState.GONE, MirrorState.UNSYNCHRONISED):
                nodes, _ = self._expected.get(key, (set(), 0.0))
                nodes.discard(node)
            self._due.add([key])
