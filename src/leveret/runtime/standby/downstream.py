"""The downstream side of message replication: transfer while the upstream works, promotion when it is lost.

Pipeline processes (`python -m leveret.pipeline`) do the work. This module starts them, reads their lines and ends
them. Run-time decisions of an operator - mode, link off, a promotion begun - are in a state file and override the
configuration, also after a restart.

    downstream, connected --disconnect--> downstream, disconnected
    downstream --promote--> promoting --done--> upstream
    promoting --killed, failed--> promotion interrupted: no transfer starts; promote again continues it

A promotion ends both links, of messages and of definitions: an upstream that returns must not take back the
definitions of a node that applications use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from leveret.config import Config
from leveret.config.sections.tls import TlsOptions
from leveret.core.broker.broker import STANDBY_TAG
from leveret.core.schema.operating_mode import OperatingMode, operating_mode
from leveret.model.definitions import GlobalParameter, Vhost
from leveret.model.errors import InvalidCommand, NotAllowed, PreconditionFailed, StorageError
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.schema_sync.schema_sync import SchemaSync
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.decisions import PromotionAttempt, StandbyDecided
from leveret.runtime.standby.pipeline_process import Event, PipelineFailed, PipelineProcess, ask
from leveret.runtime.standby.progress import PlannedMessages, PromotionProgress, amounts
from leveret.runtime.standby.recovery import (
    EVERYTHING,
    Recoveries,
    RecoveringNode,
    RecoveryRequest,
    own_endpoint,
    reported_rows,
)
from leveret.runtime.standby.transfer import StandbyUpstreamParameter, TransferSupervisor, parse_upstream
from leveret.storage.state_file import StateFile
from leveret.wire.record import downstream_reference

logger = logging.getLogger(__name__)

UPSTREAM_PARAMETER: Final = "standby_replication_upstream"
DRAIN_TIMEOUT_S: Final = 20.0
_LOSS: Final = (
    "virtual_host",
    "state",
    "is_archive_read",
    "lag_records",
    "lag_ms",
    "heard_ago_ms",
    "missing_records",
    "missing_messages",
    "last_timestamp",
    "newest_age_ms",
)
"""The fields about each vhost that are logged before a promotion."""
Progress = Callable[[Event], None]


class StandbyNode(RecoveringNode, Protocol):
    """The node, as this module uses it."""

    data_dir: Path
    schema_sync: SchemaSync


class StandbyDownstream:
    """Follows an upstream's messages, and takes its place."""

    def __init__(
        self, node: StandbyNode, state_file: StateFile, drain_timeout_s: float = DRAIN_TIMEOUT_S
    ) -> None:
        """Read the earlier decisions; start nothing yet.

        Raises:
            StorageError: the state file is damaged.
        """
        self._node = node
        self._drain_timeout_s = drain_timeout_s
        self.decided = StandbyDecided(state_file, OperatingMode(node.config.standby.operating_mode))
        work_dir = node.data_dir / "standby"
        self.archive = StandbyArchive(
            node.config.standby.data_dir or str(work_dir), work_dir, node.config.node_name, self._spark()
        )
        self._transfer = TransferSupervisor(self._job)
        self.recoveries = Recoveries(node, self.archive, self._losses)
        self._lock = asyncio.Lock()
        self._progress: PromotionProgress | None = None
        self._interrupted: list[PlannedMessages] | None = None

    # -- life ---------------------------------------------------------------------------------

    @property
    def mode(self) -> OperatingMode:
        """The node's operating mode."""
        return self.decided.mode

    async def start(self) -> None:
        """Follow, if the mode and the decisions say so."""
        if self.mode is not self.decided.configured:
            logger.info(
                "standby_mode_set_at_run_time mode=%s configured=%s", self.mode, self.decided.configured
            )
        await self.recoveries.clear_up()
        if (
            self.mode is OperatingMode.DOWNSTREAM
            and self.decided.connected
            and self.decided.promoting is None
        ):
            await self._transfer.start()

    async def stop(self) -> None:
        """End the link; the decisions stay."""
        await self.recoveries.give_way()
        await self._transfer.stop()

    # -- the operator's commands --------------------------------------------------------------

    async def connect(self) -> None:
        """Begin to follow; applies across restarts.

        Raises:
            PreconditionFailed: this node is not a downstream, or its promotion has begun.
        """
        async with self._changing("connect"):
            self._check_downstream("connected to an upstream")
            self._check_may_follow()
            self.decided.connected = True
            self.decided.save()
            await self._transfer.start()

    async def disconnect(self) -> None:
        """Stop following; applies across restarts.

        Raises:
            PreconditionFailed: this node is not a downstream.
        """
        async with self._changing("disconnect"):
            self._check_downstream("disconnected from an upstream")
            self.decided.connected = False
            self.decided.save()
            await self._transfer.stop()

    async def set_mode(self, mode: str) -> None:
        """Become an `upstream` or a `downstream`, or neither; applies across restarts.

        Raises:
            InvalidCommand: there is no such mode.
            PreconditionFailed: its promotion has begun, so that it cannot be a downstream.
        """
        wanted = operating_mode(mode)
        if wanted is OperatingMode.DOWNSTREAM:
            refuse_member(self._node.config)
        async with self._changing("set the mode"):
            if wanted is OperatingMode.DOWNSTREAM:
                self._check_may_follow()
                self.decided.connected = True
            await self._transfer.stop()
            self.decided.mode_at_run_time = wanted
            self.decided.save()
            logger.info("standby_mode_decided mode=%s", wanted)
            await self.start()

    async def promote(
        self, wanted: RecoveryRequest = EVERYTHING, on_progress: Progress | None = None
    ) -> list[dict[str, Any]]:
        """Take the upstream's place: publish its unsettled messages, and become an upstream.

        Returns:
            A row a vhost: first_timestamp, last_timestamp (text, UTC), message_count, virtual_host, queues.

        Raises:
            PreconditionFailed: this node is not a downstream and never was promoted; or it has no listener for the
                recovery.
            InvalidCommand: a named vhost or queue does not exist.
            PipelineFailed: the recovery did not finish; another promotion goes on from there.
        """
        async with self._changing("promote"):
            if not self.decided.promotions and self.decided.promoting is None:
                self._check_downstream("promoted")
            endpoint = own_endpoint(self._node, "stream")
            await self.recoveries.check_wanted(wanted)
            promotion = PromotionAttempt(begun_ms=clock_ms(), wanted=wanted)
            self.decided.promoting = promotion
            self.decided.save()
            logger.info("standby_promotion_begun data_dir=%s", self.archive.place["data_dir"])
            progress = self._progress = PromotionProgress()
            self._interrupted = None

            def report(event: Event) -> None:
                progress.take(event)
                if event.get("event") == "left_out":
                    self._note_left_out(promotion, event["vhosts"])
                (on_progress or _ignore)(event)

            try:
                async with self.recoveries.paused("a promotion"):
                    await self._carry_out(promotion, endpoint, report)
            finally:
                self._progress = None
            self._finish(promotion)
            return reported_rows(promotion.summary)

    async def delete_all_data(self) -> None:
        """Delete the transferred data; a running link starts again with everything that the upstream has."""
        async with self._changing("delete the data"):
            follows = self._transfer.runs
            await self._transfer.stop()
            self._transfer.forget()
            async with self.recoveries.paused("the deletion of all data"):
                await self.archive.delete_all()
            self._give_up_promotion()
            if follows:
                await self.start()

    async def keep_former_archive(self) -> None:
        """Move the data of an earlier time out of the way, before another upstream's come."""
        async with self._changing("keep the previous data"):
            await self._transfer.stop()
            self._transfer.forget()
            async with self.recoveries.paused("the return as a downstream"):
                await self.archive.keep_former(clock_ms())
            self._give_up_promotion()

    async def delete_orphaned_data(self) -> list[dict[str, Any]]:
        """Delete the transferred data of vhosts that this node would not recover: gone, untagged, or made anew.

        Returns:
            A row a vhost: vhost, bytes.

        Raises:
            PreconditionFailed: a promotion has begun; or none was found while the upstream is silent, which alone knows
                whether a vhost was made anew.
            NotAllowed: a recovery reads the data.
        """
        async with self._changing("delete orphaned data"):
            if self.decided.promoting is not None:
                raise PreconditionFailed(
                    "the promotion of this node has begun and may need the data: promote it again to finish"
                )
            orphans = await self.archive.orphans(self._vhosts())
            if not orphans:
                self._check_heard()
                return []
            self.recoveries.check_idle()
            follows = self._transfer.runs
            await self._transfer.stop()
            self._transfer.forget(orphans)
            try:
                rows = await self.archive.forget(orphans)
            finally:
                if follows:
                    await self.start()
            for row in rows:
                logger.info("standby_orphan_deleted vhost=%s octets=%d", row["vhost"], row["bytes"])
            return rows

    # -- looking ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Mode, state, endpoints, and a row a vhost, without a process."""
        promoting = self.decided.promoting
        upstream, error = self.upstream
        state = "running" if self.mode is OperatingMode.UPSTREAM else "disconnected"
        if promoting is not None:
            state = "promotion interrupted" if self._progress is None else "promoting"
            error = promoting.error or error
        elif self._transfer.runs:
            state = self._transfer.state
        return {
            "node": self._node.config.node_name,
            "operating_mode": self.mode,
            "operating_mode_source": "run time" if self.decided.mode_at_run_time else "configuration",
            "state": state,
            "upstream_endpoints": upstream.endpoints if upstream else [],
            "upstream_username": upstream.username if upstream else "",
            "downstream": self._reference
            if self.mode is OperatingMode.DOWNSTREAM and self.decided.downstream_id
            else "",
            "error": self._transfer.error or error if self.mode is OperatingMode.DOWNSTREAM else "",
            "archive_bytes": self._transfer.archive_bytes(),
            "lag_p50_ms": self._transfer.lag_ms(0.5),
            "lag_p99_ms": self._transfer.lag_ms(0.99),
            "promotion": self._promotion(),
            "left_out": self.decided.left_out(),
            "vhosts": self._transfer.rows(self._vhosts()) if self.mode is OperatingMode.DOWNSTREAM else [],
        }

    def _promotion(self) -> dict[str, Any] | None:
        """The unfinished promotion and its progress; `is_running` unless it was interrupted."""
        promoting, progress = self.decided.promoting, self._progress
        if promoting is None:
            return None
        reported = {} if progress is None else {"step": progress.step}
        return {
            "is_running": progress is not None,
            "begun_ms": promoting.begun_ms,
            "error": promoting.error,
            **reported,
        }

    async def details(self) -> dict[str, Any]:
        """The status with, for an unfinished promotion, a row a vhost of the messages to recover (`amounts`)."""
        status = self.status()
        if status["promotion"] is not None:
            status["promotion"] |= await self._amounts()
        return status

    async def _amounts(self) -> dict[str, Any]:
        promoting, progress, error = self.decided.promoting, self._progress, ""
        plans = self._interrupted or [] if progress is None else progress.plans
        if progress is None and self._interrupted is None:
            try:
                plans = [PlannedMessages.of(row) for row in await self.archive.unfinished_plans()]
            except PipelineFailed as failure:
                error = str(failure)
            else:
                is_the_same = self.decided.promoting is promoting and self._progress is None
                self._interrupted = plans if is_the_same else None
        found: list[dict[str, Any]] = []
        for rows in amounts(plans, self._recovered):
            found = rows
            await asyncio.sleep(0)
        return {"vhosts": found, "plans_error": error}

    def _recovered(self, key: tuple[str, str], reference: str) -> int:
        """The number of a plan's messages that a queue has, or had when it was deleted."""
        queue = self._node.broker.queues.get(key)
        there = 0 if queue is None else queue.sequences.logged.get(reference.encode(), 0)
        return max(there, self.decided.deleted_at(key, reference))

    def promotion_summary(self) -> list[dict[str, Any]]:
        """The results of promotions, oldest first; rows as `promote` returns them."""
        return self.decided.promotion_summary()

    # -- inside -------------------------------------------------------------------------------

    def _note_left_out(self, promotion: PromotionAttempt, rows: list[dict[str, Any]]) -> None:
        """Store the count durably; a full disk does not stop the promotion, whose end is stored again."""
        promotion.left_out = rows
        try:
            self.decided.save()
        except StorageError as error:
            logger.warning("standby_promotion_left_out_not_kept error=%s", error)

    async def _carry_out(self, promotion: PromotionAttempt, endpoint: str, report: Progress) -> None:
        """End both links and recover."""
        process = await self._transfer.drain(self._drain_timeout_s)
        try:
            # For good, and before any message is recovered: a returning upstream would delete definitions made here
            # since then.
            if self._node.schema_sync.mode is OperatingMode.DOWNSTREAM:
                await self._node.schema_sync.set_mode("upstream")
            await self._recover(promotion, endpoint, process, report)
        except PipelineFailed as error:
            promotion.error = str(error)
            self.decided.save()
            raise
        finally:
            if process is not None:
                await process.stop()

    async def _recover(
        self, promotion: PromotionAttempt, endpoint: str, process: PipelineProcess | None, report: Progress
    ) -> None:
        """Recover, in the transfer's process if it is there, because it has Spark running."""
        with self._node.internal_user("recovery") as (username, password):
            job = {
                **self.archive.place,
                "endpoint": endpoint,
                "credentials": {"username": username, "password": password},
                "spark": self._spark(),
                **msgspec.to_builtins(promotion.wanted),
            }
            done = await ask("recover", job, report, process)
        missing = await self.archive.missing()
        promotion.transferred, promotion.marks = done["transferred"], done["marks"]
        nothing = {"missing_records": 0, "missing_messages": 0}
        promotion.summary = [{**row, **missing.get(row["virtual_host"], nothing)} for row in done["summary"]]

    def _finish(self, promotion: PromotionAttempt) -> None:
        promotion.done_ms = clock_ms()
        for queue in self._node.broker.queues.values():
            # Applications come only now: no queue may expire before they had time to use it.
            queue.touch()
        self.decided.finish(promotion)
        logger.info("standby_mode_decided mode=upstream")
        for row in reported_rows(promotion.summary):
            logger.info(
                "standby_promotion_done vhost=%s recovered=%d from=%s to=%s",
                row["virtual_host"],
                row["message_count"],
                row["first_timestamp"],
                row["last_timestamp"],
            )
            if row["unreadable_records"]:
                logger.error(
                    "standby_promotion_lacks vhost=%s records=%d reason=damaged_files",
                    row["virtual_host"],
                    row["unreadable_records"],
                )
            missing = row.get("missing_records", 0), row.get("missing_messages", 0)
            if any(missing):
                logger.warning(
                    "standby_promotion_lacks vhost=%s records=%d messages=%d "
                    "reason=retained_too_short_by_the_upstream",
                    row["virtual_host"],
                    *missing,
                )

    def _job(self) -> tuple[dict[str, Any] | None, str]:
        """The job of the transfer process, or the reason why there is none."""
        upstream, error = self.upstream
        vhosts = self._vhosts()
        if upstream is None:
            return None, error
        if not vhosts:
            why = self._node.schema_sync.why_nothing_came
            cause = f": none of the upstream's definitions have come yet ({why})" if why else ""
            return None, f"no vhost is tagged {STANDBY_TAG}{cause}"
        try:
            self.decided.identify()
        except StorageError as failure:
            return None, str(failure)
        return {
            **self.archive.place,
            "reference": self._reference,
            **self.link_job(upstream),
            "vhosts": vhosts,
            "retain_bytes_max": self._node.config.standby.retention_bytes_max,
            "retain_ms_max": self._node.config.standby.retention_ms_max,
            "spark": self._spark(),
        }, ""

    @property
    def _reference(self) -> str:
        """The name of this downstream at its upstream."""
        return downstream_reference(self._node.config.cluster_name, self.decided.downstream_id)

    def _check_heard(self) -> None:
        rows = self._transfer.rows(self._vhosts()) if self._transfer.runs else []
        for row in rows:
            if row["transferred"] and row["heard_ago_ms"] is None:
                cause = f" ({row['error']})" if row["error"] else ""
                raise PreconditionFailed(
                    f"vhost '{row['virtual_host']}': the upstream was not heard yet{cause}, so it is not known whether "
                    "the data here is its own; repeat the command when standby_replication_status shows news of it"
                )

    def link_job(self, upstream: StandbyUpstreamParameter) -> dict[str, Any]:
        """A pipeline process's fields for its link to the upstream."""
        return {
            "endpoints": upstream.endpoints,
            "credentials": {"username": upstream.username, "password": upstream.password},
            "tls": _tls_of(self._node.config.standby.tls),
        }

    def _spark(self) -> dict[str, Any]:
        spark = self._node.config.spark
        return {"master": spark.master, "conf": dict(spark.conf), "python": spark.python}

    @property
    def upstream(self) -> tuple[StandbyUpstreamParameter | None, str]:
        """The upstream to follow, or the reason why there is none."""
        entity = self._node.broker.definitions.by_kind["global_parameters"].get((UPSTREAM_PARAMETER,))
        if not isinstance(entity, GlobalParameter):
            return None, "no upstream: set its endpoints with set_standby_replication_upstream_endpoints"
        try:
            return parse_upstream(entity.value), ""
        except InvalidCommand as error:
            return None, str(error)

    def _vhosts(self) -> list[str]:
        vhosts = self._node.broker.definitions.by_kind["vhosts"].values()
        return sorted(each.name for each in vhosts if isinstance(each, Vhost) and STANDBY_TAG in each.tags)

    async def _losses(self) -> list[dict[str, Any]]:
        """A row a vhost: the known records of the upstream, present or past, that were not transferred.

        Records that its retention dropped are known from the transferred ones, also while the upstream is silent.

        None once this node is an upstream itself, which has no lag.
        """
        if self.mode is not OperatingMode.DOWNSTREAM:
            return []
        missing = await self.archive.missing()
        rows = [row | missing.get(row["virtual_host"], {}) for row in self._transfer.rows(self._vhosts())]
        return [
            {name: row[name] for name in _LOSS}
            | {"is_upstream_known": self._transfer.has_heard(row["virtual_host"])}
            for row in rows
        ]

    def _check_may_follow(self) -> None:
        if self.decided.promoting is not None:
            raise PreconditionFailed(
                "the promotion of this node has begun: it cannot follow any more; promote it again to "
                "finish, or give that up with delete_all_data_on_standby_replication_cluster"
            )

    def _give_up_promotion(self) -> None:
        """Forget an unfinished promotion whose plans are gone; otherwise the next one would carry them out first."""
        self._interrupted = None
        self.decided.end_promoting(is_partial=False)

    def _check_downstream(self, what: str) -> None:
        if self.mode is not OperatingMode.DOWNSTREAM:
            raise PreconditionFailed(
                f"this node is not a downstream (operating mode: {self.mode}), so it cannot be {what}; see "
                "standby.replication.operating_mode"
            )

    def _changing(self, what: str) -> _Alone:
        return _Alone(self._lock, what)


class _Alone:
    """Runs one operator's command at a time; a second one is refused, not queued."""

    def __init__(self, lock: asyncio.Lock, what: str) -> None:
        self._lock = lock
        self._what = what

    async def __aenter__(self) -> None:
        if self._lock.locked():
            raise NotAllowed(f"cannot {self._what} now: another command, perhaps a promotion, is under way")
        await self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


def _tls_of(options: TlsOptions) -> dict[str, Any] | None:
    """The TLS fields for the pipeline's links; None without TLS."""
    if options == TlsOptions():
        return None
    return {
        "verify": options.verify == "verify_peer",
        "cacertfile": str(options.cacertfile or ""),
        "certfile": str(options.certfile or ""),
        "keyfile": str(options.keyfile or ""),
        "password": options.password or "",
        "versions": list(options.versions),
        "ciphers": list(options.ciphers),
    }


def _ignore(event: Event) -> None:
    """Do nothing."""


def refuse_member(config: Config) -> None:
    """Refuse a node of a cluster: each node would recover only into the queues that it leads.

    Raises:
        PreconditionFailed: this node is in a cluster.
    """
    if config.cluster.is_member:
        raise PreconditionFailed("a node of a cluster cannot be a standby: only a node alone can")
