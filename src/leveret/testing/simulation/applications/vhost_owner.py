"""A simulated application that makes a user and a virtual host, uses queues there, and deletes both."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pamqp import commands

from leveret.model import definitions as d
from leveret.testing.simulation.applications.application import CONNECT_TIMEOUT_S
from leveret.testing.simulation.applications.client import SimulatedClient
from leveret.testing.simulation.applications.operator import SimulatedOperator
from leveret.testing.simulation.applications.patience import PatientApplication
from leveret.testing.simulation.machine.waiting import wait_until

_QUEUES_MAX: Final = 8
_MESSAGES_MAX: Final = 5
_REST_S: Final = 1.5
_CHANGE_S: Final = 10.0


class SimulatedVhostOwner(PatientApplication):
    """See the module. Nothing that it publishes is owed: the virtual host ends with all that is in it."""

    def __init__(self, *args: Any, operator: SimulatedOperator) -> None:
        """Begin idle; `operator` carries out what needs no connection."""
        super().__init__(*args)
        self._operator = operator
        self._count = 0

    async def turn(self) -> None:
        """See SimulatedApplication."""
        self._count += 1
        name = f"{self.name}.{self._count}"
        user = d.User(name=name, password_hash="none", tags=())
        permission = d.Permission(user="guest", vhost=name, configure=".*", write=".*", read=".*")
        if await self._change(d.Put(user), d.Put(d.Vhost(name=name)), d.Put(permission)):
            await self._use(name)
            await asyncio.sleep(self.random.expovariate(1 / _REST_S))
        await self._change(d.Delete("vhosts", (name,)), d.Delete("users", (name,)))
        await asyncio.sleep(self.random.expovariate(1 / _REST_S))

    async def _change(self, *changes: d.Change) -> bool:
        """Change definitions at a node; return whether they are changed within some seconds."""
        node = self._operator.any_node(self.random)
        if node is None:
            return False
        change = self._operator.change(node, *changes)
        with self.waiting_for("a change of virtual hosts"):
            return await wait_until(change.done, _CHANGE_S)

    async def _use(self, vhost: str) -> None:
        """Declare queues, and publish to them. Raises as `turn` does."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            client = await SimulatedClient.connect(
                self._network, self.random.choice(self._ports), heartbeat_s=self.heartbeat_s, vhost=vhost
            )
        try:
            await self.answer(client, commands.Confirm.Select())
            for number in range(self.random.randint(1, _QUEUES_MAX)):
                queue = f"m{number}"
                arguments: Any = {"x-queue-type": "quorum"} if self.random.random() < 0.5 else {}
                await self.answer(client, commands.Queue.Declare(0, queue, durable=True, arguments=arguments))
                for _ in range(self.random.randint(0, _MESSAGES_MAX)):
                    client.publish(queue, "0", b"in a virtual host that ends")
        finally:
            client.close()
