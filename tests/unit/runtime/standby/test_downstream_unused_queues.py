"""Queues that nobody uses on a downstream, because they are used at its upstream."""

from __future__ import annotations

import asyncio
from pathlib import Path

from leveret.model import definitions as d
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import POLICY, TAGGED, Site

EXPIRES_MS = 50
REPLICATED, LOCAL = ("v", "q"), ("v", "local")


async def test_a_replicated_queue_does_not_expire_on_a_downstream_and_does_once_it_is_none(
    directory: Path,
) -> None:
    site = await Site.started(directory)
    await site.node.schema_sync.set_mode("downstream")
    arguments = {"x-expires": EXPIRES_MS}
    queues = [
        d.Put(d.Queue(vhost=vhost, name=name, arguments=arguments)) for vhost, name in (REPLICATED, LOCAL)
    ]
    await site.apply(d.Put(TAGGED), d.Put(POLICY), *queues)
    # Times go on at once when a node starts, also if the upstream that could bring the queue back is lost.
    await site.restart()
    await until(lambda: LOCAL not in site.node.broker.queues)
    await asyncio.sleep(3 * EXPIRES_MS / 1000)
    assert REPLICATED in site.node.broker.queues
    await site.node.schema_sync.set_mode("upstream")
    await until(lambda: REPLICATED not in site.node.broker.queues)
