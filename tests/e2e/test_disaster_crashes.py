"""Every process of a standby pair is killed on the way, promotions half-way too, and the books are exact.

The story is played once; every test looks at one side of how it ended. LEVERET_SEED sets another seed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pika
import pytest
from pika.exceptions import AMQPError

from leveret.testing.applications.applications import AppPublisher, ReceivedMessage, parameters
from leveret.testing.applications.audit import Audit
from leveret.testing.applications.books import Books, count_entries
from leveret.testing.applications.mixed_messages import MixedMessage, declare
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.standby_pair import PROMOTE_TIMEOUT_S, StandbyPair
from tests.e2e.site import PATIENCE_S, Site, background, drain_all

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(600)]

VHOST: Final = "orders"
QUEUES: Final = ("one", "two", "three")
BULK: Final = tuple(f"bulk-{number}" for number in range(1, 13))
BULK_MESSAGES: Final = 5000
BULK_BODY: Final = b"x" * 1000
RATE: Final = 500
CONSUMED: Final = 0.6
"""Of what is published, so that something is left to recover."""
HALF_WAY: Final = 500
"""So many messages must be back when a promotion is killed."""


@dataclass
class Attempt:
    """A promotion that was killed: how many messages were back then, and what the operator saw."""

    recovered: int
    ended: subprocess.CompletedProcess[str]
    status: dict[str, Any]
    pipelines: list[int]
    recovered_by_then: int
    """When `status` had been read."""


@dataclass
class Aftermath:
    """How it ended."""

    books: Audit
    bulk: dict[str, list[ReceivedMessage]]
    recovery_killed: Attempt
    node_killed: Attempt
    last: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]
    drivers: list[int]
    disordered: int


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("crashes")
    seed = int(os.environ.get("LEVERET_SEED", "1"))
    print(f"LEVERET_SEED={seed}")
    with StandbyPair(VHOST, folder) as pair:
        site = Site(pair.upstream, VHOST, folder, seed)
        pair.start()
        pair.replicate("osr", "^.*")
        with site.channel() as channel:
            declare(channel, QUEUES)
        pair.follow()
        disordered = kill_the_upstream(pair, site)
        drivers = pair.transferring()
        disordered += kill_the_driver(pair, site)
        drivers += pair.transferring()
        kill_the_downstream(pair, site)
        drivers += pair.transferring()
        fill(pair, Books(folder / "bulk"))
        pair.wait_transferred()
        pair.upstream.kill9()
        yield promoted(pair, site, drivers, disordered)


def kill_the_upstream(pair: StandbyPair, site: Site) -> int:
    """Kill -9 while messages are published, acked and transferred; returns what came out of order."""
    consumer = site.consumer(QUEUES, rate=RATE * CONSUMED)
    with background(consumer, site.publisher(QUEUES, rate=RATE)):
        site.wait_confirmed(1000)
        wait_until(lambda: sum(pair.transferred().values()) > 0, "the first at the standby", PATIENCE_S)
        pair.upstream.kill9()
    pair.restart_upstream()
    return consumer.disordered


def kill_the_driver(pair: StandbyPair, site: Site) -> int:
    """Kill -9 of Spark's driver; returns what came out of order at the upstream."""
    consumer = site.consumer(QUEUES, rate=RATE * CONSUMED)
    publisher = site.publisher(QUEUES, rate=RATE)
    with background(consumer, publisher):
        (driver,) = pair.transferring()
        pair.wait_transferred()
        pair.kill(pair.transferring())
        wait_until(lambda: pair.transferring() not in ([], [driver]), "another driver", PATIENCE_S)
        publisher.stop()
        consumer.stop()
    return consumer.disordered


def kill_the_downstream(pair: StandbyPair, site: Site) -> None:
    """Kill -9 of the downstream node; the upstream goes on meanwhile."""
    publisher = site.publisher(QUEUES, rate=RATE)
    with background(publisher):
        pair.wait_transferred()
        pair.downstream.kill9()
        site.wait_confirmed(site.confirmed() + 500)
        publisher.stop()
    pair.downstream.start()
    pair.wait_transferred()


def fill(pair: StandbyPair, books: Books) -> None:
    """Each message to all bulk queues, so that a promotion takes long enough to be killed."""
    port = pair.upstream.amqp_port
    with pika.BlockingConnection(parameters(port, VHOST)) as connection:
        channel = connection.channel()
        channel.exchange_declare("bulk", exchange_type="fanout", durable=True)
        for queue in BULK:
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "bulk")
    AppPublisher(port, VHOST, bulk(), books).run()
    assert count_entries(books.confirmed) == BULK_MESSAGES
    pair.wait_queues([*QUEUES, *BULK, "beacon"])


def bulk() -> Iterator[MixedMessage]:
    for number in range(BULK_MESSAGES):
        properties = pika.BasicProperties(message_id=str(number), delivery_mode=2)
        yield MixedMessage(number, BULK[0], "bulk", "", BULK_BODY, properties)


def promoted(pair: StandbyPair, site: Site, drivers: list[int], disordered: int) -> Aftermath:
    """Promote, killed twice, and count."""
    covered = pair.covered(QUEUES)
    recovery_killed = attempt(pair, HALF_WAY, whole_node=False)
    node_killed = attempt(pair, recovery_killed.recovered + HALF_WAY, whole_node=True)
    last = pair.promote()
    assert last.returncode == 0, last.stderr
    second = pair.promote()
    found = drain_all(pair.downstream, VHOST, QUEUES, keep=False)
    return Aftermath(
        books=site.audit(found, covered),
        bulk=drain_all(pair.downstream, VHOST, BULK, keep=False),
        recovery_killed=recovery_killed,
        node_killed=node_killed,
        last=last,
        second=second,
        drivers=drivers,
        disordered=disordered,
    )


