"""The rejoin of a cluster that was replaced as an upstream: all its nodes follow the site that was promoted.

The steps are those of a node alone (`rejoin`); all nodes take each step for the queues that they lead. The record of a
return in etcd takes the place of `rejoin.json`: before it is written, nothing was emptied, and the cluster is still an
upstream. After that the return cannot be undone. Of the running nodes, the one that joined first finishes the return,
also after a restart, and no node admits clients before.

Several nodes may have collected a queue, one after the other. Each of their outgoing logs shows up to which offset the
new upstream has the queue, so the highest of these offsets counts. A log shows nothing about a queue that it has under
another incarnation than the leader's log, because offsets may name other messages there. If no log shows an offset,
all messages of the queue are quarantined: too many are safe. But they double if an operator publishes them again; so a
node that may have such a log has to run, or to be forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from leveret.core.queues.queue import Queue
from leveret.core.replication.standby_site import KeptQueue, SiteDecisions, SiteReturn
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.definitions import QueueKey
from leveret.model.errors import LeveretError, PreconditionFailed, StorageError
from leveret.runtime.clients.authority import AmqpHost
from leveret.runtime.clients.maintenance import DrainCause
from leveret.runtime.collecting.outgoing_log import key_by_counts
from leveret.runtime.link.questions import read_as
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.unwanted_tasks import end_task
from leveret.runtime.standby.pipeline_process import Report, ask, report_nothing
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
from leveret.runtime.standby.site import SiteParts
from leveret.runtime.standby.transfer import StandbyUpstreamParameter
from leveret.storage.quarantine.report import DivergentReport

logger = logging.getLogger(__name__)

_COLLECTED_S: Final = 60.0
"""The longest wait until the queues of a newly started node are collected."""
_EMPTIED_S: Final = 10.0
"""The longest wait until this node knows of the queues that other nodes emptied."""
_LOOK_S: Final = 0.3
_FORWARDED_LOOK_S: Final = 0.02


class ReturningMember(RejoiningNode, Protocol):
    """A node of the cluster, as this module uses it."""

    amqp_host: AmqpHost

    def changing(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which definitions may be changed."""


