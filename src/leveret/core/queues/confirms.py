"""Publisher confirms of one channel: the publishes that may be confirmed, as runs of numbers.

Publishes are numbered from 1 in their order. Publishes of one flush form a batch. Batches may become durable in any
order; confirms are sent as multiples in publish order, so one frame covers a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


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


class ConfirmingChannel(Protocol):
    """A channel whose publishes or commits wait to be confirmed."""

    def close_batches(self) -> list[ConfirmBatch]:
        """What was published or committed in this flush, once."""

    def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
        """A batch is safe, or is not; tell the publisher."""


class ConfirmParts:
    """A publish, or a commit, that takes more than one flush: a batch for each of them, and one outcome.

    It stands for its channel among those that wait to be confirmed.
    """

    __slots__ = ("_closed", "_confirming", "_failed", "_left", "_notify", "_open")

    def __init__(
        self, confirming: dict[ConfirmingChannel, None], notify: Callable[[ConfirmBatch, bool], None]
    ) -> None:
        """`notify` gets the first batch that failed, or else the last one, and whether all is well."""
        self._confirming = confirming
        self._notify = notify
        self._open: ConfirmBatch | None = None
        self._closed: list[ConfirmBatch] = []
        self._failed: ConfirmBatch | None = None
        self._left = 1

    def batch(self) -> ConfirmBatch:
        """The batch of this flush."""
        if self._open is None:
            self._open = ConfirmBatch()
            self.add(self._open)
        return self._open

    def add(self, batch: ConfirmBatch) -> None:
        """This flush has one more batch."""
        self._closed.append(batch)
        self._left += 1
        self._confirming[self] = None

    def end(self) -> None:
        """No further flush has a batch."""
        self._decided(ConfirmBatch())

    def close_batches(self) -> list[ConfirmBatch]:
        """See ConfirmingChannel."""
        self._open = None
        closed, self._closed = self._closed, []
        return closed

    def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
        """See ConfirmingChannel."""
        if not ok and self._failed is None:
            self._failed = batch
        self._decided(batch)

    def _decided(self, batch: ConfirmBatch) -> None:
        self._left -= 1
        if not self._left:
            self._notify(self._failed or batch, self._failed is None)


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

    def publish_apart(self, count: int) -> ConfirmBatch:
        """Number `count` publishes as a batch that is none of a flush: `settled` is called for it all the same."""
        self.end_batch()
        batch = self.publish(count)
        self._open = None
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
