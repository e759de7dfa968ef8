"""The operator's decisions on schema replication, shared by all nodes of a cluster; see runtime.schema_sync.decisions.

The decisions are one key in etcd. Each node keeps a copy, so that a node that is started alone later does not fall
back to its configuration. Both a node that applies a delta and a node that decides need the definitions lock, so each
of them knows all earlier decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from leveret.core.broker.definitions_lock import DEFINITIONS_LOCK_TIMEOUT_S
from leveret.core.replication.cluster import encode
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.core.schema.decisions import SchemaDecided
from leveret.model.errors import ResourceLocked, StorageError
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.schema_sync.decisions import SchemaDecisionStore

logger = logging.getLogger(__name__)


class ClusterSchemaDecisions:
    """See the module; schema_sync.decisions.SchemaDecisionStore."""

    def __init__(self, member: ClusterMember, own: SchemaDecisionStore) -> None:
        """Serve this member, with `own` as its copy; a cluster that it founds begins with those decisions."""
        self._member = member
        self._own = own
        self._keeping = asyncio.Lock()
        member.found_with = own.decided

    @property
    def decided(self) -> SchemaDecided:
        """See SchemaDecisionStore; the node's own decisions hold until the cluster has some."""
        decided = self._member.state.schema_sync
        return self._own.decided if decided is None else decided

    @property
    def follower(self) -> str:
        """See SchemaDecisionStore: of the nodes that serve, the one that joined first."""
        return next(iter(self._member.cluster_view().serving), "")

    async def decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        """See SchemaDecisionStore.

        Raises:
            ResourceLocked: the holder of the definitions lock does not hand it over.
            LeveretError: etcd does not answer.
        """
        member = self._member
        async with member.definitions_lock.held(
            lambda: (
                "nothing can be decided for the cluster now: the definitions lock was not handed over within "
                f"{DEFINITIONS_LOCK_TIMEOUT_S:g} s; its holder is {member.state.definitions_lock or 'no node'}"
            )
        ):
            write = PutKey(member.state.keys.schema_sync, encode(change(self.decided)))
            lock_condition = member.definitions_lock.lock_condition
            if not await member.transact(StoreTransaction((lock_condition,), (write,))):
                raise ResourceLocked("another node changes definitions by now: try again")
        await self.keep()

    async def keep(self) -> None:
        """Copy the present decisions, if the cluster has any."""
        async with self._keeping:
            while self.decided != self._own.decided:
                try:
                    await self._own.decide(lambda _: self.decided)
                except StorageError as error:
                    # Only the decisions in etcd count.
                    logger.error("schema_sync_decided_not_copied error=%s", error)
                    return