class SiteRejoin:
    """See the module; one at each node."""

    def __init__(self, node: ReturningMember, parts: SiteParts) -> None:
        """Add this node's handlers to `parts`; no return has begun."""
        self._node = node
        self._here = ReturningNode(node)
        self._parts = parts
        self._command = ReturnCommand()
        self._asked_by = ""
        self._is_closed = False
        self._finishing: asyncio.Task[None] | None = None
        self._error = ""
        self._late: list[dict[str, Any]] = []
        parts.add(
            {
                "return_is_asked": self._answer_is_asked,
                "return_late": self._answer_late,
                "return_error": self._answer_error,
            },
            {
                "return_logs": self._logs,
                "return_close": self._close,
                "return_open": self._open,
                "return_begins": self._begins,
                "return_quarantine": self._quarantine,
                "return_keep_former": self._keep_former,
                "return_resign": self._resign,
                # The name on the link to nodes of earlier versions, which delete the queues.
                "return_delete": self._empty_own,
                "return_collect": self._collect,
            },
        )

    # -- life -------------------------------------------------------------------------------------

    @property
    def _returning(self) -> SiteReturn | None:
        return self._node.standby.decided.site.returning

    @property
    def is_under_way(self) -> bool:
        """Whether a return cannot be undone and its queues are not emptied yet; meanwhile no record is collected."""
        return self._returning is not None and not self._returning.is_emptied

    async def resume(self) -> None:
        """Admit no clients at the start while a return is under way."""
        if self._returning is not None:
            await self._turn_away()

    async def stop(self) -> None:
        """End this node's part; another node finishes the return, or this node does after its next start."""
        self._command.over.set()
        finishing, self._finishing = self._finishing, None
        await end_task(finishing)
        await self._command.end()

    async def obey(self) -> bool:
        """Take this node's part in a return that cannot be undone; return whether such a return is under way."""
        if not self.is_under_way:
            self._node.collector.has_resigned = False
        if self._returning is None:
            if self._is_closed and not await self._is_still_asked():
                await self._admit()
            return False
        await self._turn_away()
        if self._parts.site.running[:1] == [self._parts.site.name] and self._finishing is None:
            self._finishing = asyncio.create_task(self._finish_later(), name="rejoin")
        return True

    async def _is_still_asked(self) -> bool:
        """Return whether the node that requested the drain of this one still carries out the command."""
        if self._asked_by == "":
            return False
        try:
            return bool(await self._parts.of(self._asked_by, "return_is_asked"))
        except LeveretError:
            return self._asked_by in self._parts.site.running

    async def _turn_away(self) -> None:
        """Close and refuse clients, without moving leaders. A node in maintenance stays in maintenance afterwards."""
        if not self._is_closed:
            self._is_closed = True
            await self._node.maintenance.drain(cause=DrainCause.REJOIN, hands_over=False)

    async def _admit(self) -> None:
        if self._is_closed:
            self._is_closed = False
            await self._node.maintenance.revive(cause=DrainCause.REJOIN)

    # -- the operator's command -------------------------------------------------------------------

    async def rejoin(self, *, set_all_aside: bool = False) -> dict[str, Any]:
        """Become a downstream of the new upstream, with all nodes; see Rejoin.

        Returns:
            As Rejoin.rejoin; rows and reports also have their node.

        Raises:
            PreconditionFailed: see Rejoin; or a node does not run, unless `set_all_aside`; or a queue has no running
                leader.
            LeveretError: a node does not answer, or cannot quarantine its records; nothing was deleted.
        """
        if self._command.lock.locked() or self._returning is not None:
            raise PreconditionFailed(
                "this cluster is coming back already: rejoin_failed in the nodes' logs has the reason of a failure"
            )
        async with self._command.running():
            upstream = self._here.check()
            if not set_all_aside:
                self._check_present(self._parts.site.members, self._parts.site.running)
            logs = await self._work("return_logs")
            self._check_led(logs)
            seen = await self._ask_positions(upstream, logs, set_all_aside=set_all_aside)
            unknown = await self._here.check_definitions()
            try:
                rows = await self._begin(seen, unknown)
            except (Exception, asyncio.CancelledError):
                if self._command.over.is_set():
                    raise  # The others are not told that this node asks for it no more: they find that out.
                if self._returning is None:
                    with suppress(LeveretError):
                        await self._work("return_open")
                raise
            await self._wait_finished()
            for node, late in (await self._parts.of_all("return_late")).items():
                rows += [{"node": node, **each} for each in late]
            return _reported(upstream, rows)

    async def _begin(self, seen: Mapping[str, Any], unknown: Iterable[Place]) -> list[dict[str, Any]]:
        """Quarantine at all nodes, and record that the return has begun; return the rows of the quarantine."""
        await self._work("return_close", by=self._parts.site.name)
        begins: dict[tuple[str, str, int], int] = {}
        found_by_node = await self._work("return_begins", seen=seen)
        # A node may have ended since it was asked for its logs, and be back by now.
        self._check_present(seen, found_by_node)
        for found in found_by_node.values():
            for vhost, name, incarnation, begin in found:
                key = vhost, name, incarnation
                begins[key] = max(begin, begins.get(key, 0))
        known = [[*key, begin] for key, begin in begins.items()]
        vhosts = sorted({vhost for logs in seen.values() for vhost in logs})
        places = [list(place) for place in unknown]
        done = await self._work("return_quarantine", begins=known, vhosts=vhosts, unknown=places)
        # A node may have ended since the first look: what it leads would stay as it is, and not be quarantined.
        self._check_led(done)
        await self._work("return_keep_former")
        site = self._parts.site
        await site.forget([*site.owners], keep=self._node.standby.vhosts())
        kept = [read_as(KeptQueue, each) for part in done.values() for each in part["kept"]]
        returning = SiteReturn(begun_ms=clock_ms(), queues=kept)
        await self._node.standby.decided.decide(lambda decided: replace(decided, returning=returning))
        return [{"node": node, **row} for node, part in done.items() for row in part["reports"]]

    async def _work(self, name: str, **about: Any) -> dict[str, Any]:
        """Run the work of this name at all running nodes; return the results by node."""
        return await self._parts.work(self._parts.site.running, name, report_nothing, **about)

    def _check_present(self, nodes: Iterable[str], present: Container[str]) -> None:
        """Check that these nodes take part: their logs may show what the new upstream has of queues led elsewhere.

        Raises:
            PreconditionFailed: one is not.
        """
        for node in nodes:
            if node not in present:
                raise PreconditionFailed(
                    f"node {node} does not run, and may know up to which message the new upstream has the queues that "
                    f"it led: start it and do it again, or run forget_cluster_node {node} if it is gone for good; "
                    "nothing was changed. --set-all-aside does without it, and may quarantine messages that both "
                    "sites have"
                )

    def _check_led(self, logs: Mapping[str, Any]) -> None:
        """Check that a running node leads each replicated queue: a stopped node's records could not be quarantined.

        Raises:
            PreconditionFailed: no running node leads one of the queues.
        """
        led = {tuple(key) for found in logs.values() for key in found["led"]}
        for queue in self._node.broker.queues.values():
            if queue.replicated and queue.key not in led:
                raise PreconditionFailed(
                    f"queue '{queue.key[1]}' of vhost '{queue.key[0]}': no running node leads it, so its messages "
                    "cannot be quarantined: start the node that has them, or forget_cluster_node if it is gone for "
                    "good; nothing was changed"
                )

    async def _ask_positions(
        self, upstream: StandbyUpstreamParameter, logs: Mapping[str, Any], *, set_all_aside: bool
    ) -> dict[str, dict[str, list[int | None]]]:
        """Return the new upstream's position in each outgoing log and the fingerprint before it, by node and vhost."""
        link = self._node.standby.link_job(upstream)
        found: dict[str, dict[str, list[int | None]]] = {}
        known: set[str] = set()
        for node, each in logs.items():
            answer = await ask("positions", {**link, "logs": each["logs"]})
            ends, marks = answer["positions"], answer["marks"]
            known |= {vhost for vhost in each["logs"] if ends.get(vhost) is not None}
            found[node] = {vhost: [ends.get(vhost) or 0, marks.get(vhost)] for vhost in each["logs"]}
        holding = {vhost for each in logs.values() for vhost in each["holding"]}
        if (unknown := sorted(holding - known)) and not set_all_aside:
            raise PreconditionFailed(
                f"the site at {', '.join(upstream.endpoints)} never took the place of this one in vhost "
                f"'{unknown[0]}': it was no standby of this cluster, or has not been promoted; nothing was changed. "
                "Where it took the place of a site that took this one's, --set-all-aside follows it, and keeps all "
                "that the replicated queues hold here"
            )
        return found

    async def _wait_finished(self) -> None:
        """Wait for the end of the return.

        Raises:
            StorageError: a try failed, here or at another node, and the return is retried; the text has the reason.
        """
        while self._returning is not None:
            for node in self._parts.site.running[:1]:
                error = ""
                with suppress(LeveretError):
                    error = await self._parts.of(node, "return_error")
                if error:
                    raise StorageError(
                        f"the rejoin has begun and is not finished: {error}; it is tried again every {RETRY_S:g} s, "
                        "and no client is admitted before"
                    )
            await self._parts.site.wait(_LOOK_S)

    # -- finishing --------------------------------------------------------------------------------

    async def _finish_later(self) -> None:
        """Finish the return, with as many tries as that takes."""
        while (returning := self._returning) is not None:
            try:
                await self._finish(returning)
            except Exception as error:
                # Any error: no client is admitted before it is done.
                is_bug = not isinstance(error, FAILURES)
                self._error = repr(error) if is_bug else str(error)
                logger.error("rejoin_failed error=%s retry_s=%g", error, RETRY_S, exc_info=is_bug)
                await asyncio.sleep(RETRY_S)
        self._error, self._finishing = "", None

    async def _finish(self, returning: SiteReturn) -> None:
        """Empty the queues, and follow.

        Other downstreams of this site keep their messages and definitions: it ceases to be their upstream before the
        first queue is emptied.
        """
        node = self._node
        if not returning.is_emptied:
            await self._empty(returning)
        await self._parts.site.all_know()
        await self._work("return_collect")
        # Last, because from now on the new upstream's definitions hold.
        await node.schema_sync.set_mode("downstream")
        await node.standby.decided.decide(lambda site: replace(site, returning=None))
        logger.warning("rejoined_as_downstream queues_emptied=%d", len(returning.queues))

    async def _empty(self, returning: SiteReturn) -> None:
        """Empty the queues at their leaders."""
        node = self._node
        if node.schema_sync.mode is OperatingMode.UPSTREAM:
            await node.schema_sync.set_mode("none")
        await self._parts.site.all_know()
        await self._work("return_resign")
        for _ in range(LOOKS_MAX):
            before = await self._epochs(returning)
            await self._empty_once(returning)
            # A queue may have dead-lettered into one that another node had emptied before, and that one into a third.
            if await self._epochs(returning) == before:
                break
        await node.standby.decided.decide(_emptied)

    async def _epochs(self, returning: SiteReturn) -> list[int]:
        # With the definitions lock, this node knows the queues that other nodes have emptied.
        async with self._node.changing():
            return self._here.epochs(returning.queues)

    async def _empty_once(self, returning: SiteReturn) -> None:
        queues = msgspec.to_builtins(returning.queues)
        done = await self._work("return_delete", queues=queues)
        staying = {tuple(key) for found in done.values() for key in found}
        deadline_s = time.monotonic() + _EMPTIED_S
        while (left := self._left(returning.queues, staying)) and time.monotonic() < deadline_s:
            await self._parts.site.wait(_LOOK_S)
        if left:
            raise StorageError(f"queue '{left.name}' of vhost '{left.vhost}' is led by no running node")

    def _left(self, queues: Iterable[KeptQueue], staying: Container[Place]) -> KeptQueue | None:
        """Return a queue that is not emptied yet and must not stay; None if there is none."""
        for each in queues:
            queue = self._node.broker.queues.get((each.vhost, each.name))
            if queue is not None and queue.epoch == each.epoch and queue.key not in staying:
                return each
        return None

    # -- this node's part -------------------------------------------------------------------------

    async def _answer_is_asked(self, about: Mapping[str, Any]) -> bool:
        return self._command.lock.locked()

    async def _answer_error(self, about: Mapping[str, Any]) -> str:
        """Return why the last try to finish the return failed; empty if it did not, or another node finishes it."""
        return self._error

    async def _answer_late(self, about: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return, once, the reports of records that came to queues of this node after their quarantine."""
        late, self._late = self._late, []
        return late

    async def _logs(self, about: Mapping[str, Any], report: Report) -> dict[str, Any]:
        led = self._led()
        logs = self._here.logs()
        vhosts = sorted({key[0] for key in led} | {*logs})
        return {
            "logs": logs,
            "led": led,
            "holding": [vhost for vhost in vhosts if self._here.holds_any(vhost)],
        }

    def _led(self) -> list[tuple[str, ...]]:
        """Return the replicated queues that this node leads."""
        return [queue.key for queue in self._node.broker.led_queues() if queue.replicated]

    async def _close(self, about: Mapping[str, Any], report: Report) -> None:
        self._asked_by = about["by"]
        await self._turn_away()
        await self._here.wait_for_quiet()
        deadline_s = time.monotonic() + _COLLECTED_S
        while any(log.catching_up for log in self._node.collector.logs.values()):
            if time.monotonic() > deadline_s:
                raise PreconditionFailed(
                    "queues that this node leads since a short time are not collected yet: try again"
                )
            await asyncio.sleep(_LOOK_S)

    async def _open(self, about: Mapping[str, Any], report: Report) -> None:
        self._asked_by = ""
        await self._admit()

    async def _begins(self, about: Mapping[str, Any], report: Report) -> list[list[Any]]:
        """Return, from this node's logs, for each queue: vhost, name, incarnation, first offset that was not sent."""
        rows: list[list[Any]] = []
        for vhost, (position, mark) in about["seen"].get(self._parts.site.name, {}).items():
            log = self._node.collector.logs.get(vhost)
            found = None if log is None else await self._here.begins(vhost, UpstreamPosition(position, mark))
            if log is not None and found is not None:
                rows += [[vhost, queue.key[1], log.key_of(queue)[1], begin] for queue, begin in found.items()]
        return rows

    async def _quarantine(self, about: Mapping[str, Any], report: Report) -> dict[str, Any]:
        known = {(vhost, name, incarnation): begin for vhost, name, incarnation, begin in about["begins"]}
        begins = self._here.begins_of_unknown({tuple(place) for place in about["unknown"]})
        for vhost in about["vhosts"]:
            for queue, whole in self._here.begins_of_all(vhost).items():
                begins[queue] = self._begin_of(queue, known, whole)
        kept, reports = await self._here.quarantine(begins)
        return {"kept": msgspec.to_builtins(kept), "reports": _rows(reports), "led": self._led()}

    def _begin_of(self, queue: Queue, known: Mapping[tuple[str, str, int], int], whole: int) -> int:
        collector = self._node.collector
        log, shared = collector.logs.get(queue.key[0]), collector.incarnations
        # The disk may have refused this node's log. Another node, which led the queue before, may know all the same.
        key = log.key_of(queue) if log is not None else key_by_counts(queue, shared)
        begin = known.get((*queue.key, key[1]))
        if begin is None:
            logger.warning("rejoin_quarantines_all vhost=%s queue=%s", queue.key[0], queue.key[1])
            return whole
        return begin

    async def _keep_former(self, about: Mapping[str, Any], report: Report) -> None:
        site = self._parts.site
        await self._node.standby.keep_former_archive(moves=not site.is_shared or site.running[0] == site.name)

    async def _resign(self, about: Mapping[str, Any], report: Report) -> None:
        self._node.collector.resign()

    async def _collect(self, about: Mapping[str, Any], report: Report) -> None:
        self._node.collector.has_resigned = False

    async def _wait_for_forwarded(self, keys: Container[QueueKey]) -> None:
        """Wait until the leaders of these queues have all messages that this node sent them.

        Raises:
            StorageError: one does not answer in time.
        """
        self._node.engine.flush()
        deadline_s = time.monotonic() + _COLLECTED_S
        leaders = self._node.amqp_host.leaders
        while leaders is not None and (late := leaders.first_unconfirmed(keys)) is not None:
            if time.monotonic() > deadline_s:
                raise StorageError(
                    f"queue '{late[1]}' of vhost '{late[0]}': its leader has not taken the dead letters of this node"
                )
            await asyncio.sleep(_FORWARDED_LOOK_S)

    async def _empty_own(self, about: Mapping[str, Any], report: Report) -> list[list[str]]:
        """Empty the queues that this node leads; return those that stay, because they cannot be read.

        What these queues had dead-lettered is at its leaders by then, where the next look finds it.
        """
        queues = [read_as(KeptQueue, each) for each in about["queues"]]
        led = {queue.key: queue for queue in self._node.broker.led_queues()}
        own = [each for each in queues if (each.vhost, each.name) in led]
        async with self._node.changing():
            self._late += _rows(await self._here.empty(own))
        await self._wait_for_forwarded({(each.vhost, each.name) for each in queues})
        return [list(key) for key, queue in led.items() if queue.damage is not None]


def _emptied(site: SiteDecisions) -> SiteDecisions:
    """Return the decisions once the queues are empty; unchanged if another node has finished the return."""
    if site.returning is None:
        return site
    returning = replace(site.returning, is_emptied=True)
    return replace(site, operating_mode=OperatingMode.DOWNSTREAM, connected=True, returning=returning)


def _rows(reports: Iterable[DivergentReport]) -> list[dict[str, Any]]:
    """Return a row for each report and queue, as another node receives them."""
    return [{"report": report.id, **row} for report in reports for row in rows_of([report])]


def _reported(upstream: StandbyUpstreamParameter, rows: list[dict[str, Any]]) -> dict[str, Any]:
    places = sorted({(row["node"], row["report"]) for row in rows})
    return {
        "upstream_endpoints": upstream.endpoints,
        "report": places[0][1] if places else "",
        "reports": sorted({report for _, report in places}),
        "places": [{"node": node, "report": report} for node, report in places],
        "messages": sum(row["messages"] for row in rows),
        "settlements_lost": sum(row["settlements_lost"] for row in rows),
        "queues": sorted(rows, key=lambda row: (row["virtual_host"] or "", row["queue"] or "")),
    }
