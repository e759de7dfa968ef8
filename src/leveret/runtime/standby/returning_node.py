"""One node's steps of a rejoin: quarantine the records that the new upstream lacks, then empty queues.

A node alone takes all steps by itself (`rejoin`). In a cluster each node takes them for the queues that it leads, and
reports to the others the new upstream's positions in its outgoing logs (`site_rejoin`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from leveret.config import Config
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.core.replication.standby_site import KeptQueue
from leveret.core.schema.delta import SCHEMA_UPSTREAM
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import LeveretError, PreconditionFailed, Refusal
from leveret.runtime.clients.amqp_listener import AmqpListener
from leveret.runtime.clients.maintenance import Maintenance
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.untransferred import first_untransferred
from leveret.runtime.logs.engine import Engine
from leveret.runtime.logs.log_store import LogStore, log_name
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.work_slices import in_slices, in_thread_to_its_end
from leveret.runtime.schema_sync.schema_sync import SchemaSync
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.runtime.standby.transfer import StandbyUpstreamParameter
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport

logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""The wait before the next retry to finish a rejoin."""
FAILURES: Final = (LeveretError, OSError)
"""The errors after which a rejoin is retried."""
LOOKS_MAX: Final = 20
"""The largest number of times that a rejoin empties its queues: a queue that does not take part may dead-letter on."""
CLIENTS_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05
_HOLDING: Final = ("queues", "vhosts")
"""The kinds of definitions whose deletion deletes messages."""

Place: TypeAlias = tuple[str, ...]
"""The key of a queue, or of a vhost."""


class RejoiningNode(Protocol):
    """The node (runtime.node.node, a floor above this one), as this module uses it."""

    config: Config
    data_dir: Path
    broker: Broker
    collector: Collector
    maintenance: Maintenance
    log_store: LogStore
    engine: Engine
    amqp: AmqpListener
    schema_sync: SchemaSync
    standby: StandbyDownstream

    async def commit(self) -> None:
        """Return once all changes applied so far are durable."""

    def queue_of(self, name: str) -> tuple[str, str] | None:
        """Return the queue whose log has this name."""


class UpstreamPosition(NamedTuple):
    """The new upstream's `position` in an outgoing log, and `mark`, the fingerprint before the position, if known."""

    position: int
    mark: int | None


