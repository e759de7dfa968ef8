"""A node whose role etcd decides: it leads while it has the lease, and otherwise follows the holder of the lease.

Only a node that the record lists as in sync may win, so the record is written ahead of every promise: see
core.replication.in_sync for the order, and `election.Election.holds_lease_now` for the check before each promise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import NodeUri, parse_node_uri
from leveret.core.replication.election import ElectedLeader
from leveret.core.replication.in_sync import InSync
from leveret.model.errors import LeveretError
from leveret.runtime.coordination.election import Election, ElectionWon, NotLeader
from leveret.runtime.coordination.etcd import etcd_context

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.2


class ElectionCandidate(Protocol):
    """The node that is elected; see roles.Roles."""

    role: str
    failed: asyncio.Event

    @property
    def is_torn(self) -> bool:
        """Whether the node may lack promised records, whatever the record says."""

    def standing_for(self) -> tuple[str, str, int]:
        """Return the node's id, its address for followers, and the highest epoch in which it led or followed."""

    def occupied_address(self) -> str:
        """Why the node could not serve clients if it led: another process has an address. Empty if it could."""

    async def lead_in(self, epoch: int, recorded: frozenset[str]) -> None:
        """Lead from now on; promises wait for all recorded nodes."""

    async def follow_leader(self, uri: NodeUri) -> None:
        """Follow this leader from now on."""

    async def fence(self) -> None:
        """Stop serving."""


class ElectedNode:
    """See the module."""

    def __init__(self, settings: EtcdOptions, candidate: ElectionCandidate) -> None:
        """Connect to nothing yet.

        Raises:
            ConfigError: the authorities for etcd's certificates cannot be read.
        """
        self._candidate = candidate
        self._election = Election(settings, on_deposed=self._deposed, tls=etcd_context(settings))
        self._recording: asyncio.Task[None] | None = None
        self._fencing: asyncio.Task[None] | None = None
        self._error = ""
        self._not_elected = ""

    async def run(self) -> None:
        """Follow etcd's decisions, for ever."""
        self._election.start()
        async for leader in self._election.watch_leader():
            try:
                await self._reported(leader)
            except LeveretError as error:
                if str(error) != self._error:
                    logger.error("election_failed error=%s action=retry", error)
                self._error = str(error)
                await asyncio.sleep(_RETRY_S)
                # The next change of the leader may be months away.
                self._election.report_again()
            else:
                self._error = ""

    async def _reported(self, leader: ElectedLeader | None) -> None:
        candidate = self._candidate
        node_id, _, _ = candidate.standing_for()
        self._not_elected = ""
        if leader is None:
            if candidate.role != "leader":
                await self.campaign(force=False)
        elif leader.node_id != node_id:
            if candidate.role == "leader":
                await self._fence()
            try:
                uri = parse_node_uri(leader.uri)
            except ValueError:
                logger.error("leader_without_address node_id=%s uri=%s", leader.node_id, leader.uri)
            else:
                await candidate.follow_leader(uri)

    async def campaign(self, *, force: bool) -> str:
        """Try to lead; return the reason of the failure, empty after success.

        Raises:
            LeveretError: etcd does not answer, or the node cannot be started.
        """
        # A winner that cannot serve ends, and may win again once it is started anew.
        if occupied := self._candidate.occupied_address():
            return self._declined(occupied)
        outcome = await self._election.campaign(
            *self._candidate.standing_for(), is_torn=self._candidate.is_torn, force=force
        )
        if isinstance(outcome, ElectionWon):
            await self._candidate.lead_in(outcome.epoch, outcome.in_sync)
            return ""
        return self._declined(outcome.reason)

    def _declined(self, reason: str) -> str:
        logger.info("not_elected reason=%s", reason)
        self._not_elected = reason
        return reason

    def _deposed(self, why: str) -> None:
        """Stop serving: the lease is gone, and `may_promise` has been False since its end."""
        logger.error("deposed reason=%s action=stop_serving", why)
        # The reference protects the task from garbage collection.
        self._fencing = asyncio.get_running_loop().create_task(self._fence())

    async def _fence(self) -> None:
        """Stop serving, or end the process: a node that can neither serve nor show its data does not stay a leader."""
        try:
            await self._candidate.fence()
        except Exception as error:
            logger.critical("not_stepped_down error=%s action=stop", error, exc_info=True)
            self._candidate.failed.set()

    def may_promise(self) -> bool:
        """Whether this node leads at this moment."""
        return self._election.holds_lease_now()

    def record(self, in_sync: InSync, recorded: Callable[[], None]) -> None:
        """Record the nodes in sync in etcd, and call `recorded` once that is done."""
        if (self._recording is None or self._recording.done()) and in_sync.wanted is not None:
            self._recording = asyncio.get_running_loop().create_task(self._record(in_sync, recorded))

    async def _record(self, in_sync: InSync, recorded: Callable[[], None]) -> None:
        members = in_sync.wanted
        if members is None:
            return
        in_sync.writing(members)
        try:
            await self._election.record_in_sync(members)
        except NotLeader:
            return
        except LeveretError as error:
            logger.error("in_sync_not_recorded error=%s", error)
            await asyncio.sleep(_RETRY_S)
            return
        in_sync.written(members)
        recorded()

    async def stop(self) -> None:
        """End the lease, so that another node can lead."""
        await self._election.close()

    def status(self) -> dict[str, Any]:
        """See election.Election.status; with `not_elected`, why this node lost the last election, if nobody leads."""
        return self._election.status() | {"not_elected": self._not_elected or None}
