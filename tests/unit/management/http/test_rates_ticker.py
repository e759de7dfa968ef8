from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest

from leveret.config.sections.metrics import Metrics
from leveret.management.http.rates_ticker import SampledRates, keep_sampling
from leveret.model.definitions import Queue
from leveret.testing.network.waiting import until

if TYPE_CHECKING:
    from tests.unit.management.conftest import FakeNode

UNSEEN = {"publish_details": {"rate": 0.0}}


async def test_rates_appear_by_themselves(node: FakeNode) -> None:
    node.config = dataclasses.replace(node.config, metrics=Metrics(interval_ms=100))
    queue = node.broker.declare_queue(Queue(name="q", vhost="/"))

    rates = SampledRates(node)
    sampling = asyncio.create_task(keep_sampling(rates))
    try:
        async with asyncio.timeout(60):
            while not rates.queue(queue).get("message_stats", UNSEEN)["publish_details"]["rate"]:
                queue.counters.publish += 1
                await asyncio.sleep(0.01)
        assert rates.overview(["/"])["churn_rates"]["queue_declared"] == 1
    finally:
        sampling.cancel()


async def test_a_fault_of_one_sample_does_not_end_the_others(
    node: FakeNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.config = dataclasses.replace(node.config, metrics=Metrics(interval_ms=100))
    rates = SampledRates(node)
    begin_ms = rates.tick_ms
    measured = iter([KeyError("a log that is removed meanwhile")])

    async def measure() -> None:
        for error in measured:
            raise error

    monkeypatch.setattr(rates, "measure_logs", measure)
    sampling = asyncio.create_task(keep_sampling(rates))
    try:
        await until(lambda: rates.tick_ms != begin_ms)
        assert "rates_failed" in caplog.text
    finally:
        sampling.cancel()
