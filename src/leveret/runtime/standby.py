"""The downstream side of message replication: transfer while it is well, promotion when it is not.

The work is done by pipeline processes (`python -m leveret.pipeline`), which this module starts, listens to
and ends; the node's own loop only reads their lines. What an operator decides at run time - mode, link
off, a promotion begun - is kept in a state file and wins over the configuration, after a restart too.

    downstream, connected --disconnect--> downstream, disconnected
    downstream --promote--> promoting --done--> upstream
    promoting --killed, failed--> promoting: no transfer starts; promote again goes on where it was

A promotion ends both links, and turns schema replication too: a node that applications use must not have its
definitions taken back by an upstream that returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from leveret.config import Config
from leveret.config.tls import TlsOptions
from leveret.core.broker import STANDBY_TAG
from leveret.core.queue import Queue
from leveret.core.schema import REHEARSAL_VHOSTS
from leveret.model.definitions import GlobalParameter, Vhost
from leveret.model.errors import InvalidCommand, NotAllowed, PreconditionFailed, StorageError
from leveret.runtime.clock import clock_ms
from leveret.runtime.pipeline_process import Event, PipelineFailed, PipelineProcess, ask
from leveret.runtime.standby_archive import StandbyArchive
from leveret.runtime.standby_recovery import (
    EVERYTHING,
    Recoveries,
    RecoveringNode,
    Wanted,
    own_endpoint,
    told_rows,
)
from leveret.runtime.standby_transfer import TransferSupervisor, Upstream, parse_upstream
from leveret.storage.state_file import StateFile
from leveret.wire.record import RECOVERY_REFERENCE_PREFIX

logger = logging.getLogger(__name__)

UPSTREAM_PARAMETER: Final = "standby_replication_upstream"
MODES: Final = ("upstream", "downstream", "none")
DRAIN_TIMEOUT_S: Final = 20.0
_LOSS: Final = (
    "virtual_host",
    "state",
    "lag_records",
    "lag_ms",
    "missing_records",
    "missing_messages",
    "last_timestamp",
)
"""What is told of each vhost before a promotion."""
_LACKS: Final = ("unreadable_records", "missing_records", "missing_messages")
"""What a promotion's summary counts of a vhost that is not here although it lies before what was transferred."""
Progress = Callable[[Event], None]


class Schema(Protocol):
    """What is needed of schema replication."""

    @property
    def mode(self) -> str:
        """Which side this node is."""

    async def stop(self) -> None:
        """End the link."""

    async def set_mode(self, mode: str) -> None:
        """Change sides; kept over restarts."""


class StandbyNode(RecoveringNode, Protocol):
    """What is needed of the node."""

    data_dir: Path

    @property
    def schema_sync(self) -> Schema:
        """Schema replication."""


class Promotion(msgspec.Struct, kw_only=True):
    """One attempt to promote, from its begin on.

    Attributes:
        wanted: what it was asked to recover.
        summary: a row for each vhost once it is done.
        transferred: by vhost, the id of the former upstream's outgoing log, and up to which offset it is here.
        marks: by vhost, the mark (`wire.chunk.mark_of`) of the last chunk of that.
        deleted: by vhost, queue and reference, up to which number a queue had its messages when it was deleted.
        error: why it stopped short.
    """

    begun_ms: int
    done_ms: int = 0
    wanted: Wanted = EVERYTHING
    summary: list[dict[str, Any]] = []
    transferred: dict[str, tuple[int, int]] = {}
    marks: dict[str, int] = {}
    deleted: dict[str, dict[str, dict[str, int]]] = {}
    error: str = ""

    def log_id(self, vhost: str) -> int | None:
        """The id of the vhost's outgoing log that it recovered from; None for none."""
        return self.transferred[vhost][0] if vhost in self.transferred else None

    def lacks(self, vhost: str) -> bool:
        """Whether it did without something of the vhost that stood before what was transferred."""
        rows = [row for row in self.summary if row["virtual_host"] == vhost]
        return any(row.get(name) for row in rows for name in _LACKS)

    def is_whole(self) -> bool:
        """Whether it was asked for all that was transferred."""
        wanted = self.wanted
        return not wanted.queues and not wanted.exclude and wanted.as_of_ms is None


class Decided(msgspec.Struct, kw_only=True):
    """The state file."""

    operating_mode: str = ""
    connected: bool = True
    promoting: Promotion | None = None
    promotions: list[Promotion] = []


