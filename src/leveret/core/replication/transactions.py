"""Transactions that exceed the store's limit, split into several. core.replication.election defines their parts."""

from __future__ import annotations

from typing import Final

from leveret.core.replication.election import DeleteKey, Holds, PutKey, StoreTransaction, Unchanged

OPS_MAX: Final = 120
"""The most conditions, and the most writes, of one transaction; etcd's default is 128 (`--max-txn-ops`)."""
TRANSACTION_BYTES_MAX: Final = 512 * 1024
"""The most octets of keys and values, before base64; etcd takes 1.5 MiB a request (`--max-request-bytes`)."""


def parts(
    transaction: StoreTransaction, ops_max: int = OPS_MAX, bytes_max: int = TRANSACTION_BYTES_MAX
) -> list[StoreTransaction]:
    """Split the transaction into parts that etcd accepts; the caller runs them in order until one fails.

    The writes stay in order. A condition on a written key goes with the first write of that key; every part has all
    other conditions. Several parts are not atomic: their caller must be able to continue in the middle, or begins anew
    when a condition does not hold.

    Raises:
        ValueError: the conditions alone are too many.
    """
    general, own = _conditions(transaction)
    if len(general) + max(map(len, own.values()), default=0) > ops_max:
        raise ValueError(f"{len(transaction.conditions)} conditions are more than one transaction takes")
    found = [_Part()]
    for number, write in enumerate(transaction.writes):
        part, mine = found[-1], own.get(number, [])
        is_full = (
            len(part.writes) == ops_max
            or len(general) + len(part.conditions) + len(mine) > ops_max
            or part.octets + _size(write) > bytes_max
        )
        if part.writes and (is_full or part.touches(write)):
            part = _Part()
            found.append(part)
        part.add(write, mine)
    return [StoreTransaction((*general, *part.conditions), tuple(part.writes)) for part in found]


def _conditions(
    transaction: StoreTransaction,
) -> tuple[list[Unchanged | Holds], dict[int, list[Unchanged | Holds]]]:
    """Return the conditions on keys that are not written, and the others by the index of their key's first write."""
    writes = transaction.writes
    first = {
        write.key: number for number, write in reversed(list(enumerate(writes))) if not _is_prefix(write)
    }
    prefixes = [(number, write.key) for number, write in enumerate(writes) if _is_prefix(write)]
    general: list[Unchanged | Holds] = []
    own: dict[int, list[Unchanged | Holds]] = {}
    for condition in transaction.conditions:
        numbers = [number for number, prefix in prefixes if condition.key.startswith(prefix)]
        numbers += [first[condition.key]] if condition.key in first else []
        (own.setdefault(min(numbers), []) if numbers else general).append(condition)
    return general, own


def _is_prefix(write: PutKey | DeleteKey) -> bool:
    return isinstance(write, DeleteKey) and write.is_prefix


class _Part:
    """Writes that fit into one transaction."""

    def __init__(self) -> None:
        self.writes: list[PutKey | DeleteKey] = []
        self.conditions: list[Unchanged | Holds] = []
        self.octets = 0
        self._keys: set[str] = set()
        self._prefixes: tuple[str, ...] = ()

    def add(self, write: PutKey | DeleteKey, own: list[Unchanged | Holds]) -> None:
        self.writes.append(write)
        self.conditions += own
        self.octets += _size(write)
        if _is_prefix(write):
            self._prefixes += (write.key,)
        self._keys.add(write.key)

    def touches(self, write: PutKey | DeleteKey) -> bool:
        """Return whether this part has a write of the same key: a transaction may write each key only once."""
        if write.key in self._keys or write.key.startswith(self._prefixes):
            return True
        return _is_prefix(write) and any(key.startswith(write.key) for key in self._keys)


def _size(write: PutKey | DeleteKey) -> int:
    return len(write.key) + (len(write.value) if isinstance(write, PutKey) else 0)
