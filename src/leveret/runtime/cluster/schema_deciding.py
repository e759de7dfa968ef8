"""What an operator decided on schema replication, for all nodes of a cluster; see runtime.schema_deciding.

It is a key in etcd. Each node keeps a copy as well, so that one that is started alone one day does not fall back to
what its configuration says. Who applies a delta has the pen, and so has who decides: whoever applies one knows what was
decided before.
"""

from __future__ import annotations

import logging

from leveret.core.cluster import encode
from leveret.core.election import Put, Transaction
from leveret.core.schema_mode import Decided
from leveret.model.errors import LeveretError, StorageError
from leveret.runtime.cluster.member import ClusterMember
from leveret.runtime.schema_deciding import Deciding

logger = logging.getLogger(__name__)


class ForAll:
    """See the module; schema_deciding.Deciding."""

    def __init__(self, member: ClusterMember, own: Deciding) -> None:
        """Of this member, which keeps its copy as it would alone."""
        self._member = member
        self._own = own

    @property
    def decided(self) -> Decided:
        """See Deciding; whoever founds the cluster brings along what holds there."""
        decided = self._member.state.schema_sync
        if decided is None:
            return self._own.decided if self._member.is_founder else Decided()
        return decided

    @property
    def follower(self) -> str:
        """See Deciding: who came first of those that serve."""
        around = self._member.around()
        return next((name for name in around.members if name in around.alive and around.alive[name].uri), "")

    async def decide(self, decided: Decided) -> None:
        """See Deciding.

        Raises:
            LeveretError: etcd does not answer, or declines.
        """
        member = self._member
        with member.pen.pinned():
            await member.pen.fetched()
            write = Put(member.state.keys.schema_sync, encode(decided))
            revision = await member.store.transact(Transaction((member.pen.held,), (write,)))
            if revision is None:
                raise LeveretError("another node changes definitions now: try again")
            await member.has_taken(revision)

    async def found(self) -> None:
        """The cluster begins with what was decided at its founder.

        Raises:
            LeveretError: etcd does not answer.
        """
        if self._member.is_founder and self._member.state.schema_sync is None and self.decided != Decided():
            await self.decide(self.decided)

    async def keep(self) -> None:
        """Keep a copy of what holds now."""
        decided = self.decided
        try:
            if decided != self._own.decided:
                await self._own.decide(decided)
        except StorageError as error:
            # What counts is in etcd.
            logger.error("schema_sync_decided_not_copied error=%s", error)
