from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from leveret.config.sections.metrics import Metrics
from leveret.management.http.rates_ticker import keep_sampling, rates_of
from leveret.model.definitions import Queue

if TYPE_CHECKING:
    from tests.unit.management.conftest import FakeNode

UNSEEN = {"publish_details": {"rate": 0.0}}


async def test_rates_appear_by_themselves(node: FakeNode) -> None:
    node.config = dataclasses.replace(node.config, metrics=Metrics(interval_ms=100))
    queue = node.broker.declare_queue(Queue(name="q", vhost="/"))

    rates = rates_of(node)
    sampling = asyncio.create_task(keep_sampling(rates))
    try:
        async with asyncio.timeout(60):
            while not rates.queue(queue).get("message_stats", UNSEEN)["publish_details"]["rate"]:
                queue.counters.publish += 1
                await asyncio.sleep(0.01)
        assert rates.overview(["/"])["churn_rates"]["queue_declared"] == 1
    finally:
        sampling.cancel()
