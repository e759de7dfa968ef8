"""Lets a node's rates sample at whole multiples of their interval."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from leveret.management.node import ManagedNode
from leveret.management.peers import other_connections
from leveret.management.rates.rates import Rates
from leveret.management.views import node_stats
from leveret.management.views.plotted import PlottedValues
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.work_slices import in_slices

logger = logging.getLogger(__name__)

_SIZES_EVERY_S: Final = 30.0
"""The sizes of ten thousand logs take some milliseconds."""


class SampledRates(Rates):
    """The rates of a node, and what has to be measured beside the event loop's other work for its plots."""

    def __init__(self, node: ManagedNode) -> None:
        """No sample is taken yet."""
        self._log_sizes = node.log_sizes
        self._values = PlottedValues(node)
        self._sized_s = float("-inf")
        super().__init__(
            node.broker,
            lambda: other_connections(node),
            node_stats.NAMES,
            lambda: node_stats.sample(node),
            interval_ms=node.config.metrics.interval_ms,
            now_ms=clock_ms(),
            plotted=self._values.read,
        )

    async def measure_logs(self) -> None:
        """Add the sizes of all logs up, a little at a time, if that was not done just now."""
        if time.monotonic() - self._sized_s < _SIZES_EVERY_S:
            return
        total = 0
        async for size in in_slices(self._log_sizes()):
            total += size
        self._values.logs_bytes, self._sized_s = total, time.monotonic()


async def keep_sampling(rates: SampledRates) -> None:
    """Sample for ever."""
    while True:
        # A clock that is set back does not stop the samples: they go on from the last one.
        is_set_back = clock_ms() < rates.tick_ms
        wait_ms = rates.interval_ms if is_set_back else rates.interval_ms - clock_ms() % rates.interval_ms
        await asyncio.sleep(wait_ms / 1000)
        try:
            await rates.measure_logs()
            now_ms = rates.tick_ms + rates.interval_ms if is_set_back else clock_ms()
            async for _ in in_slices(rates.tick(now_ms)):
                pass
        except OSError as error:
            # The node cannot read its own figures for a moment; this sample is missing.
            logger.warning("rates_not_sampled error=%s action=retry", error)
        except Exception:
            # Nobody awaits this task: its end would be seen by the plots only, which would stand still.
            logger.exception("rates_failed action=retry")
