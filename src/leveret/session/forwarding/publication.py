"""What this node published to one queue, whoever leads it, and how much of all such is kept.

Of a queue that is down it may be long until somebody leads it again. So no other queue's publishers wait for it
(`RetransmitBuffer.expected_bytes`), and what is kept of all such queues has an end (`RetransmitBuffer.is_full`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import DROP_HEAD
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.session.forwarding.leader_client import Outlet
from leveret.session.forwarding.unconfirmed import Unconfirmed

DOWN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Kept for queues that are down, all together."""
MESSAGE_BYTES: Final = 100
"""What keeping a message takes beside its body, about."""


class RetransmitBuffer:
    """How much is kept of what leaders have not confirmed.

    Attributes:
        size_bytes: octets of bodies.
        on_freed: told when less is kept.
    """

    def __init__(self) -> None:
        """Nothing."""
        self.size_bytes = 0
        self.on_freed: Callable[[], None] = _do_nothing
        self._down: dict[Publication, None] = {}

    @property
    def expected_bytes(self) -> int:
        """Of `size_bytes`, what there is a leader for, or soon will be."""
        return self.size_bytes - sum(each.unconfirmed.size_bytes for each in self._down)

    @property
    def is_full(self) -> bool:
        """Whether no more should be kept for queues that are down."""
        waiting = [each.unconfirmed for each in self._down]
        return sum(each.size_bytes + len(each) * MESSAGE_BYTES for each in waiting) > DOWN_BYTES_MAX

    def add(self, size: int) -> None:
        """So many octets are kept now."""
        self.size_bytes += size

    def freed(self, size: int) -> None:
        """So many octets are kept no longer."""
        self.size_bytes -= size
        self.on_freed()

    def is_for(self, publication: Publication, *, down: bool) -> None:
        """What is kept is for a queue that is down, or that is not."""
        if down:
            self._down[publication] = None
        else:
            self._down.pop(publication, None)


class Publication:
    """See the module.

    Attributes:
        queue: what is, or stands for, the queue.
        unconfirmed: what no leader has confirmed.
        outlet: the way to the leader, if there is one.
        used_at_ms: when something was published last.
    """

    def __init__(self, queue: RemoteQueue, kept: RetransmitBuffer, on_detached: Callable[[], None]) -> None:
        """Nothing was published."""
        self.queue: Queue = queue
        self.unconfirmed = Unconfirmed()
        self.outlet: Outlet | None = None
        self.used_at_ms = 0
        self._kept = kept
        self._on_detached = on_detached
        kept.is_for(self, down=queue.is_down)

    def publish(self) -> None:
        """Number what its queue has gathered, and send it if there is a way."""
        queue = self.queue
        queue.published_total += queue.gathered_count
        for messages in queue.take_gathered():
            self.unconfirmed.add(messages)
            self._kept.add(messages.body_bytes)
            if self.outlet is not None:
                self.outlet.publish(messages)

    def refuse_all(self) -> None:
        """Keep nothing of what waits, and have it refused; a leader may have taken some of it all the same."""
        self.settled(self.unconfirmed.last, ok=False)

    def settled(self, number: int, *, ok: bool) -> None:
        """The leader has, or refuses, all up to a number."""
        before = self.unconfirmed.size_bytes
        notify = self.unconfirmed.settle(number, ok=ok)
        self._kept.freed(before - self.unconfirmed.size_bytes)
        for call in notify:
            call()

    def is_at(self, number: int) -> None:
        """The leader has taken what is up to a number.

        It confirms all that again when it is on disk. But of a queue that rejects it may have rejected some of it.
        """
        if self.queue.settings.overflow != DROP_HEAD:
            self.settled(number, ok=False)

    def close(self) -> None:
        """Nobody is asked any more."""
        if self.outlet is not None:
            self.outlet.close()
            self.outlet = None

    def detached(self) -> None:
        """The outlet is gone."""
        self.outlet = None
        self._on_detached()


def _do_nothing() -> None:
    """Nobody waits for that."""