class StandbyDownstream:
    """Follows an upstream's messages, and takes its place."""

    def __init__(
        self, node: StandbyNode, state_file: StateFile, drain_timeout_s: float = DRAIN_TIMEOUT_S
    ) -> None:
        """Read what was decided before; do nothing yet.

        Raises:
            StorageError: the state file is damaged.
        """
        self._node = node
        self._drain_timeout_s = drain_timeout_s
        self._state_file = state_file
        try:
            self._decided = msgspec.convert(self._state_file.load(), Decided)
        except msgspec.ValidationError as error:
            raise InvalidCommand(f"{self._state_file.path}: {error}") from None
        work_dir = node.data_dir / "standby"
        self.archive = StandbyArchive(
            node.config.standby.data_dir or str(work_dir), work_dir, node.config.node_name, self._spark()
        )
        self._transfer = TransferSupervisor(self._job)
        self.recoveries = Recoveries(node, self.archive, self._losses)
        self._lock = asyncio.Lock()

    # -- life ---------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """`upstream`, `downstream` or `none`."""
        return self._decided.operating_mode or self._node.config.standby.operating_mode

    async def start(self) -> None:
        """Follow, if that is what this node is for."""
        configured = self._node.config.standby.operating_mode
        if self.mode != configured:
            logger.info("standby_mode_set_at_run_time mode=%s configured=%s", self.mode, configured)
        await self.recoveries.clear_up()
        if self.mode == "downstream" and self._decided.connected and self._decided.promoting is None:
            await self._transfer.start()

    async def stop(self) -> None:
        """End the link; what is recorded stays."""
        await self.recoveries.give_way()
        await self._transfer.stop()

    # -- the operator's commands --------------------------------------------------------------

    async def connect(self) -> None:
        """Begin to follow; kept over restarts.

        Raises:
            PreconditionFailed: this node is not a downstream, or its promotion has begun.
        """
        async with self._changing("connect"):
            self._check_downstream("connected to an upstream")
            self._check_may_follow()
            self._decided.connected = True
            self._save()
            await self._transfer.start()

    async def disconnect(self) -> None:
        """Follow no more; kept over restarts.

        Raises:
            PreconditionFailed: this node is not a downstream.
        """
        async with self._changing("disconnect"):
            self._check_downstream("disconnected from an upstream")
            self._decided.connected = False
            self._save()
            await self._transfer.stop()

    async def set_mode(self, mode: str) -> None:
        """Become an `upstream` or a `downstream`, or neither; kept over restarts.

        Raises:
            InvalidCommand: there is no such mode.
            PreconditionFailed: its promotion has begun, so that it cannot be a downstream.
        """
        if mode not in MODES:
            raise InvalidCommand(f"operating mode '{mode}' is none of {', '.join(MODES)}")
        if mode == "downstream":
            refuse_member(self._node.config)
        async with self._changing("set the mode"):
            if mode == "downstream":
                self._check_may_follow()
                self._decided.connected = True
            await self._transfer.stop()
            self._decided.operating_mode = mode
            self._save()
            logger.info("standby_mode_decided mode=%s", mode)
            await self.start()

    async def promote(
        self, wanted: Wanted = EVERYTHING, on_progress: Progress | None = None
    ) -> list[dict[str, Any]]:
        """Take the upstream's place: publish what it had not settled, and be an upstream.

        Returns:
            A row a vhost: first_timestamp, last_timestamp (text, UTC), message_count, virtual_host, queues.

        Raises:
            PreconditionFailed: this node is not a downstream and never was promoted; nothing listens that
                the recovery could publish to.
            InvalidCommand: a vhost or queue is named that there is not.
            PipelineFailed: the recovery did not get to its end; promoting again goes on from there.
        """
        async with self._changing("promote"):
            if not self._decided.promotions and self._decided.promoting is None:
                self._check_downstream("promoted")
            endpoint = own_endpoint(self._node, "stream")
            await self.recoveries.check_names(wanted)
            before = self._decided.promoting
            promotion = Promotion(
                begun_ms=clock_ms(), wanted=wanted, deleted=before.deleted if before else {}
            )
            self._decided.promoting = promotion
            self._save()
            logger.info("standby_promotion_begun data_dir=%s", self.archive.place["data_dir"])
            async with self.recoveries.held_back("a promotion"):
                await self._carry_out(promotion, endpoint, on_progress or _ignore)
            self._finish(promotion)
            return told_rows(promotion.summary)

    async def delete_all_data(self) -> None:
        """Erase what was transferred; a link that is up starts over from what the upstream has."""
        async with self._changing("delete the data"):
            follows = self._transfer.runs
            await self._transfer.stop()
            self._transfer.forget()
            async with self.recoveries.held_back("the deletion of all data"):
                await self.archive.delete_all()
            self._give_up_promotion()
            if follows:
                await self.start()

    async def keep_former_archive(self) -> None:
        """Put what was transferred at an earlier time out of the way, for another upstream's to come."""
        async with self._changing("keep the former data"):
            await self._transfer.stop()
            self._transfer.forget()
            async with self.recoveries.held_back("the return as a downstream"):
                await self.archive.keep_former(clock_ms())
            self._give_up_promotion()

    async def delete_orphaned_data(self) -> list[dict[str, Any]]:
        """Erase what was transferred of vhosts that are not this node's to recover: gone, untagged, or made anew.

        Returns:
            A row a vhost: vhost, bytes.

        Raises:
            PreconditionFailed: a promotion has begun.
            NotAllowed: a recovery reads what is here.
        """
        async with self._changing("delete orphaned data"):
            if self._decided.promoting is not None:
                raise PreconditionFailed(
                    "the promotion of this node has begun and may need the data: promote it again to finish"
                )
            orphans = await self.archive.orphans(self._vhosts())
            if not orphans:
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
        """Mode, state, endpoints, and a row a vhost; quick."""
        promoting = self._decided.promoting
        upstream, error = self.upstream
        state = "running" if self.mode == "upstream" else "disconnected"
        if promoting is not None:
            state = "promoting"
            error = promoting.error or error
        elif self._transfer.runs:
            state = self._transfer.state
        return {
            "node": self._node.config.node_name,
            "operating_mode": self.mode,
            "operating_mode_source": "run time" if self._decided.operating_mode else "configuration",
            "state": state,
            "upstream_endpoints": upstream.endpoints if upstream else [],
            "upstream_username": upstream.username if upstream else "",
            "error": self._transfer.error or error if self.mode == "downstream" else "",
            "lag_p50_ms": self._transfer.lag_ms(0.5),
            "lag_p99_ms": self._transfer.lag_ms(0.99),
            "vhosts": self._transfer.rows(self._vhosts()) if self.mode == "downstream" else [],
        }

    def transferred(self, vhost: str, log_id: int) -> int | None:
        """Up to which offset all of a former upstream's outgoing log is in the queues here; None: it is no former one.

        0 says that nobody can tell, and what is before that is lost if it is not kept there: where a promotion, be it
        the last one or not, did without something of the log, or none was asked for all of it.
        """
        promotions = self._decided.promotions
        if not promotions or self.mode != "upstream" or promotions[-1].log_id(vhost) != log_id:
            return None
        last = self._furthest(vhost, log_id)
        return 0 if last is None else last.transferred[vhost][1]

    def transferred_mark(self, vhost: str, log_id: int) -> int | None:
        """The mark of the last chunk of that; None: there is none, or it was not kept."""
        last = self._furthest(vhost, log_id) if self.transferred(vhost, log_id) else None
        return None if last is None else last.marks.get(vhost) or None

    def _furthest(self, vhost: str, log_id: int) -> Promotion | None:
        """The promotion that recovered all of a log up to the highest offset; None if nobody can tell."""
        own = [each for each in self._decided.promotions if each.log_id(vhost) == log_id]
        if any(each.lacks(vhost) for each in own):
            return None
        whole = [each for each in own if each.is_whole()]
        return max(whole, key=lambda each: each.transferred[vhost][1], default=None)

    def promotion_summary(self) -> list[dict[str, Any]]:
        """What promotions recovered, oldest first; rows as `promote` returns them."""
        found = [row for promotion in self._decided.promotions for row in told_rows(promotion.summary)]
        recovered = [row for row in found if row["message_count"]]
        return recovered or found[-1:]

    def note_deleted(self, queues: list[Queue]) -> None:
        """While messages are recovered into queues, keep how far those are that are deleted: it would go with them.

        What a client consumed and deleted must not come back. Of a queue that another node of a cluster leads it does.
        """
        if (promotion := self._decided.promoting) is None:
            return
        found = {queue.key: numbers for queue in queues if (numbers := _recovered_numbers(queue))}
        for (vhost, name), numbers in found.items():
            promotion.deleted.setdefault(vhost, {}).setdefault(name, {}).update(numbers)
            messages = max(numbers.values())
            logger.warning(
                "standby_promotion_queue_deleted vhost=%s queue=%s messages=%d", vhost, name, messages
            )
        try:
            if found:
                self._save()
        except StorageError as error:
            logger.error("standby_promotion_queue_deleted_not_kept error=%s", error)

    def deleted_at(self, key: tuple[str, str], reference: str) -> int:
        """See RecoveryIngest."""
        promotion = self._decided.promoting
        return promotion.deleted.get(key[0], {}).get(key[1], {}).get(reference, 0) if promotion else 0

    # -- inside -------------------------------------------------------------------------------

    async def _carry_out(self, promotion: Promotion, endpoint: str, tell: Progress) -> None:
        """End both links and recover."""
        process = await self._transfer.drain(self._drain_timeout_s)
        try:
            # For good, and before anything is recovered: an upstream that came back would delete what was
            # declared here since.
            if self._node.schema_sync.mode == "downstream":
                await self._node.schema_sync.set_mode("upstream")
            await self._recover(promotion, endpoint, process, tell)
        except PipelineFailed as error:
            promotion.error = str(error)
            self._save()
            raise
        finally:
            if process is not None:
                await process.stop()

    async def _recover(
        self, promotion: Promotion, endpoint: str, process: PipelineProcess | None, tell: Progress
    ) -> None:
        """Recover; by the process that transferred so far, if it is there: it has Spark running."""
        with self._node.internal_user("recovery") as (username, password):
            job = {
                **self.archive.place,
                "endpoint": endpoint,
                "credentials": {"username": username, "password": password},
                "spark": self._spark(),
                **msgspec.to_builtins(promotion.wanted),
            }
            done = await ask("recover", job, tell, process)
        missing = await self.archive.missing()
        promotion.transferred, promotion.marks = done["transferred"], done["marks"]
        nothing = {"missing_records": 0, "missing_messages": 0}
        promotion.summary = [{**row, **missing.get(row["virtual_host"], nothing)} for row in done["summary"]]

    def _finish(self, promotion: Promotion) -> None:
        promotion.done_ms = clock_ms()
        self._decided.promotions.append(promotion)
        self._decided.promoting = None
        self._decided.operating_mode = "upstream"
        self._save()
        logger.info("standby_mode_decided mode=upstream")
        for row in told_rows(promotion.summary):
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
        """What the transfer process is to do, or why it cannot do anything."""
        upstream, error = self.upstream
        vhosts = self._vhosts()
        if upstream is None:
            return None, error
        if not vhosts:
            return None, f"no vhost is tagged {STANDBY_TAG}"
        return {
            **self.archive.place,
            "cluster_name": self._node.config.cluster_name,
            **self.link_job(upstream),
            "vhosts": vhosts,
            "retain_bytes_max": self._node.config.standby.retention_bytes_max,
            "retain_ms_max": self._node.config.standby.retention_ms_max,
            "spark": self._spark(),
        }, ""

    def link_job(self, upstream: Upstream) -> dict[str, Any]:
        """How a pipeline process reaches the upstream."""
        return {
            "endpoints": upstream.endpoints,
            "credentials": {"username": upstream.username, "password": upstream.password},
            "tls": _tls_of(self._node.config.standby.tls),
        }

    def _spark(self) -> dict[str, Any]:
        spark = self._node.config.spark
        return {"master": spark.master, "conf": dict(spark.conf)}

    @property
    def upstream(self) -> tuple[Upstream | None, str]:
        """Whom this node is to follow, or why nobody."""
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
        """A row a vhost: what the upstream is known to have, or to have had, beyond what was transferred.

        What its retention took is told by what was transferred, too: also while nothing is heard of the upstream.

        None once this node is an upstream itself: who follows nobody lags behind nobody.
        """
        if self.mode != "downstream":
            return []
        missing = await self.archive.missing()
        rows = [row | missing.get(row["virtual_host"], {}) for row in self._transfer.rows(self._vhosts())]
        return [{name: row[name] for name in _LOSS} for row in rows]

    def _check_may_follow(self) -> None:
        if self._decided.promoting is not None:
            raise PreconditionFailed(
                "the promotion of this node has begun: it cannot follow any more; promote it again to "
                "finish, or give that up with delete_all_data_on_standby_replication_cluster"
            )

    def _give_up_promotion(self) -> None:
        """Forget one that has begun, once its plans are gone: the next one would carry them out first."""
        self._decided.promoting = None
        self._save()

    def _check_downstream(self, what: str) -> None:
        if self.mode != "downstream":
            raise PreconditionFailed(
                f"this node is not a downstream (operating mode: {self.mode}), so it cannot be {what}; see "
                "standby.replication.operating_mode"
            )

    def _changing(self, what: str) -> _Alone:
        return _Alone(self._lock, what)

    def _save(self) -> None:
        self._state_file.save(msgspec.to_builtins(self._decided))


class _Alone:
    """One operator's command at a time; a second one is told, not queued."""

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
    """For the pipeline's links; None: nothing is set, so they are not encrypted."""
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


def _recovered_numbers(queue: Queue) -> dict[str, int]:
    """By reference, up to which number a queue has messages of recoveries; a rehearsal's go with its vhosts."""
    prefix = RECOVERY_REFERENCE_PREFIX.encode()
    if queue.key[0].startswith(REHEARSAL_VHOSTS):
        return {}
    return {name.decode(): last for name, last in queue.sequences.logged.items() if name.startswith(prefix)}


def _ignore(event: Event) -> None:
    """Nobody asked for news."""


def refuse_member(config: Config) -> None:
    """A downstream of a standby is one node: those of a cluster would each recover into their own queues only.

    Raises:
        PreconditionFailed: this node is one of a cluster.
    """
    if config.cluster.is_member:
        raise PreconditionFailed("a node of a cluster cannot be a standby: only a node alone can")
