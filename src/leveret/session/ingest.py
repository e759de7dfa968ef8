"""Publishes and gets messages without a connection, for the HTTP API, by AMQP 0-9-1's own rules.

An API client has a channel without a socket. So permissions, carbon copies, user-ids, full queues and confirms work as
for every client. The caller flushes; then `outcome` is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from leveret.core.broker.actor import Actor, Unrestricted
from leveret.core.queues.confirms import ConfirmBatch, Confirms
from leveret.core.queues.head import Head
from leveret.core.queues.queue import Queue
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.remote_queues import ConnectionHost


class Fetched(NamedTuple):
    """A fetched message; `left` messages were ready behind it."""

    head: Head
    body: bytes
    redelivered: bool
    left: int


class ApiClient:
    """A user, or the operator, in one vhost.

    Attributes:
        outcome: whether the published message is safe; None until that is known.
        when_decided: called with the outcome then.
    """

    def __init__(
        self,
        host: ConnectionHost,
        user: str | None,
        vhost: str,
        *,
        now_ms: int,
        touch: Callable[[ClientConnection], None],
    ) -> None:
        """`user` None is the operator, with all permissions; `touch` asks for a flush."""
        connection = ClientConnection(host, peer="", from_loopback=True, now_ms=now_ms)
        connection.user, connection.vhost = user or "", vhost
        broker = host.broker
        connection.actor = Unrestricted(broker, vhost) if user is None else Actor(broker, user, vhost)
        self.outcome: bool | None = None
        self.when_decided: Callable[[bool], None] = lambda ok: None
        self._connection = connection
        self._channel = _Channel(connection, self._settled)
        self._touch = touch
        self._fetched: list[tuple[Queue, int]] = []

    def publish(self, exchange: str, routing_key: str, header: bytes, body: bytes) -> bool:
        """Publish a message; `header` is its content header. Return whether it is routed to a queue.

        Raises:
            LeveretError: an error that would close a client's channel.
        """
        channel = self._channel
        destination = channel.publisher.publish_one(
            channel, exchange.encode(), routing_key.encode(), header, body, mandatory=False
        )
        self._touch(self._connection)
        return bool(destination.queues)

    def get(self, name: str, count: int, *, no_ack: bool) -> list[Fetched]:
        """Get up to `count` messages of a queue; without `no_ack` they are unacked until `requeue` or `reject`.

        Raises:
            LeveretError: an error that would close a client's channel.
        """
        queue = self._channel.readable_queue(name)
        found: list[Fetched] = []
        while len(found) < count:
            runs, redelivered = self._channel.take_one(queue)
            if not runs:
                self._count(queue, "get_empty")
                break
            self._count(queue, "get_no_ack" if no_ack else "get")
            if redelivered:
                self._count(queue, "redeliver")
            found.append(Fetched(runs[0].head, runs[0].bodies[0], redelivered, queue.ready_count))
            if no_ack:
                queue.settle(runs[0].first, 1)
            else:
                self._fetched.append((queue, runs[0].first))
        self._channel.mark(queue)
        return found

    def requeue(self) -> None:
        """Return fetched messages to their places; a queue with another leader by now has them already."""
        for queue, offset in self._take_fetched():
            queue.requeue(offset, 1)

    def reject(self) -> None:
        """Dead-letter or drop fetched messages; those of a queue with another leader by now stay."""
        for queue, offset in self._take_fetched():
            queue.reject(offset, 1)

    def _take_fetched(self) -> list[tuple[Queue, int]]:
        queues = self._channel.connection.broker.queues
        held = [each for each in self._fetched if queues.get(each[0].key) is each[0]]
        self._fetched = []
        for queue, _ in held:
            self._channel.mark(queue)
        return held

    def _count(self, queue: Queue, name: str) -> None:
        for counters in (queue.counters, self._channel.connection.broker.counters):
            setattr(counters, name, getattr(counters, name) + 1)

    def _settled(self, ok: bool) -> None:
        self.outcome = ok
        self.when_decided(ok)


class _Channel(Channel):
    """A channel in confirm mode that reports to its owner only."""

    def __init__(self, connection: ClientConnection, settled: Callable[[bool], None]) -> None:
        super().__init__(connection, 1, connection.publisher, connection.host.leaders)
        self.confirms = Confirms()
        self._settled = settled

    def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
        """Report whether the message is safe."""
        self._settled(ok and not batch.refused)
