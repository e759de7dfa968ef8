"""The rejoin of a replaced upstream: it follows the promoted node, and quarantines the records that only it has.

The new upstream never had the tails of some queues' logs. The rejoin quarantines them as those of a divergent follower
(storage.quarantine), and `list_divergent_messages` shows them. The new upstream has all earlier records and serves
them. So the rejoin empties the replicated queues here: each begins anew, with its definition and its bindings; other
queues stay. The schema sync deletes queues that the new upstream does not have, replicated or not: the rejoin
quarantines their records first.

    clients drained -> tails quarantined, durably -> rejoin.json prepared -> previous archive moved -> rejoin.json in
    place -> queues emptied -> both modes downstream -> rejoin.json emptied -> clients admitted, both links

Before the first queue is emptied, the node ceases to be an upstream of its own downstreams: it serves no
definitions, its outgoing logs are gone, and later ones have another identity. So no downstream learns of it.

If the new upstream's position in a vhost is unknown, all messages of its queues are quarantined: too many are safe.

After a failure or a kill, the node is still an upstream if rejoin.json is empty. Otherwise the rejoin cannot be undone:
a start continues it before clients are admitted, and retries until it is done. A queue may receive messages until it is
emptied, such as dead letters of another queue. So rejoin.json has the offset up to which each queue was quarantined,
and later records follow in the same step as the emptying. An archive from the node's own earlier time as a standby is
kept too, under another name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from typing import Any, Final

import msgspec

from leveret.core.queues.queue import Queue
from leveret.core.replication.standby_site import KeptQueue
from leveret.model.errors import PreconditionFailed, StorageError
from leveret.runtime.clients.maintenance import DrainCause
from leveret.runtime.process.unwanted_tasks import end_task
from leveret.runtime.standby.pipeline_process import ask
from leveret.runtime.standby.returning_node import (
    FAILURES,
    LOOKS_MAX,
    RETRY_S,
    Place,
    RejoiningNode,
    ReturnCommand,
    ReturningNode,
    UpstreamPosition,
    rows_of,
)
from leveret.runtime.standby.transfer import StandbyUpstreamParameter
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

STATE_FILE: Final = "rejoin.json"


class RejoinState(msgspec.Struct, kw_only=True):
    """The content of the state file."""

    queues: list[KeptQueue] = []


class Rejoin:
    """The rejoin of one node."""

    def __init__(self, node: RejoiningNode, state_file: StateFile) -> None:
        """Begin without reading the state file."""
        self._node = node
        self._here = ReturningNode(node)
        self._state_file = state_file
        self._command = ReturnCommand()
        self._retrying: asyncio.Task[None] | None = None

    async def rejoin(self, *, set_all_aside: bool = False) -> dict[str, Any]:
        """Become a downstream of the new upstream.

        Args:
            set_all_aside: follow even a node that was no standby of this one, such as the successor of this node's
                successor. Its position is unknown, so all replicated queues are quarantined.

        Returns:
            upstream_endpoints; report (the id of the first, empty without quarantined records); reports (all ids:
            records that came meanwhile have another one); messages; settlements_lost; queues (a row for each:
            virtual_host, queue, messages, settlements_lost).

        Raises:
            PreconditionFailed: this node is no upstream, has no endpoint of the new one, or the new one was no standby
                of this node.
            PipelineFailed: the new upstream does not answer, or a previous archive cannot be moved.
            StorageError: records cannot be quarantined; this node is still an upstream, or the text says that it
                retries.
        """
        if self._command.lock.locked():
            raise PreconditionFailed("this node is coming back already")
        async with self._command.running():
            if self._is_begun():
                raise PreconditionFailed(
                    f"this node is coming back already, and retries every {RETRY_S:g} s: rejoin_failed in its log "
                    "has the reason of the last failure"
                )
            upstream = self._here.check()
            positions = await self._ask_positions(upstream, set_all_aside=set_all_aside)
            unknown = await self._here.check_definitions()
            await self._node.maintenance.drain(cause=DrainCause.REJOIN)
            try:
                reports = await self._come_back(positions, unknown)
            finally:
                if not self._command.over.is_set():
                    await self._retry_or_admit()
            return _reported(upstream, reports)

    async def _come_back(
        self, positions: dict[str, UpstreamPosition], unknown: Container[Place]
    ) -> list[DivergentReport]:
        begun, reports = await self._quarantine(positions, unknown)
        # A disk that refuses the state file leaves the archive from the node's time as a standby where it is, and one
        # that cannot be moved leaves the node an upstream.
        with self._state_file.prepared(msgspec.to_builtins(begun)) as record:
            await self._node.standby.keep_former_archive()
            record()
        try:
            return reports + await self._finish(begun)
        except FAILURES as error:
            logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S)
            raise StorageError(
                f"the rejoin has begun and is not finished: {error}; it is tried again every {RETRY_S:g} s, and no "
                "client is admitted before"
            ) from error

    async def resume(self) -> None:
        """Finish an interrupted rejoin, at the node's start, before clients are admitted.

        If this fails, no client is admitted until a retry succeeds.
        """
        if not self._is_begun():
            return
        logger.warning("rejoin_resumed")
        try:
            await self._go_on()
        except FAILURES as error:
            logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S)
            await self._node.maintenance.drain(cause=DrainCause.REJOIN)
            self._retry_later()

    async def stop(self) -> None:
        """End the command and the retries; the next start continues a rejoin that cannot be undone any more."""
        self._command.over.set()
        retrying, self._retrying = self._retrying, None
        await end_task(retrying)
        await self._command.end()

    # -- the state file ---------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether a rejoin cannot be undone any more; while it cannot, no record is collected."""
        try:
            return self._load() is not None
        except StorageError:
            # An operator may remove the file; without it, this node is still an upstream.
            return False

    def _is_begun(self) -> bool:
        """Return whether the state file has a rejoin, or cannot be read."""
        try:
            return bool(self._state_file.load())
        except StorageError:
            return True

    async def _go_on(self) -> None:
        begun = self._load()
        if begun is not None:
            await self._finish(begun)

    def _load(self) -> RejoinState | None:
        """Return the interrupted rejoin; None if there is none.

        Raises:
            StorageError: the state file cannot be read.
        """
        found = self._state_file.load("otherwise remove it, to be an upstream as before")
        try:
            return msgspec.convert(found, RejoinState) if found else None
        except msgspec.ValidationError as error:
            raise StorageError(
                f"{self._state_file.path}: {error}; repair the file, or remove it to be an upstream as before"
            ) from None

    async def _retry_or_admit(self) -> None:
        if self._is_begun():
            self._retry_later()
        else:
            await self._admit()

    def _retry_later(self) -> None:
        if self._retrying is None:
            self._retrying = asyncio.create_task(self._retry(), name="rejoin")

    async def _retry(self) -> None:
        """Retry until the rejoin is done and clients are admitted."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                async with self._command.lock:
                    await self._go_on()
                    await self._admit()
            except Exception as error:
                # Any error: no client is admitted before it is done.
                is_bug = not isinstance(error, FAILURES)
                logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S, exc_info=is_bug)
            else:
                self._retrying = None
                return

    async def _admit(self) -> None:
        """Admit clients; a node that an operator has drained, before or meanwhile, stays in maintenance."""
        await self._node.maintenance.revive(cause=DrainCause.REJOIN)

    # -- before any change ------------------------------------------------------------------------

    async def _ask_positions(
        self, upstream: StandbyUpstreamParameter, *, set_all_aside: bool
    ) -> dict[str, UpstreamPosition]:
        """Return the new upstream's position in each of this node's outgoing logs, by vhost; 0 if it is unknown."""
        logs = self._here.logs()
        job = {**self._node.standby.link_job(upstream), "logs": logs}
        answer = await ask("positions", job)
        found = answer["positions"]
        # An empty vhost has no message to lose, so its position need not be known.
        unknown = sorted(vhost for vhost in logs if found.get(vhost) is None and self._here.holds_any(vhost))
        if unknown and not set_all_aside:
            raise PreconditionFailed(
                f"the node at {', '.join(upstream.endpoints)} never took the place of this one in vhost "
                f"'{unknown[0]}': it was no standby of this node, or has not been promoted; nothing was changed. Where "
                "it took the place of a node that took this one's, --set-all-aside follows it, and keeps all that the "
                "replicated queues hold here"
            )
        return {vhost: UpstreamPosition(found.get(vhost) or 0, answer["marks"].get(vhost)) for vhost in logs}

    # -- keeping ----------------------------------------------------------------------------------

    async def _quarantine(
        self, positions: dict[str, UpstreamPosition], unknown: Container[Place]
    ) -> tuple[RejoinState, list[DivergentReport]]:
        """Quarantine, durably, the records that the new upstream lacks; return each queue with its quarantined end."""
        await self._here.wait_for_quiet()
        begins = self._here.begins_of_unknown(unknown)
        for vhost, seen in positions.items():
            if vhost in self._node.collector.logs:
                begins |= await self._begins(vhost, seen)
        kept, reports = await self._here.quarantine(begins)
        return RejoinState(queues=kept), reports

    async def _begins(self, vhost: str, seen: UpstreamPosition) -> dict[Queue, int]:
        """Return each queue's first offset that the new upstream lacks; if that is unknown, the queue's begin."""
        found = await self._here.begins(vhost, seen)
        if found is None:
            logger.warning("rejoin_quarantines_all vhost=%s position=%d", vhost, seen.position)
            return self._here.begins_of_all(vhost)
        return found

    # -- following --------------------------------------------------------------------------------

    async def _finish(self, begun: RejoinState) -> list[DivergentReport]:
        """Carry out the rejoin once its state file is written; return the reports of records that came since then.

        Other downstreams of this node keep their messages and definitions: this node ceases to be their upstream
        before the first queue is emptied.
        """
        node = self._node
        await node.schema_sync.set_mode("none")
        node.collector.resign()
        reports: list[DivergentReport] = []
        for _ in range(LOOKS_MAX):
            before = self._here.epochs(begun.queues)
            reports += await self._here.empty(begun.queues)
            if self._here.epochs(begun.queues) == before:
                break
        # Last, because from now on the new upstream's definitions hold.
        await node.standby.return_as_downstream()
        await node.schema_sync.set_mode("downstream")
        self._state_file.save({})
        node.collector.has_resigned = False
        await node.commit()
        logger.warning("rejoined_as_downstream queues_emptied=%d", len(begun.queues))
        return reports


def _reported(upstream: StandbyUpstreamParameter, reports: list[DivergentReport]) -> dict[str, Any]:
    rows = rows_of(reports)
    return {
        "upstream_endpoints": upstream.endpoints,
        "report": reports[0].id if reports else "",
        "reports": [report.id for report in reports],
        "messages": sum(row["messages"] for row in rows),
        "settlements_lost": sum(row["settlements_lost"] for row in rows),
        "queues": rows,
    }
