"""A node that recovers thousands of queues is not deaf meanwhile: the lease that it won has to be kept alive."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from leveret.model import definitions as d
from leveret.runtime.logs import log_store
from leveret.runtime.node import node
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site

QUEUES = 2 * node._RECOVERED_AT_ONCE + 1


async def test_all_else_has_its_turn_while_queues_are_recovered(monkeypatch: Any) -> None:
    turns: list[int] = []

    with scratch() as directory:
        site = Site(directory)
        await site.start()
        await site.apply(d.Put(d.Vhost(name="v")))
        await site.apply(*(d.Put(d.Queue(vhost="v", name=f"q{each}")) for each in range(QUEUES)))
        await site.kill()
        recovered = []
        recover = log_store.LogStore.recover

        def noted(own: Any, queue: Any) -> None:
            recovered.append(queue)
            recover(own, queue)

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
    assert max(gaps) <= node._RECOVERED_AT_ONCE
