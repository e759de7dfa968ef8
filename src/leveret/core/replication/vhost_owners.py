"""The owners of a downstream cluster's vhosts: pure.

Each replicated vhost has one owner, a running node, which follows it and recovers it at a promotion. Owners are spread
evenly, and move as nodes come and go. The term of an owner is higher than those of all owners before it.

If each node has its own archive, a new owner has no data yet, and the previous owner has the transferred data. That
node stays the *holder*: while it runs it follows the vhost as well, and a promotion recovers from its archive, until
the new owner has all records of the upstream. So transferred data survive every move, and every absence of a node that
comes back. What owners transferred while the holder was away may be in their archives alone: they are *beside* it,
until one archive has everything. A holder whose owner has caught up is beside it as well, for it went on until it read
that. If the nodes share an archive, there is no holder: a new owner goes on where the archive stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec


class VhostOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner of a vhost.

    Attributes:
        node: the node that follows it.
        term: higher than those of all owners before it.
        holder: the node whose archive has its data until the owner's has; empty once it has.
        claimed: the last term in which an owner began to transfer into the archive that the present one uses; 0 before
            that.
        beside: the nodes that transferred it at the same time as the recoverer, or while that was away.
        origins: by outgoing log of the upstream (`wire.log_name`), its id, of those with records in the archive that a
            promotion recovers, as far as they are known. No other archive takes another log for one of them.
    """

    node: str
    term: int
    holder: str = ""
    claimed: int = 0
    beside: tuple[str, ...] = ()
    origins: dict[str, int] = {}

    @property
    def recoverer(self) -> str:
        """The node that recovers the vhost at a promotion."""
        return self.holder or self.node

    @property
    def others(self) -> list[str]:
        """The nodes whose archives may have records that the recoverer's lacks."""
        return [name for name in self.beside if name != self.recoverer]

    @property
    def has_data(self) -> bool:
        """Whether some records of the vhost were transferred."""
        return bool(self.holder or self.claimed)

    @property
    def followers(self) -> frozenset[str]:
        """The nodes that transfer the vhost."""
        return frozenset((self.node, self.holder)) - {""}

    def claims(self) -> VhostOwner:
        """Return the record before the owner transfers in its term."""
        beside = self.beside
        if self.holder and self.node not in beside:
            beside = (*beside, self.node)
        return msgspec.structs.replace(self, claimed=self.term, beside=beside)

    def takes_over(self) -> VhostOwner:
        """Return the record once the owner has what a running holder has: the holder transfers no more from here on."""
        return self.recovered_by(self.node)

    def has_all(self) -> VhostOwner:
        """Return the record once the owner's archive has everything that any archive has; it notes its origins then."""
        return msgspec.structs.replace(self, holder="", beside=(), origins={})

    def recovered_by(self, name: str) -> VhostOwner:
        """Return the record with another node's archive as the one that a promotion recovers."""
        beside = (*self.beside, *({self.recoverer} - {*self.beside}))
        holder = "" if name == self.node else name
        return msgspec.structs.replace(self, holder=holder, beside=beside, origins={})

    def without_holder(self) -> VhostOwner:
        """Return the record without the holder, whose archive is not recovered any more."""
        return msgspec.structs.replace(self, holder="", origins={}) if self.holder else self


class SiteNodes(NamedTuple):
    """The nodes of a downstream cluster.

    Attributes:
        members: all of them, in the order of joining.
        running: those that may own a vhost.
        may_balance: whether vhosts may move although their owners run; not during a promotion.
        share_archive: whether they have one archive.
    """

    members: Sequence[str]
    running: Collection[str]
    may_balance: bool = True
    share_archive: bool = False


def next_owners(
    vhosts: Collection[str], owners: Mapping[str, VhostOwner], nodes: SiteNodes
) -> dict[str, VhostOwner]:
    """Return the records to write: of vhosts without an owner, of those of lost nodes, and of those that move.

    Args:
        vhosts: the replicated vhosts.
        owners: the present records; those of other vhosts stay, because their data may still be in the archive.
        nodes: the nodes.
    """
    running = [name for name in nodes.members if name in nodes.running]
    if not running:
        return {}
    found = dict(owners)
    loads = Counter({name: 0 for name in running})
    loads.update(owner.node for vhost, owner in owners.items() if vhost in vhosts and owner.node in loads)
    for vhost in sorted({*vhosts, *owners}):
        owner = found.get(vhost)
        if owner is not None:
            # A node left the cluster, and its data with it; or the nodes have an archive together by now.
            owner = found[vhost] = _without_gone(owner, () if nodes.share_archive else nodes.members)
        if owner is None or owner.node not in loads:
            found[vhost] = _successor(owner, loads, running, nodes)
            loads[found[vhost].node] += vhost in vhosts
    if nodes.may_balance:
        _balance([vhost for vhost in sorted(vhosts) if not found[vhost].holder], found, loads, running, nodes)
    return {vhost: owner for vhost, owner in found.items() if owners.get(vhost) != owner}


def _without_gone(owner: VhostOwner, members: Sequence[str]) -> VhostOwner:
    """Return the record without the other nodes that are no members."""
    kept = owner if owner.holder in members else owner.without_holder()
    return msgspec.structs.replace(kept, beside=tuple(name for name in owner.beside if name in members))


def _successor(
    owner: VhostOwner | None, loads: Counter[str], running: Sequence[str], nodes: SiteNodes
) -> VhostOwner:
    """Return the owner after a lost one, or the first: the holder of the data, or the node with the fewest vhosts."""
    least = _least(loads, running)
    if owner is None:
        return VhostOwner(least, 1)
    return _moved(owner, owner.holder if owner.holder in loads else least, nodes)


def _moved(owner: VhostOwner, to: str, nodes: SiteNodes) -> VhostOwner:
    """Return the record after a move: the node with the data keeps them for the new owner."""
    term = owner.term + 1
    if nodes.share_archive:
        return VhostOwner(to, term, claimed=owner.claimed)
    holder = owner.holder or (owner.node if owner.claimed else "")
    if to == holder:
        return VhostOwner(to, term, claimed=owner.term, beside=owner.beside, origins=owner.origins)
    moved = VhostOwner(to, term, holder=holder, beside=owner.beside, origins=owner.origins)
    return moved if holder in nodes.members else moved.without_holder()


def _balance(
    movable: Iterable[str],
    found: dict[str, VhostOwner],
    loads: Counter[str],
    running: Sequence[str],
    nodes: SiteNodes,
) -> None:
    """Move vhosts from the nodes with the most to those with the fewest, while that evens them out."""
    by_node: dict[str, list[str]] = {}
    for vhost in movable:
        by_node.setdefault(found[vhost].node, []).append(vhost)
    while True:
        sources = [name for name in running if by_node.get(name)]
        most = max(sources, key=lambda name: loads[name], default="")
        least = _least(loads, running)
        if not most or loads[most] - loads[least] < 2:
            return
        vhost = by_node[most].pop()
        found[vhost] = _moved(found[vhost], least, nodes)
        loads[most] -= 1
        loads[least] += 1


def _least(loads: Counter[str], running: Sequence[str]) -> str:
    """Return the node with the fewest vhosts; of equals the one that joined first."""
    return min(running, key=lambda name: loads[name])
