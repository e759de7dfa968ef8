"""The downstream side of message replication: transfer while the upstream works, promotion after its loss.

Pipeline processes (`python -m leveret.pipeline`) do the work. This module starts them, reads their lines and ends
them. Run-time decisions of an operator - mode, link off, a promotion begun - are in a state file and override the
configuration, also after a restart.

    downstream, connected --disconnect--> downstream, disconnected
    downstream --promote--> promoting --done--> upstream
    promoting --killed, failed--> promotion interrupted: no transfer starts; a second promote continues it

A promotion ends both links, of messages and of definitions: an upstream that returns must not take back the
definitions of a node that applications use.

In a cluster the nodes share the decisions (`site`), and each node obeys them: it transfers the vhosts that it follows,
and recovers those that it owns (`site_member`). A command at any node applies to the whole site.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec.structs import replace

from leveret.config.sections.tls import TlsOptions
from leveret.core.broker.broker import STANDBY_TAG
from leveret.core.replication.standby_site import (
    EVERYTHING,
    PromotionAttempt,
    RecoveryRequest,
)
from leveret.core.schema.delta import STANDBY_UPSTREAM
from leveret.core.schema.operating_mode import OperatingMode, operating_mode
from leveret.model.definitions import GlobalParameter, Vhost
from leveret.model.errors import InvalidCommand, NotAllowed, PreconditionFailed, StorageError
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.decisions import StandbyDecided
from leveret.runtime.standby.node_promotion import NodePromotion, StandbyNode
from leveret.runtime.standby.pipeline_process import Report, report_nothing
from leveret.runtime.standby.recovery import Recoveries, own_endpoint, reported_rows, spark_settings
from leveret.runtime.standby.site import StandbySite
from leveret.runtime.standby.site_archive import SiteArchive
from leveret.runtime.standby.site_member import SiteMember, report_promotion, with_part
from leveret.runtime.standby.site_recoveries import SiteRecoveries
from leveret.runtime.standby.transfer import StandbyUpstreamParameter, TransferSupervisor, parse_upstream
from leveret.storage.state_file import StateFile
from leveret.wire.record import downstream_reference

logger = logging.getLogger(__name__)

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
"""The fields of each vhost's row that are logged before a promotion."""


