"""The rejoin of an upstream that lost its place: it follows the node that took it, and keeps its own records.

Records that the new upstream never had are reported and kept: the tails of queues' logs are quarantined as a diverged
follower's are (storage.quarantine), and `list_divergent_messages` shows them. The new upstream has all earlier
records and serves them. So the replicated queues are deleted here, and the schema sync makes them anew, empty; other
queues stay. The schema sync also deletes queues that the new upstream does not know, replicated or not: these are
quarantined before.

    clients sent away -> tails quarantined, durably -> previous archive put away -> rejoin.json -> queues deleted
    -> both modes downstream -> rejoin.json emptied -> clients let in, both links

Between rejoin.json and the deletion it ceases to be an upstream for its own downstreams: its definitions are no
longer served, its outgoing logs are gone, and later ones have another identity. So the emptying reaches no
downstream.

If the new upstream's position in a vhost is unknown, all messages of its queues are quarantined: too many are safe.

A node that fails or is killed on the way is an upstream as before if rejoin.json is empty. Otherwise the rejoin
cannot be undone: a start continues it before clients are admitted, and tries again until it is done. Messages may
come to a queue until it is deleted, such as dead letters of another one. So rejoin.json has the offset up to which
each queue was quarantined, and later records follow in the same step as the deletion. An archive of its own from an
earlier time as a standby is kept too, under another name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from leveret.config import Config
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.core.schema.delta import UPSTREAM_PARAMETER as SCHEMA_PARAMETER
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.definitions import Delete
from leveret.model.errors import LeveretError, PreconditionFailed, Refusal, StorageError
from leveret.runtime.clients.amqp_listener import AmqpListener
from leveret.runtime.clients.maintenance import Maintenance
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.collecting.untransferred import first_untransferred
from leveret.runtime.logs.engine import Engine
from leveret.runtime.logs.log_store import LogStore, log_name
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.schema_sync.schema_sync import SchemaSync
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.runtime.standby.pipeline_process import ask
from leveret.runtime.standby.transfer import StandbyUpstreamParameter
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

STATE_FILE: Final = "rejoin.json"
CLIENTS_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 5.0
"""The wait before another try to finish a rejoin."""
_POLL_S: Final = 0.05
_HOLDING: Final = ("queues", "vhosts")
"""The kinds of definitions whose deletion deletes messages."""

_FAILURES: Final = (LeveretError, OSError)

Place: TypeAlias = tuple[str, ...]
"""The key of a queue, or of a vhost."""


class KeptQueue(msgspec.Struct, array_like=True):
    """A queue to be deleted, whose records before `next_offset` are quarantined if the new upstream lacks them.

    A queue of the same name with another epoch is another one, without quarantined records.
    """

    vhost: str
    name: str
    epoch: int = 0
    next_offset: int = 0


class Begun(msgspec.Struct, kw_only=True):
    """The content of the state file."""

    queues: list[KeptQueue] = []


class RejoiningNode(Protocol):
    """The node (runtime.node.node), which is a floor above this, as this module uses it."""

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
        """Return once everything applied so far is durable."""

    def queue_of(self, name: str) -> tuple[str, str] | None:
        """The queue whose log has that name."""


class Seen(NamedTuple):
    """The new upstream's part of an outgoing log: up to `position`; `mark`: the fingerprint before it, if known."""

    position: int
    mark: int | None


