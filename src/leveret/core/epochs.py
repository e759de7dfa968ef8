"""What tells a queue from any other of its name: its epoch, which its log is named after."""

from __future__ import annotations

import msgspec

from leveret.model.definitions import Queue


class Epochs:
    """Gives each new queue an epoch.

    Attributes:
        last: no durable queue has a later one; in a cluster, none at all on any node.
        is_shared: whether other nodes know this node's queues: then all epochs are of one row.
    """

    def __init__(self) -> None:
        """No queue yet."""
        self.last = 0
        self.is_shared = False
        self._last_transient = 0

    def stamp(self, wanted: Queue) -> Queue:
        """The definition with an epoch: its own, if it has one, else one more than any before."""
        if wanted.epoch:
            self.last = max(self.last, wanted.epoch)
            return wanted
        if wanted.durable or self.is_shared:
            self.last += 1
            return msgspec.structs.replace(wanted, epoch=self.last)
        self._last_transient += 1
        return msgspec.structs.replace(wanted, epoch=self._last_transient)
