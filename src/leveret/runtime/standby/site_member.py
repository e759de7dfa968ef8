"""A node's part in a downstream cluster: it obeys the site's decisions, and transfers and recovers its own vhosts.

One task examines the decisions and owners whenever they change. A promotion is the site's: the cluster's store records
it, and each node recovers its vhosts and records that; the node that records the last vhost ends the promotion in the
same write. So any node can begin the promotion, wait for it, and resume it, and the loss of the node that began it
stops nothing. Before a node recovers, all running nodes know that it owns the vhosts: the leaders of their queues
refuse a previous owner that was only paused (`runtime.clients.recovery_forwarding`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

from msgspec.structs import replace

from leveret.core.replication.standby_site import (
    PromotionAttempt,
    RecoveredPart,
    RecoveryRequest,
    SiteDecisions,
)
from leveret.core.replication.vhost_owners import VhostOwner
from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.unwanted_tasks import end_task
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.claims import VhostClaims
from leveret.runtime.standby.decisions import StandbyDecided
from leveret.runtime.standby.found_archive import FoundArchive
from leveret.runtime.standby.node_promotion import NodePromotion
from leveret.runtime.standby.other_archives import choose_archive, choose_drained_archive
from leveret.runtime.standby.pipeline_process import Event, PipelineFailed, Report
from leveret.runtime.standby.progress import PromotionProgress, PromotionReports
from leveret.runtime.standby.recovery import Recoveries, reported_rows
from leveret.runtime.standby.site import SiteParts, StandbySite
from leveret.runtime.standby.site_archive import answers_of
from leveret.runtime.standby.site_recoveries import away, works_of
from leveret.runtime.standby.site_status import ReportingDownstream, SiteStatus
from leveret.runtime.standby.take_over import TakeOvers
from leveret.runtime.standby.transfer import TransferSupervisor

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
ATTEMPTS_MAX: Final = 5
RETRY_S: Final = 1.0
_LOST_S: Final = 15.0
"""A promotion reports a node with data as lost after this time, which is longer than a lease and a restart."""


class NodeDownstream(ReportingDownstream, Protocol):
    """The node's own downstream (downstream.StandbyDownstream), as this module uses it."""

    decided: StandbyDecided
    own_archive: StandbyArchive
    own_recoveries: Recoveries
    promotion: NodePromotion
    transfer: TransferSupervisor

    @property
    def is_to_follow(self) -> bool:
        """Whether an upstream is followed."""

    async def follow(self) -> None:
        """Start or end the transfer, by the decisions."""

    def touch_queues(self) -> None:
        """Restart the expiry of queues, so that applications have time to use them."""

    async def delete_own_data(self) -> None:
        """Delete this node's archive, and end its transfer."""

    async def delete_own_orphans(self, wanted: Collection[str]) -> list[dict[str, Any]]:
        """Delete this node's data of vhosts that are not wanted or were made anew."""

    def check_heard(self) -> None:
        """Check that the upstream has reported."""


