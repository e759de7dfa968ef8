"""Publishes of the stream protocol into streams that other nodes lead: one channel to the leader for each stream.

A batch is passed on as its publisher sent it, with its publishing ids, so the leader stores once what comes twice. It
is confirmed when the leader says that a majority has it.

A batch that was sent to a leader is never sent to the next one. The stream protocol leaves this to the client, as
RabbitMQ does: all batches of the channel fail with LedElsewhere, the client learns that the stream has moved, and
publishes again what has no confirm. If only some of the batches failed, a later one could be stored before an earlier
one, and the earlier one would count as stored. A batch that was not sent to any leader waits for one.

A batch may also be held, because its confirm is to cover something else that is on its way (leader_offsets). All later
batches of the stream wait behind it, and fail with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import StreamBatch
from leveret.model.definitions import QueueKey
from leveret.model.errors import (
    LedElsewhere,
    LeveretError,
    NotFound,
    PeerError,
    PreconditionFailed,
    StorageError,
)
from leveret.session.forwarding.leader_client import LeaderClient
from leveret.wire import amqp091 as wire
from leveret.wire import forwarding
from leveret.wire.stream.codec import Code

IDLE_MS: Final = 60_000
"""A channel is closed after this time without publishes."""

Hold = Callable[[Callable[[], None]], None]
"""Calls back when a batch may be sent, perhaps at once."""
_ERRORS: Final[dict[int, type[LeveretError]]] = {
    Code.PRECONDITION_FAILED: PreconditionFailed,
    Code.STREAM_DOES_NOT_EXIST: NotFound,
}


class StreamOutlet:
    """The way to the leader for the batches of one stream.

    Attributes:
        batches: those that have no answer, by number.
        channel: the channel to the leader; None while there is none.
    """

    def __init__(self, queue: RemoteQueue) -> None:
        """Begin without a channel."""
        self.key: QueueKey = queue.key
        self.epoch = queue.epoch
        self.target = queue.name_octets
        self.batches: dict[int, StreamBatch] = {}
        self.channel: StreamChannel | None = None
        self.used_at_ms = 0
        self._last = self._sent = 0
        self._held: set[int] = set()

    def publish(self, batch: StreamBatch, hold: Hold) -> None:
        """Take a batch, to be sent once `hold` calls back."""
        self._last += 1
        self.batches[self._last] = batch
        self._held.add(self._last)
        hold(partial(self._release, self._last))

    def _release(self, number: int) -> None:
        self._held.discard(number)
        self.send()

    def send(self) -> None:
        """Send the batches up to the first that is held, if the leader has taken the channel."""
        channel = self.channel
        if channel is None or not channel.is_bound:
            return
        while self._sent < self._last and self._sent + 1 not in self._held:
            self._sent += 1
            channel.store(self._sent, self.batches[self._sent])

    def answered(self, number: int, code: int, text: str) -> None:
        """Take the leader's answer about a batch."""
        batch = self.batches.pop(number, None)
        if batch is not None:
            batch.done(None if code == Code.OK else _ERRORS.get(code, StorageError)(text))

    def close(self) -> None:
        """Close the channel."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def fail(self) -> None:
        """Fail all batches."""
        batches, self.batches = self.batches, {}
        vhost, name = self.key
        for batch in batches.values():
            batch.done(LedElsewhere(f"stream '{name}' in vhost '{vhost}' has another leader, or none"))


class StreamChannel:
    """One channel to a leader (leader_client.LeaderClient.channels).

    Attributes:
        leader: the node at its other end.
        is_bound: whether the leader has taken it. Before that no batch is sent.
    """

    def __init__(
        self, outlet: StreamOutlet, leader_client: LeaderClient, ended: Callable[[StreamOutlet], None]
    ) -> None:
        """Open it; `ended` is called when the leader closes it, or is lost."""
        self.leader = leader_client.leader
        self.is_bound = False
        self._outlet = outlet
        self._leader_client = leader_client
        self._ended = ended
        self._is_closed = False
        self._number = leader_client.number()
        leader_client.channels[self._number] = self
        leader_client.send(
            forwarding.channel_open(self._number)
            + forwarding.target(self._number, outlet.target, outlet.epoch, b"")
        )

    def store(self, number: int, batch: StreamBatch) -> None:
        """Send a batch."""
        sent = forwarding.ForwardedBatch(
            number, batch.reference, batch.ids, batch.entries, batch.records, batch.filters
        )
        self._leader_client.send(forwarding.store(self._number, sent))

    def frame(self, kind: int, payload: bytes) -> None:
        """Take a frame of the leader.

        Raises:
            LeveretError: the frame is invalid.
        """
        method, is_used = payload[:4], self._outlet.channel is self
        if method == forwarding.STORED:
            if is_used:
                self._outlet.answered(*forwarding.decode_stored(payload))
        elif method == forwarding.TARGET_OK:
            self.is_bound = True
            if is_used:
                self._outlet.send()
        elif method == wire.CHANNEL_CLOSE:
            self._leader_client.send(forwarding.channel_close_ok(self._number))
            if not self._is_closed:
                self._leader_client.release(self._number)
                self.lost()
        elif method == wire.CHANNEL_CLOSE_OK:
            self._leader_client.release(self._number)
        elif method != wire.CHANNEL_OPEN_OK:
            raise PeerError(f"method {method.hex()} on a channel that publishes into a stream")

    def lost(self) -> None:
        """Note that the channel is gone."""
        if self._outlet.channel is self and not self._is_closed:
            self._ended(self._outlet)

    def close(self) -> None:
        """Close it, after the last batch."""
        self._is_closed = True
        self._leader_client.send(forwarding.channel_close(self._number))


class StreamOutlets:
    """See the module.

    Attributes:
        watches: functions to call when a stream gets another leader, or is deleted.
    """

    def __init__(
        self, connection_for: Callable[[QueueKey], LeaderClient | None], repeat_soon: Callable[[], None]
    ) -> None:
        """Know no stream yet.

        Args:
            connection_for: returns the connection to the leader of a queue; None while there is none.
            repeat_soon: asks for a call of `go_on` soon.
        """
        self.watches: dict[QueueKey, dict[object, Callable[[], None]]] = {}
        self._connection_for = connection_for
        self._repeat_soon = repeat_soon
        self._outlets: dict[QueueKey, StreamOutlet] = {}
        self._now_ms = 0

    def publish(self, queue: RemoteQueue, batch: StreamBatch, hold: Hold) -> None:
        """Pass a batch on to the leader of a stream; its `done` is called with the outcome, in order.

        The batch, and all behind it, are sent once `hold` calls back.
        """
        outlet = self._outlets.get(queue.key)
        if outlet is not None and outlet.epoch != queue.epoch:
            self._fail(outlet)
            outlet = None
        if outlet is None:
            outlet = self._outlets[queue.key] = StreamOutlet(queue)
        outlet.used_at_ms = self._now_ms
        outlet.publish(batch, hold)
        self._attach(outlet)

    def _attach(self, outlet: StreamOutlet) -> None:
        if outlet.channel is None and outlet.batches:
            leader_client = self._connection_for(outlet.key)
            if leader_client is not None and leader_client.is_crowded:
                self._repeat_soon()
            elif leader_client is not None:
                outlet.channel = StreamChannel(outlet, leader_client, self._ended)

    def waiting(self) -> Iterator[QueueKey]:
        """The streams with batches that have no answer."""
        return (key for key, outlet in self._outlets.items() if outlet.batches)

    def go_on(self) -> None:
        """Send what waits for a connection, where there is one now."""
        for outlet in list(self._outlets.values()):
            self._attach(outlet)

    def led_by(self, queue: RemoteQueue) -> None:
        """Note the leader of a stream."""
        self._changed(queue.key)
        outlet = self._outlets.get(queue.key)
        if outlet is None:
            return
        channel = outlet.channel
        if channel is not None and channel.leader != queue.leader:
            if channel.is_bound:
                self._fail(outlet)
                return
            outlet.close()
        self._attach(outlet)

    def left(self, queue: Queue) -> None:
        """Note that a stream has no leader, is led here, or is deleted."""
        self._changed(queue.key)
        outlet = self._outlets.get(queue.key)
        if outlet is not None:
            self._fail(outlet)

    def _changed(self, key: QueueKey) -> None:
        for call in list(self.watches.get(key, {}).values()):
            call()

    def _ended(self, outlet: StreamOutlet) -> None:
        """Note that the leader has closed a channel, or is lost."""
        channel, outlet.channel = outlet.channel, None
        if channel is not None and channel.is_bound:
            self._fail(outlet)
        else:
            # The leader does not know yet that it leads, and has had no batch.
            self._repeat_soon()

    def _fail(self, outlet: StreamOutlet) -> None:
        if self._outlets.get(outlet.key) is outlet:
            del self._outlets[outlet.key]
        outlet.close()
        outlet.fail()

    def tick(self, now_ms: int) -> bool:
        """Close channels without publishes; return whether there are octets to send."""
        self._now_ms = now_ms
        idle = [
            each for each in self._outlets.values() if not each.batches and now_ms - each.used_at_ms > IDLE_MS
        ]
        for outlet in idle:
            del self._outlets[outlet.key]
            outlet.close()
        return bool(idle)
