"""The upstream's side of message replication: which vhosts are collected for downstreams, and how that stands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from leveret.core.broker import STANDBY_TAG, Broker
from leveret.core.queue import Queue
from leveret.model.errors import StorageError
from leveret.runtime.log_store import LogStore
from leveret.runtime.outgoing import Collector

logger = logging.getLogger(__name__)


class Upstream:
    """Has the collector keep an outgoing log for each vhost that is tagged; see runtime.outgoing."""

    def __init__(
        self,
        broker: Broker,
        collector: Collector,
        stores: LogStore,
        clock_ms: Callable[[], int],
        is_one_of_many: Callable[[], bool],
    ) -> None:
        """Collect nothing yet; `is_one_of_many` tells whether other nodes lead some of the queues."""
        self._broker = broker
        self._collector = collector
        self._stores = stores
        self._clock_ms = clock_ms
        self._is_one_of_many = is_one_of_many
        self._not_collected: set[str] = set()
        self._vhosts: set[str] = set()

    # -- which vhosts -------------------------------------------------------------------------

    def open_logs(self) -> None:
        """Know what the outgoing logs hold, before the queues are recovered; one that is damaged stays down."""
        for vhost in self._tagged():
            with suppress(StorageError):
                self._collector.open_vhost(vhost)

    async def restore(self, queues: Sequence[Queue]) -> None:
        """Complete the outgoing logs, which are open, from the logs of these queues, which are recovered."""
        self._broker.replication_changes.clear()
        self._vhosts = self._existing()
        if self._vhosts and not self._is_one_of_many():
            # Not where none is known yet: a cluster may have them, or definitions that are to be brought back.
            self._collector.remove_former(self._vhosts)
        for vhost in list(self._collector.logs):
            own = [queue for queue in queues if queue.key[0] == vhost]
            self._collector.close_missing(vhost, own)
            for queue in own:
                if queue.replicated and queue.damage is None:
                    await self._collector.complete(queue)
        self._collector.count_missing()

    def follow_tags(self) -> None:
        """Vhosts gain and lose their outgoing log with their tag."""
        collector, tagged = self._collector, set(self._tagged())
        if self._is_one_of_many():
            # Each node would collect what it leads, and a downstream that asks one of them would miss the rest.
            for name in tagged - self._not_collected:
                logger.error("standby_not_collected vhost=%s reason=node_of_a_cluster", name)
            self._not_collected, tagged = tagged, set()
        for name in tagged:
            own = [queue for queue in self._broker.led_queues() if queue.key[0] == name]
            collector.open_tagged(name, own)
        for name in set(collector.logs) - tagged:
            collector.close_vhost(name, delete=(name,) not in self._broker.definitions.by_kind["vhosts"])
        self._follow_deletions()

    def _follow_deletions(self) -> None:
        """Of a vhost that is gone nothing stays, was it tagged or not; one that is not tagged keeps its log."""
        before, self._vhosts = self._vhosts, self._existing()
        if not self._is_one_of_many():
            for name in before - self._vhosts:
                self._collector.remove_closed(name)

    def _existing(self) -> set[str]:
        return {name for (name,) in self._broker.definitions.by_kind["vhosts"]}

    def _tagged(self) -> list[str]:
        vhosts = self._broker.definitions.by_kind["vhosts"]
        return [name for (name,), vhost in vhosts.items() if STANDBY_TAG in getattr(vhost, "tags", ())]

    # -- how it stands: management.node.UpstreamOperations ------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """One row a replicated queue: when its oldest message arrived, and how much is collected."""
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        now = self._clock_ms()
        for (vhost, name), queue in sorted(self._broker.queues.items()):
            log = self._collector.logs.get(vhost)
            if queue.replicated and not queue.is_remote and log is not None and queue.damage is None:
                oldest = None
                with suppress(StopIteration):
                    oldest = self._stores.oldest_timestamp_ms(queue)
                collected = log.position_of(queue)
                yield {
                    "queue": name,
                    "timestamp": now if oldest is None else oldest,
                    "vhost": vhost,
                    "messages": queue.message_count,
                    "collected_offset": collected,
                }

    def downstreams(self) -> list[dict[str, Any]]:
        """A row a vhost and known downstream; see Collector."""
        return self._collector.downstream_rows()

    def forget_downstream(self, name: str) -> bool:
        """See Collector."""
        return self._collector.forget_downstream(name)

    def delete_logs(self) -> list[dict[str, Any]]:
        """Delete what is collected for downstreams; see Collector."""
        rows = self._collector.delete_all(self._broker.led_queues())
        self.follow_tags()
        return rows
