"""The operator's decisions on schema replication, shared by all nodes of a cluster; see runtime.schema_sync.decisions.

They are one key in etcd. Each node keeps a copy, so that a node that is started alone later does not fall back to
its configuration. Both a node that applies a delta and a node that decides need the definitions lock, so each of
them knows all earlier decisions.
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
from leveret.runtime.cluster.member import ClusterMember
from leveret.runtime.schema_sync.decisions import Deciding

logger = logging.getLogger(__name__)


class ForAll:
    """See the module; schema_deciding.Deciding."""

    def __init__(self, member: ClusterMember, own: Deciding) -> None:
        """Of this member, which keeps its copy as it would alone; if it founds the cluster, that begins with it."""
        self._member = member
        self._own = own
        self._keeping = asyncio.Lock()
        member.found_with = own.decided

    @property
    def decided(self) -> SchemaDecided:
        """See Deciding; what each node decided alone holds until anything is decided for all."""
        decided = self._member.state.schema_sync
        return self._own.decided if decided is None else decided

    @property
    def follower(self) -> str:
        """See Deciding: who came first of those that serve."""
        cluster_view = self._member.cluster_view()
        return next(
            (
                name
                for name in cluster_view.members
                if name in cluster_view.alive and cluster_view.alive[name].uri
            ),
            "",
        )

    async def decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        """See Deciding.

        Raises:
            ResourceLocked: whoever has the definitions lock does not hand it over.
            LeveretError: etcd does not answer.
        """
        member = self._member
        with member.definitions_lock.pinned():
            try:
                async with asyncio.timeout(DEFINITIONS_LOCK_TIMEOUT_S):
                    await member.definitions_lock.fetched()
            except TimeoutError:
                raise ResourceLocked(
                    f"nothing can be decided for the cluster now: {member.state.definitions_lock or 'nobody'} may "
                    f"change definitions, and did not hand over in {DEFINITIONS_LOCK_TIMEOUT_S:g} s"
                ) from None
            # With the definitions lock here, all that was decided before is known here.
            write = PutKey(member.state.keys.schema_sync, encode(change(self.decided)))
            revision = await member.store.transact(
                StoreTransaction((member.definitions_lock.lock_condition,), (write,))
            )
            if revision is None:
                raise ResourceLocked("another node changes definitions by now: try again")
            await member.has_taken(revision)
        await self.keep()

    async def keep(self) -> None:
        """Keep a copy of what holds now, if anything was decided for all."""
        async with self._keeping:
            while self.decided != self._own.decided:
                try:
                    await self._own.decide(lambda _: self.decided)
                except StorageError as error:
                    # What counts is in etcd.
                    logger.error("schema_sync_decided_not_copied error=%s", error)
                    return