class ReturnCommand:
    """An operator's command that ends with the role of its node, and of which one runs at a time.

    It is cancelled then: what it would write later would be for another role, which has the same directory.

    Attributes:
        lock: held while it runs.
        over: set when the role has ended, or is about to.
    """

    def __init__(self) -> None:
        """Begin without a command."""
        self.lock = asyncio.Lock()
        self.over = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it in the block.

        Raises:
            PreconditionFailed: the node's role is over.
        """
        over = "this node stops, or another one leads by now: look at its status, and do it again where it is needed"
        async with self.lock:
            if self.over.is_set():
                raise PreconditionFailed(over)
            self._task = task = asyncio.current_task()
            try:
                yield
            except asyncio.CancelledError:
                if task is None or not self.over.is_set():
                    raise
                task.uncancel()
                raise PreconditionFailed(over) from None
            finally:
                self._task = None

    async def end(self) -> None:
        """End the command, and wait for that; later ones are refused."""
        self.over.set()
        if self._task is not None:
            self._task.cancel()
        async with self.lock:
            pass


class ReturningNode:
    """See the module."""

    def __init__(self, node: RejoiningNode) -> None:
        """Use this node."""
        self._node = node

    # -- before any change ------------------------------------------------------------------------

    def check(self) -> StandbyUpstreamParameter:
        """Check that this node can rejoin; return the new upstream.

        Raises:
            PreconditionFailed: this node is no upstream, or has no endpoint of the new one.
        """
        standby = self._node.standby
        if standby.mode is OperatingMode.DOWNSTREAM:
            raise PreconditionFailed(
                "this node is a downstream already: it follows the node that its endpoints name"
            )
        upstream, why_not = standby.upstream
        if upstream is None:
            raise PreconditionFailed(why_not)
        if (SCHEMA_UPSTREAM,) not in self._node.broker.definitions.by_kind["global_parameters"]:
            raise PreconditionFailed(
                "the new upstream is not known: name its AMQP port with "
                "set_schema_replication_upstream_endpoints first"
            )
        return upstream

    async def check_definitions(self) -> set[Place]:
        """Check that the new upstream serves its definitions; return the queues and vhosts that the sync will delete.

        Raises:
            PreconditionFailed: the new upstream does not serve its definitions.
        """
        try:
            rows = await self._node.schema_sync.diff()
        except Refusal as error:
            raise PreconditionFailed(
                f"the new upstream does not serve its definitions: {error}; nothing was changed. An upstream "
                "is set up with add_schema_replication_user, a promoted one too"
            ) from error
        return {tuple(row["key"]) for row in rows if row["action"] == "delete" and row["kind"] in _HOLDING}

    def logs(self) -> dict[str, int]:
        """Return the ids of this node's outgoing logs, by vhost."""
        return {vhost: log.log_id for vhost, log in self._node.collector.logs.items()}

    def holds_any(self, vhost: str) -> bool:
        """Return whether the replicated queues of a vhost that this node leads have messages, or may have."""
        return any(
            queue.message_count or queue.damage
            for queue in self._node.broker.led_queues()
            if queue.key[0] == vhost and queue.replicated
        )

    async def wait_for_quiet(self) -> None:
        """Wait until no client is connected and all changes are durable and collected, so that no log changes.

        Raises:
            PreconditionFailed: clients stay connected; or queues are not collected in time.
        """
        deadline_s = time.monotonic() + CLIENTS_TIMEOUT_S
        while self._node.amqp.peers:
            if time.monotonic() > deadline_s:
                raise PreconditionFailed(
                    "clients are still connected; close their connections and do it again"
                )
            await asyncio.sleep(_POLL_S)
        await self._node.commit()

    # -- keeping ----------------------------------------------------------------------------------

    async def begins(self, vhost: str, seen: UpstreamPosition) -> dict[Queue, int] | None:
        """Return the first offset of each replicated queue in this node's outgoing log that the new upstream lacks.

        None if that is unknown. If this node was a follower without the whole log, the new upstream may have that part
        from another writer; then it is unknown which of this node's later records the new upstream has.

        No await stands between the reads of the log and of its positions: both would miss a record collected in
        between.
        """
        log = self._node.collector.logs[vhost]
        position, own = seen.position, log.fingerprint_before(seen.position)
        is_other = seen.mark is not None and own is not None and seen.mark != own
        untransferred = None if is_other else await first_untransferred(log, position)
        if untransferred is None:
            return None
        queues = self._replicated(vhost)
        return {queue: untransferred.get(log.key_of(queue), log.position_of(queue)) for queue in queues}

    def begins_of_all(self, vhost: str) -> dict[Queue, int]:
        """As `begins` if that is unknown: return the begins of the replicated queues that this node leads."""
        return {queue: self._begin_of_all(queue) for queue in self._replicated(vhost) if not queue.is_remote}

    def begins_of_unknown(self, unknown: Container[Place]) -> dict[Queue, int]:
        """As `begins`, for unreplicated queues that the schema sync will delete."""
        return {
            queue: self._begin_of_all(queue)
            for queue in self._node.broker.led_queues()
            if (queue.key in unknown or queue.key[:1] in unknown)
            and queue.definition.durable
            and queue.owner is None
            and not queue.damage
        }

    async def quarantine(self, begins: Mapping[Queue, int]) -> tuple[list[KeptQueue], list[DivergentReport]]:
        """Quarantine, durably, records of these queues; return each queue with its quarantined end."""
        quarantine, kept = RejoinQuarantine(self._node), []
        for queue, begin in begins.items():
            end = self._end_of(queue)
            await in_thread_to_its_end(quarantine.add, queue, begin, end)
            kept.append(KeptQueue(*queue.key, queue.epoch, end))
        return kept, await quarantine.finish()

    def _begin_of_all(self, queue: Queue) -> int:
        """Return the begin of a quarantine of the whole queue; for an empty queue, its end."""
        return 0 if queue.message_count else self._end_of(queue)

    def _end_of(self, queue: Queue) -> int:
        return self._node.log_store.log(queue).next_offset

    def _replicated(self, vhost: str) -> list[Queue]:
        queues = self._node.broker.queues.values()
        return [queue for queue in queues if queue.key[0] == vhost and queue.replicated and not queue.damage]

    # -- emptying ---------------------------------------------------------------------------------

    async def empty(self, kept: Iterable[KeptQueue]) -> list[DivergentReport]:
        """Empty queues as `_empty` does; return the reports of records that came since their quarantine.

        To be repeated as long as that changes `epochs`, because a queue may dead-letter into one that was emptied
        before it: a queue that is empty since then stays as it is. A queue that received a message since then has a
        record of it, even if it has dead-lettered the message by now; so none is left after a look without a change.
        """
        quarantine = RejoinQuarantine(self._node)
        async for each in in_slices(list(kept)):
            await self._empty(each, quarantine)
        reports = await quarantine.finish()
        await self._node.commit()
        return reports

    def epochs(self, kept: Iterable[KeptQueue]) -> list[int]:
        """Return the epochs of these queues; 0 for a queue that is gone. To empty a queue changes its epoch."""
        found = (self._node.broker.queues.get((each.vhost, each.name)) for each in kept)
        return [queue.epoch if queue is not None else 0 for queue in found]

    async def _empty(self, kept: KeptQueue, quarantine: RejoinQuarantine) -> None:
        """Empty a queue that this node leads once all its records are quarantined.

        Its definition and its bindings stay: if the new upstream is lost before the first schema sync, a promotion
        needs them. Records that came since the quarantine may be many, so a thread adds them first, and the event loop
        serves others meanwhile. Then one step adds the records that came during that, and begins the queue anew. An
        unreadable queue stays as it is.
        """
        queue = self._flushed(kept)
        if queue is not None and (begin := _begin_of(queue, kept)) < (end := self._end_of(queue)):
            await in_thread_to_its_end(quarantine.add, queue, begin, end)
            kept = KeptQueue(kept.vhost, kept.name, queue.epoch, end)
            queue = self._flushed(kept)
        # No await from here on.
        if queue is None or (queue.epoch != kept.epoch and not self._end_of(queue)):
            return
        quarantine.add(queue, _begin_of(queue, kept), self._end_of(queue))
        self._node.broker.restart_queue(queue)

    def _flushed(self, kept: KeptQueue) -> Queue | None:
        """Flush, and return the queue; None if it is gone, another node leads it, or it cannot be read."""
        self._node.engine.flush()
        queue = self._node.broker.queues.get((kept.vhost, kept.name))
        return queue if queue is not None and not queue.is_remote and queue.damage is None else None


