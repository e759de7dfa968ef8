"""Lets a node's rates sample at whole multiples of their interval."""

from __future__ import annotations

import asyncio
import logging

from leveret.management.node import ManagedNode
from leveret.management.peers import other_connections
from leveret.management.rates.rates import Rates
from leveret.management.views import node_stats
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.work_slices import in_slices

logger = logging.getLogger(__name__)


def rates_of(node: ManagedNode) -> Rates:
    """The rates of a node; no sample is taken yet."""
    return Rates(
        node.broker,
        lambda: other_connections(node),
        node_stats.NAMES,
        lambda: node_stats.sample(node),
        interval_ms=node.config.metrics.interval_ms,
        now_ms=clock_ms(),
    )


async def keep_sampling(rates: Rates) -> None:
    """Sample for ever."""
    while True:
        await asyncio.sleep((rates.interval_ms - clock_ms() % rates.interval_ms) / 1000)
        try:
            async for _ in in_slices(rates.tick(clock_ms())):
                pass
        except OSError as error:
            # The node cannot look at itself for a moment; this sample is missing.
            logger.warning("rates_not_sampled error=%s action=retry", error)
