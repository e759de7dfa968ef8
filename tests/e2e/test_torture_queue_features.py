"""Messages that expire, overflow, are refused, ranked and moved in transactions, while the node is killed at random.

The books: every confirmed message is in a queue, in the grave or was acknowledged, and nothing comes back whose
acknowledgement the node has answered to. LEVERET_SEED sets another seed, LEVERET_TORTURE_S how long it lasts.
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from typing import Any, Final

import pika
import pytest

from leveret.testing.applications.contents import is_same, properties_of
from leveret.testing.network.ports import LOOPBACK, NotReady, wait_until
from leveret.testing.servers.broker import LeveretProcess
from tests.conformance.verbs import drain, ready_count
from tests.e2e.beside import Beside

pytestmark = pytest.mark.torture

DURATION_S: Final = float(os.environ.get("LEVERET_TORTURE_S", "60"))
PATIENCE_S: Final = 60.0
SMALL_SEGMENT_BYTES: Final = 1 << 18
"""So that segments are rolled and dropped on the way."""
GRAVE: Final = "grave"
QUEUES: Final[dict[str, dict[str, Any]]] = {
    GRAVE: {},
    "work": {},
    "dying": {"x-message-ttl": 100},
    "short": {"x-max-length": 20},
    "light": {"x-max-length-bytes": 400},
    "ranked": {"x-max-priority": 3},
    "poison": {"x-queue-type": "quorum", "x-delivery-limit": 2},
    "source": {},
    "target": {},
}
BURYING: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE}
PUBLISHED: Final = [name for name in QUEUES if name not in (GRAVE, "target")]
CONSUMED: Final = ["work", "ranked", "poison", "short"]


class Books:
    """What clients know for certain."""

    def __init__(self) -> None:
        self.confirmed: dict[str, set[bytes]] = {name: set() for name in PUBLISHED}
        self.acked: dict[str, set[bytes]] = {name: set() for name in QUEUES}
        self.sure: dict[str, set[bytes]] = {name: set() for name in QUEUES}
        self.returned: list[tuple[str, bytes]] = []
        self.published: dict[bytes, dict[str, Any]] = {}
        self.altered: list[str] = []
        self.wrong: list[BaseException] = []

    def look(self, body: bytes, properties: pika.BasicProperties) -> None:
        """Note a message that is otherwise than it was published."""
        if not is_same(self.published[body], vars(properties)):
            self.altered.append(f"{properties}, published with {self.published[body]}")


class Client(threading.Thread):
    """Does one thing over and over on a connection that it makes anew whenever it is lost."""

    def __init__(self, node: LeveretProcess, books: Books, seed: str, end_s: float) -> None:
        super().__init__(daemon=True)
        self.node, self.books, self.chance, self.end_s = node, books, random.Random(seed), end_s

    def run(self) -> None:
        while time.monotonic() < self.end_s:
            try:
                parameters = pika.ConnectionParameters(
                    LOOPBACK, self.node.amqp_port, socket_timeout=5, blocked_connection_timeout=20
                )
                with pika.BlockingConnection(parameters) as connection:
                    self.work(connection.channel())
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(0.05)
            except BaseException as error:
                self.books.wrong.append(error)
                raise

    def work(self, channel: Any) -> None:
        raise NotImplementedError


class Publisher(Client):
    number = 0

    def work(self, channel: Any) -> None:
        channel.confirm_delivery()
        while time.monotonic() < self.end_s:
            name = self.chance.choice(PUBLISHED)
            self.number += 1
            body = f"{self.name}-{self.number}".encode().ljust(self.chance.choice((16, 64)))
            properties = {**properties_of(self.number, self.name), "priority": self.chance.randint(0, 3)}
            if self.chance.random() < 0.05:
                properties["expiration"] = "50"
            self.books.published[body] = properties
            channel.basic_publish("", name, body, pika.BasicProperties(**properties))
            self.books.confirmed[name].add(body)


class Taker(Client):
    """Acknowledges, refuses or gives back, several at a time; what a reply follows is certain."""

    def work(self, channel: Any) -> None:
        while time.monotonic() < self.end_s:
            name = self.chance.choice(CONSUMED)
            acked: list[bytes] = []
            for _ in range(self.chance.randint(1, 20)):
                method, properties, body = channel.basic_get(name)
                if method is None:
                    break
                self.books.look(body, properties)
                if body in self.books.sure[name]:
                    self.books.returned.append((name, body))
                choice = self.chance.random()
                if choice < 0.6:
                    self.books.acked[name].add(body)
                    acked.append(body)
                    channel.basic_ack(method.delivery_tag)
                else:
                    channel.basic_reject(method.delivery_tag, requeue=choice < 0.8)
            channel.queue_declare(name, passive=True)
            self.books.sure[name].update(acked)


class Mover(Client):
    """From `source` to `target` in transactions."""

    def work(self, channel: Any) -> None:
        channel.tx_select()
        while time.monotonic() < self.end_s:
            moved: list[bytes] = []
            for _ in range(self.chance.randint(1, 10)):
                method, properties, body = channel.basic_get("source")
                if method is None:
                    time.sleep(0.01)
                    break
                self.books.look(body, properties)
                if body in self.books.sure["source"]:
                    self.books.returned.append(("source", body))
                channel.basic_publish("", "target", body, properties)
                channel.basic_ack(method.delivery_tag)
                moved.append(body)
            if self.chance.random() < 0.2:
                channel.tx_rollback()
                channel.basic_recover(requeue=True)
            else:
                channel.tx_commit()
                self.books.sure["source"].update(moved)


def test_nothing_is_lost_and_nothing_acknowledged_returns_whatever_messages_die_of() -> None:
    seed = os.environ.get("LEVERET_SEED", str(random.randrange(1 << 32)))
    print(f"LEVERET_SEED={seed}")
    chance, books = random.Random(seed), Books()
    with LeveretProcess(config={"segment_bytes_max": str(SMALL_SEGMENT_BYTES)}) as node:
        declare(node)
        beside = Beside(node)
        end_s = time.monotonic() + DURATION_S
        roles: list[type[Client]] = [Publisher, Publisher, Publisher, Taker, Taker, Mover]
        clients = [role(node, books, f"{seed}-{i}", end_s) for i, role in enumerate(roles)]
        for client in clients:
            client.start()
        kills = 0
        while time.monotonic() < end_s:
            beside.use(chance)
            time.sleep(chance.uniform(0.3, 3.0))
            node.kill9()
            revive(node)
            beside.check()
            kills += 1
        for client in clients:
            client.join(PATIENCE_S)
        found = leftovers(node, books)
    check(books, found)
    print(f"{kills} kills, confirmed {sum(map(len, books.confirmed.values()))}, dead {len(found[GRAVE])}")


def revive(node: LeveretProcess) -> None:
    """Start it, once more if a client's own port stands for a moment where one of the node's doors was."""
    for _ in range(10):
        with suppress(NotReady):
            node.start()
            return
        time.sleep(0.5)
    raise AssertionError("the node does not come back")


def declare(node: LeveretProcess) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)) as connection:
        for name, arguments in QUEUES.items():
            dead = BURYING if name != GRAVE else {}
            connection.channel().queue_declare(name, durable=True, arguments={**arguments, **dead})


def leftovers(node: LeveretProcess, books: Books) -> dict[str, list[bytes]]:
    """What every queue holds in the end, when all that was to die is dead."""
    with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)) as connection:
        channel = connection.channel()
        wait_until(lambda: ready_count(channel, "dying") == 0, "an empty queue", PATIENCE_S)
        # The grave comes last: what expired behind others dies when those are gone.
        found = {name: drain(channel, name) for name in QUEUES if name != GRAVE}
        grave = iter(lambda: channel.basic_get(GRAVE, auto_ack=True), (None, None, None))
        for _, properties, body in grave:
            books.look(body, properties)
            found.setdefault(GRAVE, []).append(body)
        return {GRAVE: [], **found}


def check(books: Books, found: dict[str, list[bytes]]) -> None:
    assert not books.wrong
    assert not books.altered, f"{len(books.altered)} messages are altered, the first: {books.altered[0]}"
    assert books.returned == [], "nothing comes back whose acknowledgement was answered to"
    letter, target = set(found[GRAVE]), set(found["target"])
    for name, confirmed in books.confirmed.items():
        accounted = set(found[name]) | letter | books.acked[name]
        if name == "source":
            accounted |= target
        lost = confirmed - accounted
        assert not lost, f"{len(lost)} of {len(confirmed)} confirmed in '{name}' are lost: {sorted(lost)[:5]}"
        assert not books.sure[name] & set(found[name]), f"acknowledged messages are in '{name}' again"
