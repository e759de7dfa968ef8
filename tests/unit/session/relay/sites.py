"""Nodes without sockets, disk or clock whose clients use each other's queues over relays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pamqp import commands

from leveret.core.confirms import Batch
from leveret.core.queue import Queue
from leveret.core.queue_types import make_queue
from leveret.core.remote_queue import RemoteQueue
from leveret.model import definitions as d
from leveret.session.amqp091.connection import ClientConnection, State
from leveret.session.relay.asking import Asking
from leveret.session.relay.leaders import RelayedLeaders
from leveret.session.relay.serving import RelayConnection
from tests.unit.session.amqp091.fakes import FakeNode, connect, decode, frame


class RelayNode(FakeNode):
    """A node of a cluster whose flush also sends and confirms what is led elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.node_name = name
        self.leaders: RelayedLeaders = RelayedLeaders(
            name, self.broker, self.outbox, f"{name}-1".encode(), self._dial
        )
        self.woken: list[ClientConnection] = []
        self.connections: list[ClientConnection] = []
        self.dialled: list[Asking] = []
        self.inside: list[tuple[Asking, RelayConnection]] = []

    def _dial(self, asking: Asking) -> None:
        if asking.leader != self.node_name:
            self.dialled.append(asking)
            return
        serving = RelayConnection(self, node=self.node_name, now_ms=0)
        self.leaders.serving.add(serving)
        self.inside.append((asking, serving))
        asking.push = lambda: serving.receive(asking.take_output(), 0)
        asking.up()

    def append_now(self, queue: Queue) -> None:
        if isinstance(queue, RemoteQueue):
            self.leaders.append_messages(queue)
            return
        numbered = queue.take_numbered()
        super().append_now(queue)
        queue.logged_sequences({each.reference: each.sequence for each in numbered})

    def flush(self, *sessions: ClientConnection) -> None:
        confirming, self._confirm = self._confirm, lambda channel, batch: None
        del confirming
        super().flush()
        for session in sessions:
            waiting, session.confirming = session.confirming, {}
            for channel in waiting:
                for batch in channel.close_batches():
                    self._settle(channel, batch)

    _confirm: Callable[[Any, Batch], None] = staticmethod(lambda channel, batch: None)

    def _settle(self, channel: Any, batch: Batch) -> None:
        if batch.refused or not self.leaders.when_batch_confirmed(
            batch, lambda ok: channel.confirm(batch, ok)
        ):
            channel.confirm(batch, not batch.refused)
