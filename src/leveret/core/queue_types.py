"""From a declared queue to the kind of queue that serves it."""

from __future__ import annotations

from leveret.core.queue import Queue, Reader
from leveret.model.definitions import Queue as QueueDefinition


def make_queue(definition: QueueDefinition, read: Reader) -> Queue:
    """An empty queue of the kind that the definition asks for."""
    return Queue(definition, read)
