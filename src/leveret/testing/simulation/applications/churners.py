"""Simulated applications that declare many queues at once, and delete, replace, purge, bind and drain them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from pamqp import commands

from leveret.testing.simulation.applications.churn_books import Removal
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.fleet import (
    EXCLUSIVE,
    FLEETING,
    LASTING,
    Fleet,
    declaration,
    kind_of,
)
from leveret.testing.simulation.applications.patience import PatientApplication

_AT_ONCE: Final = (1, 1, 3, 10, 40, 100)
_PAUSES_S: Final = (0.0, 0.0, 0.02, 0.3, 1.0)
_ACTIONS_MAX: Final = 30
_GETS_MAX: Final = 10


class SimulatedChurner(PatientApplication):
    """Declares, replaces and deletes queues of a fleet that other applications may declare and delete, too."""

    def __init__(self, *args: Any, fleet: Fleet, replaces: bool = False) -> None:
        """Begin idle; one that `replaces` queues mostly does that."""
        super().__init__(*args)
        self._fleet = fleet
        self._replaces = replaces
        self._booked = fleet.books
        self._exclusive: list[str] = []

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        actions = {
            self._declare_some: 4,
            self._declare_again: 1,
            self._declare_fleeting: 1,
            self._delete_some: 3,
            self._replace: 3,
            self._purge: 2,
            self._bind: 3,
            self._unbind: 1,
            self._replace_exchange: 0.5,
            self._get_some: 3,
        }
        if self._replaces:
            actions |= {self._replace: 12, self._delete_some: 0.3}
        await self.answer(client, commands.Exchange.Declare(0, self._fleet.exchange, "fanout", durable=True))
        try:
            for _ in range(self.random.randint(1, _ACTIONS_MAX)):
                if self.is_stopping or client.is_closed or self.fault is not None:
                    return
                [action] = self.random.choices(list(actions), list(actions.values()))
                await action(client)
                await asyncio.sleep(self.random.choice(_PAUSES_S))
        finally:
            # They end with the connection.
            exclusive, self._exclusive = self._exclusive, []
            for name in exclusive:
                if name in self._fleet.names:
                    self._fleet.names.remove(name)

    # -- queues -----------------------------------------------------------------------------------

    async def _declare_some(self, client: SimulatedClient) -> None:
        """Declare many queues without waiting for an answer in between."""
        fleet = self._fleet
        count = min(self.random.choice(_AT_ONCE), fleet.size - len(fleet.names))
        if count > 0:
            kinds = [self.random.choice(LASTING)] if self.random.random() < 0.5 else LASTING
            await self._declare(client, [fleet.add(self.random.choice(kinds)) for _ in range(count)])

    async def _declare_again(self, client: SimulatedClient) -> None:
        """Declare queues that may be there, or may be on their way."""
        again = self._fleet.some(self.random, 5, streams=True)
        await self._declare(client, [name for name in again if kind_of(name) in LASTING])

    async def _declare_fleeting(self, client: SimulatedClient) -> None:
        """Declare a few queues that end by themselves; another connection may not use an exclusive one."""
        count = self.random.randint(1, 3)
        names = [self._fleet.add(self.random.choice(FLEETING)) for _ in range(count)]
        self._exclusive += [name for name in names if kind_of(name) == EXCLUSIVE]
        await self._declare(client, names)

    async def _declare(self, client: SimulatedClient, names: Iterable[str]) -> None:
        await self._together(self._declare_one(client, name) for name in names)

    async def _declare_one(self, client: SimulatedClient, name: str) -> None:
        asked = self._booked.declaring(name)
        await self.answer(client, declaration(name))
        self._booked.declared(name, asked)
        self.on_promise()

    async def _delete_some(self, client: SimulatedClient) -> None:
        fleet, count = self._fleet, self.random.choice(_AT_ONCE)
        found = fleet.some(self.random, count, streams=True)
        chosen = [name for name in found if kind_of(name) != EXCLUSIVE]
        if fleet.doubtful and chosen and self.random.random() < 0.3:
            chosen.append(self.random.choice(fleet.doubtful))
        await self._together(self._delete_one(client, name) for name in chosen)

    async def _delete_one(self, client: SimulatedClient, name: str) -> None:
        removal = self._deleting(name)
        await self._carry_out(client, removal, commands.Queue.Delete(0, name))
        self._booked.removed(removal)
        self.on_promise()

    async def _replace(self, client: SimulatedClient) -> None:
        """Delete queues and declare them again at once."""
        await self._together(
            self._replace_one(client, name)
            for name in self._fleet.some(self.random, self.random.choice((1, 1, 5)), streams=True)
            if kind_of(name) in LASTING
        )

    async def _replace_one(self, client: SimulatedClient, name: str) -> None:
        removal = self._deleting(name)
        self._booked.declaring(name)
        try:
            client.send(commands.Queue.Delete(0, name, nowait=True))
        except ClientClosed:
            self._fleet.doubtful.append(name)
            raise
        await self._carry_out(client, removal, declaration(name))
        self._booked.replaced(removal)
        self._fleet.names.append(name)
        self.on_promise()

    async def _purge(self, client: SimulatedClient) -> None:
        for name in self._fleet.some(self.random):
            if kind_of(name) in LASTING and name in self._fleet.names:
                removal = self._booked.removing(name, is_deletion=False)
                try:
                    await self.answer(client, commands.Queue.Purge(0, name))
                except ClientClosed:
                    if client.is_refused:
                        self._booked.removed(removal)  # There is no such queue.
                    raise
                self._booked.removed(removal)
                self.on_promise()

    def _deleting(self, name: str) -> Removal:
        fleet = self._fleet
        for names in (fleet.names, fleet.bound):
            if name in names:
                names.remove(name)
        return self._booked.removing(name, is_deletion=True)

    async def _carry_out(self, client: SimulatedClient, removal: Removal, method: Any) -> None:
        """Call a method that completes a deletion; without an answer, the name is never used again."""
        try:
            await self.answer(client, method)
        except ClientClosed:
            self._fleet.doubtful.append(removal.queue)
            raise

    # -- bindings ---------------------------------------------------------------------------------

    async def _bind(self, client: SimulatedClient) -> None:
        fleet = self._fleet
        exchange = fleet.exchange
        for name in fleet.some(self.random, 3, streams=True):
            if self._booked.is_sure(name):
                asked = self._booked.moment()
                await self.answer(client, commands.Queue.Bind(0, name, exchange))
                self._booked.bound(exchange, name, asked)
                if exchange == fleet.exchange and name not in fleet.bound:
                    fleet.bound.append(name)

    async def _unbind(self, client: SimulatedClient) -> None:
        fleet = self._fleet
        exchange = fleet.exchange
        for name in self.random.sample(fleet.bound, min(2, len(fleet.bound))):
            if name in fleet.bound and exchange == fleet.exchange:
                fleet.bound.remove(name)
                removal = self._booked.unbinding(exchange, name)
                await self.answer(client, commands.Queue.Unbind(0, name, exchange))
                self._booked.unbound(exchange, removal)

    async def _replace_exchange(self, client: SimulatedClient) -> None:
        """Delete the exchange with its bindings, and declare another one."""
        fleet, former = self._fleet, self._fleet.exchange
        for name in fleet.bound:
            self._booked.unbinding(former, name)
        fleet.new_exchange()
        declared = commands.Exchange.Declare(0, fleet.exchange, "fanout", durable=True)
        await self._together(
            self.answer(client, each) for each in (commands.Exchange.Delete(0, former), declared)
        )

    # -- messages ---------------------------------------------------------------------------------

    async def _get_some(self, client: SimulatedClient) -> None:
        """Get messages of a queue, and acknowledge or requeue them."""
        for name in self._fleet.some(self.random):
            if not self._booked.is_sure(name):
                continue
            asked = self._booked.moment()
            for _ in range(self.random.randint(1, _GETS_MAX)):
                got = await self.answer(client, commands.Basic.Get(0, name))
                if not isinstance(got, ClientDelivery):
                    break
                message = self._booked.delivered(
                    name, got.message_id, got.body, got.properties, redelivered=got.redelivered
                )
                self._booked.got(message, asked)
                if self.random.random() < 0.7:
                    message.is_tried = True
                    client.send(commands.Basic.Ack(got.tag))
                else:
                    client.send(commands.Basic.Nack(got.tag, False, True))

    async def _together(self, calls: Iterable[Any]) -> None:
        """Await calls that are sent one right behind the other; raise the first error once all have ended."""
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
