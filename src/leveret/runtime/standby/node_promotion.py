"""This node's part of a promotion: the end of both links, the recovery, and its progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from leveret.core.replication.standby_site import PromotionAttempt, RecoveredPart
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import StorageError
from leveret.runtime.schema_sync.schema_sync import SchemaSync
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.decisions import StandbyDecided
from leveret.runtime.standby.pipeline_process import (
    Event,
    PipelineFailed,
    PipelineProcess,
    Report,
    ask,
)
from leveret.runtime.standby.progress import PlannedMessages, PromotionProgress, amounts
from leveret.runtime.standby.recovery import Recoveries, RecoveringNode, own_endpoint, spark_settings
from leveret.runtime.standby.transfer import TransferSupervisor
from leveret.storage.staged import StagedDirectory
from leveret.storage.tree import Tree
from leveret.wire.log_name import vhost_of

logger = logging.getLogger(__name__)


class StandbyNode(RecoveringNode, Protocol):
    """The node, as this module uses it."""

    tree: Tree
    schema_sync: SchemaSync


class NodePromotion:
    """See the module.

    Attributes:
        is_shared: whether other nodes recover other parts of the promotion.
    """

    def __init__(
        self,
        node: StandbyNode,
        decided: StandbyDecided,
        archive: StandbyArchive,
        recoveries: Recoveries,
        transfer: TransferSupervisor,
        followed: Callable[[], list[str]],
        drain_timeout_s: float,
    ) -> None:
        """Begin idle; `followed` returns the vhosts that the site follows."""
        self._node = node
        self._decided = decided
        self._archive = archive
        self._recoveries = recoveries
        self._transfer = transfer
        self._followed = followed
        self._drain_timeout_s = drain_timeout_s
        self.is_shared = False
        self._progress: PromotionProgress | None = None
        self._interrupted: list[PlannedMessages] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the promotion goes on; in a cluster it does until a node has failed."""
        attempt = self._decided.promoting
        return self._progress is not None or (self.is_shared and attempt is not None and not attempt.error)

    def shown(self) -> dict[str, Any] | None:
        """Return the unfinished promotion and its progress, with `is_running` false if it was interrupted."""
        attempt, progress = self._decided.promoting, self._progress
        if attempt is None:
            return None
        step = "recovering" if progress is None else progress.step
        return {
            "is_running": self.is_running,
            "begun_ms": attempt.begun_ms,
            "error": attempt.error,
            **({"step": step} if self.is_running else {}),
        }

    def forget(self) -> None:
        """Forget the plans after their deletion."""
        self._interrupted = None

    async def recover(
        self,
        attempt: PromotionAttempt,
        vhosts: Collection[str] | None,
        report: Report,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[RecoveredPart, list[dict[str, Any]] | None]:
        """End both links, and recover these vhosts, or all in the archive, of those that the site follows.

        Args:
            attempt: the promotion.
            vhosts: the vhosts; None for all in the archive.
            report: receives the progress.
            check: may refuse, once no more records come into the archive and before anything is recovered.

        Returns:
            The recovered part, and the counts of the messages that it leaves out.

        Raises:
            PipelineFailed: the recovery did not finish; another attempt continues it.
        """
        progress = self._progress = PromotionProgress()
        self._interrupted = None
        left_out: list[dict[str, Any]] | None = None

        def take(event: Event) -> None:
            nonlocal left_out
            progress.take(event)
            if event.get("event") == "left_out":
                left_out = event["vhosts"]
                self._note_left_out(event["vhosts"])
            report(event)

        try:
            async with self._recoveries.paused("a promotion"):
                return await self._carry_out(attempt, vhosts, take, check), left_out
        finally:
            self._progress = None

    def _note_left_out(self, rows: list[dict[str, Any]]) -> None:
        """Store the counts durably; a full disk does not stop the promotion, because its end stores them again.

        In a cluster they are stored with the part.
        """
        own = self._decided.own
        if self.is_shared or own.promoting is None:
            return
        try:
            self._decided.keep(replace(own, promoting=own.promoting.with_left_out(rows)))
        except StorageError as error:
            logger.warning("standby_promotion_left_out_not_kept error=%s", error)

    async def _carry_out(
        self,
        attempt: PromotionAttempt,
        vhosts: Collection[str] | None,
        report: Report,
        check: Callable[[], Awaitable[None]] | None,
    ) -> RecoveredPart:
        """End both links and recover."""
        endpoint = own_endpoint(self._node, "stream")
        process = await self._transfer.drain(self._drain_timeout_s)
        try:
            if check is not None:
                await check()
            # For good, and before the first message is recovered: a returning upstream would delete definitions made
            # here since then.
            if self._node.schema_sync.mode is OperatingMode.DOWNSTREAM:
                await self._node.schema_sync.set_mode("upstream")
            return await self._recover(attempt, vhosts, endpoint, process, report)
        except PipelineFailed as error:
            reason = str(error)
            if not self.is_shared:
                await self._decided.decide(lambda site: site.failed(reason))
            raise
        finally:
            if process is not None:
                await process.stop()

    async def _recover(
        self,
        attempt: PromotionAttempt,
        vhosts: Collection[str] | None,
        endpoint: str,
        process: PipelineProcess | None,
        report: Report,
    ) -> RecoveredPart:
        """Recover, in the transfer's process if that runs, because Spark runs there already."""
        staged = StagedDirectory(self._node.tree.root, self._node.tree.removed)
        followed = self._followed()
        with self._node.internal_user("recovery") as (username, password), staged.open() as staging:
            job = {
                **self._archive.place,
                "endpoint": endpoint,
                "credentials": {"username": username, "password": password},
                "spark": spark_settings(self._node.config),
                "staging": staging,
                "followed": followed,
                **msgspec.to_builtins(attempt.wanted),
            }
            if vhosts is not None:
                job["vhosts"] = {vhost: vhost for vhost in vhosts}
            done = await ask("recover", job, report, process)
        nothing = {"missing_records": 0, "missing_messages": 0}
        found = ({*map(vhost_of, done["transferred"])} if vhosts is None else {*vhosts}) & {*followed}
        return RecoveredPart(
            vhosts=[] if vhosts is None else sorted(vhosts),
            summary=[{**row, **done["missing"].get(row["virtual_host"], nothing)} for row in done["summary"]],
            transferred={log: end for log, end in done["transferred"].items() if vhost_of(log) in found},
            marks={log: mark for log, mark in done["marks"].items() if vhost_of(log) in found},
            unfollowed=done["unfollowed"],
        )

    async def plans(self) -> list[PlannedMessages]:
        """Return the frozen plans of this node's part of an unfinished promotion.

        Raises:
            PipelineFailed: the plans cannot be read.
        """
        promoting, progress = self._decided.promoting, self._progress
        if progress is not None:
            return progress.plans
        if self._interrupted is None:
            plans = [PlannedMessages.of(row) for row in await self._archive.unfinished_plans()]
            is_the_same = self._decided.promoting is promoting and self._progress is None
            self._interrupted = plans if is_the_same else None
            return plans
        return self._interrupted

    async def amounts(self) -> dict[str, Any]:
        """Return the amounts of messages of an unfinished promotion, a row for each vhost (`progress.amounts`)."""
        error, plans = "", []
        try:
            plans = await self.plans()
        except PipelineFailed as failure:
            error = str(failure)
        found: list[dict[str, Any]] = []
        for rows in amounts(plans, self.recovered):
            found = rows
            await asyncio.sleep(0)
        return {"vhosts": found, "plans_error": error}

    def recovered(self, key: tuple[str, str], reference: str) -> int:
        """Return the number of a plan's messages that a queue has, or had when it was deleted."""
        queue = self._node.broker.queues.get(key)
        there = 0 if queue is None else queue.sequences.logged.get(reference.encode(), 0)
        return max(there, self._decided.deleted_at(key, reference))
