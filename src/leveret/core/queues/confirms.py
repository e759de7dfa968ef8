"""Publisher confirms of one channel: the publishes that may be confirmed, as runs of numbers.

Publishes are numbered from 1 in their order. Publishes of one flush form a batch. Batches may become durable in any
order; confirms are sent as multiples in publish order, so one frame covers a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol


class ConfirmBatch:
    """The publishes of one flush, up to and including `last`; a `refused` batch went to no queue.

    Attributes:
        places: by queue of another leader, the place of this batch's last message; the default is the last message of
            the flush.
        doubt: why the outcome of some of it is unknown; empty if it is known.
        unmet: what else than a disk did not keep it, and why; empty for nothing.
        count: the number of its publishes.
        settles: whether it belongs to a transaction that settles messages of some of the queues.
    """

    __slots__ = ("count", "doubt", "last", "outcome", "places", "queues", "refused", "settles", "unmet")

    def __init__(self) -> None:
        """An open batch."""
        self.last = self.count = 0
        self.outcome: bool | None = None
        self.refused = False
        self.doubt = self.unmet = ""
        self.settles = False
        self.queues: dict[object, bool] = {}
        """The queues that got some of it, and whether anything in them needs the disk."""
        self.places: dict[object, int] = {}

    @property
    def needs_sync(self) -> bool:
        """Whether a confirm must wait for the disk."""
        return any(self.queues.values())


class ConfirmOutcome:
    """The outcome of a batch that several parts have to keep, such as this node's disk and other nodes."""

    __slots__ = ("_left", "_notify", "_ok")

    def __init__(self, notify: Callable[[bool], None]) -> None:
        """`notify` is called once all parts are known, with whether all succeeded."""
        self._notify = notify
        self._left = 1
        self._ok = True

    def part(self) -> Callable[[bool], None]:
        """Add a part; return a function to be called once, with whether it succeeded."""
        self._left += 1
        return self._known

    def seal(self) -> None:
        """Note that there are no further parts."""
        self._known(True)

    def _known(self, ok: bool) -> None:
        self._ok &= ok
        self._left -= 1
        if not self._left:
            self._notify(self._ok)


class ConfirmingChannel(Protocol):
    """A channel with publishes or commits that wait to be confirmed."""

    def close_batches(self) -> list[ConfirmBatch]:
        """The publishes and commits of this flush, once."""

    def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
        """Tell the publisher whether a batch is safe."""


class ConfirmParts:
    """A publish, or a commit, of more than one flush: a batch for each of them, and one outcome.

    It stands for its channel among the channels that wait for confirms.
    """

    __slots__ = ("_closed", "_confirming", "_failed", "_left", "_notify", "_open")

    def __init__(
        self, confirming: dict[ConfirmingChannel, None], notify: Callable[[ConfirmBatch, bool], None]
    ) -> None:
        """`notify` gets the first batch that failed, or else the last one, and whether all succeeded."""
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
        """Add a batch to this flush."""
        self._closed.append(batch)
        self._left += 1
        self._confirming[self] = None

    def end(self) -> None:
        """Note that no later flush has a batch."""
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


class Confirm(NamedTuple):
    """A confirm to send: of the publish `tag`, or with `multiple` also of all earlier ones without a confirm.

    `is_final`: it is refused, and a broker must not publish it again: the queue was full, or has it (`is_kept`) and
    lacks only what else the confirm waits for.
    """

    tag: int
    multiple: bool
    positive: bool
    is_final: bool = False
    is_kept: bool = False


class Confirms:
    """Numbers publishes and turns decided batches into confirms; `published` and `confirmed` count them."""

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
        batch.count += count
        return batch

    def publish_apart(self, count: int) -> ConfirmBatch:
        """Number `count` publishes as a batch outside of flushes; the caller calls `decided` for it."""
        self.end_batch()
        batch = self.publish(count)
        self._open = None
        return batch

    def refuse(self, count: int) -> None:
        """Number publishes that a full queue refused: a batch of their own, nacked in its turn."""
        self.end_batch()
        batch = self.publish(count)
        batch.refused = True
        self.end_batch()

    def end_batch(self) -> ConfirmBatch | None:
        """End the open batch, so that it is confirmed by itself; return it, None without one."""
        ended, self._open = self._open, None
        if ended is not None:
            self._closed.append(ended)
        return ended

    def close_batches(self) -> list[ConfirmBatch]:
        """End this flush; return its batches, in order."""
        self.end_batch()
        closed, self._closed = self._closed, []
        return closed

    def decided(self, batch: ConfirmBatch, ok: bool) -> list[Confirm]:
        """Take a batch's outcome; return the confirms to send, in order."""
        batch.outcome = ok
        confirms: list[Confirm] = []
        waiting = self._waiting
        while waiting:
            positive = waiting[0].outcome
            if positive is None:
                break
            batch = waiting.popleft()
            is_final = not positive and (batch.refused or bool(batch.unmet))
            kind = (positive, is_final, is_final and not batch.refused)
            multiple = batch.last - self.confirmed > 1
            if confirms and confirms[-1][2:] == kind:
                confirms.pop()
                multiple = True
            confirms.append(Confirm(batch.last, multiple, *kind))
            self.confirmed = batch.last
        return confirms
