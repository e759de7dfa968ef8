"""A queue that another node leads, as this node's broker sees it.

Messages are routed to it and gathered in it as in any queue; the leader decides everything else. So nothing is
dispatched, limited or expired here, and no message is taken from it. Only the leader counts its messages and consumers.
"""

from __future__ import annotations

from leveret.core.queues.backlog.backlog import Batch
from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.consumers import QueueConsumer
from leveret.core.queues.messages import Messages, Run
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import UNBOUNDED, QueueSettings
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import NotFound, Unsupported


def leader_is_down(queue: Queue, leader: str) -> NotFound:
    """The error, in RabbitMQ's words, for a queue whose leader is gone."""
    durable = "durable " if queue.definition.durable else ""
    vhost, name = queue.key
    if not leader:
        return NotFound(
            f"{durable}queue '{name}' in vhost '{vhost}' has no leader: no node has recorded where it is"
        )
    return NotFound(
        f"home node '{leader}' of {durable}queue '{name}' in vhost '{vhost}' is down or inaccessible"
    )


class RemoteQueue(Queue):
    """See the module.

    Attributes:
        leader: the name of the node that leads it; empty while no record names one.
        is_down: whether it has no leader: `leader` is gone, and no other node can take over.
        ahead: the difference between a message's number on its way to the leader and its place.
    """

    is_remote = True

    def __init__(self, definition: QueueDefinition, leader: str) -> None:
        """Begin with a running leader."""
        super().__init__(definition, _read_nothing)
        self.leader = leader
        self.is_down = False
        self.ahead = 0

    # -- counts -------------------------------------------------------------------------------

    @property
    def message_count(self) -> int:
        """0: unknown here, so the HTTP API leaves it out."""
        return 0

    @property
    def ready_count(self) -> int:
        """0, see `message_count`."""
        return 0

    @property
    def message_bytes(self) -> int:
        """0, see `message_count`."""
        return 0

    @property
    def consumer_count(self) -> int:
        """0, see `message_count`."""
        return 0

    @property
    def may_hold_messages(self) -> bool:
        """Always true: only the leader knows."""
        return True

    @property
    def is_behind(self) -> bool:
        """Always false: the leader slows its publishers itself."""
        return False

    @property
    def window_bytes(self) -> int:
        """The octets of messages on their way to the leader."""
        return self.gathered.body_bytes

    # -- what its leader does -----------------------------------------------------------------

    def configure(self, settings: QueueSettings) -> None:
        """Take settings, which say whether publishes may be rejected; the leader applies them."""
        self.settings = settings

    def must_keep(self, is_persistent: bool) -> bool:
        """Always false: nothing waits for this node's disk."""
        return False

    def room(self, body_bytes: int) -> int:
        """Unbounded: the leader rejects publishes."""
        return UNBOUNDED

    def refuse(self, messages: Messages) -> None:
        """Never called here."""

    def restore(self, first_offset: int, next_offset: int, settled: OffsetSet, body_bytes: int = 0) -> None:
        """Do nothing: no log here counts."""

    def appended(self, first: int, batch: Batch, now_ms: int = 0) -> None:
        """Do nothing: no log here counts."""

    def dispatch(self, now_ms: int = 0, elapsed_ms: int = 0) -> None:
        """Do nothing: nothing is due."""

    def offer(self, now_ms: int) -> None:
        """Do nothing: the leader delivers."""

    def give_way(self) -> None:
        """Do nothing: the leader drops messages."""

    def expire(self, now_ms: int, before: int) -> None:
        """Do nothing: the leader expires messages."""

    def is_unused(self, elapsed_ms: int) -> bool:
        """Always false: the leader sees the uses."""
        return False

    # -- what goes through a remote channel -----------------------------------------------------------

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """Refuse: consumers are registered at the leader."""
        raise self._elsewhere("consumers")

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Do nothing: no consumer is registered here."""

    def take_one(self, now_ms: int) -> tuple[list[Run], bool]:
        """Refuse: the messages are at the leader."""
        raise self._elsewhere("messages")

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """Refuse: the messages are at the leader."""
        raise self._elsewhere("messages")

    def drop_ready(self, reason: int) -> int:
        """Refuse: the messages are at the leader."""
        raise self._elsewhere("messages")

    def _elsewhere(self, what: str) -> Unsupported:
        vhost, name = self.key
        return Unsupported(
            f"queue '{name}' in vhost '{vhost}' is led by node '{self.leader}', and its {what} are there: ask that node"
        )


def _read_nothing(queue: Queue, offset: int) -> list[Run]:
    return []
