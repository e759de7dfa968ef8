"""The class of queue that serves a declared queue."""

from __future__ import annotations

from functools import partial

from leveret.core.queues.backlog.priority_backlog import PriorityBacklog
from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.quorum_queue import QuorumQueue
from leveret.core.queues.stream import Stream
from leveret.model.definitions import Queue as QueueDefinition


def make_queue(definition: QueueDefinition, read: Reader) -> Queue:
    """An empty queue of the kind that the definition asks for."""
    arguments = definition.arguments
    if arguments.get("x-queue-type") == "stream":
        return Stream(definition, read)
    if arguments.get("x-queue-type") == "quorum":
        return QuorumQueue(definition, read)
    if priority_max := arguments.get("x-max-priority"):
        return Queue(definition, read, partial(PriorityBacklog, priority_max=int(priority_max)))
    return Queue(definition, read)