def _begin_of(queue: Queue, kept: KeptQueue) -> int:
    """Return the offset of the queue's first record that is not quarantined."""
    return kept.next_offset if queue.epoch == kept.epoch else 0


class RejoinQuarantine:
    """The quarantine of the rejoin, and its reports: later records of a queue go to another report."""

    def __init__(self, node: RejoiningNode) -> None:
        """Quarantine nothing yet."""
        upstream, _ = node.standby.upstream
        self._reports: dict[str, DivergentReport] = {}
        join = DivergentReport.begun(
            clock_ms(),
            from_epoch=0,
            to_epoch=0,
            node_id=node.config.node_name,
            leader_uri=upstream.endpoints[0] if upstream is not None else "",
        )
        self._log_quarantine = Quarantine(node.data_dir, join, node.queue_of)

    def add(self, queue: Queue, begin: int, end: int) -> None:
        """Quarantine the queue's records from `begin` up to `end`; blocks for the disk.

        Raises:
            StorageError: the disk refused the write; the queue must stay.
        """
        if (
            begin < end
            and self._log_quarantine.add(log_name(queue), begin, end)
            and self._log_quarantine.report is not None
        ):
            self._reports[self._log_quarantine.report.id] = self._log_quarantine.report

    async def finish(self) -> list[DivergentReport]:
        """Log the reports, and return them.

        Raises:
            StorageError: the disk refused the write.
        """
        await in_thread_to_its_end(self._log_quarantine.finish)
        for report in self._reports:
            logger.warning("divergent_messages_quarantined report=%s see=list_divergent_messages", report)
        return list(self._reports.values())


def rows_of(reports: Iterable[DivergentReport]) -> list[dict[str, Any]]:
    """Return a row for each queue in these reports: virtual_host, queue, messages, settlements_lost."""
    rows: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for log in (log for report in reports for log in report.logs):
        nothing = {"virtual_host": log.vhost, "queue": log.queue, "messages": 0, "settlements_lost": 0}
        row = rows.setdefault((log.vhost, log.queue), nothing)
        row["messages"] += log.messages
        row["settlements_lost"] += log.settlements_lost
    return list(rows.values())
