"""Simulated applications: publishers with confirms and consumers, each a process that connects again when it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from pamqp import commands

from leveret.testing.simulation.books import BookedMessage, BooksFault, RunBooks
from leveret.testing.simulation.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.network import SimulatedNetwork
from leveret.testing.simulation.process import SimulatedProcess

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 6.0
_RETRY_S: Final = 0.2
_UNCONFIRMED_MAX: Final = 100
_PREFETCH: Final = 20


class SimulatedApplication:
    """What both kinds share: connect to one of some nodes, work until the connection ends, begin anew."""

    def __init__(
        self, name: str, network: SimulatedNetwork, ports: Sequence[int], books: RunBooks, random: Random
    ) -> None:
        """Do nothing yet; a port is chosen anew at each connection."""
        self.process = SimulatedProcess(name)
        self.name = name
        self.books = books
        self.random = random
        self.is_stopping = False
        self.fault: BooksFault | None = None
        self._network = network
        self._ports = ports

    def start(self) -> None:
        """Begin."""
        self.process.spawn(self._run())

    async def _run(self) -> None:
        while not self.is_stopping and self.fault is None:
            client: SimulatedClient | None = None
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    client = await SimulatedClient.connect(self._network, self.random.choice(self._ports))
                await self.work(client)
            except (ClientClosed, OSError, TimeoutError):
                await asyncio.sleep(_RETRY_S * (0.5 + self.random.random()))
            except BooksFault as fault:
                self.fault = fault
            finally:
                if client is not None and not client.is_closed:
                    client.close()

    async def work(self, client: SimulatedClient) -> None:
        """Use a connection until it ends."""
        raise NotImplementedError

    async def answer(self, client: SimulatedClient, method: Any) -> Any:
        """Call a method. Raises TimeoutError."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await client.call(method)


class SimulatedPublisher(SimulatedApplication):
    """Publishes to some queues, a message after the other, and notes the confirms."""

    def __init__(self, *args: Any, queues: Sequence[str], interval_s: float) -> None:
        """`interval_s` lies between two messages on average."""
        super().__init__(*args)
        self.queues = queues
        self.interval_s = interval_s
        self.connections = 0

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        await self.answer(client, commands.Confirm.Select())
        unconfirmed: dict[int, BookedMessage] = {}
        wakes: list[asyncio.Future[None]] = []

        def confirmed(tag: int, multiple: bool, ok: bool) -> None:
            tags = [each for each in unconfirmed if each <= tag] if multiple else [tag]
            for each in tags:
                message = unconfirmed.pop(each, None)
                if message is not None and ok:
                    self.books.confirm(message)
            while wakes:
                waiting = wakes.pop()
                if not waiting.done():
                    waiting.set_result(None)

        client.on_confirm = confirmed
        # Order is a matter of one channel: what an earlier connection sent may be on its way to a leader still.
        self.connections += 1
        origin = f"{self.name}/{self.connections}"
        tag = 0
        while not self.is_stopping and not client.is_closed:
            message = self.books.published(self.random.choice(self.queues), origin)
            tag += 1
            unconfirmed[tag] = message
            client.publish(message.queue, str(message.number), message.body)
            if len(unconfirmed) >= _UNCONFIRMED_MAX:
                waiting = asyncio.get_running_loop().create_future()
                wakes.append(waiting)
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await waiting
            await asyncio.sleep(self.random.expovariate(1 / self.interval_s))


class SimulatedConsumer(SimulatedApplication):
    """Consumes one queue: acknowledges most messages, in any order, returns some, leaves some.

    An acknowledgement has no answer of its own. The answer to `tx.commit` shows that the node, its followers and its
    mirrors have it; that to any other method that the log of the node has it, which does not outlive the node.
    """

    def __init__(
        self, *args: Any, queue: str, acks: float = 0.6, returns: float = 0.1, commits: bool = True
    ) -> None:
        """`acks` and `returns` are shares of the deliveries; the others stay unacknowledged until the end.

        With `commits` the consumer acknowledges in transactions.
        """
        super().__init__(*args)
        self.queue = queue
        self.commits = commits
        self.acks = acks
        self.returns = returns

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        arrived: list[tuple[ClientDelivery, BookedMessage]] = []

        def delivered(delivery: ClientDelivery) -> None:
            try:
                message = self.books.delivered(
                    self.queue, delivery.message_id, delivery.body, redelivered=delivery.redelivered
                )
            except BooksFault as fault:
                self.fault = fault
                client.close()
            else:
                arrived.append((delivery, message))

        client.on_delivery = delivered
        await self.answer(client, commands.Basic.Qos(0, _PREFETCH))
        if self.commits:
            await self.answer(client, commands.Tx.Select())
        await self.answer(client, commands.Basic.Consume(0, self.queue, ""))
        kept = 0
        while not self.is_stopping and not client.is_closed and self.fault is None:
            await asyncio.sleep(self.random.uniform(0.01, 0.2))
            self.random.shuffle(arrived)
            some, arrived[:] = arrived[:], []
            tried: list[BookedMessage] = []
            for delivery, message in some:
                share = self.random.random()
                if share < self.acks:
                    message.is_tried = True
                    tried.append(message)
                    client.send(commands.Basic.Ack(delivery.tag))
                elif share < self.acks + self.returns or kept >= _PREFETCH // 2:
                    client.send(commands.Basic.Nack(delivery.tag, False, True))
                else:
                    kept += 1
            if some:
                await self.answer(
                    client, commands.Tx.Commit() if self.commits else commands.Basic.Qos(0, _PREFETCH)
                )
                for message in tried:
                    self.books.settle(message)


async def drain(
    client: SimulatedClient, queue: str, note: Callable[[ClientDelivery], None], *, count_max: int = 1_000_000
) -> None:
    """Get and acknowledge all that a queue has. Raises ClientClosed, TimeoutError."""
    for _ in range(count_max):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            got = await client.call(commands.Basic.Get(0, queue))
        if not isinstance(got, ClientDelivery):
            return
        note(got)
        client.send(commands.Basic.Ack(got.tag))
