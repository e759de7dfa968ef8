"""A cluster in a network, applications at all of its nodes, and the books, as scenarios of partitions use them.

Clients publish and consume at every node, from machines of their own, all the time, and come back to their node when it
has ended their connection. The publishers and readers of a stream are on a machine that no cut divides from a node: so
they also reach nodes that others do not, such as a leader that is cut off.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Final, NamedTuple

from leveret.testing.applications.applications import (
    AppConsumer,
    AppMessage,
    AppPublisher,
    ReceivedMessage,
    now_ms,
)
from leveret.testing.applications.audit import FOREVER, Audit
from leveret.testing.applications.books import Books, count_entries, read_book
from leveret.testing.applications.mixed_messages import declare, mixed_messages
from leveret.testing.sites.network_hosts import NetworkHost
from leveret.testing.sites.network_site import NetworkNode, NetworkSite, Place
from tests.cluster.torture_apps import CrewConsumer
from tests.cluster.torture_stage import READS_MAX, disordered
from tests.cluster.torture_stream import STREAM, StreamCrew
from tests.e2e.site import ENDLESS, PATIENCE_S, WINDOW, Site, drain_all
from tests.e2e.test_torture import summary

FIRST, OTHER = "first", "other"
QUEUES: Final = (FIRST, OTHER)
ALL, MAJORITY = "all", "majority"
RATE: Final = 40.0
AGAIN_S: Final = 0.2
ENOUGH: Final = 20
POLICY: Final = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-promote-on-failure": "when-synced"}


class Worker:
    """An application at a place: when its connection ends, another takes its place, for as long as there is work.

    Attributes:
        books: of all its applications, one after the other.
        ends_ms: when they ended before they were told to.
        disordered: see CrewConsumer.
    """

    def __init__(
        self, where: NetworkHost, make: Callable[[], tuple[AppPublisher | AppConsumer, Books]]
    ) -> None:
        self.books: list[Books] = []
        self.ends_ms: list[int] = []
        self.disordered = 0
        self._where = where
        self._make = make
        self._ending = threading.Event()
        self._current: AppPublisher | AppConsumer | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._where.entered():
            while not self._ending.is_set():
                self._current, books = self._make()
                self.books.append(books)
                if self._ending.is_set():
                    self._current.stop()
                self._current.run()
                self.disordered += self._current.disordered if isinstance(self._current, AppConsumer) else 0
                if not self._ending.is_set():
                    self.ends_ms.append(now_ms())
                self._ending.wait(AGAIN_S)

    def confirmed(self) -> int:
        """How many messages are confirmed."""
        return sum(count_entries(books.confirmed) for books in self.books)

    def confirms_ms(self) -> list[int]:
        """When confirms came."""
        return [at for books in self.books for _, at in read_book(books.confirmed)]

    def end(self) -> None:
        """End in order, everything confirmed."""
        self._ending.set()
        if self._current is not None:
            self._current.stop()

    def join(self) -> None:
        """Return when it has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), (
            "an application does not end: is it blocked, or a confirm missing?"
        )


class Applications(Site):
    """They find their node over the network."""

    def __init__(self, node: NetworkNode, folder: Path, seed: int) -> None:
        super().__init__(node, "/", folder, seed, CrewConsumer)
        self._lock = threading.Lock()

    def publisher_at(self, node: NetworkNode, queue: str) -> tuple[AppPublisher, Books]:
        """A publisher to one queue, and its books."""
        with self._lock:
            books = self._new_books()
        return AppPublisher(
            node.amqp_port,
            self._vhost,
            self._noted(self._messages_to(queue)),
            books,
            window=WINDOW,
            rate=RATE,
            host=node.host.address,
        ), books

    def _messages_to(self, queue: str) -> Iterator[AppMessage]:
        """Messages with numbers of their own, from the first message on.

        Thousands of publishers find no node in a long run, and books have 32 bits for a number.
        """
        with self._lock:
            first = self._count
            self._count += ENDLESS
        yield from mixed_messages([queue], ENDLESS, first=first, seed=self._seed)

    def consumer_at(self, node: NetworkNode) -> tuple[AppConsumer, Books]:
        """A consumer of all queues, and its books."""
        with self._lock:
            books = self._new_books()
        host = node.host.address
        return CrewConsumer(
            node.amqp_port, self._vhost, QUEUES, books, self._seed + node.amqp_port, host=host
        ), books


