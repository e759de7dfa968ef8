"""A quorum queue with at-least-once keeps its dead letters until every target has them, whatever happens meanwhile."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues import dead_lettering
from leveret.model import definitions as d
from leveret.runtime.logs import engine as engine_module
from leveret.runtime.node import node
from leveret.storage import dirty_memory
from leveret.testing.network.waiting import until
from leveret.testing.simulation.machine.disk import SimulatedDisk
from tests.seeds import seeds
from tests.unit.runtime.collecting.site import POLICY, TAGGED, Site, served
from tests.unit.runtime.logs.test_fresh_logs import ObservedSyncs, stepped

KEEPING = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "dlx",
}
DLX = d.Exchange(vhost="v", name="dlx", type="fanout", durable=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "RETRY_MS", 50)


def queue(name: str, **arguments: Any) -> d.Queue:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return d.Queue(name=name, vhost="v", durable=True, arguments=named)


def keeping(**arguments: Any) -> d.Queue:
    return queue("q", **{key[2:].replace("-", "_"): value for key, value in KEEPING.items()} | arguments)


def binding(destination: str) -> d.Binding:
    return d.Binding(source="dlx", vhost="v", destination=destination, routing_key="")


def removal_of(entity: d.Binding | d.Policy) -> d.Delete:
    return d.Delete(entity.kind, entity.key)


async def site_of(directory: Path, *entities: d.AnyEntity) -> Site:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), *map(d.Put, entities))
    return site


async def reject(site: Site, name: str = "q") -> None:
    held = site.queue(name)
    while held.ready_count:
        for run in held.take(100)[0]:
            held.reject(run.first, len(run.bodies))
    await site.touched(name)


def figures(site: Site) -> tuple[int, int, int]:
    """All messages of the queue, its ready ones and its dead ones."""
    held = site.queue()
    return held.unsettled_count, held.ready_count, held.dead_lettering.count


async def test_letters_wait_for_their_exchange_and_its_queue(directory: Path, caplog: Any) -> None:
    site = await site_of(directory, keeping())
    bodies = await site.publish(3)
    await reject(site)
    assert figures(site) == (3, 0, 3)
    await site.apply(d.Put(DLX))
    await until(lambda: site.queue().dead_lettering.repeat_at_ms is not None)
    assert figures(site) == (3, 0, 3)
    await site.apply(d.Put(queue("grave")), d.Put(binding("grave")))
    await until(lambda: figures(site) == (0, 0, 0), "they are taken")
    assert site.contents("grave") == bodies
    assert [line.split()[0] for line in caplog.messages if line.startswith("dead_letters")] == [
        "dead_letters_wait"
    ], "it is told once"
    counts = site.node.broker.dead_lettered
    assert counts["quorum", "at-least-once", "rejected"] == 3
    assert site.node.broker.dead_letters_confirmed["quorum"] == 3


async def test_letters_wait_for_room_in_their_queue_and_others_pass_them(directory: Path) -> None:
    small = queue("small", max_length=2, overflow="reject-publish")
    site = await site_of(directory, DLX, small, queue("large"), keeping(), binding("small"), binding("large"))
    bodies = await site.publish(5)
    await reject(site)
    assert (site.contents("small"), site.contents("large")) == (bodies[:2], bodies)
    assert figures(site) == (3, 0, 3)
    await site.ack(2, "small")
    await until(lambda: figures(site) == (1, 0, 1))
    await site.ack(2, "small")
    await until(lambda: figures(site) == (0, 0, 0))
    assert (site.contents("small"), site.contents("large")) == (bodies[4:], bodies), "each is there once"


async def test_a_letter_that_would_come_back_to_where_it_died_stays(directory: Path) -> None:
    site = await site_of(
        directory, keeping(dead_letter_exchange="", dead_letter_routing_key="q", message_ttl=1)
    )
    await site.publish(1)
    await until(lambda: figures(site) == (1, 0, 1))
    await until(lambda: site.queue().dead_lettering.repeat_at_ms is not None)


async def test_one_that_has_no_target_any_more_and_was_taken_by_another_is_done(directory: Path) -> None:
    small = queue("small", max_length=0, overflow="reject-publish")
    site = await site_of(directory, DLX, small, queue("grave"), keeping(), binding("small"), binding("grave"))
    bodies = await site.publish(2)
    await reject(site)
    assert (site.contents("grave"), figures(site)) == (bodies, (2, 0, 2))
    await site.apply(removal_of(binding("small")), removal_of(binding("grave")))
    await until(lambda: figures(site) == (0, 0, 0))
    assert site.contents("grave") == bodies


async def test_the_dead_are_dead_after_a_restart_and_die_of_the_same(directory: Path) -> None:
    site = await site_of(directory, keeping(delivery_limit=0))
    bodies = await site.publish(6)
    held = site.queue()
    (first,), _ = held.take(1)
    held.reject(first.first, 1)
    (second,), _ = held.take(1)
    held.requeue(second.first, 1)
    held.take(1)
    await site.touched()
    assert figures(site) == (6, 3, 2)
    await site.restart()
    assert figures(site) == (6, 4, 2)
    runs, redelivered = site.queue().take(100)
    assert ([body for run in runs for body in run.bodies], redelivered) == (bodies[2:], True)
    await site.apply(d.Put(DLX), d.Put(queue("grave")), d.Put(binding("grave")))
    await until(lambda: site.queue().dead_lettering.count == 0)
    assert [reason_of(site, offset) for offset in range(2)] == [b"rejected", b"delivery_limit"]
    await site.restart()
    assert not list(site.queue().dead_lettering.notes)


def reason_of(site: Site, offset: int) -> bytes:
    """The reason of the death of a message in the queue `grave`."""
    [run, *_] = site.node.log_store.read(site.queue("grave"), offset)
    table = run.head.header
    at = table.index(b"x-first-death-reasonS") + len(b"x-first-death-reasonS")
    size = int.from_bytes(table[at : at + 4], "big")
    return table[at + 4 : at + 4 + size]


async def test_what_is_under_way_and_what_waits_for_another_try_is_bounded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_lettering, "UNFINISHED_BYTES_MAX", 10 * dead_lettering.LETTER_BYTES)
    monkeypatch.setattr(dead_lettering, "DEAD_AT_ONCE", 2)
    site = await site_of(directory, keeping(message_ttl=1))
    await site.publish_often(4, 25)
    held = site.queue().dead_lettering
    await until(lambda: held.count == 100)
    await until(lambda: held.repeat_at_ms is not None)
    assert not held.letters, "no body is kept"
    assert sum(dead.end - dead.first for dead in held._refused) <= 12
    await site.apply(d.Put(DLX), d.Put(queue("grave")), d.Put(binding("grave")))
    await until(lambda: held.count == 0)
    assert len(site.contents("grave")) == 100
    assert (held._unfinished_bytes, held._costs, held._refused_bytes) == (0, 0, 0)


async def test_dead_letters_count_for_the_length_limit(directory: Path) -> None:
    site = await site_of(directory, keeping(max_length=3))
    await site.publish(3)
    await reject(site)
    held = site.queue()
    assert (held.room(8), held.ready_count) == (0, 0)


async def test_without_the_strategy_any_more_they_are_tried_once_more_and_dropped(directory: Path) -> None:
    arguments = {key[2:].replace("-", "_"): value for key, value in KEEPING.items()} | {"overflow": None}
    del arguments["overflow"]
    rejects = d.Policy(vhost="v", name="p", pattern="^q", definition={"overflow": "reject-publish"})
    site = await site_of(directory, queue("q", **arguments), rejects)
    await site.publish(2)
    await reject(site)
    assert figures(site) == (2, 0, 2)
    await site.apply(removal_of(rejects))
    await until(lambda: site.queue().message_count == 0)


async def test_a_standby_gets_kept_messages_as_unsettled_ones(directory: Path) -> None:
    site = await site_of(directory, POLICY, keeping())
    bodies = await site.publish(3)
    await reject(site)
    await served(site)
    assert site.replicated() == {"q": bodies}
    await site.apply(d.Put(DLX), d.Put(queue("grave")), d.Put(binding("grave")))
    await until(lambda: figures(site) == (0, 0, 0))
    await site.settle()
    await served(site)
    assert site.replicated() == {}


@pytest.mark.parametrize("strategy", ["at-least-once", "at-most-once"])
async def test_a_kill_between_the_publish_and_the_settlement_loses_no_letter(
    directory: Path, strategy: str
) -> None:
    site = await site_of(
        directory, DLX, queue("grave"), keeping(dead_letter_strategy=strategy), binding("grave")
    )
    bodies = await site.publish(3)
    held = site.queue()
    for run in held.take(100)[0]:
        held.reject(run.first, len(run.bodies))
    site.node.broker.dirty[held] = None
    site.node.engine.flush()
    await site.restart()
    if strategy == "at-least-once":
        await until(lambda: figures(site) == (0, 0, 0), "they are published again, and go to no consumer")
        assert site.contents("grave") == bodies * 2
    else:
        assert (site.contents("grave"), figures(site)) == (bodies, (3, 3, 0))


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(6, each_time=2))
async def test_power_lost_at_any_step_of_a_dead_letter_loses_no_message(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each is where it died, or in its grave; a grave that is there after a restart gets all that are named as dead."""
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(dirty_memory, "DIRTY_BYTES_MAX", 1 << 60)
    monkeypatch.setattr(node, "open_kernel_syncs", ObservedSyncs)
    data = directory / "data"
    site = await site_of(data, DLX, queue("grave"), keeping(), binding("grave"))
    bodies = await site.publish(30)
    os.sync()
    left: list[tuple[Path, str]] = []
    with monkeypatch.context() as patch, SimulatedDisk(directory) as disk:

        def lost(what: str) -> None:
            if rng.random() < 0.4:
                place = directory / f"left{len(left)}"
                disk.power_lost(data, place, rng)
                left.append((place, f"seed {seed} step {len(left)} {what}"))

        stepped(patch, disk, lost)
        for _ in range(6):
            held = site.queue()
            for run in held.take(4)[0]:
                held.reject(run.first, len(run.bodies))
            site.node.broker.dirty[held] = None
            site.node.engine.flush()
            await site.settle()
    await site.kill()
    assert len(left) > 5
    for place, told in left:
        after = await Site.started(place)
        await until(lambda after=after: not after.queue().dead_lettering.count, told)  # type: ignore[misc]
        assert {*after.contents(), *after.contents("grave")} == {*bodies}, told
        await after.kill()
