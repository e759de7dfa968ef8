"""Simulated applications of a stream: readers over AMQP 0-9-1, and publishers and readers of the stream protocol.

Over AMQP 0-9-1 each connection reads from an offset of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from pamqp import commands

from leveret.testing.applications.run_books import BooksFault
from leveret.testing.applications.stream_apps import NumberingPublisher, StoringReader
from leveret.testing.applications.stream_books import StreamBooks
from leveret.testing.applications.stream_client import StreamAppClient
from leveret.testing.simulation.applications.application import ANSWER_TIMEOUT_S, SimulatedApplication
from leveret.testing.simulation.applications.client import ClientDelivery, SimulatedClient
from leveret.testing.simulation.machine.waiting import wait_until

_PREFETCH: Final = 50
_ACK_EVERY: Final = 10
_QUIET_S: Final = 2.0


class StreamReading:
    """One subscription: it checks each message, and returns credit with acknowledgements."""

    def __init__(self, client: SimulatedClient, stream: StreamBooks) -> None:
        """Begin without a subscription."""
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
            self._stream.read(offset, delivery.body, self._last, delivery.properties)
        except BooksFault as fault:
            self.fault = fault
            self._client.close()
            return
        self._last = offset
        self.count += 1
        if self.count % _ACK_EVERY == 0:
            self._client.send(commands.Basic.Ack(delivery.tag, True))


class SimulatedStreamReader(SimulatedApplication):
    """Reads a stream for a while, and then from another offset."""

    def __init__(self, *args: Any, stream: StreamBooks) -> None:
        """Begin idle; `stream` has the books of the stream to read."""
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


class SimulatedStreamClient(SimulatedApplication):
    """An application of the stream protocol: requests leader and replicas from any node, and works at one of them.

    A publisher works at the leader half of the time, and at any node otherwise, as behind a load balancer.
    """

    def __init__(self, *args: Any, stream: StreamBooks, role: NumberingPublisher | StoringReader) -> None:
        """Begin idle; `role` is a publisher or a reader."""
        super().__init__(*args)
        self._stream, self._role = stream, role

    async def turn(self) -> None:
        """See SimulatedApplication."""
        role = self._role
        async with self._at(self.random.choice(self._ports)) as client:
            leader, replicas = await client.ports_of(self._stream.name)
        ports = [leader, *replicas]
        if isinstance(role, NumberingPublisher):
            role.on_promise = self.on_promise
            ports = [leader, self.random.choice(self._ports)]
        port = self.random.choice(ports)
        async with self._at(port) as client:
            await role.work(client, lambda: self.is_stopping)

    @asynccontextmanager
    async def _at(self, port: int) -> AsyncIterator[StreamAppClient]:
        client = await StreamAppClient.open(self._network.connect, port)
        try:
            yield client
        finally:
            if not client.is_closed:
                client.close()


async def read_all(client: SimulatedClient, stream: StreamBooks) -> int:
    """Read a stream from its first message on until no more come; return the count. Raises BooksFault."""
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