class Cut(NamedTuple):
    """What was done.

    Attributes:
        began_ms: when.
        ended_ms: when the network was whole again.
        away: nodes that had to stop.
        on: nodes at which work had to go on.
    """

    began_ms: int
    ended_ms: int
    away: Sequence[NetworkNode] = ()
    on: Sequence[NetworkNode] = ()


class Story:
    """A cluster in a network, its applications, and what happens to them.

    Attributes:
        site: the cluster.
        nodes: its nodes.
        chance: for whatever nobody chose.
        confirm: `ha-confirm` in this scenario.
    """

    def __init__(self, site: NetworkSite, folder: Path, seed: str) -> None:
        self.site = site
        self.nodes = site.places
        self.chance = random.Random(seed)
        self.confirm = ALL
        self._apps = Applications(self.nodes[0], folder, self.chance.randrange(1 << 32))
        self._publishers: dict[tuple[str, str], Worker] = {}
        self._consumers: dict[str, Worker] = {}
        self._name = ""
        addresses = {node.stream_port: node.host.address for node in self.nodes}
        self._streaming = StreamCrew(
            lambda: list(addresses),
            random.Random(self.chance.randrange(1 << 32)),
            address_of=lambda port: addresses[port],
            where=site.network.add("readers").entered,
        )

    def begin(self) -> None:
        """Declare everything; the cluster runs."""
        with self.site.channel(self.nodes[0]) as channel:
            declare(channel, QUEUES)
            channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})

    def play(self, name: str, scenario: Callable[[Story], Cut]) -> str:
        """One scenario; returns what it cost, and what the books say.

        Raises:
            AssertionError: something is not in order afterwards.
        """
        self.confirm = self.chance.choice([ALL, MAJORITY])
        self._name = f"{name}, confirm by {self.confirm}"
        self.site.set_policy("ha", f"^({'|'.join(QUEUES)})$", {**POLICY, "ha-confirm": self.confirm})
        self.site.api("POST", "rebalance/queues", {})
        self.wait_synchronised()
        self._hire()
        self._streaming.begin()
        self.wait_confirms(self.nodes)
        cut = scenario(self)
        self.wait_synchronised()
        synchronised_ms = now_ms()
        self.wait_confirms(self.nodes)
        figures = self._figures(cut, synchronised_ms)
        self._end()
        streamed = self._streaming.confirmed()
        return f"{self._name}: {figures}; {summary(self._judge())}; {streamed} confirmed in the stream"

    def _hire(self) -> None:
        """Publishers to each queue at each node, and a consumer of all queues."""
        for node, queue in product(self.nodes, QUEUES):
            make = partial(self._apps.publisher_at, node, queue)
            self._publishers[node.name, queue] = Worker(node.clients, make)
        for node in self.nodes:
            self._consumers[node.name] = Worker(node.clients, partial(self._apps.consumer_at, node))

    def _figures(self, cut: Cut, synchronised_ms: int) -> str:
        """When clients were sent away, and had their last confirm; when others had one again; when all was well."""
        began, ended = cut.began_ms, cut.ended_ms
        parts = [f"cut for {_s(ended - began)}"]
        for node in cut.away:
            ends = [self._publishers[node.name, queue].ends_ms[0] for queue in QUEUES]
            last = max((at for at in self._confirms_ms([node], QUEUES) if at < ended), default=began)
            parts.append(f"{node.name} sent its clients away after {_s(max(ends) - began)}")
            parts.append(f"last confirm there after {_s(last - began)}")
        for queue in QUEUES:
            pause, until = _longest_pause(self._confirms_ms(cut.on, [queue]), began, ended)
            parts.append(f"{queue}: longest pause {_s(pause)}, over after {_s(until - began)}")
        parts.append(f"synchronised {_s(synchronised_ms - ended)} after the heal")
        return ", ".join(parts)

    def _confirms_ms(self, nodes: Sequence[NetworkNode], queues: Sequence[str]) -> list[int]:
        found = (self._publishers[node.name, queue].confirms_ms() for node, queue in product(nodes, queues))
        return sorted(chain.from_iterable(found))

    # -- what scenarios use -------------------------------------------------------------------

    def leader(self, queue: str = FIRST) -> NetworkNode:
        """Who leads a queue, as the first node knows."""
        found = self.site.queues(self.nodes[0])[queue].leader
        return next(each for each in self.nodes if each.node == found)

    def but(self, *nodes: NetworkNode) -> list[NetworkNode]:
        """All other nodes."""
        return [each for each in self.nodes if each not in nodes]

    def wait_confirms(self, nodes: Sequence[NetworkNode], queues: Sequence[str] = QUEUES) -> None:
        """Wait until messages are confirmed that were published at each of these nodes to each of these queues."""
        workers = [self._publishers[node.name, queue] for node, queue in product(nodes, queues)]
        wanted = [worker.confirmed() + ENOUGH for worker in workers]

        def confirmed() -> bool:
            return all(worker.confirmed() >= least for worker, least in zip(workers, wanted, strict=True))

        self._wait(confirmed, f"confirms at {_names(nodes)} for {queues}")

    def wait_confirms_at_leaders(self) -> None:
        """Wait until messages are confirmed that are published where their queue is led."""
        before = {key: worker.confirmed() for key, worker in self._publishers.items()}

        def confirmed() -> bool:
            leaders = [(self.leader(queue).name, queue) for queue in QUEUES]
            return all(self._publishers[key].confirmed() >= before[key] + ENOUGH for key in leaders)

        self._wait(confirmed, "confirms where queues are led")

    def wait_led_by(self, nodes: Sequence[NetworkNode]) -> None:
        """Wait until all of these nodes say that one of them leads each queue."""
        names = set(_names(nodes))

        def led() -> bool:
            views = [self.site.queues(each) for each in nodes]
            found = [{view[queue].leader for view in views} for queue in QUEUES]
            return all(len(leaders) == 1 and leaders <= names for leaders in found)

        self._wait(led, f"all queues to be led by one of {sorted(names)}")

    def wait_sent_away(self, nodes: Sequence[NetworkNode]) -> None:
        """Wait until these nodes have ended the connections of all their clients."""
        workers = [self._publishers[node.name, queue] for node, queue in product(nodes, QUEUES)]
        self._wait(
            lambda: all(each.ends_ms for each in workers), f"clients to be sent away of {_names(nodes)}"
        )

    def wait_down(self, nodes: Sequence[NetworkNode]) -> None:
        """Wait until these nodes say that nobody leads the first queue, nor may."""
        self._wait(
            lambda: all(self.site.queues(each)[FIRST].state == "down" for each in nodes),
            f"{FIRST} to be down",
        )

    def wait_synchronised(self) -> None:
        """Wait until all nodes say that each queue is led by one, and mirrored by all others, synchronised."""
        wanted = set(_names(self.nodes))

        def synchronised() -> bool:
            views = [self.site.queues(each) for each in self.nodes]
            return all(
                {view[queue].leader, *view[queue].synchronised} == wanted
                and view[queue].leader == views[0][queue].leader
                and view[queue].state == "running"
                for view, queue in product(views, QUEUES)
            )

        self._wait(synchronised, "synchronised mirrors")
        self._wait(self._are_replicas_whole, "synchronised replicas of the stream")

    def _are_replicas_whole(self) -> bool:
        states = sorted(row["state"] for row in self.site.api("GET", f"queues/%2F/{STREAM}/replicas"))
        return states == ["running", *["synchronised"] * (len(self.nodes) - 1)]

    def wait_told(self, nodes: Sequence[NetworkNode], missed: Sequence[NetworkNode]) -> None:
        """Wait until each of these nodes says that it misses those, and nobody else."""
        wanted = set(_names(missed))

        def are_missed() -> bool:
            rows = [self.site.api("GET", f"nodes/{each.node}", at=each) for each in nodes]
            return all(set(row["partitions"]) == wanted for row in rows)

        self._wait(are_missed, f"{_names(nodes)} to miss {sorted(wanted)}")

    def quarantine(self, node: NetworkNode) -> int:
        """How many messages a node has set aside so far."""
        reports = self.site.api("GET", "replication/divergent", at=node)
        return sum(report["messages"] for report in reports if report["node"] == node.node)

    def dismiss(self, node: NetworkNode) -> None:
        """Nobody consumes at this node any more."""
        self._dismiss([self._consumers.pop(node.name)])

    def fork(self, these: Sequence[NetworkNode], those: Sequence[Place], *, back: bool = True) -> Cut:
        """Cut these nodes off from these places; they have to stop, and all other nodes to go on."""
        on = self.but(*these)
        with self.site.parted(these, those, back=back):
            began_ms = now_ms()
            self.wait_sent_away(these)
            self.wait_led_by(on)
            self.wait_confirms(on)
            ended_ms = now_ms()
        return Cut(began_ms, ended_ms, these, on)

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        self.site.wait(holds, f"{self._name}: {what}", 2 * PATIENCE_S)

    # -- the books ----------------------------------------------------------------------------

    def _end(self) -> None:
        self._streaming.end()
        self._dismiss([*self._publishers.values(), *self._consumers.values()])
        self._publishers, self._consumers = {}, {}

    def _dismiss(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.join()
        out = sum(worker.disordered for worker in workers)
        assert out == 0, f"{self._name}: {out} messages came out of order"

    def _is_all_ready(self) -> bool:
        rows = [self.site.api("GET", f"queues/%2F/{queue}") for queue in QUEUES]
        return not any(row["messages_unacknowledged"] for row in rows)

    def _found(self) -> dict[str, list[ReceivedMessage]]:
        """What is in the queues, and stays there.

        Read again if that was disturbed, by a node that is short of time and loses its lease. What is there twice is so
        each time.
        """
        found: dict[str, list[ReceivedMessage]] = {}

        def is_read() -> bool:
            node = self.chance.choice(self.nodes)
            with node.host.entered():
                found.update(drain_all(node, "/", QUEUES, keep=True))
            return True

        for _ in range(READS_MAX):
            self._wait(is_read, "the queues to be read")
            if all(len({each.number for each in taken}) == len(taken) for taken in found.values()):
                break
        return found

    def _judge(self) -> Audit:
        self._wait(self._is_all_ready, "what consumers had to be back")
        account = self._apps.account()
        found = self._found()
        result = self._apps.audit(found, dict.fromkeys(QUEUES, FOREVER), account)
        for line in result.lines:
            line.disordered = disordered(found[line.queue])
        assert result.balances, f"{self._name}: {result}"
        assert result.total.confirmed > 0
        assert not self._apps.strangers(), self._name
        self._apps.turn_page(found)
        self._streaming.judge([node.stream_port for node in self.nodes])
        return result


def _names(nodes: Sequence[NetworkNode]) -> list[str]:
    return [each.node for each in nodes]


def _s(time_ms: int) -> str:
    return f"{time_ms / 1000:.1f} s"


def _longest_pause(times_ms: Sequence[int], began_ms: int, ended_ms: int) -> tuple[int, int]:
    """The longest time without a confirm that ended while the network was parted, and when that was."""
    pauses = [
        (later - earlier, later)
        for earlier, later in pairwise(times_ms)
        if began_ms <= later and earlier <= ended_ms
    ]
    return max(pauses, default=(0, began_ms))
