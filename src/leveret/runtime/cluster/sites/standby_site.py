"""The downstream side of a cluster: its decisions and the owners of its vhosts, in etcd (standby.site.StandbySite).

The decisions are one key, and the owner of each vhost is another one. Every write is on condition that the key has not
changed, so concurrent writers lose nothing. Of the running nodes, the one that joined first gives vhosts to nodes; any
other node would give them in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from msgspec.structs import replace

from leveret.config import Config
from leveret.core.replication.cluster import encode
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction
from leveret.core.replication.standby_site import SiteDecisions
from leveret.core.replication.vhost_owners import SiteNodes, VhostOwner, next_owners
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import LeveretError, ResourceLocked
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.standby.decisions import Change, StandbyDecided
from leveret.runtime.standby.site import STANDBY

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 100
_AGAIN_S: Final = 0.05
_LOOK_S: Final = 0.5
_SETTLED_S: Final = 1.0
"""The wait before a vhost moves although its owner runs, so that a start of the cluster moves none of them twice."""


class ClusterStandbySite:
    """See the module."""

    def __init__(
        self,
        member: ClusterMember,
        config: Config,
        own: StandbyDecided,
        vhosts: Callable[[], list[str]],
    ) -> None:
        """Use this member's store; the decisions `own` of this node hold until the cluster has some."""
        self._member = member
        self._config = config
        self._own = own
        self._vhosts = vhosts
        self._changed = asyncio.Event()
        self._look = asyncio.Event()
        self._seen: tuple[object, ...] = ()
        self._seen_s = 0.0
        self._trouble = ""

    # -- present state ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See StandbySite."""
        return self._member.name

    @property
    def decided(self) -> SiteDecisions:
        """See SharedDecisions; the node's own decisions hold until the cluster has some."""
        shared = self._member.state.standby
        return self._own.own if shared is None else shared

    @property
    def owners(self) -> Mapping[str, VhostOwner]:
        """See StandbySite."""
        return self._member.state.standby_owners

    @property
    def members(self) -> Collection[str]:
        """See StandbySite."""
        return self._member.cluster_view().members

    @property
    def running(self) -> list[str]:
        """See StandbySite: the nodes that serve."""
        view = self._member.cluster_view()
        return [
            name
            for name in view.members
            if name == self.name or (name in view.alive and view.alive[name].uri)
        ]

    @property
    def cluster_id(self) -> str:
        """See StandbySite."""
        return self._member.state.cluster_id

    @property
    def is_shared(self) -> bool:
        """See StandbySite."""
        return bool(self.decided.archive)

    @property
    def trouble(self) -> str:
        """See StandbySite."""
        return self._why_not(self.name)

    def _why_not(self, node: str) -> str:
        """The reason why a node owns no vhost; empty if it may."""
        presence = self._member.state.alive.get(node)
        mode = self._config.standby.operating_mode if presence is None else presence.standby_mode
        decided = self.decided
        if decided.operating_mode is None and decided.configured and mode and mode != decided.configured:
            return (
                f"node {node} is configured as {mode} (standby.replication.operating_mode), and the cluster is "
                f"{decided.configured}: all nodes of a cluster are in one mode, that of the node that joined first; "
                "correct the setting, or decide with set_standby_replication_mode"
            )
        place = self._config.standby.shared_place if presence is None else presence.standby_archive
        if decided.configured and place != decided.archive:
            own = "an archive of its own"
            return (
                f"node {node} is configured with {place or own} (standby.replication.downstream.data_dir), and the "
                f"cluster with {decided.archive or own}: all nodes of a cluster share one archive or none do, as the "
                "node that joined first; correct the setting"
            )
        if node in decided.misplaced:
            return (
                f"node {node} does not reach the archive of this cluster at {place}; its log has the reason"
            )
        return ""

    # -- writing ----------------------------------------------------------------------------------

    async def decide(self, change: Change) -> None:
        """See SharedDecisions.

        Raises:
            ResourceLocked: other nodes decided at each attempt.
            LeveretError: etcd does not answer.
        """
        member, key = self._member, self._member.state.keys.standby
        for _ in range(ATTEMPTS_MAX):
            condition = member.state.unchanged(key)
            before = self.decided
            after = change(before)
            if after == before and member.state.standby is not None:
                return
            if await member.transact(StoreTransaction((condition,), (PutKey(key, encode(after)),))):
                return
            await asyncio.sleep(_AGAIN_S)
        raise ResourceLocked("another node decides on the standby now: try again")

    async def note(self, vhost: str, owner: VhostOwner) -> None:
        """See StandbySite."""
        state = self._member.state
        known = state.standby_owners.get(vhost)
        if known is None or known.node != owner.node or known.term > owner.term:
            return
        key = state.keys.standby_owner(vhost)
        write = PutKey(key, encode(owner))
        await self._member.transact(StoreTransaction((state.unchanged(key),), (write,)))

    async def forget(self, vhosts: Collection[str], *, keep: Collection[str] = ()) -> None:
        """See StandbySite."""
        state = self._member.state
        for vhost in vhosts:
            owner, key = state.standby_owners.get(vhost), state.keys.standby_owner(vhost)
            if owner is None:
                continue
            emptied = replace(owner.has_all(), term=owner.term + 1, claimed=0)
            write = PutKey(key, encode(emptied)) if vhost in keep else DeleteKey(key)
            await self._member.transact(StoreTransaction((state.unchanged(key),), (write,)))

    # -- other nodes ------------------------------------------------------------------------------

    async def ask(self, node: str, about: dict[str, Any]) -> dict[str, Any]:
        """See StandbySite."""
        answer: dict[str, Any] = await self._member.ask(node, STANDBY, about)
        return answer

    async def all_know(self) -> None:
        """See StandbySite."""
        await self._member.all_have(self._member.state.revision)

    async def wait(self, timeout_s: float) -> None:
        """See StandbySite."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def check_owners(self) -> None:
        """Check the owners again."""
        self._changed.set()
        self._look.set()

    # -- owners of vhosts -------------------------------------------------------------------------

    async def run(self) -> None:
        """Give vhosts to nodes for ever, whenever this is the node that joined first."""
        error = ""
        while True:
            try:
                await self._give()
                self._report_trouble()
                error = ""
            except LeveretError as failure:
                if str(failure) != error:
                    logger.warning("standby_owners_not_written error=%s", failure)
                error = str(failure)
                await asyncio.sleep(_LOOK_S)
            self._look.clear()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _give(self) -> None:
        if self.running[:1] != [self.name]:
            return
        await self._settle_settings()
        decided = self.decided
        mode = decided.operating_mode or decided.configured
        if mode is not OperatingMode.DOWNSTREAM:
            return
        nodes = [node for node in self.running if not self._why_not(node)]
        now_s = asyncio.get_running_loop().time()
        if self._seen != tuple(nodes):
            self._seen, self._seen_s = tuple(nodes), now_s
        view = SiteNodes(
            members=self._member.cluster_view().members,
            running=nodes,
            may_balance=decided.promoting is None and now_s - self._seen_s > _SETTLED_S,
            share_archive=self.is_shared,
        )
        await self._write(next_owners(self._vhosts(), self.owners, view))

    async def _settle_settings(self) -> None:
        """Make the settings of this node, which joined first, count for all."""
        configured = OperatingMode(self._config.standby.operating_mode)
        archive = self._config.standby.shared_place
        is_stored = self._member.state.standby is not None
        if (self.decided.configured, self.decided.archive) == (configured, archive) and is_stored:
            return
        if not is_stored and not self._concerns_anybody():
            return
        await self.decide(lambda site: site.with_settings(configured, archive))

    def _concerns_anybody(self) -> bool:
        """Whether a node is configured as a downstream, or this node has decisions of its own."""
        modes = {presence.standby_mode for presence in self._member.state.alive.values()}
        return OperatingMode.DOWNSTREAM in modes or self._own.own != SiteDecisions()

    async def _write(self, changes: Mapping[str, VhostOwner]) -> None:
        state = self._member.state
        keys = {vhost: state.keys.standby_owner(vhost) for vhost in changes}
        # Of the records that were decided on: an owner may note what it has while others are written.
        conditions = {vhost: state.unchanged(key) for vhost, key in keys.items()}
        for vhost, owner in changes.items():
            before = state.standby_owners.get(vhost)
            logger.info(
                "standby_vhost_owner vhost=%s node=%s term=%d before=%s holder=%s",
                vhost,
                owner.node,
                owner.term,
                before.node if before is not None else "",
                owner.holder,
            )
        for vhost, owner in changes.items():
            write = PutKey(keys[vhost], encode(owner))
            await self._member.transact(StoreTransaction((conditions[vhost],), (write,)))

    def _report_trouble(self) -> None:
        trouble = self.trouble
        if trouble and trouble != self._trouble:
            logger.error("standby_settings_differ error=%s", trouble)
        self._trouble = trouble
