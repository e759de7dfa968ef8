"""A simulated application that makes a user and a virtual host, uses queues there, and deletes both."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pamqp import commands

from leveret.model import definitions as d
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.applications.application import CONNECT_TIMEOUT_S
from leveret.testing.simulation.applications.client import ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.operator import SimulatedOperator
from leveret.testing.simulation.applications.patience import PatientApplication
from leveret.testing.simulation.machine.waiting import wait_until

_QUEUES_MAX: Final = 8
_MESSAGES_MAX: Final = 5
_REST_S: Final = 1.5
_CHANGE_S: Final = 10.0


class SimulatedVhostOwner(PatientApplication):
    """See the module. Nothing that it publishes is owed: the virtual host ends with all that is in it."""

    def __init__(self, *args: Any, operator: SimulatedOperator, replaces: bool = False) -> None:
        """Begin idle; `operator` carries out what needs no connection.

        One that `replaces` its virtual host makes it anew under the same name, and looks for messages of before.
        """
        super().__init__(*args)
        self._operator = operator
        self._replaces = replaces
        self._count = 0
        self._is_empty = True
        """Whether the virtual host was deleted for certain after the confirm of its last message."""

    async def turn(self) -> None:
        """See SimulatedApplication."""
        self._count += 1
        name = f"{self.name}.{0 if self._replaces else self._count}"
        user = d.User(name=name, password_hash="none", tags=())
        permission = d.Permission(user="guest", vhost=name, configure=".*", write=".*", read=".*")
        is_settled = False
        if await self._change(d.Put(user), d.Put(d.Vhost(name=name)), d.Put(permission)):
            is_settled = await self._use(name)
            await asyncio.sleep(self.random.expovariate(1 / _REST_S))
        is_deleted = await self._change(d.Delete("vhosts", (name,)), d.Delete("users", (name,)))
        self._is_empty = is_deleted and is_settled
        await asyncio.sleep(self.random.expovariate(1 / _REST_S))

    async def _change(self, *changes: d.Change) -> bool:
        """Change definitions at a node; return whether they are changed within some seconds."""
        node = self._operator.any_node(self.random)
        if node is None:
            return False
        change = self._operator.change(node, *changes)
        with self.waiting_for("a change of virtual hosts"):
            is_done = await wait_until(change.done, _CHANGE_S)
        return is_done and not change.cancelled() and change.result()

    async def _use(self, vhost: str) -> bool:
        """Declare queues, and publish to them; return whether all is confirmed. Raises as `turn` does."""
        is_empty, self._is_empty = self._is_empty, False
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            client = await SimulatedClient.connect(
                self._network, self.random.choice(self._ports), heartbeat_s=self.heartbeat_s, vhost=vhost
            )
        beating = asyncio.get_running_loop().create_task(self._beat(client))
        unconfirmed: set[int] = set()
        client.on_confirm = lambda tag, multiple, ok: unconfirmed.difference_update(
            {each for each in unconfirmed if each <= tag} if multiple else {tag}
        )
        try:
            await self.answer(client, commands.Confirm.Select())
            for number in range(self.random.randint(1, _QUEUES_MAX)):
                queue = f"m{number}"
                is_quorum = self.random.random() < 0.5 if not self._replaces else number % 2
                arguments: Any = {"x-queue-type": "quorum"} if is_quorum else {}
                await self.answer(client, commands.Queue.Declare(0, queue, durable=True, arguments=arguments))
                if self._replaces and is_empty:
                    await self._look_into(client, queue)
                for _ in range(self.random.randint(0, _MESSAGES_MAX)):
                    client.publish(queue, "0", b"in a virtual host that ends")
                    unconfirmed.add(client.published)
            if self._replaces:
                await wait_until(lambda: client.is_closed or not unconfirmed, _CHANGE_S)
        finally:
            beating.cancel()
            client.close()
        return not unconfirmed

    async def _look_into(self, client: SimulatedClient, queue: str) -> None:
        """Check that a new queue has no message. Raises BooksFault."""
        if isinstance(await self.answer(client, commands.Basic.Get(0, queue)), ClientDelivery):
            raise BooksFault(f"resurrected: queue {queue} of a virtual host that was made anew has a message")
