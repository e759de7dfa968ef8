"""The incarnations of a cluster's queues: every node that leads a queue collects it under the same one.

A single node counts the incarnations of a queue beside its outgoing log. In a cluster the next leader has to know them,
also when the leader before is lost. Therefore they are in etcd, from the first end of a queue's collection on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from leveret.core.queues.queue import Queue


class SharedIncarnations(Protocol):
    """See the module; `runtime.cluster.sites.collected_queues` keeps them."""

    def counts(self, epoch: int) -> Sequence[int]:
        """The counts (`wire.incarnation`) of a queue's incarnations, the present one last.

        All earlier ones have ended, or end soon. Empty if none ever ended.
        """

    async def prepare(self, queue: Queue, count: int, *, renumbers: bool) -> None:
        """Have a numbering for a queue that this node begins to collect; `count` is that of its own earlier log.

        It is another one than before if the queue is led without all its messages, or if it `renumbers` for another
        reason: offsets may name other messages.

        Raises:
            StorageError: etcd did not take it.
        """

    async def renew(self, queues: Iterable[Queue]) -> None:
        """Have another incarnation for each of these queues, whose collection ends.

        Raises:
            StorageError: etcd did not take it.
        """

    def forget(self, epochs: Iterable[int]) -> None:
        """Forget deleted queues."""
