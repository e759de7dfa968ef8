"""Observes each confirm of a node: the begin of its wait, and the node's decision to send it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard
from unittest import mock

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.runtime.logs.engine import Engine
from leveret.testing.simulation.machine.process import current_process


class PromiseWatch(Protocol):
    """The receiver of the observations."""

    def waits(self, batch: ConfirmBatch, queues: list[Queue]) -> None:
        """Take a batch that was appended to these queues, which the node leads; its confirm waits for the disk."""

    def promised(self, node: str, batch: ConfirmBatch, queues: list[Queue]) -> None:
        """Take a batch that the node confirms, with its queues, which the node leads or led."""


@contextmanager
def watched_promises(watch: PromiseWatch) -> Iterator[None]:
    """Report each confirm to `watch`, until the end of the block."""
    with_others: Any = Engine._notify_soon
    alone: Any = Engine._confirm
    taken: Any = Engine._take_batches

    def tell(batch: ConfirmBatch) -> None:
        process = current_process()
        if process is not None:
            watch.promised(process.name, batch, [queue for queue in batch.queues if _is_led(queue)])

    def take_batches(engine: Engine, sessions: Any) -> Any:
        batches = taken(engine, sessions)
        for _, batch in batches:
            watch.waits(
                batch, [queue for queue, is_durable in batch.queues.items() if is_durable and _is_led(queue)]
            )
        return batches

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
        mock.patch.object(Engine, "_take_batches", take_batches),
    ):
        yield


def _is_led(queue: object) -> TypeGuard[Queue]:
    return isinstance(queue, Queue) and not queue.is_remote
