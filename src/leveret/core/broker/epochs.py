"""Epochs of queues: an epoch tells a queue from every earlier queue, and names the queue's log."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from leveret.model.definitions import Queue


class Epochs:
    """Gives each new queue an epoch, of one row for all: also what is transient may be collected, and known elsewhere.

    Attributes:
        last: no queue has a later one; in a cluster, none on any node.
    """

    def __init__(self, reserve: Callable[[int], int] | None = None) -> None:
        """No queue yet.

        `reserve` is told of the last epoch before another one is given, and returns up to which they may be given then.
        """
        self.last = 0
        self._reserve = reserve or _reserve_nothing
        self._reserved = 0

    def stamp(self, wanted: Queue) -> Queue:
        """The definition with an epoch: its own, if it has one, else one more than any before."""
        if wanted.epoch:
            self.last = max(self.last, wanted.epoch)
            return wanted
        if self.last >= self._reserved:
            self._reserved = self._reserve(self.last)
        self.last += 1
        return msgspec.structs.replace(wanted, epoch=self.last)


def _reserve_nothing(last: int) -> int:
    """What is given ends with the process."""
    return last