class Rejoin:
    """The rejoin of one node."""

    def __init__(self, node: RejoiningNode, state_file: StateFile) -> None:
        """Begin without reading the state file."""
        self._node = node
        self._state_file = state_file
        self._lock = asyncio.Lock()
        self._retrying: asyncio.Task[None] | None = None

    async def rejoin(self, *, set_all_aside: bool = False) -> dict[str, Any]:
        """Become a downstream of the new upstream.

        Args:
            set_all_aside: follow also a node that was no standby of this one, such as the successor of this one's
                successor. Its position is unknown, so all replicated queues are quarantined.

        Returns:
            upstream_endpoints, report (its id, empty without quarantined records), reports (all of them: records that
            came meanwhile have another one), messages, settlements_lost, queues: a row each: virtual_host, queue,
            messages, settlements_lost.

        Raises:
            PreconditionFailed: this node is no upstream, has no endpoint of the new one, or that was no standby of this
                node.
            PipelineFailed: the new upstream cannot be asked, or a previous archive cannot be moved.
            StorageError: records cannot be quarantined; this node is an upstream as before, or says that it tries
                again.
        """
        if self._lock.locked():
            raise PreconditionFailed("this node is coming back already")
        async with self._lock:
            if self._is_begun():
                raise PreconditionFailed(
                    f"this node is coming back already, and tries to get on every {RETRY_S:g} s: see "
                    "rejoin_failed in "
                    "its log for what stands in the way"
                )
            upstream = self._check()
            positions = await self._ask_positions(upstream, set_all_aside=set_all_aside)
            unknown = await self._check_definitions()
            await self._node.maintenance.drain()
            try:
                reports = await self._come_back(positions, unknown)
            finally:
                if self._is_begun():
                    self._retry_later()
                else:
                    await self._node.maintenance.revive()
            return _reported(upstream, reports)

    async def _come_back(
        self, positions: dict[str, Seen], unknown: Container[Place]
    ) -> list[DivergentReport]:
        begun, reports = await self._quarantine(positions, unknown)
        # At this point the node can still stay an upstream.
        await self._node.standby.keep_former_archive()
        self._state_file.save(msgspec.to_builtins(begun))
        try:
            return reports + await self._finish(begun)
        except _FAILURES as error:
            logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S)
            raise StorageError(
                f"the rejoin has begun and is not finished: {error}; it is tried again every {RETRY_S:g} s, and no "
                "client is admitted before"
            ) from error

    async def resume(self) -> None:
        """Finish an interrupted rejoin, at the start, before clients are admitted.

        If that fails, no client is admitted until a later try succeeds.
        """
        if not self._is_begun():
            return
        logger.warning("rejoin_resumed")
        try:
            await self._go_on()
        except _FAILURES as error:
            logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S)
            await self._node.maintenance.drain()
            self._retry_later()

    async def stop(self) -> None:
        """End the tries; the next start continues."""
        retrying, self._retrying = self._retrying, None
        if retrying is not None:
            retrying.cancel()
            with suppress(asyncio.CancelledError):
                await retrying

    # -- what was begun ---------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether a rejoin cannot be undone any more, so that no record is collected."""
        try:
            return self._load() is not None
        except StorageError:
            # Without the file, which an operator may remove, this node is an upstream as before.
            return False

    def _is_begun(self) -> bool:
        """Whether the state file has a rejoin, or cannot be read."""
        try:
            return bool(self._state_file.load())
        except StorageError:
            return True

    async def _go_on(self) -> None:
        begun = self._load()
        if begun is not None:
            await self._finish(begun)

    def _load(self) -> Begun | None:
        """The interrupted rejoin, None for none.

        Raises:
            StorageError: the state file cannot be read.
        """
        found = self._state_file.load()
        try:
            return msgspec.convert(found, Begun) if found else None
        except msgspec.ValidationError as error:
            raise StorageError(
                f"{self._state_file.path}: {error}; mend the file, or remove it to be an upstream as before"
            ) from None

    def _retry_later(self) -> None:
        if self._retrying is None:
            self._retrying = asyncio.create_task(self._retry(), name="rejoin")

    async def _retry(self) -> None:
        """Try again until the rejoin is done and clients are admitted."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                async with self._lock:
                    await self._go_on()
                    await self._node.maintenance.revive()
            except _FAILURES as error:
                logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S)
            else:
                self._retrying = None
                return

    # -- before anything is changed ---------------------------------------------------------------

    def _check(self) -> StandbyUpstreamParameter:
        standby = self._node.standby
        if self._node.config.cluster.is_member:
            raise PreconditionFailed(
                "a cluster does not come back as a downstream with its data yet: empty its replicated queues, and "
                "set_standby_replication_mode downstream"
            )
        if standby.mode is OperatingMode.DOWNSTREAM:
            raise PreconditionFailed(
                "this node is a downstream already: it follows the node that its endpoints name"
            )
        upstream, why_not = standby.upstream
        if upstream is None:
            raise PreconditionFailed(why_not)
        if (SCHEMA_PARAMETER,) not in self._node.broker.definitions.by_kind["global_parameters"]:
            raise PreconditionFailed(
                "the new upstream is not known: name its AMQP port with "
                "set_schema_replication_upstream_endpoints first"
            )
        return upstream

    async def _check_definitions(self) -> set[Place]:
        """Check that the schema sync will make the queues again; return the queues and vhosts that it will delete."""
        try:
            rows = await self._node.schema_sync.diff()
        except Refusal as error:
            raise PreconditionFailed(
                f"the new upstream does not serve its definitions: {error}; nothing was changed. An upstream "
                "is set up "
                "with add_schema_replication_user, a promoted one too"
            ) from error
        return {tuple(row["key"]) for row in rows if row["action"] == "delete" and row["kind"] in _HOLDING}

    async def _ask_positions(
        self, upstream: StandbyUpstreamParameter, *, set_all_aside: bool
    ) -> dict[str, Seen]:
        """The new upstream's part of each of our outgoing logs, by vhost; 0 if it is unknown."""
        logs = {vhost: log.log_id for vhost, log in self._node.collector.logs.items()}
        job = {**self._node.standby.link_job(upstream), "logs": logs}
        answer = await ask("positions", job)
        found = answer["positions"]
        # An empty vhost has nothing to lose, so the new upstream need not know it.
        unknown = sorted(vhost for vhost in logs if found.get(vhost) is None and self._holds_any(vhost))
        if unknown and not set_all_aside:
            raise PreconditionFailed(
                f"the node at {', '.join(upstream.endpoints)} never took the place of this one in vhost "
                f"'{unknown[0]}': it was no standby of this node, or has not been promoted; nothing was "
                "changed. Where "
                "it took the place of a node that took this one's, --set-all-aside follows it, and keeps "
                "all that the "
                "replicated queues hold here"
            )
        return {vhost: Seen(found.get(vhost) or 0, answer["marks"].get(vhost)) for vhost in logs}

    def _holds_any(self, vhost: str) -> bool:
        """Whether the replicated queues of a vhost have messages, or may have."""
        queues = self._node.broker.queues.values()
        return any(
            queue.message_count or queue.damage
            for queue in queues
            if queue.key[0] == vhost and queue.replicated
        )

    # -- keeping ----------------------------------------------------------------------------------

    async def _quarantine(
        self, positions: dict[str, Seen], unknown: Container[Place]
    ) -> tuple[Begun, list[DivergentReport]]:
        """Quarantine, durably, the records that the new upstream lacks; return the queues and the ends of that."""
        await self._wait_for_quiet()
        quarantine, begun = _RejoinQuarantine(self._node), Begun()
        begins = self._begins_of_unknown(unknown)
        for vhost, seen in positions.items():
            log = self._node.collector.logs.get(vhost)
            if log is not None:
                begins |= await self._begins(vhost, log, seen)
        for queue, begin in begins.items():
            end = self._end_of(queue)
            await asyncio.to_thread(quarantine.add, queue, begin, end)
            begun.queues.append(KeptQueue(*_place_of(queue), queue.epoch, end))
        return begun, await quarantine.finish()

    def _begins_of_unknown(self, unknown: Container[Place]) -> dict[Queue, int]:
        """As `_begins`, for queues that are not replicated and that the schema sync will delete."""
        queues = self._node.broker.queues.values()
        return {
            queue: self._begin_of_all(queue)
            for queue in queues
            if (queue.key in unknown or queue.key[:1] in unknown)
            and queue.definition.durable
            and queue.owner is None
            and not queue.damage
        }

    async def _begins(self, vhost: str, log: OutgoingLog, seen: Seen) -> dict[Queue, int]:
        """The first offset of each queue in an outgoing log that the new upstream lacks.

        It may have that part of the log from another writer, if this node was a follower without all of it: then it
        is unknown which of this node's later records it has.

        There is no await between reading the log and reading its positions: a record collected in between would be in
        neither.
        """
        position, own = seen.position, log.fingerprint_before(seen.position)
        is_other = seen.mark is not None and own is not None and seen.mark != own
        untransferred = None if is_other else await first_untransferred(log, position)
        queues = self._replicated(vhost)
        if untransferred is None:
            logger.warning("rejoin_quarantines_all vhost=%s position=%d", vhost, position)
            return {queue: self._begin_of_all(queue) for queue in queues}
        return {queue: untransferred.get(log.key_of(queue), log.position_of(queue)) for queue in queues}

    def _begin_of_all(self, queue: Queue) -> int:
        """The begin of a quarantine of the whole queue; an empty queue has nothing to quarantine."""
        return 0 if queue.message_count else self._end_of(queue)

    def _end_of(self, queue: Queue) -> int:
        return self._node.log_store.log(queue).next_offset

    async def _wait_for_quiet(self) -> None:
        """Wait until no client is connected and everything is durable, so that the logs do not change."""
        deadline_s = time.monotonic() + CLIENTS_TIMEOUT_S
        while self._node.amqp.peers:
            if time.monotonic() > deadline_s:
                raise PreconditionFailed(
                    "clients are still connected; close their connections and do it again"
                )
            await asyncio.sleep(_POLL_S)
        await self._node.commit()

    def _replicated(self, vhost: str) -> list[Queue]:
        queues = self._node.broker.queues.values()
        return [queue for queue in queues if queue.key[0] == vhost and queue.replicated and not queue.damage]

    # -- following --------------------------------------------------------------------------------

    async def _finish(self, begun: Begun) -> list[DivergentReport]:
        """Carry out the rejoin after its state file is written; return the reports of records that came since then.

        Other downstreams of this node keep their messages and definitions: this node ceases to be their upstream
        before anything is deleted.
        """
        node = self._node
        await node.schema_sync.set_mode("none")
        node.collector.resign()
        quarantine = _RejoinQuarantine(node)
        for kept in begun.queues:
            await self._delete(kept, quarantine)
        reports = await quarantine.finish()
        await node.commit()
        # Last, because it declares the queues again.
        await node.standby.set_mode("downstream")
        await node.schema_sync.set_mode("downstream")
        self._state_file.save({})
        node.collector.has_resigned = False
        await node.commit()
        logger.warning("rejoined_as_downstream queues_emptied=%d", len(begun.queues))
        return reports

    async def _delete(self, kept: KeptQueue, quarantine: _RejoinQuarantine) -> None:
        """Delete a queue once all its records are quarantined.

        Records that came since the quarantine are added first, with others served in between, because they may be
        many. Then records that came during that are added, and the queue is deleted, in one step. An unreadable queue
        stays.
        """
        queue = self._flushed(kept)
        if queue is not None and (begin := _begin_of(queue, kept)) < (end := self._end_of(queue)):
            await asyncio.to_thread(quarantine.add, queue, begin, end)
            kept = KeptQueue(kept.vhost, kept.name, queue.epoch, end)
            queue = self._flushed(kept)
        # No await from here on.
        if queue is None:
            return
        quarantine.add(queue, _begin_of(queue, kept), self._end_of(queue))
        self._node.broker.apply(Delete("queues", queue.key))

    def _flushed(self, kept: KeptQueue) -> Queue | None:
        """The queue, with everything appended to its log; None if it is gone, or cannot be read."""
        self._node.engine.flush()
        queue = self._node.broker.queues.get((kept.vhost, kept.name))
        return queue if queue is not None and queue.damage is None else None