def attempt(pair: StandbyPair, enough: int, *, whole_node: bool) -> Attempt:
    """Promote, and kill the recovery, or the node, once so many messages are back; the node runs afterwards."""
    with ThreadPoolExecutor(1) as pool:
        promotion = pool.submit(pair.promote)
        wait_until(lambda: pair.recovering() != [], "the recovery's process", PATIENCE_S)
        (driver,) = pair.recovering()
        connection = pika.BlockingConnection(parameters(pair.downstream.amqp_port, VHOST))
        channel = connection.channel()
        wait_until(
            lambda: promotion.done() or back(channel, BULK) >= enough,
            "a half-way promotion",
            PROMOTE_TIMEOUT_S,
            interval_s=0,
        )
        assert not promotion.done(), promotion.result()
        if whole_node:
            pair.downstream.kill9()
        # With its workers, which would else go on for a moment: a driver leads its process group.
        with suppress(ProcessLookupError):
            os.killpg(driver, signal.SIGKILL)
        ended = promotion.result()
    if pair.downstream.alive:
        connection.close()
    else:
        with suppress(AMQPError):
            connection.close()
        pair.downstream.start()
    with pika.BlockingConnection(parameters(pair.downstream.amqp_port, VHOST)) as connection:
        channel = connection.channel()
        recovered, status = back(channel, BULK), pair.status()
        # What was on its way to the node when the recovery was killed may have come meanwhile.
        return Attempt(recovered, ended, status, pair.transferring(), back(channel, BULK))


def errors(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of a command's errors; an upstream that was killed a moment ago may be warned of as alive."""
    return [line for line in ended.stderr.splitlines() if not line.startswith("Warning: ")]


def back(channel: Any, queues: Sequence[str]) -> int:
    """How many messages these queues hold."""
    return sum(channel.queue_declare(queue, passive=True).method.message_count for queue in queues)


def test_after_every_crash_nothing_is_lost_that_was_transferred(aftermath: Aftermath) -> None:
    assert aftermath.books.total.lost_unlawfully == 0, aftermath.books
    assert aftermath.books.total.recovered > 1000


def test_after_every_crash_nothing_acked_comes_back(aftermath: Aftermath) -> None:
    assert aftermath.books.total.resurrected == 0, aftermath.books
    assert aftermath.books.total.acked > 500


def test_after_every_crash_each_message_is_there_once_unaltered_and_in_order(aftermath: Aftermath) -> None:
    total = aftermath.books.total
    assert (total.duplicated, total.altered, total.disordered) == (0, 0, 0), aftermath.books
    assert aftermath.disordered == 0


def test_a_killed_driver_is_followed_by_another(aftermath: Aftermath) -> None:
    assert len(set(aftermath.drivers)) == 3


def test_what_is_left_of_a_killed_promotion_is_counted_after_a_restart_too(aftermath: Aftermath) -> None:
    planned = BULK_MESSAGES * len(BULK) + aftermath.books.total.recovered
    for attempt in (aftermath.recovery_killed, aftermath.node_killed):
        promotion = attempt.status["promotion"]
        assert (promotion["is_running"], promotion["plans_error"]) == (False, "")
        [row] = promotion["vhosts"]
        assert (row["virtual_host"], row["messages"]) == (VHOST, planned)
        assert row["queues"] >= row["queues_left"] > 0
        # The bulk queues are not all that comes back.
        assert planned - attempt.recovered_by_then - aftermath.books.total.recovered <= row["messages_left"]
        assert row["messages_left"] <= planned - attempt.recovered


def test_a_promotion_whose_recovery_is_killed_says_so_and_the_node_stays(aftermath: Aftermath) -> None:
    attempt = aftermath.recovery_killed
    assert HALF_WAY <= attempt.recovered < BULK_MESSAGES * len(BULK)
    assert attempt.ended.returncode != 0
    assert len(errors(attempt.ended)) == 1, attempt.ended.stderr
    assert (attempt.status["operating_mode"], attempt.status["state"]) == (
        "downstream",
        "promotion interrupted",
    )


def test_a_node_killed_while_it_is_promoted_does_not_follow_afterwards(aftermath: Aftermath) -> None:
    attempt = aftermath.node_killed
    assert aftermath.recovery_killed.recovered < attempt.recovered < BULK_MESSAGES * len(BULK)
    assert attempt.ended.returncode != 0
    assert len(errors(attempt.ended)) == 1, attempt.ended.stderr
    assert (attempt.status["operating_mode"], attempt.status["state"]) == (
        "downstream",
        "promotion interrupted",
    )
    assert attempt.pipelines == []


@pytest.mark.parametrize("queue", BULK)
def test_a_promotion_killed_half_way_and_run_again_loses_and_doubles_nothing(
    aftermath: Aftermath, queue: str
) -> None:
    assert [message.number for message in aftermath.bulk[queue]] == list(range(BULK_MESSAGES))
    assert {(message.exchange, message.body) for message in aftermath.bulk[queue]} == {("bulk", BULK_BODY)}


def test_a_promotion_after_that_recovers_nothing(aftermath: Aftermath) -> None:
    assert aftermath.second.returncode == 0, aftermath.second.stderr
    assert '"message_count": 0' in aftermath.second.stdout
