"""This node's unconfirmed publishes to one queue, under any leader, and the total size of all of them.

A queue that is down may have no leader for long. So no other queue's publishers wait for it
(`RetransmitBuffer.expected_bytes`), and the messages of all such queues are limited (`RetransmitBuffer.is_full`).
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
"""The limit of messages for queues that are down, all together."""
MESSAGE_BYTES: Final = 100
"""The memory of a kept message beside its body, about."""


class RetransmitBuffer:
    """The size of all publishes that leaders have not confirmed.

    Attributes:
        size_bytes: the octets of their bodies.
        on_freed: called when less is kept.
    """

    def __init__(self) -> None:
        """Nothing."""
        self.size_bytes = 0
        self.on_freed: Callable[[], None] = _do_nothing
        self._down: dict[Publication, None] = {}

    @property
    def expected_bytes(self) -> int:
        """The part of `size_bytes` whose queues have a leader, or will soon have one."""
        return self.size_bytes - sum(each.unconfirmed.size_bytes for each in self._down)

    @property
    def is_full(self) -> bool:
        """Whether messages for queues that are down reach the limit."""
        waiting = [each.unconfirmed for each in self._down]
        return sum(each.size_bytes + len(each) * MESSAGE_BYTES for each in waiting) > DOWN_BYTES_MAX

    def add(self, size: int) -> None:
        """Count more kept octets."""
        self.size_bytes += size

    def freed(self, size: int) -> None:
        """Count fewer kept octets."""
        self.size_bytes -= size
        self.on_freed()

    def is_for(self, publication: Publication, *, down: bool) -> None:
        """Note whether a publication's queue is down."""
        if down:
            self._down[publication] = None
        else:
            self._down.pop(publication, None)


class Publication:
    """See the module.

    Attributes:
        queue: the queue's object at this node.
        unconfirmed: the messages that no leader has confirmed.
        outlet: the channel to the leader, None without one.
        used_at_ms: the time of the last publish.
    """

    def __init__(self, queue: RemoteQueue, kept: RetransmitBuffer, on_detached: Callable[[], None]) -> None:
        """Begin without messages."""
        self.queue: Queue = queue
        self.unconfirmed = Unconfirmed()
        self.outlet: Outlet | None = None
        self.used_at_ms = 0
        self._kept = kept
        self._on_detached = on_detached
        kept.is_for(self, down=queue.is_down)

    def publish(self) -> None:
        """Number the queue's gathered messages, and send them if there is a leader."""
        queue = self.queue
        queue.published_total += queue.gathered_count
        for messages in queue.take_gathered():
            self.unconfirmed.add(messages)
            self._kept.add(messages.body_bytes)
            if self.outlet is not None:
                self.outlet.publish(messages)

    def refuse_all(self) -> None:
        """Refuse all waiting messages; a leader may have taken some of them all the same."""
        self.settled(self.unconfirmed.last, ok=False)

    def settled(self, number: int, *, ok: bool) -> None:
        """Note that the leader has, or refuses, all messages up to a number."""
        before = self.unconfirmed.size_bytes
        notify = self.unconfirmed.settle(number, ok=ok)
        self._kept.freed(before - self.unconfirmed.size_bytes)
        for call in notify:
            call()

    def is_at(self, number: int) -> None:
        """Note that the leader has taken all messages up to a number.

        It confirms all of them again when they are on disk. But a queue that rejects publishes may have rejected some.
        """
        if self.queue.settings.overflow != DROP_HEAD:
            self.settled(number, ok=False)

    def close(self) -> None:
        """Close the outlet."""
        if self.outlet is not None:
            self.outlet.close()
            self.outlet = None

    def detached(self) -> None:
        """Note that the outlet is gone."""
        self.outlet = None
        self._on_detached()


def _do_nothing() -> None:
    """Do nothing."""
