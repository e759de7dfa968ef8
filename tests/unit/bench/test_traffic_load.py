from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from bench.client import LoadError
from bench.mixed import declared, job_of
from bench.traffic import Load, Ring
from bench.traffic_load import Books, Consuming, Publishing
from leveret.testing.servers.broker import LeveretProcess

LOAD = Load(queues=2, publishers=2, body_bytes=(20, 300))


@cache
def ring_of(load: Load, publisher: int) -> Ring:
    """A publisher's messages, which nothing here changes."""
    return Ring(load, publisher)


def entered(load: Load, *deliveries: tuple[int, int, int]) -> None:
    """Enter deliveries: publisher, sequence, queue."""
    columns = np.array(deliveries, dtype=np.int64).T
    Books(load, [ring_of(load, place) for place in range(load.publishers)]).enter(*columns)


def of_queue(queue: int, count: int) -> list[int]:
    """Return the first messages of publisher 1 to a queue."""
    ring = ring_of(LOAD, 1)
    return [one for one in range(3 * ring.count) if ring.queues[one % ring.count] == queue][:count]


def test_each_queue_may_be_ahead_of_others() -> None:
    ring = ring_of(LOAD, 1)
    many = of_queue(1, ring.count + 10)
    entered(LOAD, *((1, one, 1) for one in many), *((1, one, 0) for one in of_queue(0, 5)))


def test_a_gap_is_found() -> None:
    first, _, third = of_queue(1, 3)
    with pytest.raises(LoadError, match="message 2 of line 3 came where 1 was expected"):
        entered(LOAD, (1, first, 1), (1, third, 1))


def test_another_order_is_found() -> None:
    first, second = of_queue(1, 2)
    with pytest.raises(LoadError, match="came where 0 was expected"):
        entered(LOAD, (1, second, 1), (1, first, 1))


@pytest.mark.parametrize("load", [LOAD, dataclasses.replace(LOAD, ordered=False)])
def test_a_message_that_comes_twice_is_found(load: Load) -> None:
    (first,) = of_queue(1, 1)
    with pytest.raises(LoadError, match=r"expected|twice"):
        entered(load, (1, first, 1), (1, first, 1))


def test_a_message_of_another_queue_is_found() -> None:
    (first,) = of_queue(1, 1)
    with pytest.raises(LoadError, match="routing key"):
        entered(LOAD, (1, first, 0))


def test_without_order_all_that_counts_is_that_each_comes_once() -> None:
    first, second = of_queue(1, 2)
    entered(dataclasses.replace(LOAD, ordered=False), (1, second, 1), (1, first, 1))


def test_of_a_fanout_each_queue_gets_each_message() -> None:
    load = dataclasses.replace(LOAD, kind="fanout")
    entered(load, *((0, one, queue) for one in range(4) for queue in (0, 1)))
    with pytest.raises(LoadError, match="came where 1 was expected"):
        entered(load, (0, 0, 0), (0, 0, 1), (0, 2, 1))


class Spoiled(Publishing):
    """A publisher one of whose messages has another octet than the ring has, at a place of the message's."""

    def spoil(self, place: str, octet: int) -> None:
        at = {"name": self.ring.names, "body": self.ring.bodies, "header": self.ring.headers}[place][
            4
        ] + octet
        number = self.ring.number

        def spoiling(first: int, count: int) -> None:
            number(first, count)
            self.ring.octets[at] ^= 1

        self.ring.number = spoiling  # type: ignore[method-assign]


@pytest.mark.process
@pytest.mark.parametrize(
    ("place", "octet", "error"),
    [
        ("name", 3, "message id of another"),
        ("body", 7 + 8 + 2, "another body"),
        # The last octet of the content type.
        ("header", 7 + 2 + 2 + 8 + 2 + 10, "a message came with"),
        ("body", 7 + 7, "expected"),
    ],
)
def test_one_octet_that_is_another_is_found(
    place: str, octet: int, error: str, leveret: LeveretProcess
) -> None:
    load = Load(body_bytes=(20, 300))
    with declared(leveret.amqp_port, load):
        publisher = Spoiled(job_of("publish", leveret.amqp_port, load), load, 0, 20)
        publisher.spoil(place, octet)
        publisher.fill_window()
        while publisher.confirms.count < 20:
            publisher.read()
        rings = [Ring(load, 0)]
        consumer = Consuming(job_of("consume", leveret.amqp_port, load), load, 0, Books(load, rings), rings)
        while consumer.count < 20:
            consumer.read()
        with pytest.raises(LoadError, match=error):
            consumer.finish()
        publisher.connection.close()
        consumer.connection.close()