def _place_of(queue: Queue) -> tuple[str, str]:
    return queue.key[0], queue.key[1]


def _begin_of(queue: Queue, kept: KeptQueue) -> int:
    """The offset from which on the queue's records are not quarantined."""
    return kept.next_offset if queue.epoch == kept.epoch else 0


class _RejoinQuarantine:
    """The quarantine of the rejoin, and its reports: further records of a queue go to another report."""

    def __init__(self, node: RejoiningNode) -> None:
        upstream, _ = node.standby.upstream
        self._reports: dict[str, DivergentReport] = {}
        self._log_quarantine = Quarantine(
            node.data_dir,
            at_ms=clock_ms(),
            from_epoch=0,
            to_epoch=0,
            node_id=node.config.node_name,
            leader_id="",
            leader_uri=upstream.endpoints[0] if upstream is not None else "",
            name_of=node.queue_of,
        )

    def add(self, queue: Queue, begin: int, end: int) -> None:
        """Quarantine the queue's records from `begin` up to `end`; blocks for the disk.

        Raises:
            StorageError: the disk refused it; the queue must stay.
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
            StorageError: the disk refused it.
        """
        await asyncio.to_thread(self._log_quarantine.finish)
        for report in self._reports:
            logger.warning("divergent_messages_quarantined report=%s see=list_divergent_messages", report)
        return list(self._reports.values())


def _reported(upstream: StandbyUpstreamParameter, reports: list[DivergentReport]) -> dict[str, Any]:
    logs = [log for report in reports for log in report.logs]
    rows: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for log in logs:
        nothing = {"virtual_host": log.vhost, "queue": log.queue, "messages": 0, "settlements_lost": 0}
        row = rows.setdefault((log.vhost, log.queue), nothing)
        row["messages"] += log.messages
        row["settlements_lost"] += log.settlements_lost
    return {
        "upstream_endpoints": upstream.endpoints,
        "report": reports[0].id if reports else "",
        "reports": [report.id for report in reports],
        "messages": sum(log.messages for log in logs),
        "settlements_lost": sum(log.settlements_lost for log in logs),
        "queues": list(rows.values()),
    }
