"""Epochs of queues: an epoch tells a queue from every earlier queue, and names the queue's log."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from leveret.model.definitions import Queue


class Epochs:
    """Gives each new queue an epoch, transient queues too, because downstreams may have collected them.

    Attributes:
        last: the highest epoch of all queues; in a cluster, on any node.
    """

    def __init__(self, reserve: Callable[[int], int] | None = None) -> None:
        """Begin without queues.

        `reserve` gets the last epoch before the next one is given, and returns the highest epoch that may be given.
        """
        self.last = 0
        self._reserve = reserve or _reserve_nothing
        self._reserved = 0

    def stamp(self, wanted: Queue) -> Queue:
        """The definition with its own epoch or, if it has none, the next one."""
        if wanted.epoch:
            self.last = max(self.last, wanted.epoch)
            return wanted
        if self.last >= self._reserved:
            self._reserved = self._reserve(self.last)
        self.last += 1
        return msgspec.structs.replace(wanted, epoch=self.last)


def _reserve_nothing(last: int) -> int:
    """Reserve nothing, because the epochs need not outlast the process."""
    return last


def is_next_incarnation(wanted: Queue, existing: Queue) -> bool:
    """Whether the wanted queue differs from the existing one in the epoch alone: an operator has it begin anew."""
    return wanted.epoch not in (0, existing.epoch) and wanted == msgspec.structs.replace(
        existing, epoch=wanted.epoch
    )
