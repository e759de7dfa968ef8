"""Election of a node's leader over a store with conditional writes (etcd): pure.

Three keys under one prefix:

    PREFIX/leader    {"node_id", "uri", "epoch"} of the leader; the key goes when the leader's lease ends
    PREFIX/epoch     the highest epoch so far, as a decimal number; it stays
    PREFIX/in_sync   the ids of the nodes that have every promised change, the leader among them; it stays

A node may lead when no node leads and the in-sync record names the node, or when there is no such record. The node then
writes the leader's key, bound to its lease, and the epoch in one transaction, on condition that no key it read has
changed: one of several concurrent candidates wins, and no epoch is used twice.

When the store has lost its data, a node relies on the keys that it saw before (`RememberedStore`): a node that was not
in sync does not win because the record is gone, and epochs continue from the highest one that the node knows.

core/replication/election_turns decides, as for a queue: this module reads and writes the keys. Candidates do not know
which nodes run, so each of them stands for itself. runtime/coordination/election sends the requests;
core/replication/in_sync defines the nodes that the record may name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec

from leveret.core.replication.election_turns import ElectionTurn, LocalCopy, RecordedLeader, Successor, turn
from leveret.core.replication.leader_and_mirrors import successor
from leveret.core.rules.mirror_policy import ALL, ALWAYS, WHEN_SYNCED, MirrorPolicy
from leveret.model.errors import LeveretError

MARGIN: Final = 0.1
"""The part of a lease that its holder does not use: clock rates differ, and a decision takes time to carry out."""
KEEPALIVES_PER_LEASE: Final = 10
"""The renewals in a lease's time: so many that etcd may be away (restart, election of its own) for most of it."""
_FRESH: Final = 1 / 3
"""No node stands with a lease older than this part of its time: too little is left to begin to lead."""
TORN: Final = "a log of this node was damaged or removed, or is being brought in line with a leader's"
"""The reason why a node that was in sync may lack promised changes."""
_IN_SYNC: Final = MirrorPolicy(mode=ALL, promote_on_failure=WHEN_SYNCED)
_FORCED: Final = MirrorPolicy(mode=ALL, promote_on_failure=ALWAYS)
"""The rules of a node's followers, as those of a queue's mirrors."""

Value = TypeVar("Value")


class ElectedLeader(msgspec.Struct, frozen=True):
    """The leader: the node, the address for its followers, and the epoch, in which no other node ever leads."""

    node_id: str
    uri: str
    epoch: int


class ElectionKeys(NamedTuple):
    """The names of the keys, and their prefix."""

    prefix: str
    leader: str
    epoch: str
    in_sync: str

    @classmethod
    def under(cls, prefix: str) -> ElectionKeys:
        """Return the keys of the nodes whose setting is `prefix`."""
        begin = prefix.rstrip("/") + "/"
        return cls(begin, f"{begin}leader", f"{begin}epoch", f"{begin}in_sync")


class StoredValue(NamedTuple):
    """A key's value, the store's revisions that wrote and that made it, and the lease with which it ends (0: none)."""

    value: bytes
    modified: int
    lease: int
    created: int = 0


class Unchanged(NamedTuple):
    """A condition: this revision wrote the key last; 0: the key does not exist."""

    key: str
    modified: int


class Holds(NamedTuple):
    """A condition: the key has this value."""

    key: str
    value: bytes


class PutKey(NamedTuple):
    """A write; `leased` ties the key to the writer's lease."""

    key: str
    value: bytes
    leased: bool = False


class DeleteKey(NamedTuple):
    """A write that deletes the key, or with `is_prefix` all keys that begin with it."""

    key: str
    is_prefix: bool = False


class StoreTransaction(NamedTuple):
    """Writes that all happen if all conditions hold; otherwise none happens. No key is written twice."""

    conditions: tuple[Unchanged | Holds, ...]
    writes: tuple[PutKey | DeleteKey, ...]


