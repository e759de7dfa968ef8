"""Simulated publishers and consumers of a fleet of queues that come and go."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pamqp import commands

from leveret.testing.applications.run_books import BookedMessage, BooksFault
from leveret.testing.simulation.applications.client import ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.consumers import ConsumingHabit, SimulatedConsumer
from leveret.testing.simulation.applications.fleet import STREAM, Fleet, kind_of
from leveret.testing.simulation.applications.patience import PatientApplication, until
from leveret.testing.simulation.applications.publishers import (
    UNCONFIRMED_MAX,
    PublishingPace,
    SimulatedPublisher,
    SimulatedTransactionalPublisher,
    taken_by,
)

_STAYS_S: Final = 6.0
_IDLE_S: Final = 0.1
_MANDATORY: Final = 0.3
_ROUTED: Final = 0.2
_PREFETCH: Final = 10
_NOWHERE: Final = "nowhere"


class FleetPublisher(PatientApplication, SimulatedPublisher):
    """Publishes to the queues of a fleet, by name and through its exchange, with confirms; some messages mandatory."""

    def __init__(self, *args: Any, fleet: Fleet, pace: PublishingPace) -> None:
        """Begin idle."""
        super().__init__(*args, queues=fleet.names, pace=pace)
        self._fleet = fleet
        self._booked = fleet.books
        self._mandatory: dict[int, BookedMessage] = {}

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication: publish for a while, and wait for all confirms."""
        self._unconfirmed, self._mandatory = {}, {}
        client.on_confirm = self._confirmed
        client.on_return = lambda message_id: self._came_back(client, int(message_id))
        await self.answer(client, commands.Confirm.Select())
        origin, loop = self.origin(), asyncio.get_running_loop()
        until_s = loop.time() + self.random.expovariate(1 / _STAYS_S)
        while not self.is_stopping and not client.is_closed and loop.time() < until_s:
            if not self.queues:
                await asyncio.sleep(_IDLE_S)
                continue
            self._publish_one(client, origin)
            if len(self._unconfirmed) >= UNCONFIRMED_MAX:
                await self._all_confirmed(client, UNCONFIRMED_MAX - 1)
            await asyncio.sleep(self.pace.pause_s(self.random, len(self.books.messages)))
        await self._all_confirmed(client, 0)

    def _publish_one(self, client: SimulatedClient, origin: str) -> None:
        tag = client.published + 1
        if self._fleet.bound and self.random.random() < _ROUTED:
            number, copies = self._booked.routed(self._fleet.exchange, origin)
            self._unconfirmed[tag] = copies
            written = copies[0] if copies else BookedMessage(number, "", origin)
            client.publish(
                "", str(number), written.body, exchange=self._fleet.exchange, properties=written.properties
            )
            self.on_publish()
            return
        [message] = self._unconfirmed[tag] = self._booked.published(
            (self.random.choice(self.queues),), origin
        )
        is_mandatory = self.random.random() < _MANDATORY
        if is_mandatory:
            self._mandatory[message.number] = message
        client.publish(
            message.queue,
            str(message.number),
            message.body,
            properties=message.properties,
            mandatory=is_mandatory,
        )
        self.on_publish()

    async def _all_confirmed(self, client: SimulatedClient, left: int) -> None:
        """Wait until at most `left` messages are unconfirmed, or the connection ends."""
        with self.waiting_for("confirms"):
            await until(lambda: client.is_closed or len(self._unconfirmed) <= left)

    def _came_back(self, client: SimulatedClient, number: int) -> None:
        try:
            self._booked.returned(self._mandatory[number].queue, number)
        except BooksFault as fault:
            self.found(fault, client)

    def _confirmed(self, tag: int, multiple: bool, ok: bool) -> None:
        for copies in taken_by(tag, self._unconfirmed, multiple=multiple):
            for message in copies:
                mandatory = self._mandatory.pop(message.number, None)
                if ok and mandatory is not None:
                    self._booked.confirm_mandatory(mandatory)
            if ok:
                self.books.confirm(copies)
        if ok:
            self.on_promise()


class FleetTransactions(PatientApplication, SimulatedTransactionalPublisher):
    """Publishes to the queues of a fleet in transactions; to one that never was while there is none."""

    def __init__(self, *args: Any, fleet: Fleet, pace: PublishingPace) -> None:
        """Begin idle."""
        super().__init__(*args, queues=fleet.names, pace=pace)
        self._fleet = fleet

    def publish(
        self, client: SimulatedClient, origin: str, *, is_withheld: bool = False
    ) -> list[BookedMessage]:
        """See SimulatedPublisher."""
        self.queues = self._fleet.names or (_NOWHERE,)
        return super().publish(client, origin, is_withheld=is_withheld)


class FleetConsumer(PatientApplication, SimulatedConsumer):
    """Consumes one queue of a fleet for a while, then another one."""

    def __init__(self, *args: Any, fleet: Fleet, habit: ConsumingHabit) -> None:
        """Begin idle."""
        super().__init__(*args, queue="", habit=habit)
        self._fleet = fleet
        self._asked = 0

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        for name in self._fleet.some(self.random):
            self.queue, self._asked = name, self._fleet.books.moment()
            leaving = asyncio.get_running_loop().create_task(
                self.leave(client, self.random.expovariate(1 / _STAYS_S))
            )
            try:
                await super().work(client)
            finally:
                leaving.cancel()
        await asyncio.sleep(_IDLE_S)

    def _delivered(self, client: SimulatedClient, delivery: ClientDelivery) -> None:
        before = len(self._arrived)
        super()._delivered(client, delivery)
        for _, message in self._arrived[before:]:
            try:
                self._fleet.books.got(message, self._asked)
            except BooksFault as fault:
                self.found(fault, client)


class FleetReader(PatientApplication):
    """Reads one stream of a fleet for a while, then another one."""

    def __init__(self, *args: Any, fleet: Fleet) -> None:
        """Begin idle."""
        super().__init__(*args)
        self._fleet = fleet

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        streams = [name for name in self._fleet.names if kind_of(name) == STREAM]
        if streams:
            stream, asked = self.random.choice(streams), self._fleet.books.moment()
            client.on_delivery = lambda delivery: self._read(client, stream, asked, delivery)
            await self.answer(client, commands.Basic.Qos(0, _PREFETCH))
            offset: Any = {"x-stream-offset": self.random.choice(("first", "next", "last"))}
            await self.answer(client, commands.Basic.Consume(0, stream, "", arguments=offset))
            await asyncio.sleep(self.random.expovariate(1 / _STAYS_S))
        await asyncio.sleep(_IDLE_S)

    def _read(self, client: SimulatedClient, stream: str, asked: int, delivery: ClientDelivery) -> None:
        books = self._fleet.books
        try:
            message = books.read(stream, delivery.message_id, delivery.body)
            books.got(message, asked)
        except BooksFault as fault:
            self.found(fault, client)
        else:
            client.send(commands.Basic.Ack(delivery.tag))
