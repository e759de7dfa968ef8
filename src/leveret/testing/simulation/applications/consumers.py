"""Simulated consumers: they acknowledge, requeue, reject and hold messages, with or without transactions."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from pamqp import commands

from leveret.testing.applications.run_books import BookedMessage, BooksFault, ResurrectionFault
from leveret.testing.simulation.applications.application import SimulatedApplication
from leveret.testing.simulation.applications.client import ClientDelivery, SimulatedClient

PREFETCH: Final = 20


class ConsumingHabit(NamedTuple):
    """The shares of a consumer's answers to deliveries; the other deliveries stay unacknowledged until the end.

    Attributes:
        acks: the share of acknowledged deliveries.
        returns: the share of requeued deliveries.
        rejects: the share of rejected deliveries.
        dead_queue: the queue that receives rejected messages; empty if they are dropped.
        is_kept: whether the consumed queue keeps rejected messages until that queue has them.
        prefetch: the most unacknowledged deliveries at a time.
        commits: whether the consumer works in transactions.
    """

    acks: float = 0.6
    returns: float = 0.1
    rejects: float = 0.0
    dead_queue: str = ""
    prefetch: int = PREFETCH
    commits: bool = True
    is_kept: bool = False


class SimulatedConsumer(SimulatedApplication):
    """Consumes one queue.

    An acknowledgement has no answer of its own. The answer to `tx.commit` shows that the node, its followers and its
    mirrors have it; the answer to any other method shows only that the node's log has it, which may be lost with the
    node. So only a consumer that works in transactions knows which messages are settled.

    A node that passes a connection on may stand still with deliveries in its hands. The leader misses heartbeats and
    closes the connection; another consumer gets and settles the messages; then the old deliveries arrive. So the
    arrival of a settled message is a fault only if its connection answers afterwards, which no closed connection does.
    """

    def __init__(self, *args: Any, queue: str, habit: ConsumingHabit) -> None:
        """Begin idle; `queue` is the queue to consume."""
        super().__init__(*args)
        self.queue = queue
        self.habit = habit
        self._arrived: list[tuple[ClientDelivery, BookedMessage]] = []
        self._resurrected: ResurrectionFault | None = None

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        self._arrived, self._resurrected = [], None
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
            resurrected = self._resurrected
            tried: list[BookedMessage] = []
            rejected: list[BookedMessage] = []
            for delivery, message in some:
                kept += not self._answer_delivery(
                    client, delivery, message, tried, rejected, may_keep=kept < prefetch // 2
                )
            if some or resurrected:
                await self.answer(
                    client, commands.Tx.Commit() if self.habit.commits else commands.Basic.Qos(0, prefetch)
                )
                for message in tried if self.habit.commits else ():
                    self.books.settle(message)
                for message in rejected if self.habit.commits and self.habit.is_kept else ():
                    self.books.keep_dead(message)
                self.on_promise()
            if resurrected:
                raise resurrected

    def _delivered(self, client: SimulatedClient, delivery: ClientDelivery) -> None:
        try:
            message = self.books.delivered(
                self.queue,
                delivery.message_id,
                delivery.body,
                delivery.properties,
                redelivered=delivery.redelivered,
            )
        except ResurrectionFault as fault:
            self._resurrected = fault
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
        rejected: list[BookedMessage],
        *,
        may_keep: bool,
    ) -> bool:
        """Answer a delivery or hold it; return whether it was answered.

        `tried` receives it if it may be settled, `rejected` if it may become a dead letter.
        """
        habit, share = self.habit, self.random.random()
        if share < habit.acks:
            message.is_tried = True
            tried.append(message)
            client.send(commands.Basic.Ack(delivery.tag))
        elif share < habit.acks + habit.rejects:
            if habit.dead_queue:
                self.books.reject(message, habit.dead_queue, is_kept=habit.is_kept)
                rejected.append(message)
            else:
                message.is_tried = True
                tried.append(message)
            client.send(commands.Basic.Reject(delivery.tag, False))
        elif share < habit.acks + habit.rejects + habit.returns or not may_keep:
            client.send(commands.Basic.Nack(delivery.tag, False, True))
        else:
            return False
        return True