class SiteMember:
    """See the module.

    Attributes:
        site: the cluster.
        parts: the nodes' parts of commands.
        status: the status of the whole site.
        archive_error: the reason why this node does not use the archive that the nodes share; empty if it does.
        obey_return: takes this node's part in a return as a downstream (`site_rejoin`); returns whether one is under
            way.
    """

    def __init__(self, site: StandbySite, own: NodeDownstream) -> None:
        """Begin idle, until `start`."""
        self.site = site
        self._own = own
        self._task: asyncio.Task[None] | None = None
        self._part: asyncio.Task[None] | None = None
        self._failures = 0
        self._reports: PromotionReports | None = None
        self._progress = PromotionProgress()
        self._published = 0
        self._promoted = own.decided.promotions[-1:]
        self._suspended = self._suspends_others = False
        self._suspended_by = ""
        self._take_overs = TakeOvers()
        self._error = ""
        self._found = FoundArchive(site, own.decided, own.own_archive)
        self.obey_return: Callable[[], Awaitable[bool]] = _nothing_returns
        self.parts = SiteParts(
            site,
            {
                **answers_of(own.own_archive),
                "status": self._answer_status,
                "progress": self._answer_progress,
                "recovered": self._answer_recovered,
                "suspend": self._answer_suspend,
                "suspends": self._answer_suspends,
                "follow": self._answer_follow,
                "delete_data": self._answer_delete_data,
                "delete_orphans": self._answer_delete_orphans,
            },
            {**works_of(own.own_recoveries), "inspect": self._inspect, "export": self._export},
        )
        self._claims = VhostClaims(site, self.parts, own.own_archive)
        self.status = SiteStatus(site, own, self.parts)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to obey."""
        self._promoted = self._own.decided.promotions[-1:]
        self._task = asyncio.create_task(self._run(), name="standby site")

    async def stop(self) -> None:
        """End the node's part; another node takes it over, or this one continues it after a restart."""
        await self.parts.stop()
        for task in (self._task, self._part):
            await end_task(task, LeveretError)
        self._task = self._part = None

    async def _run(self) -> None:
        while True:
            try:
                await self._obey()
                self._error = ""
            except Exception as error:
                # Any error: without this task the node would obey no decision any more.
                is_bug = not isinstance(error, LeveretError)
                if str(error) != self._error:
                    logger.warning("standby_site_not_obeyed error=%s", error, exc_info=is_bug)
                self._error = str(error)
            await self.site.wait(LOOK_S)

    async def _obey(self) -> None:
        decided = self._own.decided
        decided.copy()
        self._note_promoted(decided.site)
        if await self.obey_return():
            await self._own.transfer.stop()
            return
        attempt = decided.promoting
        if attempt is None:
            self._failures = 0
            await self._end_left_suspension()
            if not self._suspended:
                if self._own.is_to_follow:
                    await self._found.find()
                    await self._claims.claim(self._own.vhosts())
                await self._own.follow()
                await self._note_origins()
                await self._note_whole()
            return
        if attempt.error:
            await self._own.transfer.stop()
            return
        if self._part is not None and self._part.done():
            self._part = None
        if self._part is None:
            if remaining := self._remaining(attempt):
                self._part = asyncio.create_task(self._recover(attempt, remaining), name="standby part")
                self._part.add_done_callback(_taken)
            else:
                await self._own.transfer.stop()
                await self._finish_if_recovered(attempt)

    def _note_promoted(self, site: SiteDecisions) -> None:
        """Log a finished promotion, and restart the expiry of queues."""
        # Not their number, because only the last ones are kept.
        before, self._promoted = self._promoted, site.promotions[-1:]
        if self._promoted and self._promoted != before:
            self._own.touch_queues()
            report_promotion(site.promotions[-1])

    async def have_all_follow(self) -> None:
        """Return once all running nodes obey the last decision; a node that does not answer obeys later."""
        await self.site.all_know()
        await self.parts.of_those_that_answer("follow")

    async def _answer_follow(self, about: Mapping[str, Any]) -> None:
        """Start or end the transfer, by the present decisions."""
        if self._own.decided.promoting is None and not self._suspended:
            await self._own.follow()

    # -- followed vhosts --------------------------------------------------------------------------

    @property
    def archive_error(self) -> str:
        """See the class."""
        return self._found.error

    @property
    def may_write(self) -> bool:
        """Whether this node may write to its archive: its own, or the shared one once it has found that."""
        return self._found.is_found

    def terms(self) -> dict[str, int]:
        """Return, by vhost, the terms in which this node owns vhosts."""
        return {
            vhost: owner.term for vhost, owner in self.site.owners.items() if owner.node == self.site.name
        }

    def followed(self, vhosts: Collection[str]) -> list[str]:
        """Return those of these vhosts that this node transfers: as the holder, or as the owner that recorded it."""
        found = []
        for vhost in vhosts:
            owner = self.site.owners.get(vhost)
            if owner is not None and (owner.holder == self.site.name or self._is_claimed(owner)):
                found.append(vhost)
        return found

    def taking_over(self, vhosts: Collection[str]) -> list[str]:
        """Return those of these vhosts that a promotion would recover from another node's archive, the holder's.

        What this node has of them counts for no confirm of both sites: its archive may begin behind what the holder
        has, and then the take-over does not end while the holder is away.
        """
        owners = self.site.owners
        return [vhost for vhost in vhosts if vhost in owners and owners[vhost].recoverer != self.site.name]

    def origins(self, vhosts: Collection[str]) -> dict[str, int]:
        """Return the ids of the upstream's logs that the holders of these vhosts have records of, by log.

        A vhost that was made anew at the upstream has other logs: this node waits for the operator then, as the holder
        does, and as a single node.
        """
        owners = self.site.owners
        taken_over = self.taking_over(vhosts)
        return {log: log_id for vhost in taken_over for log, log_id in owners[vhost].origins.items()}

    def _is_claimed(self, owner: VhostOwner) -> bool:
        return owner.node == self.site.name and owner.claimed == owner.term

    def recovered_vhosts(self) -> list[str]:
        """Return the vhosts that this node recovers."""
        return sorted(vhost for vhost, owner in self.site.owners.items() if owner.recoverer == self.site.name)

    async def _note_origins(self) -> None:
        """Record which logs of the upstream the records are of that a promotion recovers from this node's archive.

        The next owner may begin while this node is away, and cannot ask it.
        """
        if self.site.is_shared:
            return  # The archive says it itself.
        for vhost in self._own.vhosts():
            owner = self.site.owners.get(vhost)
            if owner is None or owner.recoverer != self.site.name or not owner.has_data:
                continue
            origins = owner.origins | self._own.transfer.origins(vhost)
            if origins != owner.origins:
                await self.site.note(vhost, replace(owner, origins=origins))

    async def _note_whole(self) -> None:
        """Record the vhosts of which this node, as the owner, has all data and no longer needs the other nodes'."""
        for vhost in self._own_vhosts():
            owner = self._owned(vhost)
            if owner is None or not (owner.holder or owner.others) or not self._is_claimed(owner):
                continue
            [row] = self._own.transfer.rows([vhost])
            if owner.holder in self.site.running:
                if not self._take_overs.is_level(row):
                    continue
                await self.site.note(vhost, owner.takes_over())
            elif self._take_overs.has_all(owner, row, time.monotonic()):
                await self.site.note(vhost, owner.has_all())
            else:
                continue
            if owner.holder:
                logger.info("standby_vhost_taken_over vhost=%s from=%s", vhost, owner.holder)

    def _own_vhosts(self) -> list[str]:
        return [vhost for vhost in self._own.vhosts() if self._owned(vhost) is not None]

    def _owned(self, vhost: str) -> VhostOwner | None:
        """Return the present record of a vhost; None if this node does not own it, or no longer."""
        owner = self.site.owners.get(vhost)
        return owner if owner is not None and owner.node == self.site.name else None

    # -- promotion --------------------------------------------------------------------------------

    async def check_promotion(self, wanted: RecoveryRequest) -> None:
        """Check that the nodes with the data run; with `all_available`, the running nodes recover their own data.

        A promotion that goes on was checked at its begin: by now no node gets more records.

        Raises:
            PreconditionFailed: a node with data does not run, or one archive lacks what another one has.
        """
        goes_on = self._own.decided.promoting is not None and self._own.decided.promoting.wanted == wanted
        for vhost in sorted(self.site.owners):
            owner = self.site.owners.get(vhost)  # Records change while another one is written.
            if owner is None or vhost in wanted.exclude or not owner.has_data:
                continue
            if owner.recoverer in self.site.running:
                if not (wanted.all_available or goes_on):
                    await choose_archive(self.parts, vhost, owner)
                continue
            if self.site.is_shared:
                continue  # Another node takes the vhost over, and recovers it.
            if not wanted.all_available:
                raise PreconditionFailed(away(vhost, owner.recoverer))
            if owner.node in self.site.running:
                await self.site.note(vhost, owner.without_holder())

    def _remaining(self, attempt: PromotionAttempt) -> list[str]:
        """Return the vhosts that this node has not recovered yet."""
        return attempt.remaining(self.recovered_vhosts())

    async def _recover(self, attempt: PromotionAttempt, vhosts: list[str]) -> None:
        """Recover vhosts, and record that; a recovery that a lost node may have failed is retried."""
        running = self.site.running
        self._published = 0
        try:
            await self.site.all_know()
            await self._found.find()
            await self._claims.outrank(vhosts)
            part, left_out = await self._own.promotion.recover(
                attempt, vhosts, self._take, lambda: self._choose_archives(attempt, vhosts)
            )
            await self._own.decided.decide(
                lambda site: self._finished(with_part(site, attempt, part, left_out))
            )
            self._failures = 0
        except Exception as error:
            # Any error: who waits for the promotion is to be told.
            self._failures += 1
            is_calm = self.site.running == running
            is_bug = not isinstance(error, LeveretError)
            reason = f"{self.site.name}: {error!r}" if is_bug else f"{self.site.name}: {error}"
            logger.warning("standby_part_failed vhosts=%s error=%s", ",".join(vhosts), error, exc_info=is_bug)
            if self._failures >= (2 if is_calm else ATTEMPTS_MAX):
                self._failures = 0
                await self._own.decided.decide(
                    lambda site: site.failed(reason) if _is(site, attempt) else site
                )
            else:
                await asyncio.sleep(RETRY_S * self._failures)

    async def _choose_archives(self, attempt: PromotionAttempt, vhosts: list[str]) -> None:
        """Check that the archive here has what all have, or have another node recover its own, unless that has begun.

        Raises:
            PreconditionFailed: no archive has, and the request is not for what is available.
            PipelineFailed: another node recovers a vhost.
        """
        owners = self.site.owners
        if not any(vhost in owners and owners[vhost].others for vhost in vhosts):
            return
        begun = {row["vhost"] for row in await self._own.own_archive.unfinished_plans()}
        for vhost in sorted({*vhosts} & {*owners} - begun):
            try:
                if await choose_drained_archive(self.parts, vhost, owners[vhost]):
                    raise PipelineFailed(f"vhost '{vhost}': another node's archive has later records")
            except PreconditionFailed as refusal:
                if not attempt.wanted.all_available:
                    raise
                logger.warning("standby_promotion_lacks vhost=%s reason=other_archive %s", vhost, refusal)

    def _take(self, event: Event) -> None:
        """Take a report of this node's recovery."""
        self._progress.take(event)
        is_published = event.get("event") == "published"
        if is_published:
            self._published += event["messages"]
        if self._reports is None:
            return
        if is_published or event.get("event") == "planned":
            self._reports.take(self.site.name, [] if is_published else [event], self._published)
        else:
            self._reports.report(event)

    def _finished(self, site: SiteDecisions) -> SiteDecisions:
        """Return the decisions, with the promotion ended if all vhosts are recovered."""
        attempt = site.promoting
        if attempt is None or attempt.remaining(self.site.owners):
            return site
        return site.finished(clock_ms())

    async def _finish_if_recovered(self, attempt: PromotionAttempt) -> None:
        """End a promotion without remaining vhosts, such as the promotion of a site without data."""
        is_first = self.site.running[:1] == [self.site.name]
        if is_first and not attempt.remaining(self.site.owners):
            await self._own.decided.decide(self._finished)

    async def wait_promoted(self, report: Report, before: list[PromotionAttempt]) -> None:
        """Wait for the end of the running promotion, and report its progress at all nodes.

        `before` has the last promotion that was finished when this one began, if there was one.

        Raises:
            PipelineFailed: the promotion failed at a node, or was given up, or a node with data was lost.
        """
        self._reports, missing_since_s = PromotionReports(report), 0.0
        loop = asyncio.get_running_loop()
        try:
            while self._own.decided.promotions[-1:] == before:
                attempt = self._own.decided.promoting
                if attempt is None:
                    raise PipelineFailed("the promotion was cancelled meanwhile")
                if attempt.error:
                    raise PipelineFailed(attempt.error)
                if lost := self._lost(attempt):
                    missing_since_s = missing_since_s or loop.time()
                    if loop.time() - missing_since_s > _LOST_S:
                        raise PipelineFailed(
                            f"{away(*lost)}; the promotion continues by itself when that node is back"
                        )
                else:
                    missing_since_s = 0.0
                await self._report_others(self._reports)
                await self.site.wait(LOOK_S)
            self._note_promoted(self._own.decided.site)
        finally:
            self._reports = None

    def _lost(self, attempt: PromotionAttempt) -> tuple[str, str] | None:
        """Return a vhost that is not recovered yet and whose node does not run, and the node; None if there is none."""
        owners = self.site.owners
        for vhost in attempt.remaining(owners):
            if owners[vhost].recoverer not in self.site.running:
                return vhost, owners[vhost].recoverer
        return None

    async def _report_others(self, reports: PromotionReports) -> None:
        for node in self.site.running:
            if node == self.site.name:
                continue
            with suppress(LeveretError):
                found = await self.parts.of(node, "progress")
                reports.take(node, found["plans"], found["published"])

    # -- deleting ---------------------------------------------------------------------------------

    async def delete_all_data(self) -> None:
        """Delete the data of all nodes, while none transfers.

        Raises:
            LeveretError: a node does not answer, or cannot delete its data.
        """
        if not self.site.is_shared:
            await self._all_members()
        async with self._all_suspended():
            if self.site.is_shared:
                await self._own.delete_own_data()
                await self._own.decided.decide(lambda site: replace(site, archive_id="", misplaced=[]))
            else:
                await self.parts.of_all("delete_data")
            await self.site.forget([*self.site.owners], keep=self._own.vhosts())

    @asynccontextmanager
    async def _all_suspended(self) -> AsyncIterator[None]:
        """Have no node transfer meanwhile.

        Raises:
            LeveretError: a node does not answer.
        """
        self._suspends_others = True
        try:
            await self.parts.of_all("suspend", suspended=True, by=self.site.name)
            yield
        finally:
            self._suspends_others = False
            await self.parts.of_those_that_answer("suspend", suspended=False)

    async def delete_orphaned_data(self) -> list[dict[str, Any]]:
        """Delete the data that no node would recover; return a row for each node and vhost: node, vhost, bytes.

        Raises:
            LeveretError: a node does not answer, or cannot delete its data; or the upstream has not reported.
        """
        if self.site.is_shared:
            rows = await self._delete_shared_orphans()
        else:
            found = await self.parts.of_all("delete_orphans")
            rows = [{"node": node, **row} for node, each in found.items() for row in each]
            await self._begin_anew({(row["node"], row["vhost"]) for row in rows})
        if not rows:
            self._own.check_heard()
            await self._check_waiting()
        deleted = {row["vhost"] for row in rows}
        gone = [vhost for vhost in self.site.owners if vhost in deleted and vhost not in self._own.vhosts()]
        await self.site.forget(gone)
        return rows

    async def _begin_anew(self, deleted: Collection[tuple[str, str]]) -> None:
        """Record for vhosts that are still replicated that the archives with their data, node and vhost, have none."""
        for vhost in self._own.vhosts():
            owner = self.site.owners.get(vhost)
            if owner is not None and (owner.recoverer, vhost) in deleted:
                await self.site.note(vhost, owner.has_all())

    async def _check_waiting(self) -> None:
        """Check that no owner waits for the operator because of data that a stopped node has.

        Raises:
            PreconditionFailed: one does.
            LeveretError: a node does not answer.
        """
        for vhost in self._own.vhosts():
            owner = self.site.owners.get(vhost)
            if owner is None or not owner.holder or owner.holder in self.site.running:
                continue
            if owner.node not in self.site.running:
                continue
            rows = (await self.parts.of(owner.node, "status"))["vhosts"]
            if any(row["virtual_host"] == vhost and row["state"] == "recover" for row in rows):
                raise PreconditionFailed(
                    f"vhost '{vhost}': its data are at node {owner.holder}, which does not run: start it, or "
                    f"forget_cluster_node {owner.holder} if it is gone for good; nothing was deleted"
                )

    async def _delete_shared_orphans(self) -> list[dict[str, Any]]:
        """Delete the data of a shared archive that no node would recover, while no node transfers."""
        wanted = self._own.vhosts()
        if not await self._own.own_archive.orphans(wanted):
            return []
        async with self._all_suspended():
            found = await self._own.delete_own_orphans(wanted)
        return [{"node": self.site.name, **row} for row in found]

    async def _all_members(self) -> None:
        """Check that all nodes with data run: the data of a stopped node would come back with it.

        Raises:
            PreconditionFailed: a node with data does not run.
        """
        for vhost, owner in sorted(self.site.owners.items()):
            if owner.has_data and owner.recoverer not in self.site.running:
                raise PreconditionFailed(
                    f"vhost '{vhost}': its data are at node {owner.recoverer}, which does not run: start it, or "
                    f"forget_cluster_node {owner.recoverer} if it is gone for good; nothing was deleted"
                )

    # -- answers to other nodes -------------------------------------------------------------------

    async def _answer_status(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return self._own.status()

    async def _answer_progress(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plans of this node's part, and the number of published messages."""
        try:
            plans = await self._own.promotion.plans() if self._own.decided.promoting is not None else []
            mine = {*self.recovered_vhosts()}
            plans = [each for each in plans if each.vhost in mine]
        except PipelineFailed as failure:
            return {"plans": [], "published": self._published, "error": str(failure)}
        return {
            "plans": [
                {"vhost": each.vhost, "plan_id": each.plan_id, "queues": each.queues} for each in plans
            ],
            # Without a plan nothing is published: the count is of an earlier promotion.
            "published": self._published if plans else 0,
            "error": "",
        }

    async def _answer_recovered(self, about: Mapping[str, Any]) -> list[list[Any]]:
        """Return the numbers of plans' messages in the queues that this node leads: vhost, queue, reference, count."""
        rows = []
        for plan in about["plans"]:
            for queue in plan["queues"]:
                if count := self._own.promotion.recovered((plan["vhost"], queue), plan["reference"]):
                    rows.append([plan["vhost"], queue, plan["reference"], count])
            await asyncio.sleep(0)
        return rows

    async def _answer_suspend(self, about: Mapping[str, Any]) -> None:
        """Suspend the transfer, or end the suspension."""
        self._suspended, self._suspended_by = bool(about["suspended"]), about.get("by", "")
        if self._suspended:
            await self._own.transfer.stop()
            # Another node deletes data meanwhile. The next transfer reports what is left.
            self._own.transfer.forget()

    async def _answer_suspends(self, about: Mapping[str, Any]) -> bool:
        return self._suspends_others

    async def _end_left_suspension(self) -> None:
        """End a suspension that its node can no longer end: that node was lost, or was not heard here."""
        by = self._suspended_by
        if not self._suspended or not by:
            return
        try:
            goes_on = bool(await self.parts.of(by, "suspends"))
        except LeveretError:
            goes_on = by in self.site.running
        if not goes_on and self._suspended_by == by:
            self._suspended, self._suspended_by = False, ""

    async def _answer_delete_data(self, about: Mapping[str, Any]) -> None:
        await self._own.delete_own_data()

    async def _answer_delete_orphans(self, about: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Delete this node's data of vhosts that it does not follow."""
        owners, me = self.site.owners, self.site.name
        wanted = {vhost for vhost in self._own.vhosts() if vhost in owners and me in owners[vhost].followers}
        return await self._own.delete_own_orphans(wanted)

    async def _inspect(self, about: Mapping[str, Any], report: Report) -> Any:
        return await self._own.own_archive.inspect(report)

    async def _export(self, about: Mapping[str, Any], report: Report) -> Any:
        return await self._own.own_archive.export(about["target"], about["form"], about["options"], report)


def with_part(
    site: SiteDecisions,
    attempt: PromotionAttempt,
    part: RecoveredPart,
    left_out: list[dict[str, Any]] | None,
) -> SiteDecisions:
    """Return the decisions with a node's recovered part, unless another promotion has taken the place of `attempt`."""
    if site.promoting is None or not _is(site, attempt):
        return site
    promoting = site.promoting.with_part(part)
    if left_out is not None:
        promoting = promoting.with_left_out(left_out)
    return replace(site, promoting=promoting)


def _is(site: SiteDecisions, attempt: PromotionAttempt) -> bool:
    return site.promoting is not None and site.promoting.wanted == attempt.wanted


def _taken(task: asyncio.Task[None]) -> None:
    """Log the exception of a part that failed unexpectedly; the next look begins the part again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("standby_part_failed error=%s", error, exc_info=error)


async def _nothing_returns() -> bool:
    """Return False: no return is under way."""
    return False


def report_promotion(attempt: PromotionAttempt) -> None:
    """Log the end of a promotion."""
    logger.info("standby_mode_decided mode=upstream")
    for vhost in attempt.unfollowed:
        logger.warning("standby_promotion_left_out vhost=%s reason=not_followed", vhost)
    for row in reported_rows(attempt.summary):
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
