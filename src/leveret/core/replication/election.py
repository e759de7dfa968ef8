"""Election of a node's leader over a store with conditional writes (etcd): pure.

Three keys under one prefix:

    PREFIX/leader    {"node_id", "uri", "epoch"} of the leader; the key goes when the leader's lease ends
    PREFIX/epoch     the highest epoch so far, as a decimal number; it stays
    PREFIX/in_sync   the ids of the nodes that have every promised change, the leader among them; it stays

A node may lead when no node leads and the in-sync record names the node, or when there is no such record. The node then
writes the leader's key, bound to its lease, and the epoch in one transaction, on condition that no key it read has
changed: one of several concurrent candidates wins, and no epoch is used twice.

When the store has lost its data, a node relies on the keys that it saw before (`Memory`): a node that was not in sync
does not win because the record is gone, and epochs continue from the highest one that the node knows.

runtime/coordination/election carries out these decisions; core/replication/in_sync defines which nodes the record may
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec

from leveret.model.errors import LeveretError

MARGIN: Final = 0.1
"""The part of a lease that its holder does not use: clocks run unlike, and what was decided takes time to do."""
KEEPALIVES_PER_LEASE: Final = 10
"""A lease is renewed so often that an etcd may be away, as in a restart or an election of its own, for most of it."""
_FRESH: Final = 1 / 3
"""A lease that is older than this part of its time is not won with: too little of it is left to begin anything."""
TORN: Final = "a log of this node was damaged or removed, or is being brought in line with a leader's"
"""Why a node that was in sync may lack what was promised."""

Value = TypeVar("Value")


class ElectedLeader(msgspec.Struct, frozen=True):
    """The leader: the node, the address for its followers, and the epoch, in which no other node ever leads."""

    node_id: str
    uri: str
    epoch: int


class ElectionKeys(NamedTuple):
    """The names of the keys, and what they begin with."""

    prefix: str
    leader: str
    epoch: str
    in_sync: str

    @classmethod
    def under(cls, prefix: str) -> ElectionKeys:
        """The keys of the nodes whose settings say `prefix`."""
        begin = prefix.rstrip("/") + "/"
        return cls(begin, f"{begin}leader", f"{begin}epoch", f"{begin}in_sync")


class StoredValue(NamedTuple):
    """A key's value, the store's revision that wrote it, and the lease it ends with (0: none)."""

    value: bytes
    modified: int
    lease: int


class Unchanged(NamedTuple):
    """A condition: the key was last written at this revision; 0: there is no such key."""

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
    """A write: the key is gone, or with `is_prefix` all keys that begin with it are."""

    key: str
    is_prefix: bool = False


class StoreTransaction(NamedTuple):
    """Writes that all happen if all conditions hold, and else do not; no key is written twice in one."""

    conditions: tuple[Unchanged | Holds, ...]
    writes: tuple[PutKey | DeleteKey, ...]


class UnreadableState(LeveretError):
    """A key holds what no node wrote; the text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The content of the store at one revision.

    Attributes:
        leader_lease: the lease that the leader's key ends with; 0 without one.
        in_sync: None when there is no record of who is in sync.
        modified: the revisions that wrote the keys, 0 for one that is not there.
    """

    leader: ElectedLeader | None
    leader_lease: int
    epoch: int
    in_sync: frozenset[str] | None
    modified: Mapping[str, int]

    def unchanged(self, key: str) -> Unchanged:
        """The condition that the key is as it was here."""
        return Unchanged(key, self.modified.get(key, 0))


def observe(keys: ElectionKeys, entries: Mapping[str, StoredValue]) -> Observed:
    """Read what the store holds under the prefix; keys of others there do not matter.

    Raises:
        UnreadableState: a value is not one that `stand` or `record` writes.
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
            f"etcd's key {key} holds what no node of a replication writes ({error}): delete it, "
            "or set cluster.etcd.prefix to one that nothing else uses"
        ) from error


@dataclass(frozen=True, slots=True)
class Memory:
    """Earlier content of the store as a node saw it, in case the store loses its data."""

    epoch: int = 0
    in_sync: frozenset[str] | None = None

    def after(self, observed: Observed) -> Memory:
        """With what was seen now."""
        in_sync = self.in_sync if observed.in_sync is None else observed.in_sync
        return Memory(max(self.epoch, observed.epoch), in_sync)


