"""A node that stops, or is killed, while settlements of a client take their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.core.broker import deferred_work
from leveret.model import definitions as d
from leveret.runtime.logs import engine
from tests.unit.runtime.collecting.site import Site, play

COUNT = 1000


def settling(site: Site) -> Iterator[None]:
    """Every other message is acknowledged, each by itself."""
    queue = site.queue()
    for offset in range(0, COUNT, 2):
        queue.settle(offset, 1)
        site.node.broker.dirty[queue] = None
        yield


def size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


async def begin(site: Site) -> None:
    await site.start()
    await site.apply(d.Put(d.Vhost(name="v")))
    await site.apply(d.Put(d.Queue(vhost="v", name="q")))
    await site.publish(COUNT)
    assert sum(len(run) for run in site.queue().take(COUNT)[0]) == COUNT


async def end_amid(site: Site, *, kills_after: int | None) -> list[int]:
    """The offsets of messages that a start finds; `kills_after` so many flushes, None for a stop."""
    await begin(site)
    site.node.broker.deferred_work.begin(settling(site))
    if kills_after is None:
        await site.stop()
        site.epoch += 1
    else:
        for _ in range(kills_after):
            site.node.engine.flush()
        await site.node.commits.all_durable()
        await site.kill()
    await site.start()
    queue = site.queue()
    found = [offset for offset in range(COUNT) if offset not in queue.settled]
    await site.kill()
    return found


@pytest.fixture(autouse=True)
def one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part with each flush."""
    monkeypatch.setattr(deferred_work, "AT_ONCE", 1)
    monkeypatch.setattr(engine, "TURN_S", 0.0)


def test_a_stop_ends_what_was_received_before_it() -> None:
    found: list[list[int]] = []

    async def story(site: Site) -> None:
        found.append(await end_amid(site, kills_after=None))

    play(lambda directory: story(Site(directory)))
    assert found == [list(range(1, COUNT, 2))]


@pytest.mark.parametrize("flushes", [1, 5, 600])
def test_a_node_that_is_killed_between_two_turns_has_those_that_were_done(flushes: int) -> None:
    found: list[list[int]] = []

    async def story(site: Site) -> None:
        found.append(await end_amid(site, kills_after=flushes))

    play(lambda directory: story(Site(directory)))
    settled = set(range(COUNT)).difference(found[0])
    assert settled == set(range(0, min(COUNT, 2 * len(settled)), 2))
    assert len(settled) >= min(flushes, COUNT // 2)


def test_a_node_that_was_replaced_writes_nothing_more_into_files_that_another_one_of_its_process_has() -> (
    None
):
    """Clients' settlements have many parts left."""

    sizes: list[int] = []

    async def story(directory: Path) -> None:
        site = Site(directory)
        await begin(site)
        site.node.broker.deferred_work.begin(settling(site))
        site.node.engine.flush()
        await site.node.abandon()
        for _ in range(3):
            sizes.append(size_of(directory))
            await asyncio.sleep(0.05)
        assert site.node.broker.deferred_work
        await site.kill()

    play(story)
    assert sizes[1:] == sizes[:1] * 2
