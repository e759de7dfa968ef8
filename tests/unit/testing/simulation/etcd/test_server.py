"""The simulated etcd and its client: faults, leases by virtual time, watches; its rules, see test_etcd_beside_real."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any, Final

import pytest

from leveret.config.uris import Endpoints
from leveret.core.replication.election import DeleteKey, Holds, PutKey, StoreTransaction, Unchanged
from leveret.runtime.coordination.etcd import Etcd, EtcdCompacted, EtcdError, EtcdUnreachable, WatchEvents
from leveret.testing.simulation.etcd.client import SimulatedEtcdClient
from leveret.testing.simulation.etcd.server import EXPIRY_TICK_S, KEEPALIVE_S, SimulatedEtcd
from leveret.testing.simulation.etcd.state import EtcdState
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.process import SimulatedProcess, _current

ONE: Final = Endpoints().parse("http://127.0.0.1:1")
TWO: Final = Endpoints().parse("http://127.0.0.1:1,http://127.0.0.1:2")
ATTEMPT_S: Final = 1.0
SEEDS: Final = range(20)

Story = Callable[[SimulatedEtcd, SimulatedEtcdClient], Coroutine[Any, Any, None]]


def put(
    key: str, value: bytes = b"v", *conditions: Unchanged | Holds, leased: bool = False
) -> StoreTransaction:
    return StoreTransaction(conditions, (PutKey(key, value, leased),))


def spawn(process: SimulatedProcess, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run something as a process."""
    context = copy_context()
    context.run(_current.set, process)
    return asyncio.get_running_loop().create_task(work, context=context)


def play(story: Story, seed: int = 1, endpoints: Any = ONE) -> None:
    """Run a story with an etcd and a client of it that is a process named `n1`."""

    async def whole() -> None:
        etcd = SimulatedEtcd(asyncio.get_running_loop(), random.Random(seed))
        etcd.use_here()
        await spawn(SimulatedProcess("n1"), as_client(etcd))

    async def as_client(etcd: SimulatedEtcd) -> None:
        await story(etcd, SimulatedEtcdClient(endpoints, ATTEMPT_S))

    VirtualLoop(random.Random(1)).run_until_complete(whole())


@asynccontextmanager
async def watched(
    client: SimulatedEtcdClient, prefix: str, revision: int
) -> AsyncIterator[list[WatchEvents]]:
    """What a watch reports, for as long as the block lasts; its error ends it and is raised at the end."""
    seen: list[WatchEvents] = []

    async def take() -> None:
        async with aclosing(client.watch(prefix, revision)) as batches:
            async for batch in batches:
                seen.append(batch)

    task = asyncio.create_task(take())
    try:
        await asyncio.sleep(ATTEMPT_S)
        yield seen
        await asyncio.sleep(ATTEMPT_S)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_the_client_has_the_methods_of_the_real_one() -> None:
    public = {name for name in vars(Etcd) if not name.startswith("_")}
    assert public == {name for name in vars(SimulatedEtcdClient) if not name.startswith("_")}


def test_without_an_etcd_a_client_says_what_to_do() -> None:
    with pytest.raises(LookupError, match="use_here"):
        SimulatedEtcdClient(ONE, ATTEMPT_S)


def test_without_an_answer_a_transaction_was_done_or_not_and_may_be_done_later() -> None:
    """What its sender reads afterwards: done, not done, and not done yet; each occurs."""
    found: set[tuple[bool, bool]] = set()
    for seed in SEEDS:
        for requests in (True, False):

            async def story(
                etcd: SimulatedEtcd, client: SimulatedEtcdClient, requests: bool = requests
            ) -> None:
                etcd.cut("n1", requests=requests, answers=not requests)
                with pytest.raises(EtcdUnreachable):
                    await client.transact(put("a"))
                before = "a" in etcd.state.entries
                etcd.heal("n1")
                await asyncio.sleep(1)
                found.add((before, "a" in etcd.state.entries))

            play(story, seed)
    assert found == {(False, False), (False, True), (True, True)}


def test_a_transaction_that_a_second_endpoint_gets_again_reports_that_it_was_not_done() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        etcd.cut(TWO[0].url, requests=False)
        assert await client.transact(put("a", b"v", Unchanged("a", 0))) is None
        assert client.endpoint is client._endpoints[1]
        assert etcd.state.entries["a"].modified == 2

    play(story, endpoints=TWO)


def test_a_cut_of_another_process_or_of_none_is_no_cut() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        etcd.cut("n2")
        assert await client.transact(put("a")) == 2

    play(story)


def test_what_is_asked_by_a_process_that_is_killed_meanwhile_is_done() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        process = SimulatedProcess("n2")
        asked = spawn(process, client.transact(put("a")))
        await asyncio.sleep(0)
        process.is_alive = False
        asked.cancel()
        await asyncio.sleep(1)
        assert "a" in etcd.state.entries

    play(story)


