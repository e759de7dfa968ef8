"""An upstream that lost its place comes back as a standby of the node that took it, and is not wiped.

What it holds that the new upstream never saw is reported and kept: the tails of its queues' logs are quarantined
as those of a follower that had gone its own way are (storage.quarantine), and `list_divergent_messages` shows them.
All before that is the new upstream's by now, and is served there. So the replicated queues are deleted here, and
the schema sync makes them anew, empty; whatever is not replicated stays. A queue that the new upstream does not know,
made here when it was one already, the schema sync deletes, replicated or not: it is quarantined before.

    clients sent away -> tails quarantined, durably -> previous archive put away -> rejoin.json -> queues deleted
    -> both modes downstream -> rejoin.json emptied -> clients let in, both links

Between rejoin.json and the deletion it ceases to be an upstream for other downstreams of its own: its definitions are
served no more, its outgoing logs are gone, and what comes after them is another log. So nobody learns of the emptying.

Where it is not known what the new upstream has of a vhost, all that its queues hold is quarantined: too much is safe.

A node that fails or is killed on the way is an upstream as before if nothing is in rejoin.json. Else there is no way
but forward: it goes on before it lets anybody in when it starts, and tries again until it is done. Messages may come
to a queue as long as there is one, those that die in another one for instance; so rejoin.json says up to where each
was quarantined, and what came since follows in the very moment in which the queue is deleted.
An archive of its own from an earlier time as a standby is kept too, under another name.
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
from leveret.runtime.standby.downstream import StandbyDownstream, refuse_member
from leveret.runtime.standby.pipeline_process import ask
from leveret.runtime.standby.transfer import StandbyUpstreamParameter
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

STATE_FILE: Final = "rejoin.json"
CLIENTS_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 5.0
"""After which it is tried again to end what was begun."""
_POLL_S: Final = 0.05
_HOLDING: Final = ("queues", "vhosts")
"""Kinds of definitions that messages go with."""

_FAILURES: Final = (LeveretError, OSError)

Place: TypeAlias = tuple[str, ...]
"""A queue, or a vhost, by its key."""


class KeptQueue(msgspec.Struct, array_like=True):
    """A queue that is to be deleted: all that the new upstream lacks of it before `next_offset` is quarantined.

    With another epoch it is another queue, of which nothing is.
    """

    vhost: str
    name: str
    epoch: int = 0
    next_offset: int = 0


class Begun(msgspec.Struct, kw_only=True):
    """The state file."""

    queues: list[KeptQueue] = []


class RejoiningNode(Protocol):
    """What is needed of the node (runtime.node.node), which is a floor above this."""

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
    """How much of an outgoing log a new upstream has: up to `position`; the mark of the chunk before, if known."""

    position: int
    mark: int | None


class Rejoin:
    """One node's way back."""

    def __init__(self, node: RejoiningNode, state_file: StateFile) -> None:
        """Read nothing yet."""
        self._node = node
        self._state_file = state_file
        self._lock = asyncio.Lock()
        self._retrying: asyncio.Task[None] | None = None

    async def rejoin(self, *, set_all_aside: bool = False) -> dict[str, Any]:
        """Come back as a downstream.

        Args:
            set_all_aside: follow also a node that was no standby of this one, as one that took the place of the node
                that took this one's: nobody can tell what it has, so all that is replicated is quarantined.

        Returns:
            upstream_endpoints, report (its id, empty if there was nothing to keep), reports (all of them: of what came
            while it was under way is another one), messages, settlements_lost, queues: a row each: virtual_host,
            queue, messages, settlements_lost.

        Raises:
            PreconditionFailed: this node is no upstream, knows no new one, or that was no standby of this node.
            PipelineFailed: the new upstream cannot be asked, or a previous archive cannot be put away.
            StorageError: what it never saw cannot be kept; this node is an upstream as before, or says that it goes on.
        """
        if self._lock.locked():
            raise PreconditionFailed("this node is coming back already")
        async with self._lock:
            if self._is_begun():
                raise PreconditionFailed(
                    f"this node is coming back already, and tries to get on every {RETRY_S:g} s: see rejoin_failed in "
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
        # While this node still can stay what it is.
        await self._node.standby.keep_former_archive()
        self._state_file.save(msgspec.to_builtins(begun))
        try:
            return reports + await self._finish(begun)
        except _FAILURES as error:
            logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S)
            raise StorageError(
                f"coming back has begun and is not done: {error}; it is tried again every {RETRY_S:g} s, and no "
                "client is let in before"
            ) from error

    async def resume(self) -> None:
        """At start, before anybody is let in: finish what was begun.

        Should that fail, nobody is until it is done: it is tried again beside all else.
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
        """Try no more; the next start does."""
        retrying, self._retrying = self._retrying, None
        if retrying is not None:
            retrying.cancel()
            with suppress(asyncio.CancelledError):
                await retrying

    # -- what was begun ---------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether there is no way but forward, as far as can be told: nothing is to be collected any more."""
        try:
            return self._load() is not None
        except StorageError:
            # Without the file, which an operator may remove, this node is an upstream as before.
            return False

    def _is_begun(self) -> bool:
        """Whether the state file says so, or nobody can tell."""
        try:
            return bool(self._state_file.load())
        except StorageError:
            return True

    async def _go_on(self) -> None:
        begun = self._load()
        if begun is not None:
            await self._finish(begun)

    def _load(self) -> Begun | None:
        """What was begun, if anything was.

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
        """Until it is done and clients are let in."""
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
        refuse_member(self._node.config)
        if standby.mode is OperatingMode.DOWNSTREAM:
            raise PreconditionFailed("this node is a downstream already: it follows whom its endpoints name")
        upstream, why_not = standby.upstream
        if upstream is None:
            raise PreconditionFailed(why_not)
        if (SCHEMA_PARAMETER,) not in self._node.broker.definitions.by_kind["global_parameters"]:
            raise PreconditionFailed(
                "whom to follow is not known: name the new upstream's AMQP port with "
                "set_schema_replication_upstream_endpoints first"
            )
        return upstream

    async def _check_definitions(self) -> set[Place]:
        """See that the schema sync will bring the queues back; the queues and vhosts that it will delete."""
        try:
            rows = await self._node.schema_sync.diff()
        except Refusal as error:
            raise PreconditionFailed(
                f"the new upstream does not serve its definitions: {error}; nothing was changed. An upstream is set up "
                "with add_schema_replication_user, a promoted one too"
            ) from error
        return {tuple(row["key"]) for row in rows if row["action"] == "delete" and row["kind"] in _HOLDING}

    async def _ask_positions(
        self, upstream: StandbyUpstreamParameter, *, set_all_aside: bool
    ) -> dict[str, Seen]:
        """By vhost, how much of our outgoing log the new upstream has; 0 if it, or nobody, can tell."""
        logs = {vhost: log.log_id for vhost, log in self._node.collector.logs.items()}
        job = {**self._node.standby.link_job(upstream), "logs": logs}
        answer = await ask("positions", job)
        found = answer["positions"]
        # Where nothing is held nothing can be lost, whoever is followed: nobody needs to know that vhost.
        unknown = sorted(vhost for vhost in logs if found.get(vhost) is None and self._holds_any(vhost))
        if unknown and not set_all_aside:
            raise PreconditionFailed(
                f"the node at {', '.join(upstream.endpoints)} never took the place of this one in vhost "
                f"'{unknown[0]}': it was no standby of this node, or has not been promoted; nothing was changed. Where "
                "it took the place of a node that took this one's, --set-all-aside follows it, and keeps all that the "
                "replicated queues hold here"
            )
        return {vhost: Seen(found.get(vhost) or 0, answer["marks"].get(vhost)) for vhost in logs}

    def _holds_any(self, vhost: str) -> bool:
        """Whether there are messages in the replicated queues of a vhost, as far as can be told."""
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
        """Keep what the new upstream never saw, durably; up to where of which queues that is."""
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
        """The same as `_begins` of what is not replicated, and is deleted because the new upstream does not have it."""
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
        """From where on the new upstream, which has so much of a log, lacks the queues that are in it.

        It may have had that from another writer, where this node was a follower that had not all of it: then it is not
        known what it has of what this node wrote in its place.

        Nothing is awaited between looking at the log and at how far it has each queue: what is collected meanwhile
        would be in neither.
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
        """From where on it is quarantined if nobody has any of it: a queue that holds nothing has nothing to keep."""
        return 0 if queue.message_count else self._end_of(queue)

    def _end_of(self, queue: Queue) -> int:
        return self._node.log_store.log(queue).next_offset

    async def _wait_for_quiet(self) -> None:
        """Until nobody is connected and all is durable: the logs do not change any more."""
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
        """From the state file on; the reports of what came since.

        Other downstreams of this node keep what they have, messages and definitions: before anything is deleted it is
        no upstream for them any more.
        """
        node = self._node
        await node.schema_sync.set_mode("none")
        node.collector.resign()
        quarantine = _RejoinQuarantine(node)
        for kept in begun.queues:
            await self._delete(kept, quarantine)
        reports = await quarantine.finish()
        await node.commit()
        # Last, for it declares them again.
        await node.standby.set_mode("downstream")
        await node.schema_sync.set_mode("downstream")
        self._state_file.save({})
        node.collector.has_resigned = False
        await node.commit()
        logger.warning("rejoined_as_downstream queues_emptied=%d", len(begun.queues))
        return reports

    async def _delete(self, kept: KeptQueue, quarantine: _RejoinQuarantine) -> None:
        """Delete a queue, and nothing of it that is not set aside.

        What came since it was is quarantined first, without stopping the others, for it may be much; then what came
        during that, and with it in one go the queue is deleted. One that cannot be read stays.
        """
        queue = self._flushed(kept)
        if queue is not None and (begin := _begin_of(queue, kept)) < (end := self._end_of(queue)):
            await asyncio.to_thread(quarantine.add, queue, begin, end)
            kept = KeptQueue(kept.vhost, kept.name, queue.epoch, end)
            queue = self._flushed(kept)
        # Nothing is awaited from here on.
        if queue is None:
            return
        quarantine.add(queue, _begin_of(queue, kept), self._end_of(queue))
        self._node.broker.apply(Delete("queues", queue.key))

    def _flushed(self, kept: KeptQueue) -> Queue | None:
        """The queue, whose log has all that came so far; None if it is gone, or cannot be read."""
        self._node.engine.flush()
        queue = self._node.broker.queues.get((kept.vhost, kept.name))
        return queue if queue is not None and queue.damage is None else None


def _place_of(queue: Queue) -> tuple[str, str]:
    return queue.key[0], queue.key[1]


def _begin_of(queue: Queue, kept: KeptQueue) -> int:
    """From where on nothing of the queue is quarantined."""
    return kept.next_offset if queue.epoch == kept.epoch else 0


class _RejoinQuarantine:
    """What is being quarantined, and in which reports: more of a queue of which there is something goes to another."""

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
        """What the queue's log holds from `begin` up to before `end`; blocks for the disk.

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
        """The reports, which are told of.

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
