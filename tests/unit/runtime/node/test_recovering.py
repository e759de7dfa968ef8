"""A node that recovers queues slowly serves its loop meanwhile: the lease that it won has to be kept alive."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

from leveret.model import definitions as d
from leveret.runtime.logs import log_store
from leveret.runtime.process.work_slices import SLICE_S
from leveret.storage.log import Log
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site

QUEUES = 20


async def test_all_else_has_its_turn_while_queues_are_recovered(monkeypatch: Any) -> None:
    turns: list[int] = []

    with scratch() as directory:
        site = await Site.started(directory)
        await site.apply(d.Put(d.Vhost(name="v")))
        await site.apply(*(d.Put(d.Queue(vhost="v", name=f"q{each}")) for each in range(QUEUES)))
        await site.kill()
        recovered = []
        recover = log_store.LogStore.recover

        def noted(own: Any, queue: Any) -> None:
            recovered.append(queue)
            recover(own, queue)
            # As from a slow disk.
            time.sleep(2 * SLICE_S)

        async def look() -> None:
            while True:
                turns.append(len(recovered))
                await asyncio.sleep(0)

        monkeypatch.setattr(log_store.LogStore, "recover", noted)
        looking = asyncio.create_task(look())
        await site.start()
        looking.cancel()
        await site.kill()
    gaps = [after - before for before, after in pairwise(turns)]
    assert max(turns) == QUEUES
    assert max(gaps) == 1


async def test_all_else_has_its_turn_while_a_followed_node_opens_its_logs(monkeypatch: Any) -> None:
    turns: list[int] = []

    with scratch() as directory:
        site = await Site.started(directory)
        await site.apply(d.Put(d.Vhost(name="v")))
        for number in range(QUEUES):
            await site.apply(d.Put(d.Queue(vhost="v", name=f"q{number}")))
            await site.publish(1, f"q{number}")
        # As logs that other nodes lead: no queue of this one has opened them.
        logs = [log for name, log in site.node.tree.logs.items() if name.startswith("queues/")]
        for log in logs:
            log.close()
            del site.node.tree.logs[site.node.tree.name_of(log.directory)]
        opened = []
        open_log = Log.open

        def noted(own: Any, **options: Any) -> Any:
            opened.append(own)
            time.sleep(2 * SLICE_S)
            return open_log(own, **options)

        async def look() -> None:
            while True:
                turns.append(len(opened))
                await asyncio.sleep(0)

        monkeypatch.setattr(Log, "open", noted)
        looking = asyncio.create_task(look())
        await site.node.open_all_logs()
        looking.cancel()
        monkeypatch.undo()
        await site.kill()
    assert len(opened) == len(logs) == QUEUES
    assert not site.node.tree.unreadable
    assert max(after - before for before, after in pairwise(turns)) == 1
