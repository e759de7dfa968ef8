"""Claims of a downstream cluster's vhosts: records in the cluster's store that a node transfers them, or has.

The records may be younger than the archives: a cluster was rebuilt from its nodes' data, its store came back from an
older copy, or a vhost was deleted with its data and made again. The owner's terms begin again then, and no record says
which nodes have data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from leveret.core.replication.vhost_owners import VhostOwner
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.site import SiteParts, StandbySite

_FIRST_TERM: Final = 1


class VhostClaims:
    """See the module; the claims of one node."""

    def __init__(self, site: StandbySite, parts: SiteParts, archive: StandbyArchive) -> None:
        """Claim nothing yet; `archive` is the node's own, or the one that all nodes share."""
        self._site = site
        self._parts = parts
        self._archive = archive

    async def claim(self, vhosts: Sequence[str]) -> None:
        """Record that this node transfers those of these vhosts that it owns, before the transfer begins.

        Data may be here only after that. A crash between the two leaves a record of a node without data, which costs a
        refused promotion at most. In the other order, a promotion could overlook the data of a lost node.

        Raises:
            LeveretError: the archive, or the cluster's store, does not answer.
        """
        if not self._unclaimed(vhosts):
            return
        await self.outrank(vhosts)
        beside = await self._nodes_with_data(vhosts)
        for vhost in vhosts:
            # Records change while another one is written.
            for owner in self._unclaimed([vhost]).values():
                claimed = owner.claims()
                others = (*claimed.beside, *beside.get(vhost, ()))
                await self._site.note(vhost, replace(claimed, beside=others))

    async def outrank(self, vhosts: Sequence[str]) -> None:
        """Have this node's ownership of these vhosts a higher term than any that the shared archive knows.

        The archive refuses all others. A node that was superseded does not get past the newer owner so: the cluster's
        store takes the term only from the present owner.

        Raises:
            LeveretError: the archive, or the cluster's store, does not answer.
        """
        unclaimed = self._unclaimed(vhosts)
        if not self._site.is_shared or not unclaimed:
            return
        known = await self._archive.claimed_terms()
        for vhost, owner in unclaimed.items():
            if known.get(vhost, 0) >= owner.term:
                await self._site.note(vhost, replace(owner, term=known[vhost] + 1))

    def _unclaimed(self, vhosts: Sequence[str]) -> dict[str, VhostOwner]:
        """Return the records of this node's own vhosts that it has not claimed in its term."""
        owners, me = self._site.owners, self._site.name
        mine = {vhost: owners[vhost] for vhost in vhosts if vhost in owners and owners[vhost].node == me}
        return {vhost: owner for vhost, owner in mine.items() if owner.claimed < owner.term}

    async def _nodes_with_data(self, vhosts: Sequence[str]) -> dict[str, list[str]]:
        """Return, by vhost without an owner before this node, the others that have data of it, or do not answer."""
        firsts = [vhost for vhost, owner in self._unclaimed(vhosts).items() if owner.term == _FIRST_TERM]
        if self._site.is_shared or not firsts:
            return {}
        answers, _ = await self._parts.of_those_that_answer("contents")
        found: dict[str, list[str]] = {}
        for vhost in firsts:
            without = {
                node
                for node, archived in answers.items()
                if vhost not in {row["vhost"] for row in archived["vhosts"]}
            }
            found[vhost] = [name for name in self._site.members if name not in {*without, self._site.name}]
        return found
