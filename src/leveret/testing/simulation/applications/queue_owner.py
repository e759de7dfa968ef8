"""A simulated application whose queue is declared, used, drained, left idle, purged, deleted and declared again."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pamqp import commands

from leveret.testing.applications.run_books import BookedMessage
from leveret.testing.simulation.applications.application import ANSWER_TIMEOUT_S, SimulatedApplication, drain
from leveret.testing.simulation.applications.client import ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.publishers import PublishingPace, taken_by
from leveret.testing.simulation.machine.waiting import wait_until

_MESSAGES_MAX: Final = 30
OWNED_INTERVAL_S: Final = 0.01
"""The mean time between two messages of an owner."""


class SimulatedQueueOwner(SimulatedApplication):
    """Publishes to a queue of its own and gets from it; no other application uses the queue."""

    def __init__(
        self, *args: Any, queue: str, arguments: dict[str, Any], idle_s: float, pace: PublishingPace
    ) -> None:
        """Use a queue with these `arguments`; `idle_s` is the mean time between two actions.

        `queue` is the prefix of the queue's names: after a deletion or purge without an answer, the owner uses the next
        name, because the node may carry the request out at any time.
        """
        super().__init__(*args)
        self.queue = queue
        self._prefix = queue
        self._names = 0
        self.arguments = arguments
        self.idle_s = idle_s
        self.pace = pace
        self._connections = 0

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        self._connections += 1
        await self._declare(client)
        await self.answer(client, commands.Confirm.Select())
        while not self.is_stopping and not client.is_closed and self.fault is None:
            await self.random.choice(
                (self._publish, self._publish, self._drain, self._drain, self._purge, self._delete)
            )(client)
            await asyncio.sleep(self.random.expovariate(1 / self.idle_s))

    async def _declare(self, client: SimulatedClient) -> None:
        await self.answer(
            client, commands.Queue.Declare(0, self.queue, durable=True, arguments=self.arguments)
        )

    async def _publish(self, client: SimulatedClient) -> None:
        """Publish some messages, and wait for their confirms."""
        origin = f"{self.name}/{self._connections}"
        unconfirmed: dict[int, list[BookedMessage]] = {}
        tags = client.published

        def confirmed(tag: int, multiple: bool, ok: bool) -> None:
            for copies in taken_by(tag, unconfirmed, multiple=multiple):
                if ok:
                    self.books.confirm(copies)
                    self.on_promise()

        client.on_confirm = confirmed
        for number in range(self.random.randint(1, _MESSAGES_MAX)):
            copies = self.books.published((self.queue,), origin)
            unconfirmed[tags + number + 1] = copies
            message = copies[0]
            client.publish(self.queue, str(message.number), message.body, properties=message.properties)
            await asyncio.sleep(self.pace.pause_s(self.random, len(self.books.messages)))
        if not await wait_until(lambda: client.is_closed or not unconfirmed, ANSWER_TIMEOUT_S):
            raise TimeoutError

    async def _drain(self, client: SimulatedClient) -> None:
        """Get and acknowledge all messages."""

        def note(got: ClientDelivery) -> None:
            message = self.books.delivered(
                self.queue, got.message_id, got.body, got.properties, redelivered=got.redelivered
            )
            message.is_tried = True

        await drain(client, self.queue, note)

    async def _purge(self, client: SimulatedClient) -> None:
        await self._settle(client, commands.Queue.Purge(0, self.queue))

    async def _delete(self, client: SimulatedClient) -> None:
        """Delete the queue, and declare it again after a while."""
        await self._settle(client, commands.Queue.Delete(0, self.queue))
        await asyncio.sleep(self.random.expovariate(1 / self.idle_s))
        await self._declare(client)

    async def _settle(self, client: SimulatedClient, method: Any) -> None:
        """Call a method that settles all messages of the queue; this application has no unacknowledged ones."""
        concerned = self.books.of_queue(self.queue)
        for message in concerned:
            message.is_tried = True
        queue = self.queue
        self._names += 1
        self.queue = f"{self._prefix}.{self._names}"
        await self.answer(client, method)
        self.queue = queue
        for message in concerned:
            # Unconfirmed messages may still be on their way to the queue.
            if message.is_confirmed:
                self.books.settle(message)
        self.on_promise()
