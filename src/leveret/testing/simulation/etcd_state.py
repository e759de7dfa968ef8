"""The content of a simulated etcd: keys, revisions, leases and history, with etcd's rules for each; pure.

A revision is made by each transaction that writes something, by each end of a lease that has keys, and by nothing
else; the first one is 2, as in an etcd that was never written to. The rules are those of etcd 3.4, and
tests/unit/testing/simulation/test_etcd_beside_real compares both.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final, Self

from leveret.core.replication.cluster import Event
from leveret.core.replication.election import (
    DeleteKey,
    Holds,
    PutKey,
    StoredValue,
    StoreTransaction,
    Unchanged,
)
from leveret.runtime.coordination.etcd import EtcdRefused, Snapshot, WatchEvents

TTL_S_MIN: Final = 2
"""etcd grants no shorter lease where its members elect a leader within a second: its defaults."""
OPERATIONS_MAX: Final = 128
"""Conditions, or writes, of one transaction."""
INVALID: Final = 3
NOT_FOUND: Final = 5
OUT_OF_RANGE: Final = 11


@dataclass(slots=True)
class EtcdLease:
    """A lease, and when it is over unless it is kept alive."""

    ttl_s: int
    ends_s: float


@dataclass(slots=True)
class EtcdState:
    """See the module.

    Attributes:
        revision: the latest.
        compacted: what happened before this revision is forgotten.
        entries: the keys that there are.
        leases: those that are not over, by id.
        history: what each revision did, from `compacted` on.
    """

    revision: int = 1
    compacted: int = 0
    entries: dict[str, StoredValue] = field(default_factory=dict)
    leases: dict[int, EtcdLease] = field(default_factory=dict)
    history: list[WatchEvents] = field(default_factory=list)

    def copy(self) -> Self:
        """The content as it is now: a backup."""
        leases = {number: EtcdLease(lease.ttl_s, lease.ends_s) for number, lease in self.leases.items()}
        return type(self)(self.revision, self.compacted, dict(self.entries), leases, list(self.history))

    def read(self, prefix: str) -> Snapshot:
        """All keys that begin with `prefix`, in their order."""
        return Snapshot(self.revision, {key: self.entries[key] for key in self._keys_below(prefix)})

    def transact(self, transaction: StoreTransaction, lease_id: int) -> int | None:
        """Do the writes if the conditions hold: the latest revision, or None when one did not hold.

        Raises:
            EtcdRefused: nothing was done: the lease is over, or the transaction is none.
        """
        _check(transaction)
        if not all(map(self._holds, transaction.conditions)):
            return None
        is_leased = any(isinstance(write, PutKey) and write.leased for write in transaction.writes)
        if is_leased and lease_id and lease_id not in self.leases:
            raise EtcdRefused(NOT_FOUND, "etcdserver: requested lease not found")
        events: list[Event] = []
        for write in transaction.writes:
            match write:
                case PutKey(key, value, leased):
                    self.entries[key] = StoredValue(value, self.revision + 1, lease_id * leased)
                    events.append(Event(key, value, self.revision + 1))
                case DeleteKey(key, is_prefix):
                    named = self._keys_below(key) if is_prefix else [key] * (key in self.entries)
                    events += map(self._remove, named)
        self._happened(events)
        return self.revision

    def grant(self, lease_id: int, ttl_s: int, now_s: float) -> EtcdLease:
        """A new lease; it may be longer than was asked for."""
        ttl_s = max(ttl_s, TTL_S_MIN)
        self.leases[lease_id] = EtcdLease(ttl_s, now_s + ttl_s)
        return self.leases[lease_id]

    def keep_alive(self, lease_id: int, now_s: float) -> int:
        """Have a lease begin anew: the seconds it lasts; 0 when it is over.

        A lease whose time is over ends now at the latest, though its keys may have been there until now.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            return 0
        if lease.ends_s <= now_s:
            self.revoke(lease_id)
            return 0
        lease.ends_s = now_s + lease.ttl_s
        return lease.ttl_s

    def revoke(self, lease_id: int) -> None:
        """End a lease: its keys go, in one revision.

        Raises:
            EtcdRefused: it is over already.
        """
        if self.leases.pop(lease_id, None) is None:
            raise EtcdRefused(NOT_FOUND, "etcdserver: requested lease not found")
        bound = sorted(key for key, entry in self.entries.items() if entry.lease == lease_id)
        self._happened([self._remove(key) for key in bound])

    def compact(self, revision: int) -> None:
        """Forget what happened before a revision, and which keys it deleted itself.

        The latter is a bug of older etcds (etcd's issue 18089): a watch from this revision on is taken, and does not
        report these deletions.

        Raises:
            EtcdRefused: it is forgotten already, or is still to come.
        """
        if not self.compacted < revision <= self.revision:
            what = (
                "required revision has been compacted" if revision <= self.compacted else "a future revision"
            )
            raise EtcdRefused(OUT_OF_RANGE, f"etcdserver: mvcc: {what}")
        self.compacted = revision
        del self.history[: self._place(revision)]
        if self.history and self.history[0].revision == revision:
            puts = [event for event in self.history[0].events if event.value is not None]
            self.history[:1] = [WatchEvents(revision, puts)] if puts else []

    def happened_from(self, revision: int) -> list[WatchEvents] | None:
        """What each revision from this one on did; None when that is forgotten in part."""
        return None if revision < self.compacted else self.history[self._place(revision) :]

    def renew_all(self, now_s: float) -> None:
        """Have all leases begin anew, as an etcd does that has just started."""
        for lease in self.leases.values():
            lease.ends_s = now_s + lease.ttl_s

    def _place(self, revision: int) -> int:
        return bisect_left(self.history, revision, key=lambda batch: batch.revision)

    def _keys_below(self, prefix: str) -> list[str]:
        return sorted(key for key in self.entries if key.startswith(prefix))

    def _holds(self, condition: Unchanged | Holds) -> bool:
        entry = self.entries.get(condition.key)
        match condition:
            case Unchanged(_, modified):
                return modified == (entry.modified if entry else 0)
            case Holds(_, value):
                return entry is not None and entry.value == value

    def _remove(self, key: str) -> Event:
        del self.entries[key]
        return Event(key, None, self.revision + 1)

    def _happened(self, events: list[Event]) -> None:
        if events:
            self.revision += 1
            self.history.append(WatchEvents(self.revision, events))


def _check(transaction: StoreTransaction) -> None:
    if max(map(len, transaction)) > OPERATIONS_MAX:
        raise EtcdRefused(INVALID, "etcdserver: too many operations in txn request")
    puts = [write.key for write in transaction.writes if isinstance(write, PutKey)]
    deletes = [write for write in transaction.writes if isinstance(write, DeleteKey)]
    is_twice = any(
        key.startswith(delete.key) if delete.is_prefix else key == delete.key
        for delete in deletes
        for key in puts
    )
    if is_twice or len(puts) > len(set(puts)):
        raise EtcdRefused(INVALID, "etcdserver: duplicate key given in txn request")