class UnreadableState(LeveretError):
    """A key has a value that no node wrote; the text names the key and the remedy."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The content of the store at one revision.

    Attributes:
        leader_lease: the lease with which the leader's key ends; 0 without one.
        in_sync: the in-sync record; None without one.
        modified: the revision that wrote each existing key.
    """

    leader: ElectedLeader | None
    leader_lease: int
    epoch: int
    in_sync: frozenset[str] | None
    modified: Mapping[str, int]

    def unchanged(self, key: str) -> Unchanged:
        """Return the condition that the key is unchanged since this observation."""
        return Unchanged(key, self.modified.get(key, 0))


def observe(keys: ElectionKeys, entries: Mapping[str, StoredValue]) -> Observed:
    """Read the store's content under the prefix; other keys are ignored.

    Raises:
        UnreadableState: neither `stand` nor `record` writes such a value.
    """
    leader, epoch, in_sync = (entries.get(key) for key in (keys.leader, keys.epoch, keys.in_sync))
    return Observed(
        leader=_decoded(keys.leader, leader, ElectedLeader) if leader else None,
        leader_lease=leader.lease if leader else 0,
        epoch=_decoded(keys.epoch, epoch, int) if epoch else 0,
        in_sync=_decoded(keys.in_sync, in_sync, frozenset[str]) if in_sync else None,
        modified={key: entry.modified for key, entry in entries.items()},
    )


def _decoded(key: str, entry: StoredValue, kind: type[Value]) -> Value:
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except msgspec.DecodeError as error:
        raise UnreadableState(
            f"etcd's key {key} has a value that no node of a replication writes ({error}): delete the key, "
            "or set cluster.etcd.prefix to a prefix of these nodes' own"
        ) from error


@dataclass(frozen=True, slots=True)
class RememberedStore:
    """Earlier content of the store as a node saw it, in case the store loses its data."""

    epoch: int = 0
    in_sync: frozenset[str] | None = None

    def after(self, observed: Observed) -> RememberedStore:
        """Return the memory after this observation."""
        in_sync = self.in_sync if observed.in_sync is None else observed.in_sync
        return RememberedStore(max(self.epoch, observed.epoch), in_sync)


class Candidate(NamedTuple):
    """A node that stands for election.

    Attributes:
        epoch: the highest epoch in which it has led or followed.
        is_torn: whether it may lack promised changes despite the record: one of its logs was damaged or removed, or
            is being brought in line with a leader's.
    """

    node_id: str
    uri: str
    epoch: int
    is_torn: bool = False


class Candidacy(NamedTuple):
    """A candidacy of this node: its leader record, its in-sync record, and the transaction that writes both."""

    leader: ElectedLeader
    in_sync: frozenset[str]
    transaction: StoreTransaction


class ElectionDeclined(NamedTuple):
    """The reason why a node may not lead now, and the present leader if that is the reason."""

    reason: str
    leader: ElectedLeader | None = None


