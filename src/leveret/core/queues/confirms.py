"""Publisher confirms of one channel: the publishes that may be confirmed, as runs of numbers.

Publishes are numbered from 1 in their order. Publishes of one flush form a batch. Batches may become durable in any
order; confirms are sent as multiples in publish order, so one frame covers a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ConfirmBatch:
    """The publishes of one flush, up to and including `last`; `refused` ones went to no queue.

    Attributes:
        places: of queues that another node leads, which of the messages gathered there is the last one of this batch;
            by default all that were gathered in this flush are waited for.
        doubt: why it is not known what became of some of it; empty if it is.
        settles: whether it is of a transaction that settles messages of some of the queues.
    """

    __slots__ = ("doubt", "last", "outcome", "places", "queues", "refused", "settles")

    def __init__(self) -> None:
        """An open batch."""
        self.last = 0
        self.outcome: bool | None = None
        self.refused = False
        self.doubt = ""
        self.settles = False
        self.queues: dict[object, bool] = {}
        """Queues that took something from it, and whether anything needs the disk."""
        self.places: dict[object, int] = {}

    @property
    def needs_sync(self) -> bool:
        """Whether a confirm must wait for the disk."""
        return any(self.queues.values())


class ConfirmOutcome:
    """What becomes of a batch that more than one has to keep: this node's disk, other nodes."""

    __slots__ = ("_left", "_notify", "_ok")

    def __init__(self, notify: Callable[[bool], None]) -> None:
        """`notify` once all parts are known and there are no more: whether all are well."""
        self._notify = notify
        self._left = 1
        self._ok = True

    def part(self) -> Callable[[bool], None]:
        """One more that has to keep it; to be called once with whether it does."""
        self._left += 1
        return self._known

    def seal(self) -> None:
        """These were all parts."""
        self._known(True)

    def _known(self, ok: bool) -> None:
        self._ok &= ok
        self._left -= 1
        if not self._left:
            self._notify(self._ok)


class Confirms:
    """Numbers publishes and turns settled batches into confirms; `confirmed` of the `published` were."""

    __slots__ = ("_closed", "_open", "_waiting", "confirmed", "published")

    def __init__(self) -> None:
        """Nothing published yet."""
        self.published = 0
        self.confirmed = 0
        self._open: ConfirmBatch | None = None
        self._closed: list[ConfirmBatch] = []
        self._waiting: deque[ConfirmBatch] = deque()

    def publish(self, count: int) -> ConfirmBatch:
        """Number `count` publishes; return the batch of this flush."""
        self.published += count
        batch = self._open
        if batch is None:
            batch = self._open = ConfirmBatch()
            self._waiting.append(batch)
        batch.last = self.published
        return batch

    def refuse(self, count: int) -> None:
        """Number publishes that a full queue refused: a batch of their own, to be nacked in its turn."""
        self.end_batch()
        batch = self.publish(count)
        batch.refused = True
        self.end_batch()

    def end_batch(self) -> None:
        """What was published so far is confirmed, or not, by itself."""
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    def close_batches(self) -> list[ConfirmBatch]:
        """End this flush: the batches of it, in order."""
        self.end_batch()
        closed, self._closed = self._closed, []
        return closed

    def settled(self, batch: ConfirmBatch, ok: bool) -> list[tuple[int, bool, bool]]:
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
                confirms.append((batch.last, batch.last - self.confirmed > 1, positive))
            self.confirmed = batch.last
        return confirms
