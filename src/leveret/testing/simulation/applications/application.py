"""A simulated application: a process that works over one connection, and connects again after its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from pamqp import commands

from leveret.testing.applications.run_books import BooksFault, RunBooks
from leveret.testing.applications.stream_client import StreamAppClosed
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.process import SimulatedProcess

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 6.0
_RETRY_S: Final = 0.2


class SimulatedApplication:
    """The base of all applications: connects to one of several nodes, works until the connection ends, and repeats.

    Attributes:
        is_stopping: whether the application has to end.
        fault: the first fault that it found.
        on_promise: called after each promise of a node, such as a confirm.
        on_publish: called after each sent message.
        heartbeat_s: the interval agreed with the node; 0 for no heartbeats.
    """

    def __init__(
        self, name: str, network: SimulatedNetwork, ports: Sequence[int], books: RunBooks, random: Random
    ) -> None:
        """Begin idle; each connection chooses a port anew."""
        self.process = SimulatedProcess(name)
        self.name = name
        self.books = books
        self.random = random
        self.is_stopping = False
        self.fault: BooksFault | None = None
        self.heartbeat_s = 0
        self.on_promise: Callable[[], None] = lambda: None
        self.on_publish: Callable[[], None] = lambda: None
        self._network = network
        self._ports = ports

    def start(self) -> None:
        """Start the application's process."""
        self.process.spawn(self._run())

    async def _run(self) -> None:
        while not self.is_stopping and self.fault is None:
            try:
                await self.turn()
            except (ClientClosed, StreamAppClosed, OSError, TimeoutError):
                await asyncio.sleep(_RETRY_S * (0.5 + self.random.random()))
            except BooksFault as fault:
                self.fault = fault

    async def turn(self) -> None:
        """Connect, and work until the connection ends. Raises ClientClosed, StreamAppClosed, OSError, TimeoutError."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            client = await SimulatedClient.connect(
                self._network, self.random.choice(self._ports), heartbeat_s=self.heartbeat_s
            )
        beating = asyncio.get_running_loop().create_task(self._beat(client))
        try:
            await self.work(client)
        finally:
            beating.cancel()
            if not client.is_closed:
                client.close()

    async def _beat(self, client: SimulatedClient) -> None:
        while self.heartbeat_s and not client.is_closed:
            client.beat()
            await asyncio.sleep(self.heartbeat_s / 2)

    async def work(self, client: SimulatedClient) -> None:
        """Use a connection until it ends."""
        raise NotImplementedError

    async def answer(self, client: SimulatedClient, method: Any) -> Any:
        """Call a method; return its answer. Raises TimeoutError."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await client.call(method)

    def found(self, fault: BooksFault, client: SimulatedClient) -> None:
        """Store a fault that a callback has found, and end the connection."""
        self.fault = fault
        client.close()


async def drain(
    client: SimulatedClient,
    queue: str,
    note: Callable[[ClientDelivery], None],
    *,
    count_max: int = 1_000_000,
    at_once: int = 1,
) -> None:
    """Get and acknowledge all messages of a queue, or the first ones. Raises ClientClosed, TimeoutError.

    Args:
        client: an open client.
        queue: the queue.
        note: called with each message.
        count_max: the most messages to get.
        at_once: how many requests are on their way at a time.
    """
    while count_max:
        number = min(at_once, count_max)
        count_max -= number
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answers = await asyncio.gather(
                *(client.call(commands.Basic.Get(0, queue)) for _ in range(number))
            )
        for got in answers:
            if not isinstance(got, ClientDelivery):
                return
            note(got)
            client.send(commands.Basic.Ack(got.tag))
