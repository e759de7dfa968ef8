"""The upstream of message replication: chooses the vhosts to collect for downstreams, and reports their state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from leveret.core.broker.broker import STANDBY_TAG, Broker
from leveret.core.broker.policy_validation import REPLICATE
from leveret.core.queues.queue import Queue
from leveret.model.definitions import Policy
from leveret.model.errors import StorageError
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.outgoing_log import STOPPED, OutgoingLog
from leveret.runtime.logs.log_store import LogStore

logger = logging.getLogger(__name__)


def _collected(vhost: str, log: OutgoingLog, queues: int) -> dict[str, Any]:
    end, first = log.committed_offset, log.first_offset
    oldest_ms = None
    with suppress(StorageError, StopIteration):
        if end > first:
            oldest_ms = next(log.log.read_raw(first, 1))[0].timestamp_ms
    lags = [max(0, end - each.offset) for each in log.downstreams.by_reference.values()]
    return {
        "virtual_host": vhost,
        "queues": queues,
        "records": end,
        "kept": end - first,
        "bytes": log.bytes,
        "oldest_ms": oldest_ms,
        "newest_ms": log.last_timestamp_ms if end > first else None,
        "downstreams": len(lags),
        "slowest_lag_records": max(lags, default=0),
        "missing_messages": log.missing_messages,
        "error": STOPPED if log.has_stopped else "",
    }


def _not_collected(vhost: str, error: str, queues: int) -> dict[str, Any]:
    numbers = ("records", "kept", "bytes", "downstreams", "slowest_lag_records", "missing_messages")
    return {
        "virtual_host": vhost,
        "queues": queues,
        **dict.fromkeys(numbers, 0),
        "oldest_ms": None,
        "newest_ms": None,
        "error": error,
    }


class UpstreamCollection:
    """Keeps an outgoing log for each tagged vhost; see runtime.collecting.collector."""

    def __init__(
        self, broker: Broker, collector: Collector, stores: LogStore, clock_ms: Callable[[], int]
    ) -> None:
        """Begin without logs."""
        self._broker = broker
        self._collector = collector
        self._stores = stores
        self._clock_ms = clock_ms
        self._asked_in_vain: set[str] = set()
        self._vhosts: set[str] = set()

    # -- which vhosts -------------------------------------------------------------------------

    def open_logs(self) -> None:
        """Recover the outgoing logs before the queues; a damaged one stays down."""
        for vhost in self._tagged():
            with suppress(StorageError):
                self._collector.open_vhost(vhost)

    async def restore(self, queues: Sequence[Queue]) -> None:
        """Complete the open outgoing logs from the logs of these recovered queues."""
        self._broker.replication_changes.clear()
        self._vhosts = self._existing()
        if self._vhosts:
            # Not if no vhost is known yet: the definitions may come from a cluster, or be restored later.
            self._collector.remove_former(self._vhosts)
        for vhost in list(self._collector.logs):
            self._collector.close_missing(vhost, self._broker.vhost_queues(vhost))
            if self._collector.replication_port is not None:
                # Each queue follows when its mirrors are known.
                continue
            for queue in queues:
                if queue.key[0] == vhost and queue.replicated and queue.damage is None:
                    await self._collector.complete(queue)
        await self._collector.count_missing()

    def follow_tags(self) -> None:
        """Open and close outgoing logs as vhosts gain and lose the tag."""
        collector, tagged = self._collector, set(self._tagged())
        for name in tagged - collector.logs.keys():
            collector.open_tagged(name, self._broker.vhost_queues(name))
        self._report_untagged()
        for name in set(collector.logs) - tagged:
            collector.close_vhost(name, delete=(name,) not in self._broker.definitions.by_kind["vhosts"])
        self._follow_deletions()

    def open_again(self) -> None:
        """Open the logs of tagged vhosts that a disk refused before; to be called now and then."""
        if not self._collector.logs.keys() >= set(self._tagged()):
            self.follow_tags()

    def untagged(self) -> list[str]:
        """Vhosts with a policy for replicated queues, but without the tag, so that none is replicated."""
        by_kind = self._broker.definitions.by_kind
        requests = {
            policy.vhost
            for policy in by_kind["policies"].values()
            if isinstance(policy, Policy) and policy.definition.get(REPLICATE) is True
        }
        return sorted(
            name
            for name in requests
            if STANDBY_TAG not in getattr(by_kind["vhosts"].get((name,)), "tags", (STANDBY_TAG,))
        )

    def _report_untagged(self) -> None:
        """Warn once for each such vhost, because its policy's author expects a copy."""
        before, self._asked_in_vain = self._asked_in_vain, set(self.untagged())
        for name in sorted(self._asked_in_vain - before):
            logger.warning(
                "standby_not_collected vhost=%s reason=policy_without_the_tag_%s see=update_vhost_metadata",
                name,
                STANDBY_TAG,
            )

    def _follow_deletions(self) -> None:
        """Remove the logs of deleted vhosts, tagged or not; an untagged vhost keeps its log."""
        before, self._vhosts = self._vhosts, self._existing()
        for name in before - self._vhosts:
            self._collector.remove_closed(name)

    def _existing(self) -> set[str]:
        return {name for (name,) in self._broker.definitions.by_kind["vhosts"]}

    def _tagged(self) -> list[str]:
        """The vhosts to collect."""
        if self._collector.has_resigned:
            return []
        vhosts = self._broker.definitions.by_kind["vhosts"]
        return [name for (name,), vhost in vhosts.items() if STANDBY_TAG in getattr(vhost, "tags", ())]

    # -- how it stands: management.node.UpstreamOperations ------------------------------------

    def metrics(self) -> Iterator[dict[str, Any]]:
        """A row a replicated queue: its oldest message's time of arrival, and its collected part."""
        now = self._clock_ms()
        for queue, log in self._shown():
            try:
                oldest = self._stores.oldest_timestamp_ms(queue)
            except (StorageError, StopIteration):
                # As one that is known to be damaged: the others are shown.
                continue
            yield {
                "queue": queue.key[1],
                "timestamp": now if oldest is None else oldest,
                "vhost": queue.key[0],
                "messages": queue.message_count,
                "collected_offset": log.position_of(queue),
            }

    def messages(self) -> Iterator[tuple[str, str, int]]:
        """The virtual host, the name and the number of messages of each replicated queue; reads no log."""
        return ((queue.key[0], queue.key[1], queue.message_count) for queue, _ in self._shown())

    def _shown(self) -> Iterator[tuple[Queue, OutgoingLog]]:
        """The replicated queues that this node leads and can read, with their outgoing logs."""
        replicated = [queue for queue in self._broker.queues.values() if queue.replicated]
        for queue in sorted(replicated, key=lambda queue: queue.key):
            log = self._collector.logs.get(queue.key[0])
            is_here = self._broker.queues.get(queue.key) is queue and not queue.is_remote
            if is_here and log is not None and queue.damage is None:
                yield queue, log

    def confirms_of(self, queue: Queue) -> dict[str, Any] | None:
        """How publishers' confirms of a queue wait for downstreams; None if they do not.

        Returns:
            rule: `any` or `all`; unmet: why none can come now, or empty; on_timeout: `local` or `nack`; waiting,
            confirmed_locally, refused: numbers of messages.
        """
        held, counts = self._collector.remote_dc_confirms, queue.remote_confirms
        if not held.concerns(queue):
            return None
        return {
            "rule": queue.settings.remote_confirm,
            "unmet": held.why_unmet(queue),
            "on_timeout": queue.settings.remote_confirm_on_timeout,
            "waiting": counts.waiting,
            "confirmed_locally": counts.confirmed_locally,
            "refused": counts.refused,
        }

    def collected(self) -> list[dict[str, Any]]:
        """A row a vhost that is collected, or could not be: then without records, and with an error.

        Returns:
            virtual_host; queues: the replicated ones; records: the number ever collected, of which `kept` records in
            `bytes` octets are retained; oldest_ms, newest_ms: the arrival times, at their queues, of the oldest and
            newest retained ones (None without any); downstreams: the number of known ones; slowest_lag_records: the
            largest lag of one of them; missing_messages: see Collector; error.
        """
        by_vhost: dict[str, int] = {}
        for (vhost, _), queue in self._broker.queues.items():
            by_vhost[vhost] = by_vhost.get(vhost, 0) + (queue.replicated and not queue.is_remote)
        logs, closed = self._collector.logs, self._collector.closed
        # A node that does not lead opens no log.
        tried = {*logs, *(vhost for vhost in self._tagged() if closed.why(vhost))}
        return [
            _collected(vhost, logs[vhost], by_vhost.get(vhost, 0))
            if vhost in logs
            else _not_collected(vhost, closed.why(vhost), by_vhost.get(vhost, 0))
            for vhost in sorted(tried)
        ]

    def downstreams(self) -> list[dict[str, Any]]:
        """A row a vhost and known downstream; see Collector."""
        return self._collector.known_downstreams.rows()

    def forget_downstream(self, name: str) -> bool:
        """See Collector."""
        return self._collector.forget_downstream(name)

    def delete_logs(self) -> list[dict[str, Any]]:
        """Delete the outgoing logs; see Collector."""
        queues = self._broker.led_queues()
        rows = self._collector.delete_all(queues)
        self.follow_tags()
        self._collector.resume(queues)
        return rows
