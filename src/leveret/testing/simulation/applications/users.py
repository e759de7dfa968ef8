"""The users' applications at a node or a cluster, made for one run."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from leveret.testing.applications.run_books import RunBooks
from leveret.testing.applications.stream_apps import NumberingPublisher, StoringReader
from leveret.testing.applications.stream_books import StreamBooks
from leveret.testing.simulation.applications.application import SimulatedApplication
from leveret.testing.simulation.applications.consumers import ConsumingHabit, SimulatedConsumer
from leveret.testing.simulation.applications.publishers import (
    FAST_COPIES,
    PublishingPace,
    SimulatedPublisher,
    SimulatedTransactionalPublisher,
)
from leveret.testing.simulation.applications.queue_owner import OWNED_INTERVAL_S, SimulatedQueueOwner
from leveret.testing.simulation.applications.streams import (
    SimulatedStreamClient,
    SimulatedStreamReader,
)
from leveret.testing.simulation.machine.network import SimulatedNetwork

Crew = tuple[SimulatedApplication, ...]
"""Applications that belong together."""


class SimulatedUsers:
    """Makes applications that connect to some ports, each with its own name and random numbers.

    Attributes:
        fast_copies: the copies of messages of the run after which all publishers are slower.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        ports: Sequence[int],
        stream_ports: Sequence[int],
        books: RunBooks,
        seed: int,
        fast_copies: int = FAST_COPIES,
    ) -> None:
        """Begin without applications; the ports may change."""
        self.fast_copies = fast_copies
        self._network = network
        self._ports, self._stream_ports = ports, stream_ports
        self._books = books
        self._seed = seed
        self._count = 0

    def publisher(
        self,
        queues: Sequence[str],
        pace: PublishingPace,
        *,
        exchange: str = "",
        in_transactions: bool = False,
    ) -> SimulatedPublisher:
        """Return an application that publishes to these queues."""
        kind = SimulatedTransactionalPublisher if in_transactions else SimulatedPublisher
        return kind(*self.given("p"), queues=queues, pace=self._paced(pace), exchange=exchange)

    def consumer(self, queue: str, habit: ConsumingHabit | None = None) -> SimulatedConsumer:
        """Return an application that consumes a queue."""
        return SimulatedConsumer(*self.given("c"), queue=queue, habit=habit or ConsumingHabit())

    def reader(self, stream: StreamBooks) -> SimulatedStreamReader:
        """Return an application that reads a stream."""
        return SimulatedStreamReader(*self.given("r"), stream=stream)

    def numbering_publisher(self, stream: StreamBooks, pace: PublishingPace) -> SimulatedStreamClient:
        """Return an application that publishes over the stream protocol, under a name of its own."""
        name, network, _, books, random = self.given("sp")
        paced = self._paced(pace)
        role = NumberingPublisher(name, stream, random, lambda: paced.pause_s(random, len(books.messages)))
        return SimulatedStreamClient(
            name, network, self._stream_ports, books, random, stream=stream, role=role
        )

    def storing_reader(self, stream: StreamBooks) -> SimulatedStreamClient:
        """Return an application that reads over the stream protocol, and stores its offset."""
        name, network, _, books, random = self.given("sr")
        role = StoringReader(name, stream, random)
        return SimulatedStreamClient(
            name, network, self._stream_ports, books, random, stream=stream, role=role
        )

    def owner(self, queue: str, idle_s: float, **arguments: Any) -> SimulatedQueueOwner:
        """Return an application that declares, uses and deletes a queue of its own."""
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        pace = self._paced(PublishingPace(OWNED_INTERVAL_S))
        return SimulatedQueueOwner(*self.given("o"), queue=queue, arguments=given, idle_s=idle_s, pace=pace)

    def _paced(self, pace: PublishingPace) -> PublishingPace:
        return pace._replace(fast_copies=self.fast_copies)

    def given(self, kind: str) -> tuple[str, SimulatedNetwork, Sequence[int], RunBooks, Random]:
        """Return the first arguments of a new application: a name of this kind, and what all need."""
        self._count += 1
        name = f"{kind}{self._count}"
        return name, self._network, self._ports, self._books, Random(f"{name} {self._seed}")
