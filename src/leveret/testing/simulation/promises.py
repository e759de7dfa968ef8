"""Sees each confirm of a node at the moment at which the node decides that it may be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.runtime.logs.engine import Engine
from leveret.testing.simulation.process import current_process

Promised = Callable[[str, Queue], None]
"""(node, queue): the node confirms a message of a queue that it leads."""


@contextmanager
def watched_promises(promised: Promised) -> Iterator[None]:
    """Tell of each confirm, until the end of the block."""
    with_others: Any = Engine._notify_soon
    alone: Any = Engine._confirm

    def tell(batch: ConfirmBatch) -> None:
        # The confirm of a message for several queues is decided by the last of them: the others may have been handed
        # over since, with the message.
        process, queue = current_process(), next(iter(batch.queues), None)
        if (
            process is not None
            and len(batch.queues) == 1
            and isinstance(queue, Queue)
            and not queue.is_remote
        ):
            promised(process.name, queue)

    def notify_soon(engine: Engine, channel: Any, batch: ConfirmBatch, *, ok: bool) -> None:
        if ok:
            tell(batch)
        with_others(engine, channel, batch, ok=ok)

    def confirm(engine: Engine, confirms: list[tuple[Any, ConfirmBatch]], *, ok: bool) -> None:
        for _, batch in confirms if ok else ():
            tell(batch)
        alone(engine, confirms, ok=ok)

    with (
        mock.patch.object(Engine, "_notify_soon", notify_soon),
        mock.patch.object(Engine, "_confirm", confirm),
    ):
        yield
