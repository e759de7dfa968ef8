"""The replicas that a promise waits for: followers of a whole node, or mirrors of one log. Pure.

A *cut* is all that one group commit changed, and cuts are numbered. Whatever the scope of a link is, the node or some
logs of it, each of its frames has the number of a cut. An ack of n says: everything of that scope, up to cut n, is on
this replica's disk. So one number stands for the acks of a peer, however many logs it copies (`Acks`).

A promise (a confirm, an answer to a declare) is kept once the disk of the leader and the replicas that are waited for
have its cut. A replica goes through these phases:

    joining        each cut from its join on is sent to it. What it acks below says nothing of what it lacks
    holding_back   it has acked its join: it has everything up to its acks, but perhaps not every cut that was promised
                   before it was waited for, when other replicas were faster
    member         it has every promised cut: it may lead at any moment
    gone           its link ended. What it had acked, it has

Promises wait for a replica while it holds back, and therefore stand still until it is a member, which lasts one round
trip. Without that pause a replica of a busy leader would never become a member: promises would run before its acks.

**When the set is recorded elsewhere** (etcd), for an election to read, any replica in the record may lead at any
moment. So the record may never name a replica that lacks a kept promise:

- Growing: promises wait first, then the name is recorded. In the other order the replica could lead without promises
  made in between.
- Shrinking: the record changes first, then promises stop waiting. In the other order the dropped replica could lead,
  without promises made meanwhile.
- A change of the record in flight counts as done and as not done: promises wait for the old *and* for the new set. Of
  a set that promises wait for by majority, for a majority of each, because the next leader may ask either.

A majority always counts the leader, whose own disk is waited for elsewhere.
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
        cut: the last cut that it has acked, -1 for none; never falls.
    """

    __slots__ = ("cut",)

    def __init__(self) -> None:
        """Nothing was acked."""
        self.cut = -1


class _Replica:
    __slots__ = ("acks", "before", "joined")

    def __init__(self, acks: Acks, joined: int, before: int) -> None:
        self.acks: Acks | None = acks
        self.joined = joined
        self.before = before
        """What it had before it joined, of the same copy."""

    @property
    def has(self) -> int:
        acks = self.acks
        return acks.cut if acks is not None and acks.cut >= self.joined else self.before


class ReplicaSet:
    """See the module.

    Attributes:
        sets: promises wait for all of each of these sets, or for a majority of each, or for any one of each. The new
            and the old one, while the record changes.
        is_majority: whether a majority is enough.
        is_any: whether any one is enough.
        promised: the last cut up to which promises could be kept; never falls.
    """

    __slots__ = ("_replicas", "is_any", "is_majority", "promised", "sets")

    def __init__(self) -> None:
        """There is no replica, and nothing is promised."""
        self.sets: tuple[frozenset[str], ...] = ()
        self.is_majority = self.is_any = False
        self.promised = 0
        self._replicas: dict[str, _Replica] = {}

    # -- what happens -------------------------------------------------------------------------

    def joined(self, node: str, acks: Acks, cut: int) -> None:
        """Every cut from that one on is sent to the node, and everything before was: an ack of it says that it has all.

        An earlier link of the node ends with this. It has what it had.
        """
        self._replicas[node] = _Replica(acks, cut, self.has(node))

    def left(self, node: str) -> None:
        """The node is not sent every cut any more: it has what it had acked."""
        replica = self._replicas.get(node)
        if replica is not None:
            replica.before, replica.acks = replica.has, None

    def begins_anew(self, node: str) -> None:
        """The node may have lost its copy: what it had acked counts for nothing."""
        self._replicas.pop(node, None)

    def wait_for(
        self, sets: Iterable[frozenset[str]], *, majority: bool = False, any_one: bool = False
    ) -> None:
        """From now on promises wait for all of each of these sets, or a majority of each, or any one of each."""
        self.sets = tuple(nodes for nodes in sets if nodes)
        self.is_majority, self.is_any = majority, any_one
        for node in [name for name, each in self._replicas.items() if each.acks is None]:
            if not self.waits_for(node):
                del self._replicas[node]

    def advance(self, end: int) -> int:
        """The cut up to which promises may be kept, with `end` as the last one; `promised` follows."""
        reached = self.reached(end)
        self.promised = max(self.promised, reached)
        return reached

    # -- what follows from it -----------------------------------------------------------------

    def has(self, node: str) -> int:
        """The cut up to which everything is on the node's disk for certain; 0 for nothing."""
        replica = self._replicas.get(node)
        return replica.has if replica is not None else 0

    def acks(self, node: str) -> Acks | None:
        """The acks of the node's link; None for a node that is gone."""
        replica = self._replicas.get(node)
        return replica.acks if replica is not None else None

    def owes_from(self, node: str) -> int:
        """Every cut after this one is to be acked yet by the node; 0 for a node that is gone."""
        replica = self._replicas.get(node)
        return max(replica.acks.cut, replica.joined) if replica is not None and replica.acks else 0

    def reached(self, end: int) -> int:
        """The cut up to which all sets have everything at this moment; `end` without any set."""
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
        """Whether all sets have everything up to that cut at this moment."""
        return self.reached(cut) >= cut

    def waits_for(self, node: str) -> bool:
        """Whether promises wait for that node."""
        return any(node in nodes for nodes in self.sets)

    def phase(self, node: str) -> Phase:
        """The phase of a node."""
        replica = self._replicas.get(node)
        if replica is None or replica.acks is None:
            return Phase.GONE
        if replica.acks.cut < replica.joined:
            return Phase.JOINING
        return Phase.MEMBER if replica.acks.cut >= self.promised else Phase.HOLDING_BACK

    def in_phase(self, *phases: Phase) -> frozenset[str]:
        """The nodes that are in one of these phases."""
        return frozenset(node for node in self._replicas if self.phase(node) in phases)
