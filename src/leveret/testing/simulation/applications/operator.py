"""The operator of a simulated world: declares queues, runs commands at nodes, and takes the messages left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from pamqp import commands

from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.testing.applications.run_books import BookedMessage, RunBooks
from leveret.testing.simulation.applications.application import drain
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.process import SimulatedProcess
from leveret.testing.simulation.nodes.node import SimulatedNode

_COMMAND_TIMEOUT_S: Final = 10.0
_CONNECTS_MAX: Final = 200
_GETS_AT_ONCE: Final = 20


class NeverConverged(Exception):
    """An expected state does not come about although all faults have healed."""


class SimulatedOperator:
    """See the module.

    Attributes:
        process: the operator's process, whose host it works at.
    """

    def __init__(
        self, nodes: Sequence[SimulatedNode], network: SimulatedNetwork, books: RunBooks, random: Random
    ) -> None:
        """Operate these nodes; the list may change."""
        self.process = SimulatedProcess("op")
        self._nodes = nodes
        self._network = network
        self._books = books
        self._random = random

    # -- over AMQP --------------------------------------------------------------------------------

    async def client(self) -> SimulatedClient:
        """Connect to an open node, with retries. Raises NeverConverged."""
        for _ in range(_CONNECTS_MAX):
            open_nodes = [node for node in self._nodes if node.is_open]
            if open_nodes:
                try:
                    async with asyncio.timeout(5):
                        return await SimulatedClient.connect(
                            self._network, self._random.choice(open_nodes).amqp_port
                        )
                except (ClientClosed, OSError, TimeoutError):
                    pass
            await asyncio.sleep(0.5)
        raise NeverConverged("no node lets a client in")

    async def declare(self, queue: str, **arguments: Any) -> None:
        """Declare a durable queue."""
        client = await self.client()
        await client.call(
            commands.Queue.Declare(
                0, queue, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()}
            )
        )
        client.close()

    async def declare_fanout(self, exchange: str, queues: Iterable[str]) -> None:
        """Declare a durable exchange that sends each message to these queues."""
        client = await self.client()
        await client.call(commands.Exchange.Declare(0, exchange, "fanout", durable=True))
        for queue in queues:
            await client.call(commands.Queue.Bind(0, queue, exchange))
        client.close()

    async def take_all(
        self, queue: str, booked: Callable[[str, ClientDelivery], BookedMessage] | None = None
    ) -> list[int]:
        """Take all messages out of a queue; return their numbers.

        Args:
            queue: its name.
            booked: looks a delivery up in the books, and raises BooksFault; by default the books' usual check.

        Raises:
            BooksFault: see `booked`.
            NeverConverged: the queue cannot be drained.
        """
        client, look_up = await self.client(), booked or self._delivered
        numbers: list[int] = []

        def note(delivery: ClientDelivery) -> None:
            numbers.append(look_up(queue, delivery).number)

        try:
            await drain(client, queue, note, at_once=_GETS_AT_ONCE)
        except (ClientClosed, TimeoutError) as error:
            raise NeverConverged(f"queue {queue} cannot be drained: {error!r}") from error
        client.close()
        return numbers

    def _delivered(self, queue: str, delivery: ClientDelivery) -> BookedMessage:
        return self._books.delivered(
            queue,
            delivery.message_id,
            delivery.body,
            delivery.properties,
            redelivered=delivery.redelivered,
        )

    # -- at a node, as through its HTTP API -------------------------------------------------------

    def at(
        self, node: SimulatedNode, command: Callable[[], Coroutine[Any, Any, object]]
    ) -> asyncio.Task[bool]:
        """Run a command at a node, and return whether it succeeded; it may end with the node, or not even begin."""
        assert node.process is not None
        return node.process.spawn(_patiently(command))

    def set_policy(
        self, node: SimulatedNode, name: str, pattern: str, definition: dict[str, Any]
    ) -> asyncio.Task[bool]:
        """Set a policy at a node."""
        policy = d.Policy(vhost="/", name=name, pattern=pattern, definition=definition, apply_to="queues")
        return self.change(node, d.Put(policy))

    def change(self, node: SimulatedNode, *changes: d.Change) -> asyncio.Task[bool]:
        """Change definitions at a node; the deletion of what is not there has no effect."""
        roles = node.roles
        assert roles is not None

        async def change() -> None:
            async with roles.node.changing():
                for each in changes:
                    roles.node.broker.apply(each)
                await roles.node.commit()

        return self.at(node, change)

    def any_node(self, random: Random) -> SimulatedNode | None:
        """Return one of the open nodes; None without any."""
        opened = [node for node in self._nodes if node.is_open]
        return random.choice(opened) if opened else None


async def _patiently(command: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    with suppress(LeveretError, TimeoutError, OSError):
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            await command()
            return True
    return False