class StandbyDownstream:
    """Follows an upstream's messages, and takes its place.

    Attributes:
        decided: the decisions of the site.
        archive: the transferred data; in a cluster, of all nodes.
        recoveries: the recoveries without effect on production; in a cluster, of all nodes.
        promotion: this node's part of a promotion.
        member: this node's part in a cluster; None for a node alone.
    """

    def __init__(
        self, node: StandbyNode, state_file: StateFile, drain_timeout_s: float = DRAIN_TIMEOUT_S
    ) -> None:
        """Read the earlier decisions, without starting a transfer.

        Raises:
            StorageError: the state file is damaged.
        """
        self._node = node
        self.decided = StandbyDecided(state_file, OperatingMode(node.config.standby.operating_mode))
        work_dir = node.tree.root / "standby"
        self.own_archive = StandbyArchive(
            node.config.standby.data_dir or str(work_dir),
            work_dir,
            node.config.node_name,
            spark_settings(node.config),
            is_shared=node.config.cluster.is_member and bool(node.config.standby.shared_place),
        )
        self.transfer = TransferSupervisor(self._job)
        self.own_recoveries = Recoveries(
            node, self.own_archive, self._losses, self.vhosts, self._recovered_vhosts
        )
        self.archive: StandbyArchive | SiteArchive = self.own_archive
        self.recoveries: Recoveries | SiteRecoveries = self.own_recoveries
        self.member: SiteMember | None = None
        self._lock = asyncio.Lock()
        self.promotion = NodePromotion(
            node,
            self.decided,
            self.own_archive,
            self.own_recoveries,
            self.transfer,
            self.vhosts,
            drain_timeout_s,
        )

    def enter_site(self, site: StandbySite) -> None:
        """Join the nodes of a cluster; call this before `start`."""
        self.decided.share(site)
        self.promotion.is_shared = True
        self.member = SiteMember(site, self)
        self.own_archive.terms = self.member.terms
        self.archive = SiteArchive(self.member.parts, self.own_archive)
        self.recoveries = SiteRecoveries(
            self.own_recoveries,
            self.archive,
            self.member.parts,
            lambda: self._node.broker.definitions.by_kind,
        )

    # -- life ---------------------------------------------------------------------------------

    @property
    def mode(self) -> OperatingMode:
        """The node's operating mode."""
        return self.decided.mode

    async def start(self) -> None:
        """Start the transfer if the mode and the decisions demand it."""
        if self.mode is not self.decided.configured:
            logger.info(
                "standby_mode_set_at_run_time mode=%s configured=%s", self.mode, self.decided.configured
            )
        await self.own_recoveries.clear_up()
        if self.member is not None:
            self.member.start()
        else:
            await self.follow()

    async def stop(self) -> None:
        """End the link; the decisions stay."""
        if self.member is not None:
            await self.member.stop()
        await self.own_recoveries.give_way()
        await self.transfer.stop()

    @property
    def is_to_follow(self) -> bool:
        """Whether this node follows an upstream, by the decisions."""
        decided = self.decided
        return self.mode is OperatingMode.DOWNSTREAM and decided.connected and decided.promoting is None

    async def follow(self) -> None:
        """Start or end the transfer, by the decisions."""
        if self.is_to_follow:
            await self.transfer.start()
        elif self.transfer.runs:
            await self.transfer.stop()

    # -- the operator's commands --------------------------------------------------------------

    async def connect(self) -> None:
        """Begin to follow; the decision outlives restarts.

        Raises:
            PreconditionFailed: this node is not a downstream, or its promotion has begun.
        """
        async with self._changing("connect"):
            self._check_downstream("connected to an upstream")
            self._check_may_follow()
            await self.decided.decide(lambda site: replace(site, connected=True))
            await self.follow()

    async def disconnect(self) -> None:
        """Stop following; the decision outlives restarts.

        Raises:
            PreconditionFailed: this node is not a downstream.
        """
        async with self._changing("disconnect"):
            self._check_downstream("disconnected from an upstream")
            await self.decided.decide(lambda site: replace(site, connected=False))
            await self.transfer.stop()
            if self.member is not None:
                await self.member.have_all_follow()

    async def set_mode(self, mode: str) -> None:
        """Become an `upstream` or a `downstream`, or `none`; the decision outlives restarts.

        Raises:
            InvalidCommand: there is no such mode.
            PreconditionFailed: this node's promotion has begun, or has recovered what is in the archive, so it cannot
                be a downstream.
        """
        wanted = operating_mode(mode)
        async with self._changing("set the mode"):
            if wanted is OperatingMode.DOWNSTREAM:
                self._check_may_follow()
                await self._check_not_recovered()
            await self._become(wanted)

    async def return_as_downstream(self) -> None:
        """Become a downstream, whose archive is empty, at the end of a return."""
        async with self._changing("return as a downstream"):
            self._check_may_follow()
            await self._become(OperatingMode.DOWNSTREAM)

    async def _become(self, wanted: OperatingMode) -> None:
        connected = wanted is OperatingMode.DOWNSTREAM or self.decided.connected
        await self.transfer.stop()
        try:
            await self.decided.decide(lambda site: replace(site, operating_mode=wanted, connected=connected))
            logger.info("standby_mode_decided mode=%s", wanted)
        finally:
            # Also by the former decision, if this one is refused.
            await self.follow()
        if self.member is not None:
            await self.member.have_all_follow()

    async def promote(
        self, wanted: RecoveryRequest = EVERYTHING, on_progress: Report | None = None
    ) -> list[dict[str, Any]]:
        """Take the upstream's place: publish its unsettled messages, and become an upstream.

        Returns:
            A row for each vhost: first_timestamp, last_timestamp (text, UTC), message_count, virtual_host, queues.

        Raises:
            PreconditionFailed: this node is not a downstream and never was promoted; or it has no listener for the
                recovery.
            InvalidCommand: a named vhost or queue does not exist.
            PipelineFailed: the recovery did not finish; the next promotion continues it.
        """
        report = on_progress or report_nothing
        async with self._changing("promote"):
            if not self.decided.promotions and self.decided.promoting is None:
                self._check_downstream("promoted")
            own_endpoint(self._node, "stream")
            await self.recoveries.check_wanted(wanted)
            if self.member is not None:
                await self.member.check_promotion(wanted)
            before = self.decided.promotions[-1:]
            attempt = PromotionAttempt(begun_ms=clock_ms(), wanted=wanted)
            await self.decided.decide(lambda site: site.promotes(attempt))
            logger.info("standby_promotion_begun data_dir=%s", self.own_archive.place["data_dir"])
            if self.member is not None:
                await self.member.wait_promoted(report, before)
            else:
                await self._promote_alone(report)
            return reported_rows(self.decided.promotions[-1].summary)

    async def delete_all_data(self) -> None:
        """Delete the transferred data; a running link starts again with all records that the upstream has."""
        async with self._changing("delete the data"):
            if self.member is not None:
                await self.member.delete_all_data()
                await self.give_up_promotion()
                return
            follows = self.transfer.runs
            try:
                await self.delete_own_data()
                await self.give_up_promotion()
            finally:
                if follows:
                    await self.transfer.start()

    async def delete_own_data(self) -> None:
        """Delete this node's archive, and end its transfer."""
        await self.transfer.stop()
        self.transfer.forget()
        async with self.own_recoveries.paused("the deletion of all data"):
            await self.own_archive.delete_all()

    async def keep_former_archive(self, *, moves: bool = True) -> None:
        """Move the data of an earlier upstream to `former/`, before those of another one come.

        `moves` is false at all nodes but one of those that share an archive.
        """
        async with self._changing("keep the previous data"):
            await self.transfer.stop()
            self.transfer.forget()
            async with self.own_recoveries.paused("the return as a downstream"):
                if moves:
                    await self.own_archive.keep_former(clock_ms())
            await self.give_up_promotion()

    async def delete_orphaned_data(self) -> list[dict[str, Any]]:
        """Delete the transferred data of vhosts that this node would not recover: gone, untagged, or made anew.

        Returns:
            A row for each vhost: vhost, bytes; in a cluster also node.

        Raises:
            PreconditionFailed: a promotion has begun; or no such vhost was found while the upstream is silent, which
                alone knows whether a vhost was made anew.
            NotAllowed: a recovery reads the data.
        """
        async with self._changing("delete orphaned data"):
            if self.decided.promoting is not None:
                raise PreconditionFailed(
                    "the promotion of this node has begun and may need the data: promote it again to finish"
                )
            if self.member is not None:
                return await self.member.delete_orphaned_data()
            rows = await self.delete_own_orphans(self.vhosts())
            if not rows:
                self.check_heard()
            return rows

    async def delete_own_orphans(self, wanted: Collection[str]) -> list[dict[str, Any]]:
        """Delete this node's data of vhosts that are not wanted or were made anew; return a row for each.

        Raises:
            NotAllowed: a recovery reads the data.
        """
        orphans = await self.own_archive.orphans(wanted)
        if not orphans:
            return []
        self.own_recoveries.check_idle()
        follows = self.transfer.runs
        await self.transfer.stop()
        self.transfer.forget(orphans)
        try:
            rows = await self.own_archive.forget(orphans)
        finally:
            if follows:
                await self.transfer.start()
        for row in rows:
            logger.info("standby_orphan_deleted vhost=%s octets=%d", row["vhost"], row["bytes"])
        return rows

    # -- status -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return mode, state, endpoints, and a row for each vhost, without a pipeline process."""
        promoting = self.decided.promoting
        upstream, error = self.upstream
        state = "running" if self.mode is OperatingMode.UPSTREAM else "disconnected"
        if promoting is not None:
            state = "promoting" if self.promotion.is_running else "promotion interrupted"
            error = promoting.error or error
        elif self.transfer.runs:
            state = self.transfer.state
        return {
            "node": self._node.config.node_name,
            "operating_mode": self.mode,
            "operating_mode_source": "run time" if self.decided.mode_at_run_time else "configuration",
            "state": state,
            "upstream_endpoints": upstream.endpoints if upstream else [],
            "upstream_username": upstream.username if upstream else "",
            "downstream": self._reference
            if self.mode is OperatingMode.DOWNSTREAM and self._downstream_id
            else "",
            "error": self._trouble or self.transfer.error or error
            if self.mode is OperatingMode.DOWNSTREAM
            else "",
            "archive_bytes": self.transfer.archive_bytes(
                self._followed() if self.own_archive.is_shared else None
            ),
            "lag_p50_ms": self.transfer.lag_ms(0.5),
            "lag_p99_ms": self.transfer.lag_ms(0.99),
            "promotion": self.promotion.shown(),
            "left_out": self.decided.left_out(),
            "vhosts": self.transfer.rows(self._followed()) if self.mode is OperatingMode.DOWNSTREAM else [],
        }

    @property
    def _trouble(self) -> str:
        return "" if self.member is None else self.member.archive_error or self.member.site.trouble

    async def details(self) -> dict[str, Any]:
        """Return the status, and the messages left of an unfinished promotion, a row for each vhost (`amounts`)."""
        if self.member is not None:
            return await self.member.status.details()
        status = self.status()
        if status["promotion"] is not None:
            status["promotion"] |= await self.promotion.amounts()
        return status

    def promotion_summary(self) -> list[dict[str, Any]]:
        """Return the results of promotions, oldest first; rows as `promote` returns them."""
        return self.decided.promotion_summary()

    # -- inside -------------------------------------------------------------------------------

    async def _promote_alone(self, report: Report) -> None:
        """Carry out the promotion of a node alone."""
        attempt = self.decided.promoting
        assert attempt is not None
        part, left_out = await self.promotion.recover(attempt, None, report)
        self.touch_queues()
        await self.decided.decide(lambda site: with_part(site, attempt, part, left_out).finished(clock_ms()))
        report_promotion(self.decided.promotions[-1])

    def touch_queues(self) -> None:
        """Restart the expiry of queues: applications connect only now, and need time to use their queues."""
        for queue in self._node.broker.queues.values():
            queue.touch()

    def _job(self) -> tuple[dict[str, Any] | None, str]:
        """Return the job of the transfer process, or the reason why there is none."""
        upstream, error = self.upstream
        vhosts = self._followed()
        if upstream is None:
            return None, error
        if self.member is not None and not self.member.may_write:
            return None, self._trouble
        if not vhosts and self.member is not None and self.vhosts():
            return None, self._trouble
        if not vhosts:
            why = self._node.schema_sync.why_nothing_came
            cause = f": none of the upstream's definitions have come yet ({why})" if why else ""
            return None, f"no vhost is tagged {STANDBY_TAG}{cause}"
        try:
            self.decided.identify()
        except StorageError as failure:
            return None, str(failure)
        return {
            **self.own_archive.place,
            "reference": self._reference,
            **self.link_job(upstream),
            "vhosts": vhosts,
            "taking_over": [] if self.member is None else self.member.taking_over(vhosts),
            "origins": {} if self.member is None else self.member.origins(vhosts),
            "retain_bytes_max": self._node.config.standby.retention_bytes_max,
            "retain_ms_max": self._node.config.standby.retention_ms_max,
            "spark": spark_settings(self._node.config),
        }, ""

    @property
    def _reference(self) -> str:
        """The name of this downstream at its upstream.

        A node of a cluster that has an archive of its own adds its name to the site's. A shared archive has one
        position, whoever transfers.
        """
        name = self._node.config.cluster_name
        if self.member is not None and not self.own_archive.is_shared:
            name = f"{name}/{self._node.config.node_name}"
        return downstream_reference(name, self._downstream_id)

    @property
    def _downstream_id(self) -> str:
        """The id of this downstream: that of a shared archive, or this node's own."""
        return self.decided.site.archive_id if self.own_archive.is_shared else self.decided.downstream_id

    def check_heard(self) -> None:
        """Check that the upstream has reported: it alone knows whether a vhost was made anew.

        Raises:
            PreconditionFailed: the upstream has not reported.
        """
        rows = self.transfer.rows(self._followed()) if self.transfer.runs else []
        for row in rows:
            if row["transferred"] and row["heard_ago_ms"] is None:
                cause = f" ({row['error']})" if row["error"] else ""
                raise PreconditionFailed(
                    f"vhost '{row['virtual_host']}': the upstream has not reported yet{cause}, so it is not known "
                    "whether the data here are its own; repeat the command when standby_replication_status shows a "
                    "report"
                )

    def link_job(self, upstream: StandbyUpstreamParameter) -> dict[str, Any]:
        """Return a pipeline process's fields for its link to the upstream."""
        return {
            "endpoints": upstream.endpoints,
            "credentials": {"username": upstream.username, "password": upstream.password},
            "tls": _tls_of(self._node.config.standby.tls),
        }

    @property
    def upstream(self) -> tuple[StandbyUpstreamParameter | None, str]:
        """The upstream to follow; None with the reason if there is none."""
        entity = self._node.broker.definitions.by_kind["global_parameters"].get((STANDBY_UPSTREAM,))
        if not isinstance(entity, GlobalParameter):
            return None, "no upstream: set its endpoints with set_standby_replication_upstream_endpoints"
        try:
            return parse_upstream(entity.value), ""
        except InvalidCommand as error:
            return None, str(error)

    def vhosts(self) -> list[str]:
        """Return the replicated vhosts."""
        vhosts = self._node.broker.definitions.by_kind["vhosts"].values()
        return sorted(each.name for each in vhosts if isinstance(each, Vhost) and STANDBY_TAG in each.tags)

    def _followed(self) -> list[str]:
        """Return the replicated vhosts that this node transfers."""
        vhosts = self.vhosts()
        return vhosts if self.member is None else self.member.followed(vhosts)

    def _recovered_vhosts(self) -> list[str] | None:
        """Return the vhosts that this node recovers if the site follows them; None for all in its archive."""
        return None if self.member is None else self.member.recovered_vhosts()

    async def _losses(self) -> list[dict[str, Any]]:
        """Return a row for each vhost: the known records of the upstream, present or past, that were not transferred.

        The transferred records show which records the upstream's retention dropped, also while the upstream is silent.
        An upstream has no lag, so there are no rows once this node is one.
        """
        if self.mode is not OperatingMode.DOWNSTREAM:
            return []
        missing = await self.own_archive.missing()
        rows = [row | missing.get(row["virtual_host"], {}) for row in self.transfer.rows(self._followed())]
        return [
            {name: row[name] for name in _LOSS}
            | {
                "is_upstream_known": self.transfer.has_heard(row["virtual_host"]),
                "is_replaced": row.get("is_replaced", False),
            }
            for row in rows
        ]

    def _check_may_follow(self) -> None:
        if self.decided.promoting is not None:
            raise PreconditionFailed(
                "the promotion of this node has begun: it cannot follow any more; promote it again to "
                "finish, or give that up with delete_all_data_on_standby_replication_cluster"
            )

    async def _check_not_recovered(self) -> None:
        """Check that no promotion has recovered messages of the logs whose records are in the archive.

        The next promotion would leave these out as recovered; but clients have consumed them here since then, and not
        at the upstream, or there and not here.
        """
        recovered = {log_id for promotion in self.decided.promotions for log_id in promotion.recovered_logs()}
        if not recovered or self.mode is OperatingMode.DOWNSTREAM:
            return
        for row in (await self.archive.contents(fresh=True))["vhosts"]:
            if any(log_id in recovered for log_id, _, _ in row["logs"].values()):
                raise PreconditionFailed(
                    f"this site was promoted, and its archive has the records of vhost '{row['vhost']}' that it "
                    "recovered then: the next promotion would leave these out, whatever became of the messages since. "
                    "Follow again by rejoin_as_downstream --set-all-aside, which quarantines the messages here; or run "
                    "delete_all_data_on_standby_replication_cluster first, and purge the replicated queues"
                )

    async def give_up_promotion(self) -> None:
        """Forget an unfinished promotion whose plans are gone; otherwise the next promotion would continue it first."""
        self.promotion.forget()
        await self.decided.decide(lambda site: replace(site, promoting=None, is_partial=False))

    def _check_downstream(self, what: str) -> None:
        if self.mode is not OperatingMode.DOWNSTREAM:
            raise PreconditionFailed(
                f"this node is not a downstream (operating mode: {self.mode}), so it cannot be {what}; see "
                "standby.replication.operating_mode"
            )

    @asynccontextmanager
    async def _changing(self, what: str) -> AsyncIterator[None]:
        """Run one operator's command at a time; a second one is refused, not queued."""
        if self._lock.locked():
            raise NotAllowed(f"cannot {what} now: another command, perhaps a promotion, is under way")
        async with self._lock:
            yield


def _tls_of(options: TlsOptions) -> dict[str, Any] | None:
    """Return the TLS fields for the pipeline's links; None without TLS."""
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
