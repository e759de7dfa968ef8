"""Simulated consumers: they acknowledge, requeue, reject and keep messages, in transactions or not."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from pamqp import commands

from leveret.testing.applications.run_books import BookedMessage, BooksFault
from leveret.testing.simulation.applications import SimulatedApplication
from leveret.testing.simulation.client import ClientDelivery, SimulatedClient

PREFETCH: Final = 20


class ConsumingHabit(NamedTuple):
    """What a consumer does with its deliveries, as shares of them; the others stay unacknowledged until the end.

    Attributes:
        acks: acknowledged.
        returns: requeued.
        rejects: rejected.
        dead_queue: where the queue sends what is rejected; empty if that is gone.
        prefetch: at most so many are unacknowledged.
        commits: whether it works in transactions.
    """

    acks: float = 0.6
    returns: float = 0.1
    rejects: float = 0.0
    dead_queue: str = ""
    prefetch: int = PREFETCH
    commits: bool = True


class SimulatedConsumer(SimulatedApplication):
    """Consumes one queue.

    An acknowledgement has no answer of its own. The answer to `tx.commit` shows that the node, its followers and its
    mirrors have it; that to any other method that the log of the node has it, which does not outlive the node. So only
    a consumer that works in transactions knows what is settled.
    """

    def __init__(self, *args: Any, queue: str, habit: ConsumingHabit) -> None:
        """Of one queue."""
        super().__init__(*args)
        self.queue = queue
        self.habit = habit
        self._arrived: list[tuple[ClientDelivery, BookedMessage]] = []

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        self._arrived = []
        client.on_delivery = lambda delivery: self._delivered(client, delivery)
        prefetch = self.habit.prefetch
        await self.answer(client, commands.Basic.Qos(0, prefetch))
        if self.habit.commits:
            await self.answer(client, commands.Tx.Select())
        await self.answer(client, commands.Basic.Consume(0, self.queue, ""))
        kept = 0
        while not self.is_stopping and not client.is_closed and self.fault is None:
            await asyncio.sleep(self.random.uniform(0.01, 0.2))
            self.random.shuffle(self._arrived)
            some, self._arrived = self._arrived, []
            tried: list[BookedMessage] = []
            for delivery, message in some:
                kept += not self._answer_delivery(
                    client, delivery, message, tried, may_keep=kept < prefetch // 2
                )
            if some:
                await self.answer(
                    client, commands.Tx.Commit() if self.habit.commits else commands.Basic.Qos(0, prefetch)
                )
                for message in tried if self.habit.commits else ():
                    self.books.settle(message)
                self.on_promise()

    def _delivered(self, client: SimulatedClient, delivery: ClientDelivery) -> None:
        try:
            message = self.books.delivered(
                self.queue, delivery.message_id, delivery.body, redelivered=delivery.redelivered
            )
        except BooksFault as fault:
            self.found(fault, client)
        else:
            self._arrived.append((delivery, message))

    def _answer_delivery(
        self,
        client: SimulatedClient,
        delivery: ClientDelivery,
        message: BookedMessage,
        tried: list[BookedMessage],
        *,
        may_keep: bool,
    ) -> bool:
        """Do something with a delivery; return whether it was answered. `tried` gets it if it may be gone then."""
        habit, share = self.habit, self.random.random()
        if share < habit.acks:
            message.is_tried = True
            tried.append(message)
            client.send(commands.Basic.Ack(delivery.tag))
        elif share < habit.acks + habit.rejects:
            if habit.dead_queue:
                self.books.reject(message, habit.dead_queue)
            else:
                message.is_tried = True
                tried.append(message)
            client.send(commands.Basic.Reject(delivery.tag, False))
        elif share < habit.acks + habit.rejects + habit.returns or not may_keep:
            client.send(commands.Basic.Nack(delivery.tag, False, True))
        else:
            return False
        return True
