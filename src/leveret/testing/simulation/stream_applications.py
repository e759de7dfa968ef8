"""Simulated readers of a stream, over AMQP 0-9-1: each connection reads from an offset of its own."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pamqp import commands

from leveret.testing.simulation.applications import ANSWER_TIMEOUT_S, SimulatedApplication
from leveret.testing.simulation.books import BooksFault
from leveret.testing.simulation.client import ClientDelivery, SimulatedClient
from leveret.testing.simulation.stream_books import StreamBooks
from leveret.testing.simulation.waiting import wait_until

_PREFETCH: Final = 50
_ACK_EVERY: Final = 10
_QUIET_S: Final = 5.0


class StreamReading:
    """One subscription: it checks each message, and returns credit with acknowledgements."""

    def __init__(self, client: SimulatedClient, stream: StreamBooks) -> None:
        """Nothing is read yet."""
        self.fault: BooksFault | None = None
        self.count = 0
        self._client, self._stream = client, stream
        self._last: int | None = None

    async def begin(self, offset: int | str) -> None:
        """Subscribe. Raises ClientClosed."""
        client = self._client
        client.on_delivery = self._read
        await client.call(commands.Basic.Qos(0, _PREFETCH))
        arguments: Any = {"x-stream-offset": offset}
        await client.call(commands.Basic.Consume(0, self._stream.name, "", arguments=arguments))

    def _read(self, delivery: ClientDelivery) -> None:
        offset = int(delivery.headers["x-stream-offset"])
        try:
            self._stream.read(offset, delivery.message_id, delivery.body, self._last)
        except BooksFault as fault:
            self.fault = fault
            self._client.close()
            return
        self._last = offset
        self.count += 1
        if self.count % _ACK_EVERY == 0:
            self._client.send(commands.Basic.Ack(delivery.tag, True))


class SimulatedStreamReader(SimulatedApplication):
    """Reads a stream for a while, and then from somewhere else."""

    def __init__(self, *args: Any, stream: StreamBooks) -> None:
        """Of one stream."""
        super().__init__(*args)
        self.stream = stream

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        reading = StreamReading(client, self.stream)
        seen = max(self.stream.at, default=0)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await reading.begin(self.random.choice(("first", "next", "last", self.random.randint(0, seen))))
        await wait_until(lambda: self.is_stopping or client.is_closed, self.random.expovariate(1 / 10))
        self.fault = reading.fault


async def read_all(client: SimulatedClient, stream: StreamBooks) -> int:
    """Read a stream from its first message on, until nothing more comes; return the count. Raises BooksFault."""
    reading = StreamReading(client, stream)
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        await reading.begin("first")
    count = -1
    while count < reading.count:
        count = reading.count
        await asyncio.sleep(_QUIET_S)
    if reading.fault is not None:
        raise reading.fault
    return count