class Candidate(NamedTuple):
    """A node that would lead.

    Attributes:
        epoch: its own, the highest it has led or followed in.
        is_torn: it may lack what was promised, whatever the record says: a log of it was damaged or removed, or is
            being brought in line with a leader's.
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
    """Why a node may not lead now, and who does, if that is why."""

    reason: str
    leader: ElectedLeader | None = None


def stand(
    keys: ElectionKeys, observed: Observed, memory: Memory, candidate: Candidate, *, force: bool = False
) -> Candidacy | ElectionDeclined:
    """Decide whether a node may lead, and how it goes about it.

    A node that lacks something of what it had stands only if the record names it alone: then no other one has more.
    The record of who is in sync stays as it is, because those it names do have all that was promised so far;
    the new leader must have it changed before it promises anything without them.

    Args:
        keys: where the keys are.
        observed: what the store holds now.
        memory: what the node saw of it before.
        candidate: the node.
        force: an operator takes the loss upon him: not being in sync is no obstacle. The record then names
            this node alone, since the others are not known to have what it has.
    """
    if observed.leader is not None:
        return ElectionDeclined(
            f"node {observed.leader.node_id} leads in epoch {observed.leader.epoch}", observed.leader
        )
    in_sync = memory.in_sync if observed.in_sync is None else observed.in_sync
    is_in_sync = in_sync is None or candidate.node_id in in_sync
    if not is_in_sync and not force:
        named = ", ".join(sorted(in_sync or ())) or "no node"
        return ElectionDeclined(
            f"this node may lack confirmed messages; in sync when there was a leader: {named}"
        )
    if candidate.is_torn and not force and observed.in_sync != frozenset((candidate.node_id,)):
        others = ", ".join(sorted((in_sync or frozenset()) - {candidate.node_id})) or "no node"
        return ElectionDeclined(f"{TORN}; in sync beside it when there was a leader: {others}")
    record = observed.in_sync if observed.in_sync is not None and is_in_sync else None
    epoch = max(candidate.epoch, observed.epoch, memory.epoch) + 1
    leader = ElectedLeader(candidate.node_id, candidate.uri, epoch)
    puts = [
        PutKey(keys.leader, msgspec.json.encode(leader), leased=True),
        PutKey(keys.epoch, msgspec.json.encode(epoch)),
    ]
    if record is None:
        record = frozenset((candidate.node_id,))
        puts.append(PutKey(keys.in_sync, _record_value(record)))
    seen = tuple(observed.unchanged(key) for key in (keys.leader, keys.epoch, keys.in_sync))
    return Candidacy(leader, record, StoreTransaction(seen, tuple(puts)))


def record(
    keys: ElectionKeys, leader: ElectedLeader, modified: int, in_sync: frozenset[str]
) -> StoreTransaction:
    """How `leader` changes the record of who is in sync, as long as it leads.

    `modified` is the revision that wrote the record last, as far as the leader knows: of two writes that are
    under way one at most happens, so an earlier one that comes late changes nothing.
    """
    conditions = (Holds(keys.leader, msgspec.json.encode(leader)), Unchanged(keys.in_sync, modified))
    return StoreTransaction(conditions, (PutKey(keys.in_sync, _record_value(in_sync)),))


def _record_value(in_sync: frozenset[str]) -> bytes:
    return msgspec.json.encode(sorted(in_sync))


class LeaseClock:
    """The time for which a leader may rely on its lease, by its own clock.

    The store counts from when it gets a keepalive, the holder from when it sent it, which is earlier, and
    leaves a margin: the holder gives up before anybody else can win. Times are seconds of a clock that goes
    on while the machine sleeps. A lease that was over once is over for good, whatever answer comes late.
    """

    def __init__(self, ttl_s: float, sent_s: float) -> None:
        """It was asked for at `sent_s` and lasts for `ttl_s`."""
        self._ended = False
        self._ttl_s = ttl_s
        self._sent_s = sent_s

    def renewed(self, ttl_s: float, sent_s: float, now_s: float) -> None:
        """A keepalive that was sent at `sent_s` got its answer now: the lease lasts for `ttl_s` from `sent_s` on."""
        if self.is_held(now_s) and sent_s > self._sent_s:
            self._ttl_s, self._sent_s = ttl_s, sent_s

    def is_held(self, now_s: float) -> bool:
        """Whether nobody else can have won yet."""
        if now_s >= self.ends_s:
            self._ended = True
        return not self._ended

    def give_up(self) -> None:
        """Its holder relies on it no longer."""
        self._ended = True

    @property
    def ends_s(self) -> float:
        """When the holder has to have given up."""
        return self._sent_s + self._ttl_s * (1 - MARGIN)

    @property
    def fresh_until_s(self) -> float:
        """Until when enough is left of it for something new to begin."""
        return self._sent_s + self._ttl_s * _FRESH

    @property
    def keepalive_s(self) -> float:
        """When the next keepalive is due."""
        return self._sent_s + self._ttl_s / KEEPALIVES_PER_LEASE