def test_a_watch_reports_all_that_happened_once_and_in_order_over_cuts_that_heal() -> None:
    for seed in SEEDS:

        async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient, seed: int = seed) -> None:
            chance = random.Random(seed)
            etcd.transact(put("a/0"))
            async with watched(client, "a/", 1) as seen:
                for number in range(2, 40):
                    etcd.transact(put("a/x", b"%d" % number))
                    etcd.transact(put("b"))
                    if chance.random() < 0.3:
                        etcd.cut("n1", requests=chance.random() < 0.5)
                    await asyncio.sleep(chance.random() * 0.02)
                    if chance.random() < 0.3:
                        etcd.heal("n1")
                etcd.heal("n1")
            assert [batch.revision for batch in seen] == [2, *range(3, 79, 2)]

        play(story, seed)


def test_a_watch_in_a_cut_ends_after_the_time_of_keepalives_and_goes_on_at_its_revision() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        watch = client.watch("a", 1)
        first = asyncio.create_task(anext(watch))
        await asyncio.sleep(ATTEMPT_S)
        etcd.cut("n1")
        etcd.transact(put("a"))
        with pytest.raises(EtcdUnreachable, match="timed out"):
            await first
        assert asyncio.get_running_loop().time() == ATTEMPT_S + KEEPALIVE_S
        etcd.heal("n1")
        async with watched(client, "a", 1) as seen:
            pass
        assert [batch.revision for batch in seen] == [2]

    play(story)


def test_a_watch_is_told_of_what_was_deleted_or_that_it_has_to_read_wherever_etcd_was_compacted() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        etcd.transact(put("a"))
        etcd.transact(StoreTransaction((), (DeleteKey("a"),)))
        etcd.compact(3)
        with pytest.raises(EtcdCompacted):
            async with watched(client, "a", 2):
                pass

    play(story)


def test_a_restart_refuses_connections_ends_watches_and_has_leases_begin_anew() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        lease = await client.grant(4)
        await client.transact(put("a", leased=True), lease.id)
        with pytest.raises(EtcdUnreachable, match="etcd ended the connection"):
            async with watched(client, "a", 2):
                etcd.kill()
        with pytest.raises(EtcdUnreachable, match="connection refused"):
            await client.read("a")
        await asyncio.sleep(10)
        etcd.start()
        assert "a" in (await client.read("a")).entries
        await asyncio.sleep(4 + EXPIRY_TICK_S)
        assert (await client.read("a")).entries == {}

    play(story)


def test_a_stopped_etcd_answers_nothing_and_does_later_what_was_asked_for() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        lease = await client.grant(2)
        await client.transact(put("a", leased=True), lease.id)
        etcd.stop()
        with pytest.raises(EtcdUnreachable, match="no answer in time"):
            await client.transact(put("b"))
        await asyncio.sleep(5)
        assert list(etcd.state.entries) == ["a"]
        etcd.go_on()
        await asyncio.sleep(EXPIRY_TICK_S)
        assert list(etcd.state.entries) == ["b"]

    play(story)


def test_a_restored_etcd_has_earlier_revisions_and_watches_wait_for_theirs() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        await client.transact(put("a", b"old"))
        backup = etcd.state.copy()
        gone = await client.grant(60)
        for _ in range(3):
            await client.transact(put("a", b"new", leased=True), gone.id)
        etcd.kill()
        etcd.start(backup)
        assert await client.read("a") == (2, {"a": (b"old", 2, 0, 2)})
        assert await client.keep_alive(gone.id) == 0
        async with watched(client, "a", 5) as seen:
            for _ in range(4):
                await client.transact(put("a", b"newer"))
        assert [batch.revision for batch in seen] == [6]
        etcd.kill()
        etcd.start(EtcdState())
        assert await client.read("a") == (1, {})

    play(story)


def test_a_slow_etcd_is_away_for_some() -> None:
    async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
        etcd.paths.delay_s_max = ATTEMPT_S
        answers = await asyncio.gather(*[client.read("a") for _ in range(50)], return_exceptions=True)
        assert {type(each) for each in answers} == {type(etcd.read("a")), EtcdUnreachable}

    play(story)


def test_the_same_seed_is_the_same_story() -> None:
    def once(seed: int) -> list[object]:
        found: list[object] = []

        async def story(etcd: SimulatedEtcd, client: SimulatedEtcdClient) -> None:
            chance = random.Random(seed)
            loop = asyncio.get_running_loop()
            for number in range(100):
                if chance.random() < 0.1:
                    etcd.cut("n1", requests=chance.random() < 0.5)
                if chance.random() < 0.2:
                    etcd.heal("n1")
                with suppress(EtcdError):
                    lease = await client.grant(2)
                    found.append((lease, await client.transact(put(f"{number}", leased=True), lease.id)))
                found.append((loop.time(), sorted(etcd.state.entries)))

        play(story, seed)
        return found

    assert once(1) == once(1) != once(2)
