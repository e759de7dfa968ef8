"""Simulated publishers: with confirms, to one queue or several at once, and in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple

from pamqp import commands

from leveret.testing.applications.run_books import BookedMessage
from leveret.testing.simulation.applications.application import ANSWER_TIMEOUT_S, SimulatedApplication
from leveret.testing.simulation.applications.client import SimulatedClient

UNCONFIRMED_MAX: Final = 100
_IN_TRANSACTION_MAX: Final = 5
_ROLLED_BACK: Final = 0.2
FAST_COPIES: Final = 500
"""The copies of messages after which publishers are slower, unless a run has another number."""
SLOWER: Final = 10.0
"""How much longer their pauses are then."""


class PublishingPace(NamedTuple):
    """The pace of a publisher.

    Attributes:
        interval_s: the mean time between two messages.
        burst: the mean number of messages between two rests; 0 for no rests.
        rest_s: the mean duration of a rest.
        fast_copies: the copies of messages of a run after which all publishers are slower.
    """

    interval_s: float
    burst: int = 0
    rest_s: float = 0.0
    fast_copies: int = FAST_COPIES

    def pause_s(self, random: Random, published: int = 0) -> float:
        """Return the wait before the next message, in a run that has published so many copies of messages."""
        # Most of a long run's processor time would go to messages between which nothing happens.
        factor = SLOWER if published > self.fast_copies else 1.0
        if self.burst and random.random() < 1 / self.burst:
            return factor * random.expovariate(1 / self.rest_s)
        return factor * random.expovariate(1 / self.interval_s)


def taken_by(
    tag: int, unconfirmed: dict[int, list[BookedMessage]], *, multiple: bool
) -> list[list[BookedMessage]]:
    """Remove a confirm's messages from the unconfirmed ones, in order; return the copies of each message."""
    tags = [each for each in unconfirmed if each == tag or (multiple and each < tag)]
    return [unconfirmed.pop(each) for each in tags]


class SimulatedPublisher(SimulatedApplication):
    """Publishes to some queues, one message after the other, and notes the confirms."""

    def __init__(self, *args: Any, queues: Sequence[str], pace: PublishingPace, exchange: str = "") -> None:
        """Publish each message to one of the queues; with an exchange, to all of them, which are bound to it."""
        super().__init__(*args)
        self.queues = queues
        self.pace = pace
        self.exchange = exchange
        self.connections = 0
        self._unconfirmed: dict[int, list[BookedMessage]] = {}
        self._wakes: list[asyncio.Future[None]] = []

    def origin(self) -> str:
        """Return a name for one channel and its order; messages of an earlier channel may still be in flight."""
        self.connections += 1
        return f"{self.name}/{self.connections}"

    def publish(
        self, client: SimulatedClient, origin: str, *, is_withheld: bool = False
    ) -> list[BookedMessage]:
        """Publish a message and return its copies."""
        key = "" if self.exchange else self.random.choice(self.queues)
        queues = self.queues if self.exchange else (key,)
        copies = self.books.published(queues, origin, is_withheld=is_withheld)
        message = copies[0]
        client.publish(
            key, str(message.number), message.body, exchange=self.exchange, properties=message.properties
        )
        self.on_publish()
        return copies

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        await self.answer(client, commands.Confirm.Select())
        self._unconfirmed = {}
        client.on_confirm = self._confirmed
        origin = self.origin()
        tag = 0
        while not self.is_stopping and not client.is_closed:
            tag += 1
            self._unconfirmed[tag] = self.publish(client, origin)
            if len(self._unconfirmed) >= UNCONFIRMED_MAX:
                waiting = asyncio.get_running_loop().create_future()
                self._wakes.append(waiting)
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await waiting
            await asyncio.sleep(self.pace.pause_s(self.random, len(self.books.messages)))

    def _confirmed(self, tag: int, multiple: bool, ok: bool) -> None:
        for copies in taken_by(tag, self._unconfirmed, multiple=multiple):
            if ok:
                self.books.confirm(copies)
        if ok:
            self.on_promise()
        while self._wakes:
            waiting = self._wakes.pop()
            if not waiting.done():
                waiting.set_result(None)


class SimulatedTransactionalPublisher(SimulatedPublisher):
    """Publishes several messages in each transaction; rolls some transactions back, and the last one at its end."""

    async def work(self, client: SimulatedClient) -> None:
        """See SimulatedApplication."""
        await self.answer(client, commands.Tx.Select())
        origin = self.origin()
        while not self.is_stopping and not client.is_closed:
            copies = await self._publish_some(client, origin)
            if not copies:
                return
            if self.random.random() < _ROLLED_BACK:
                await self.answer(client, commands.Tx.Rollback())
                continue
            for message in copies:
                message.is_withheld = False
            await self.answer(client, commands.Tx.Commit())
            self.books.confirm(copies)
            self.on_promise()

    async def _publish_some(self, client: SimulatedClient, origin: str) -> list[BookedMessage]:
        """Publish a transaction's messages; return the copies, none if the end comes before the last one."""
        copies: list[BookedMessage] = []
        for _ in range(self.random.randint(1, _IN_TRANSACTION_MAX)):
            copies += self.publish(client, origin, is_withheld=True)
            await asyncio.sleep(self.pace.pause_s(self.random, len(self.books.messages)))
            if self.is_stopping:
                # The pause may have been long: a commit now could come after the count of the messages left.
                return []
        return copies
