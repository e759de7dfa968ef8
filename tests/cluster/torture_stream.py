"""Publishers and readers of a stream in a tortured cluster: they number, store offsets, and follow its leader."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from leveret.testing.applications.run_books import BooksFault, RunBooks
from leveret.testing.applications.stream_apps import NumberingPublisher, StoringReader
from leveret.testing.applications.stream_books import StreamBooks
from leveret.testing.applications.stream_client import StreamAppClient, StreamAppClosed
from leveret.testing.network.ports import LOOPBACK
from tests.e2e.site import PATIENCE_S

STREAM: Final = "stream"
_AGAIN_S: Final = 0.2
_PAUSE_S: Final = 0.05
_STALL_TIMEOUT_S: Final = 60.0
_READS_MAX: Final = 5
_JUDGE_TIMEOUT_S: Final = 900.0
Work = Callable[[StreamAppClient], Awaitable[None]]


class StreamCrew:
    """The applications of one stream, in a thread and an event loop of their own; they live through all rounds.

    Attributes:
        books: of the stream.
    """

    def __init__(
        self,
        ports: Callable[[], Sequence[int]],
        chance: random.Random,
        *,
        stream: str = STREAM,
        address_of: Callable[[int], str] = lambda port: LOOPBACK,
        where: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Nobody works yet. `ports`: of the nodes that run; `where`: entered by the thread."""
        self.books = StreamBooks(stream, RunBooks())
        self._ports, self._chance = ports, chance
        self._address_of, self._where = address_of, where
        self._publishers = [
            NumberingPublisher(f"p{n}", self.books, self._own(), self._pause_s) for n in (1, 2)
        ]
        self._readers = [StoringReader(f"r{n}", self.books, self._own()) for n in (1, 2, 3)]
        self._ending = threading.Event()
        self._fault: Exception | None = None
        self._thread: threading.Thread | None = None

    def _own(self) -> random.Random:
        return random.Random(self._chance.randrange(1 << 32))

    def _pause_s(self) -> float:
        return self._chance.expovariate(1 / _PAUSE_S)

    def confirmed(self) -> int:
        """How many messages are confirmed. Raises BooksFault, because all applications end with the first fault."""
        if self._fault is not None:
            raise self._fault
        return self.books.books.confirmed

    def begin(self) -> None:
        """Have all work."""
        self._ending.clear()
        self._in_thread(self._work)

    def end(self) -> None:
        """Have all end once everything is confirmed. Raises BooksFault."""
        self._ending.set()
        self._join(2 * PATIENCE_S)

    def judge(self, ports: Sequence[int]) -> None:
        """Read the whole stream at each of these nodes, and compare. Raises BooksFault."""
        self._in_thread(lambda: self._read_all(ports))
        self._join(_JUDGE_TIMEOUT_S)
        self.books.judge()

    def _in_thread(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        def run() -> None:
            try:
                with self._where(), asyncio.Runner() as runner:
                    runner.run(work())
            except Exception as error:
                self._fault = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def _join(self, timeout_s: float) -> None:
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"an application of stream {self.books.name} does not end"
        if self._fault is not None:
            raise self._fault

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for publisher in self._publishers:
                group.create_task(self._employ(publisher))
            for reader in self._readers:
                group.create_task(self._employ(reader))

    async def _employ(self, role: NumberingPublisher | StoringReader) -> None:
        publishes = isinstance(role, NumberingPublisher)

        def is_done() -> bool:
            return self._ending.is_set() and (
                not isinstance(role, NumberingPublisher) or role.has_all_confirms
            )

        async def work(client: StreamAppClient) -> None:
            await role.work(client, self._ending.is_set)

        while not is_done() and self._fault is None:
            try:
                leader, replicas = await self._places()
                # Publishers work at the leader half of the time, and at any node otherwise, as behind a load balancer.
                anywhere = self._chance.choice([*self._ports(), leader])
                places = [leader, anywhere] if publishes else [leader, *replicas]
                await self._at(self._chance.choice(places), work)
            except (StreamAppClosed, OSError):
                await asyncio.sleep(_AGAIN_S)
            except BooksFault as fault:
                self._fault = fault

    async def _places(self) -> tuple[int, list[int]]:
        found: list[tuple[int, list[int]]] = []

        async def look(client: StreamAppClient) -> None:
            found.append(await client.ports_of(self.books.name))

        ports = self._ports()
        if not ports:
            raise StreamAppClosed("no node runs")
        await self._at(self._chance.choice(ports), look)
        return found[0]

    async def _at(self, port: int, work: Work) -> None:
        loop = asyncio.get_running_loop()
        client = await StreamAppClient.open(
            lambda protocol, port: loop.create_connection(protocol, self._address_of(port), port), port
        )
        try:
            await work(client)
        finally:
            if not client.is_closed:
                client.close()

    async def _read_all(self, ports: Sequence[int]) -> None:
        for port in ports:
            await self._read_at(port)

    async def _read_at(self, port: int) -> None:
        """Read the whole stream at a node; again if the connection ends.

        A node that is short of time loses its lease, and then ends its connections.
        """
        wanted = len(self.books.books.messages)
        found = []
        for _ in range(_READS_MAX):
            reader = StoringReader(f"auditor-{self._chance.randrange(1 << 32)}", self.books, self._own())
            try:
                await self._at(port, partial(_read_so_many, reader, wanted))
            except (StreamAppClosed, OSError):
                await asyncio.sleep(_AGAIN_S)
            if reader.count == wanted:
                return
            found.append(reader.count)
        raise BooksFault(f"the node at port {port} has {found} of {wanted} messages of {self.books.name}")


async def _read_so_many(reader: StoringReader, count: int, client: StreamAppClient) -> None:
    """Read until there are so many, or no more come for a while."""
    loop = asyncio.get_running_loop()
    seen, since_s = -1, loop.time()

    def is_over() -> bool:
        nonlocal seen, since_s
        if reader.count > seen:
            seen, since_s = reader.count, loop.time()
        return reader.count >= count or loop.time() - since_s > _STALL_TIMEOUT_S

    await reader.work(client, is_over)
