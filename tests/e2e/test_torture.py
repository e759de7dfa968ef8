"""Processes are killed at moments nobody chose, over and over, and the books must balance every time.

Run by `make torture`. LEVERET_TORTURE_ROUNDS says how often (5), LEVERET_TORTURE_SEED repeats a run: the
messages, the consumers' choices, who is killed and after how long. What the machine does in between is
its own, so a seed brings back the circumstances of a failure, not always the failure.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from leveret.testing.applications.applications import ReceivedMessage, parameters
from leveret.testing.applications.audit import FOREVER, Audit
from leveret.testing.applications.mixed_messages import declare
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode
from leveret.testing.sites.standby_pair import BEACON, StandbyPair
from tests.e2e.beside import Beside
from tests.e2e.site import Site, as_published, background, drain_all

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]

ROUNDS: Final = int(os.environ.get("LEVERET_TORTURE_ROUNDS", "5"))
QUEUES: Final = ("one", "two", "three")
DRAINED: Final = "drained"
DRAINED_MESSAGES: Final = 500
RESTING: Final = ("idle", DRAINED)
"""Queues beside them: what they had is settled, or they never had anything."""
VHOST: Final = "orders"
NODE_RATE: Final = 3000
PAIR_RATE: Final = 500
CONSUMED: Final = 0.6
"""Of what is published, so that something is left to recover."""
PROMOTIONS_MAX: Final = 3
SMALL_SEGMENT_BYTES: Final = 1 << 20
"""So that segments are rolled and dropped on the way."""


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("LEVERET_TORTURE_SEED") or secrets.randbelow(1 << 32))
    print(f"\nLEVERET_TORTURE_SEED={chosen} LEVERET_TORTURE_ROUNDS={ROUNDS}")
    return chosen


def test_a_node_killed_at_any_moment_keeps_what_it_confirmed_and_nothing_it_settled(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with LeveretProcess(config={"segment_bytes_max": str(SMALL_SEGMENT_BYTES)}) as node:
        site = Site(node, "/", tmp_path, seed)
        with site.channel() as channel:
            declare(channel, QUEUES)
        beside = Beside(node)
        for round_ in range(ROUNDS):
            beside.use(chance)
            consumers = [site.consumer(QUEUES) for _ in range(chance.choice([0, 1, 1, 2]))]
            begun = site.confirmed()
            with background(site.publisher(QUEUES, rate=NODE_RATE), *consumers):
                site.wait_confirmed(begun + 1)
                # A queue that was drained begins anew about two seconds later.
                time.sleep(chance.uniform(0.0, chance.choice([1.5, 1.5, 5.0])))
                end(node, chance)
            node.start()
            beside.check()
            if chance.random() < 0.2:
                purge(node, site, chance.choice(QUEUES))
            found = drain_all(node, "/", QUEUES, keep=True)
            result = site.audit(found, dict.fromkeys(QUEUES, FOREVER))
            print(f"round {round_ + 1}: {summary(result)}")
            assert result.balances, result
            assert sum(consumer.disordered for consumer in consumers) == 0


def end(node: LeveretProcess, chance: random.Random) -> None:
    """Mostly by kill -9, now and then in order."""
    if chance.random() < 0.85:
        node.kill9()
    else:
        node.stop()


def purge(node: LeveretProcess, site: Site, queue: str) -> None:
    """Purge a queue, and kill -9 the node as soon as it has answered."""
    with site.channel() as channel:
        channel.queue_purge(queue)
        node.kill9()
    site.forget(queue)
    node.start()


@pytest.mark.spark
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_pair_whose_processes_are_killed_recovers_what_it_must_and_nothing_else(
    tmp_path: Path, seed: int, round_: int
) -> None:
    chance = random.Random(f"{seed} {round_}")
    with StandbyPair(VHOST, tmp_path) as pair:
        site = Site(pair.upstream, VHOST, tmp_path, chance.randrange(1 << 32))
        pair.start()
        pair.replicate("osr", "^.*")
        with site.channel() as channel:
            declare(channel, [*QUEUES, *RESTING])
        pair.follow()
        site.publish([DRAINED], DRAINED_MESSAGES)
        drain_all(pair.upstream, VHOST, [DRAINED], keep=False)
        site.forget(DRAINED)
        pair.wait_transferred()
        pair.wait_queues([*QUEUES, *RESTING, BEACON])
        story = chance.choices(["upstream", "driver", "downstream"], k=chance.randint(1, 4))
        live(pair, site, chance, story)
        story += promote(pair, chance)
        covered = pair.covered(QUEUES)
        result = site.audit(drain_all(pair.downstream, VHOST, QUEUES, keep=False), covered)
        rested = drain_all(pair.downstream, VHOST, RESTING, keep=False)
    print(f"round {round_ + 1}: killed {', '.join(story)}: {summary(result)}")
    assert result.balances, result
    assert not any(rested.values()), "nothing of a queue that is drained comes back"


@pytest.mark.spark
@pytest.mark.rabbitmq
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_recovery_into_a_rabbitmq_puts_each_message_there_once_whoever_is_killed(
    tmp_path: Path, seed: int, round_: int
) -> None:
    """The recovery, its node and the RabbitMQ are killed, or it has an alarm; one queue never had a message."""
    chance = random.Random(f"to {seed} {round_}")
    with StandbyPair(VHOST, tmp_path) as pair, RabbitNode(parent_dir=tmp_path) as rabbit:
        site = Site(pair.upstream, VHOST, tmp_path, chance.randrange(1 << 32))
        pair.start()
        pair.replicate("osr", "^.*")
        with site.channel() as channel:
            declare(channel, [*QUEUES, *RESTING])
        pair.follow()
        site.publish([DRAINED], DRAINED_MESSAGES)
        drain_all(pair.upstream, VHOST, [DRAINED], keep=False)
        site.forget(DRAINED)
        pair.wait_transferred()
        live(pair, site, chance, chance.choices(["upstream", "driver", "downstream"], k=chance.randint(0, 2)))
        story, in_doubt = recover_into(pair, rabbit, chance)
        covered = pair.covered(QUEUES)
        found = drain_into_books(rabbit, QUEUES)
        rested = drain_into_books(rabbit, RESTING)
    result = site.audit(as_published(site, found), covered)
    print(f"round {round_ + 1}: killed {', '.join(story)}; {in_doubt} in doubt: {summary(result)}")
    assert not any(rested.values()), "nothing of a queue that is drained comes back"
    assert result.balances, result
    assert in_doubt == 0, "nobody consumes there, so what arrived is looked at"


def recover_into(pair: StandbyPair, rabbit: RabbitNode, chance: random.Random) -> tuple[list[str], int]:
    """Recover until it succeeds, killing one after the other at first; who was killed, and what is in doubt.

    In an `alarm` nobody is killed: RabbitMQ blocks its publishers for some seconds, and the recovery waits.
    """
    story = chance.choices(
        ["recovery", "downstream", "rabbitmq", "alarm"], k=chance.randint(0, PROMOTIONS_MAX)
    )
    with ThreadPoolExecutor(1) as pool:
        for victim in story:
            recovery = pool.submit(pair.recover_into, rabbit.amqp_port)
            with suppress(TimeoutError):
                recovery.result(chance.uniform(0.0, 15.0))
            if victim == "recovery":
                pair.kill(pair.recovering())
            elif victim == "rabbitmq":
                rabbit.kill9()
                rabbit.start()
            elif victim == "alarm":
                rabbit.ctl("set_vm_memory_high_watermark", "0.0000001")
                time.sleep(chance.uniform(0.0, 10.0))
                rabbit.ctl("set_vm_memory_high_watermark", "0.4")
            else:
                pair.downstream.kill9()
            ended = recovery.result()
            assert victim != "alarm" or ended.returncode == 0, ended.stderr
            if victim == "downstream":
                pair.downstream.start()
        ended = pool.submit(pair.recover_into, rabbit.amqp_port).result()
    assert ended.returncode == 0, ended.stderr
    return story, sum(row["in_doubt"] for row in json.loads(ended.stdout))


def drain_into_books(rabbit: RabbitNode, queues: Sequence[str]) -> dict[str, list[ReceivedMessage]]:
    """All that is in these queues of a RabbitMQ: nothing where a queue is missing, whatever it should have had."""
    there = [queue for queue in queues if is_there(rabbit, queue)]
    return {queue: [] for queue in queues} | drain_all(rabbit, "/", there, keep=False)


def is_there(rabbit: RabbitNode, queue: str) -> bool:
    """Whether a RabbitMQ has a queue: of one without messages nothing is recovered."""
    with pika.BlockingConnection(parameters(rabbit.amqp_port, "/")) as connection:
        try:
            connection.channel().queue_declare(queue, passive=True)
        except ChannelClosedByBroker:
            return False
    return True


def live(pair: StandbyPair, site: Site, chance: random.Random, story: list[str]) -> None:
    """Publish and consume, and kill one after the other; at last the upstream."""
    with ExitStack() as stack:
        apply(stack, site)
        for victim in story:
            time.sleep(chance.uniform(0.2, 5.0))
            if victim == "driver":
                pair.kill(pair.transferring())
            elif victim == "downstream":
                pair.downstream.kill9()
                pair.downstream.start()
            else:
                pair.upstream.kill9()
                stack.close()
                pair.restart_upstream()
                apply(stack, site)
        if chance.random() < 0.7:
            pair.wait_transferred()
        time.sleep(chance.uniform(0.2, 5.0))
        pair.upstream.kill9()


def apply(stack: ExitStack, site: Site) -> None:
    """Let a publisher and a consumer work until the upstream is killed."""
    consumer = site.consumer(QUEUES, rate=PAIR_RATE * CONSUMED)
    stack.enter_context(background(site.publisher(QUEUES, rate=PAIR_RATE), consumer))


def promote(pair: StandbyPair, chance: random.Random) -> Iterator[str]:
    """Promote until it succeeds, killing the recovery or the node at first; tells who was killed."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(PROMOTIONS_MAX):
            victim = chance.choice(["recovery", "promoted node", "nobody"])
            promotion = pool.submit(pair.promote)
            if victim == "nobody":
                break
            kill_promoting(pair, chance, promotion, victim)
            yield victim
        else:
            promotion = pool.submit(pair.promote)
        ended = promotion.result()
    assert ended.returncode == 0, ended.stderr


def kill_promoting(pair: StandbyPair, chance: random.Random, promotion: Future[Any], victim: str) -> None:
    """Kill some seconds into a promotion, unless it has ended by then."""
    with suppress(TimeoutError):
        promotion.result(chance.uniform(0.0, 15.0))
    if victim == "recovery":
        pair.kill(pair.recovering())
        promotion.result()
    else:
        pair.downstream.kill9()
        promotion.result()
        pair.downstream.start()


def summary(result: Audit) -> str:
    """What the books say, in a line."""
    total = result.total
    return (
        f"confirmed {total.confirmed}, acked {total.acked}, found {total.recovered}, "
        f"lost {total.lost} (within the lag of {result.lag_messages}: {total.lost - total.lost_unlawfully}), "
        f"resurrected {total.resurrected}, duplicated {total.duplicated}, disordered {total.disordered}, "
        f"altered {total.altered}"
    )
