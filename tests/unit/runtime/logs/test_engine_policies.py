"""The flush: policies and tags that concern many queues come to a few of them at once, and no message is missed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from leveret.core.queues.messages import alike
from leveret.model import definitions as d
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.logs import engine
from leveret.storage.state_file import StateFile
from tests.seeds import seeds
from tests.unit.runtime.collecting.site import HEAD, POLICY, TAGGED, Site, replicating

NAMES = [f"q{number}" for number in range(10)]
LIMIT = d.Policy(vhost="v", name="limit", pattern="^q", definition={"max-length": 3})
UNTAGGED = d.Vhost(name="v")


@pytest.fixture
def one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush has time for one queue, and begins or ends to collect one."""
    monkeypatch.setattr(engine, "time_slice", lambda slice_s: lambda: True)
    monkeypatch.setattr(engine, "FOLLOWED_AT_ONCE", 1)


def limited(site: Site) -> int:
    return sum(site.queue(name).settings.max_length == 3 for name in NAMES)


@pytest.mark.usefixtures("one_at_once")
async def test_a_policy_over_many_queues_comes_to_one_in_a_flush_until_all_have_it(directory: Path) -> None:
    site = await replicating(directory, *NAMES)
    for name in NAMES:
        await site.publish(5, name)
    site.node.broker.apply(d.Put(LIMIT))
    seen: list[int] = []
    while not seen or seen[-1] < len(NAMES):
        site.node.engine.flush()
        seen.append(limited(site))
    assert seen == list(range(1, len(NAMES) + 1))
    assert [site.queue(name).ready_count for name in NAMES] == [3] * len(NAMES)


async def test_a_strategy_of_dead_letters_that_lacks_what_it_needs_is_told_once_for_all_queues(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = await replicating(directory)
    strategy = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"}
    kept = {**strategy, "x-dead-letter-exchange": "", "x-overflow": "reject-publish"}
    for name, arguments in {"a": strategy, "b": strategy, "c": kept, "d": {"x-queue-type": "quorum"}}.items():
        site.node.broker.apply(d.Put(d.Queue(vhost="v", name=name, arguments=arguments)))
    await site.node.commit()
    definition = {"dead-letter-exchange": "", "dead-letter-strategy": "at-least-once"}
    for policy in (
        d.Policy(vhost="v", name="p", pattern="^d", definition=definition),
        d.Policy(vhost="v", name="p", pattern="^d", definition=definition | {"overflow": "reject-publish"}),
    ):
        site.node.broker.apply(d.Put(policy))
        await site.node.commit()
        await site.node.commit()
    told = [line for line in caplog.messages if line.startswith("dead_letters_at_most_once")]
    assert told == [
        "dead_letters_at_most_once vhost=v queue=a others=1 reason=no dead-letter-exchange is configured",
        "dead_letters_at_most_once vhost=v queue=d others=0 reason=it needs overflow reject-publish, and has drop-head",
    ]
    assert site.node.broker.queues["v", "d"].dead_lettering.keeps


@pytest.mark.usefixtures("one_at_once")
async def test_a_change_over_http_is_done_when_all_queues_have_it(directory: Path) -> None:
    site = await replicating(directory, *NAMES)
    site.node.broker.apply(d.Put(LIMIT))
    committed = asyncio.ensure_future(site.node.commit())
    passes = 0
    while not committed.done():
        await asyncio.sleep(0)
        passes += 1
    assert limited(site) == len(NAMES)
    assert passes >= len(NAMES) // 2, "others are served between"


async def test_queues_whose_collection_ends_share_a_wait_for_the_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    replace = StateFile.replace

    def count(file: StateFile, octets: bytes) -> None:
        saved.append(file.path.name)
        replace(file, octets)

    monkeypatch.setattr(StateFile, "replace", count)

    site = await replicating(directory, *NAMES)
    for name in NAMES:
        await site.publish(1, name)
    saved.clear()
    await site.apply(d.Delete("policies", ("v", "p")))
    assert site.replicated() == {}
    assert saved.count("lives.json") == 1


@pytest.mark.usefixtures("one_at_once")
@pytest.mark.parametrize("seed", seeds(8, each_time=3))
async def test_what_is_published_while_tags_and_policies_come_and_go_is_all_collected(
    directory: Path, seed: int
) -> None:
    chance = random.Random(seed)
    changes: list[d.Change] = [
        d.Put(TAGGED),
        d.Put(UNTAGGED),
        d.Put(POLICY),
        d.Delete("policies", ("v", "p")),
    ]

    site = await replicating(directory, *NAMES)
    for _ in range(120):
        match chance.randrange(5):
            case 0:
                site.node.broker.apply(chance.choice(changes))
            case 1:
                site.node.engine.flush()
            case 2:
                await asyncio.sleep(0)
            case _:
                queue = site.queue(chance.choice(NAMES))
                queue.gathered.add(alike(HEAD, [b"%08d" % site.published]))
                site.published += 1
                site.node.broker.dirty[queue] = None
        if chance.random() < 0.05:
            await site.settle()
            await site.restart()
    await site.apply(d.Put(TAGGED), d.Put(POLICY))
    while site.node.engine._replication_due:
        await site.settle()
    await site.settle()
    assert site.replicated() == {name: held for name in NAMES if (held := site.contents(name))}, seed


@pytest.mark.usefixtures("one_at_once")
async def test_a_queue_whose_collection_is_to_end_is_not_copied_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it, and replicated again before that end, what came between would be missing in the copy."""
    unfollow = Collector.unfollow

    site = await replicating(directory, *NAMES)
    await site.publish(2, "q9")
    monkeypatch.setattr(Collector, "unfollow", lambda self, queues, **more: None)
    site.node.broker.apply(d.Delete("policies", ("v", "p")))
    site.node.broker.refresh_policies()
    site.node.engine.flush()
    queue = site.queue("q9")
    queue.gathered.add(alike(HEAD, [b"between."]))
    site.node.broker.dirty[queue] = None
    site.node.engine.flush()
    monkeypatch.setattr(Collector, "unfollow", unfollow)
    await site.apply(d.Put(POLICY))
    while site.node.engine._replication_due:
        await site.settle()
    await site.settle()
    await site.publish(1, "q9")
    assert site.replicated()["q9"] == site.contents("q9")
