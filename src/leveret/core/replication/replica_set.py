"""The replicas that a promise waits for: followers of a whole node, or mirrors of one log. Pure.

A *cut* is the set of all changes of one group commit, and cuts are numbered. Whether the scope of a link is the node or
some of its logs, each frame of the link has the number of a cut. An ack of n says: every change of that scope, up to
cut n, is on this replica's disk. So one number stands for the acks of a peer, however many logs it copies (`Acks`).

A promise (a confirm, an answer to a declare) is kept once the disk of the leader and the replicas that are waited for
have its cut. A replica goes through these phases:

    joining        it receives each cut from its join on. Acks of earlier cuts do not tell which records it lacks
    holding_back   it has acked its join: it has everything up to its acks, but perhaps not every cut that was promised
                   before it was waited for, when other replicas were faster
    member         it has every promised cut: it may lead at any moment
    gone           its link ended. It still has everything up to its acks

Promises wait for a replica while it holds back, and therefore stand still until it is a member, which lasts one round
trip. Without that pause a replica of a busy leader would never become a member: promises would run before its acks.

**When the set is recorded elsewhere** (etcd), for an election to read, any replica in the record may lead at any
moment. So the record may never name a replica that lacks a kept promise:

- Growing: promises wait first, then the name is recorded. In the other order the replica could lead without promises
  kept in between.
- Shrinking: the record changes first, then promises stop waiting. In the other order the dropped replica could lead
  without promises kept meanwhile.
- A change of the record in flight counts as done and as not done: promises wait for the old *and* for the new set; by
  majority, for a majority of each set, because the next leader may ask either.

A majority always includes the leader; promises wait for the leader's own disk elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Phase(StrEnum):
    """The phase of a replica: see the module."""

    JOINING = "joining"
    HOLDING_BACK = "holding_back"
    MEMBER = "member"
    GONE = "gone"


class Acks:
    """The acks of one peer's link.

    Attributes:
        cut: the last acked cut, -1 for none; never falls.
    """

    __slots__ = ("cut",)

    def __init__(self) -> None:
        """Start without an ack."""
        self.cut = -1


class _Replica:
    __slots__ = ("acks", "before", "joined")

    def __init__(self, acks: Acks, joined: int, before: int) -> None:
        self.acks: Acks | None = acks
        self.joined = joined
        self.before = before
        """The cut up to which the same copy had everything before it joined."""

    @property
    def has(self) -> int:
        acks = self.acks
        return acks.cut if acks is not None and acks.cut >= self.joined else self.before


class ReplicaSet:
    """See the module.

    Attributes:
        sets: promises wait for all replicas of each of these sets, or for a majority of each, or for any one of each.
            While the record changes, these are the old and the new set.
        is_majority: whether a majority of each set is enough.
        is_any: whether any one replica of each set is enough.
        promised: the last cut up to which promises could be kept; never falls.
    """

    __slots__ = ("_replicas", "is_any", "is_majority", "promised", "sets")

    def __init__(self) -> None:
        """Start without replicas and promises."""
        self.sets: tuple[frozenset[str], ...] = ()
        self.is_majority = self.is_any = False
        self.promised = 0
        self._replicas: dict[str, _Replica] = {}

    # -- events -------------------------------------------------------------------------------

    def joined(self, node: str, acks: Acks, cut: int) -> None:
        """Add a node that has been sent everything before this cut, and receives each cut from it on.

        So an ack of this cut or a later one covers everything before. An earlier link of the node ends; its acks count.
        """
        self._replicas[node] = _Replica(acks, cut, self.has(node))

    def left(self, node: str) -> None:
        """Note that the node no longer receives every cut: it still has everything up to its acks."""
        replica = self._replicas.get(node)
        if replica is not None:
            replica.before, replica.acks = replica.has, None

    def begins_anew(self, node: str) -> None:
        """Forget a node's acks, because it may have lost its copy."""
        self._replicas.pop(node, None)

    def wait_for(
        self, sets: Iterable[frozenset[str]], *, majority: bool = False, any_one: bool = False
    ) -> None:
        """Have promises wait for all replicas of each of these sets, or a majority of each, or any one of each."""
        self.sets = tuple(nodes for nodes in sets if nodes)
        self.is_majority, self.is_any = majority, any_one
        for node in [name for name, each in self._replicas.items() if each.acks is None]:
            if not self.waits_for(node):
                del self._replicas[node]

    def advance(self, end: int) -> int:
        """Return the cut up to which promises may be kept, at most `end`, and raise `promised` to it."""
        reached = self.reached(end)
        self.promised = max(self.promised, reached)
        return reached

    # -- results ------------------------------------------------------------------------------

    def has(self, node: str) -> int:
        """Return the cut up to which everything is certainly on the node's disk; 0 for none."""
        replica = self._replicas.get(node)
        return replica.has if replica is not None else 0

    def acks(self, node: str) -> Acks | None:
        """Return the acks of the node's link; None for a node that is gone."""
        replica = self._replicas.get(node)
        return replica.acks if replica is not None else None

    def owes_from(self, node: str) -> int:
        """Return the cut after which the node owes an ack of each cut; 0 for a node that is gone."""
        replica = self._replicas.get(node)
        return max(replica.acks.cut, replica.joined) if replica is not None and replica.acks else 0

    def reached(self, end: int) -> int:
        """Return the cut, at most `end`, up to which all sets have everything now; `end` without a set."""
        for nodes in self.sets:
            if self.is_any:
                end = min(end, max(map(self.has, nodes)))
            elif self.is_majority:
                # Of n replicas and the leader, the leader and all but n // 2 replicas are a majority.
                end = min(end, sorted(map(self.has, nodes))[len(nodes) // 2])
            else:
                end = min(end, *map(self.has, nodes))
        return end

    def reaches(self, cut: int) -> bool:
        """Return whether all sets have everything up to that cut now."""
        return self.reached(cut) >= cut

    def waits_for(self, node: str) -> bool:
        """Return whether promises wait for that node."""
        return any(node in nodes for nodes in self.sets)

    def phase(self, node: str) -> Phase:
        """Return the phase of a node."""
        replica = self._replicas.get(node)
        if replica is None or replica.acks is None:
            return Phase.GONE
        if replica.acks.cut < replica.joined:
            return Phase.JOINING
        return Phase.MEMBER if replica.acks.cut >= self.promised else Phase.HOLDING_BACK

    def in_phase(self, *phases: Phase) -> frozenset[str]:
        """Return the nodes that are in one of these phases."""
        return frozenset(node for node in self._replicas if self.phase(node) in phases)