def stand(
    keys: ElectionKeys,
    observed: Observed,
    memory: RememberedStore,
    candidate: Candidate,
    *,
    force: bool = False,
) -> Candidacy | ElectionDeclined:
    """Decide whether a node may lead, and return the transaction that makes it the leader.

    A torn node stands only if the record names it alone: then no other node has more. The in-sync record stays
    unchanged, because the nodes that it names have every change promised so far; the new leader must have the record
    changed before it promises anything without them.

    Args:
        keys: the names of the keys.
        observed: the present content of the store.
        memory: the earlier content that the node saw.
        candidate: the node.
        force: an operator accepts the loss: the node may lead although it is not in sync. The record then names
            this node alone, since no other node is known to have its data.
    """
    if observed.leader is not None:
        return ElectionDeclined(
            f"node {observed.leader.node_id} leads in epoch {observed.leader.epoch}", observed.leader
        )
    me, in_sync = candidate.node_id, memory.in_sync if observed.in_sync is None else observed.in_sync
    alone = frozenset((me,))
    complete = alone if in_sync is None else in_sync
    promoted = successor(_FORCED if force else _IN_SYNC, (me,), complete, (me,), is_graceful=False)
    copy = LocalCopy.TORN if candidate.is_torn and not force else LocalCopy.WHOLE
    match turn(RecordedLeader.GONE, copy, Successor.by(promoted, me, is_only=observed.in_sync == alone)):
        case ElectionTurn.TAKE_OVER:
            pass
        case ElectionTurn.GIVE_WAY:
            others = ", ".join(sorted(complete - alone)) or "no node"
            return ElectionDeclined(f"{TORN}; in sync beside it when there was a leader: {others}")
        case _:
            named = ", ".join(sorted(complete)) or "no node"
            return ElectionDeclined(
                f"this node may lack confirmed messages; in sync when there was a leader: {named}"
            )
    epoch = max(candidate.epoch, observed.epoch, memory.epoch) + 1
    leader = ElectedLeader(me, candidate.uri, epoch)
    puts = [
        PutKey(keys.leader, msgspec.json.encode(leader), leased=True),
        PutKey(keys.epoch, msgspec.json.encode(epoch)),
    ]
    recorded = observed.in_sync if promoted.is_complete else None
    if recorded is None:
        recorded = alone
        puts.append(PutKey(keys.in_sync, _record_value(recorded)))
    seen = tuple(observed.unchanged(key) for key in (keys.leader, keys.epoch, keys.in_sync))
    return Candidacy(leader, recorded, StoreTransaction(seen, tuple(puts)))


def record(
    keys: ElectionKeys, leader: ElectedLeader, modified: int, in_sync: frozenset[str]
) -> StoreTransaction:
    """Return the transaction with which `leader` changes the in-sync record, as long as it leads.

    `modified` is the last revision of the record that the leader knows. So at most one of two writes in flight
    succeeds, and an earlier write that arrives late changes nothing.
    """
    conditions = (Holds(keys.leader, msgspec.json.encode(leader)), Unchanged(keys.in_sync, modified))
    return StoreTransaction(conditions, (PutKey(keys.in_sync, _record_value(in_sync)),))


def _record_value(in_sync: frozenset[str]) -> bytes:
    return msgspec.json.encode(sorted(in_sync))


class LeaseClock:
    """The time for which a leader may rely on its lease, by its own clock.

    The store counts from the arrival of a keepalive. The holder counts from its sending, which is earlier, and leaves
    a margin. So the holder gives up before any other node can win. Times are seconds of a clock that goes on while the
    machine sleeps. An ended lease stays ended, whatever answer comes late.
    """

    def __init__(self, ttl_s: float, sent_s: float) -> None:
        """Begin a lease of `ttl_s` seconds that was requested at `sent_s`."""
        self._ended = False
        self._ttl_s = ttl_s
        self._sent_s = sent_s

    def renewed(self, ttl_s: float, sent_s: float, now_s: float) -> None:
        """Take the answer to a keepalive sent at `sent_s`: the lease lasts for `ttl_s` from `sent_s` on."""
        if self.is_held(now_s) and sent_s > self._sent_s:
            self._ttl_s, self._sent_s = ttl_s, sent_s

    def is_held(self, now_s: float) -> bool:
        """Return whether no other node can have won yet."""
        if now_s >= self.ends_s:
            self._ended = True
        return not self._ended

    def give_up(self) -> None:
        """End the lease for its holder."""
        self._ended = True

    @property
    def ends_s(self) -> float:
        """The time by which the holder must have given up."""
        return self._sent_s + self._ttl_s * (1 - MARGIN)

    @property
    def fresh_until_s(self) -> float:
        """The time until which enough of the lease is left to begin to lead."""
        return self._sent_s + self._ttl_s * _FRESH

    @property
    def keepalive_s(self) -> float:
        """The time at which the next keepalive is due."""
        return self._sent_s + self._ttl_s / KEEPALIVES_PER_LEASE
