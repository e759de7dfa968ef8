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
        self._down: set[Publication] = set()
        self._down_bytes = self._down_count = 0

    @property
    def expected_bytes(self) -> int:
        """The part of `size_bytes` whose queues have a leader, or will soon have one."""
        return self.size_bytes - self._down_bytes

    @property
    def is_full(self) -> bool:
        """Whether messages for queues that are down reach the limit."""
        return self._down_bytes + self._down_count * MESSAGE_BYTES > DOWN_BYTES_MAX

    def add(self, publication: Publication, size: int, count: int) -> None:
        """Count more kept messages of so many octets."""
        self.size_bytes += size
        if publication in self._down:
            self._down_bytes += size
            self._down_count += count

    def freed(self, publication: Publication, size: int, count: int) -> None:
        """Count fewer of them."""
        self.add(publication, -size, -count)
        self.on_freed()

    def is_for(self, publication: Publication, *, down: bool) -> None:
        """Note whether a publication's queue is down."""
        if down is (publication in self._down):
            return
        kept, sign = publication.unconfirmed, 1 if down else -1
        self._down_bytes += sign * kept.size_bytes
        self._down_count += sign * len(kept)
        (self._down.add if down else self._down.remove)(publication)


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
        self._may_reject = False
        self._on_detached = on_detached
        kept.is_for(self, down=queue.is_down)

    def publish(self) -> None:
        """Number the queue's gathered messages, and send them if there is a leader."""
        queue = self.queue
        queue.published_total += len(queue.gathered)
        self._note_overflow()
        for messages in queue.gathered.take():
            self.unconfirmed.add(messages)
            self._kept.add(self, messages.body_bytes, len(messages))
            if self.outlet is not None:
                self.outlet.publish(messages)

    def refuse_all(self) -> None:
        """Refuse all waiting messages; a leader may have taken some of them all the same."""
        self.decided(self.unconfirmed.last, ok=False)

    def decided(self, number: int, *, ok: bool, is_final: bool = False, is_kept: bool = False) -> None:
        """Note that the leader has, or refuses, all messages up to a number; see Unconfirmed.settle."""
        kept = self.unconfirmed
        size, count = kept.size_bytes, len(kept)
        notify = kept.settle(number, ok=ok, is_final=is_final, is_kept=is_kept)
        self._kept.freed(self, size - kept.size_bytes, count - len(kept))
        self._may_reject = self._may_reject and len(kept) > 0
        for call in notify:
            call()

    def is_at(self, number: int) -> None:
        """Note that the leader has taken all messages up to a number.

        It confirms all of them again when they are on disk. But a queue that rejects publishes may have rejected some.
        """
        self._note_overflow()
        if self._may_reject:
            self.unconfirmed.doubt(number)

    def _note_overflow(self) -> None:
        """Note whether a leader may reject messages: it may have done so before another policy came."""
        self._may_reject = self._may_reject or self.queue.settings.overflow != DROP_HEAD

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
