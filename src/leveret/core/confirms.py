"""Publisher confirms of one channel: which publishes may be confirmed, in what runs.

Publishes are numbered from 1 in their order. Those of one flush form a batch; batches may become
durable in any order, confirms go out as multiples in publish order, so one frame covers a batch.
"""

from __future__ import annotations

from collections import deque


class Batch:
    """The publishes of one flush, up to and including `last`."""

    __slots__ = ("last", "outcome", "queues")

    def __init__(self) -> None:
        """An open batch."""
        self.last = 0
        self.outcome: bool | None = None
        self.queues: dict[object, bool] = {}
        """Queues that took something from it, and whether anything needs the disk."""

    @property
    def needs_sync(self) -> bool:
        """Whether a confirm must wait for the disk."""
        return any(self.queues.values())


class Confirms:
    """Numbers publishes and turns settled batches into confirms."""

    __slots__ = ("_open", "_settled", "_waiting", "published")

    def __init__(self) -> None:
        """Nothing published yet."""
        self.published = 0
        self._settled = 0
        self._open: Batch | None = None
        self._waiting: deque[Batch] = deque()

    def publish(self, count: int) -> Batch:
        """Number `count` publishes; return the batch of this flush."""
        self.published += count
        batch = self._open
        if batch is None:
            batch = self._open = Batch()
            self._waiting.append(batch)
        batch.last = self.published
        return batch

    def close_batch(self) -> Batch | None:
        """End the batch of this flush, None when nothing was published."""
        batch, self._open = self._open, None
        return batch

    def settled(self, batch: Batch, ok: bool) -> list[tuple[int, bool, bool]]:
        """A batch's outcome is known; return the confirms to send as (tag, multiple, positive), in order."""
        batch.outcome = ok
        confirms: list[tuple[int, bool, bool]] = []
        waiting = self._waiting
        while waiting:
            positive = waiting[0].outcome
            if positive is None:
                break
            batch = waiting.popleft()
            if confirms and confirms[-1][2] == positive:
                confirms[-1] = (batch.last, True, positive)
            else:
                confirms.append((batch.last, batch.last - self._settled > 1, positive))
            self._settled = batch.last
        return confirms
