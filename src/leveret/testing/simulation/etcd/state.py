"""The content of a simulated etcd: keys, revisions, leases and history, with etcd's rules for each; pure.

Each transaction that writes makes a revision, and so does each end of a lease with keys; no other event does. The first
revision is 2, as in an etcd without writes. The rules are those of etcd 3.4, and
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
"""etcd's shortest lease, with its default election timeout of one second."""
OPERATIONS_MAX: Final = 128
"""The most conditions, and the most writes, of one transaction."""
INVALID: Final = 3
NOT_FOUND: Final = 5
OUT_OF_RANGE: Final = 11


@dataclass(slots=True)
class EtcdLease:
    """A lease, and the time at which it ends unless it is renewed."""

    ttl_s: int
    ends_s: float


@dataclass(slots=True)
class EtcdState:
    """See the module.

    Attributes:
        revision: the latest revision.
        compacted: the history before this revision is forgotten.
        entries: the present keys.
        leases: the present leases, by id.
        history: the events of each revision, from `compacted` on.
    """

    revision: int = 1
    compacted: int = 0
    entries: dict[str, StoredValue] = field(default_factory=dict)
    leases: dict[int, EtcdLease] = field(default_factory=dict)
    history: list[WatchEvents] = field(default_factory=list)

    def copy(self) -> Self:
        """Return a copy of the present content: a backup."""
        leases = {number: EtcdLease(lease.ttl_s, lease.ends_s) for number, lease in self.leases.items()}
        return type(self)(self.revision, self.compacted, dict(self.entries), leases, list(self.history))

    def read(self, prefix: str) -> Snapshot:
        """Return all keys that begin with `prefix`, in order."""
        return Snapshot(self.revision, {key: self.entries[key] for key in self._keys_below(prefix)})

    def transact(self, transaction: StoreTransaction, lease_id: int) -> int | None:
        """Carry out the writes if all conditions hold; return the latest revision, None if a condition did not hold.

        Raises:
            EtcdRefused: the lease is over, or the transaction is invalid; no write was carried out.
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
                    before, written = self.entries.get(key), self.revision + 1
                    made = before.created if before is not None else written
                    self.entries[key] = StoredValue(value, written, lease_id * leased, made)
                    events.append(Event(key, value, written, created=made))
                case DeleteKey(key, is_prefix):
                    named = self._keys_below(key) if is_prefix else [key] * (key in self.entries)
                    events += map(self._remove, named)
        self._happened(events)
        return self.revision

    def grant(self, lease_id: int, ttl_s: int, now_s: float) -> EtcdLease:
        """Grant a new lease; it may be longer than requested."""
        ttl_s = max(ttl_s, TTL_S_MIN)
        self.leases[lease_id] = EtcdLease(ttl_s, now_s + ttl_s)
        return self.leases[lease_id]

    def keep_alive(self, lease_id: int, now_s: float) -> int:
        """Renew a lease; return the seconds that it lasts, 0 if it is over.

        An expired lease ends now at the latest, though its keys may have existed until now.
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
        """End a lease, and delete its keys, in one revision.

        Raises:
            EtcdRefused: the lease is over already.
        """
        if self.leases.pop(lease_id, None) is None:
            raise EtcdRefused(NOT_FOUND, "etcdserver: requested lease not found")
        bound = sorted(key for key, entry in self.entries.items() if entry.lease == lease_id)
        self._happened([self._remove(key) for key in bound])

    def compact(self, revision: int) -> None:
        """Forget the history before a revision, and the deletions of the revision itself.

        The latter is a bug of older etcds (etcd's issue 18089): they accept a watch from this revision on, but it does
        not report these deletions.

        Raises:
            EtcdRefused: the revision is forgotten already, or is in the future.
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
        """Return the events of each revision from this one on; None if a part of them is forgotten."""
        return None if revision < self.compacted else self.history[self._place(revision) :]

    def renew_all(self, now_s: float) -> None:
        """Renew all leases, as etcd does at its start."""
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
