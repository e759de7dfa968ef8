"""Transactions that exceed the store's limit, split into several. core.replication.election defines their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from leveret.core.replication.election import DeleteKey, Holds, PutKey, StoreTransaction, Unchanged

Write = PutKey | DeleteKey

OPS_MAX: Final = 120
"""The most conditions, and the most writes, of one transaction; etcd's default is 128 (`--max-txn-ops`)."""
TRANSACTION_BYTES_MAX: Final = 512 * 1024
"""The most octets of keys and values, before base64; etcd takes 1.5 MiB a request (`--max-request-bytes`)."""


def parts(
    transaction: StoreTransaction,
    ops_max: int = OPS_MAX,
    bytes_max: int = TRANSACTION_BYTES_MAX,
    belong_together: Callable[[Write, Write], bool] = lambda write, following: False,
) -> list[StoreTransaction]:
    """Split the transaction into parts that etcd accepts; the caller runs them in order until one fails.

    The writes stay in order. A condition on a written key goes with the first write of that key; every part has all
    other conditions. Several parts are not atomic: their caller must be able to continue in the middle, or begins anew
    when a condition does not hold. A write and the following one are in one part if they `belong_together`.

    Raises:
        ValueError: the conditions alone are too many.
    """
    general, own = _conditions(transaction)
    if len(general) + max(map(len, own.values()), default=0) > ops_max:
        raise ValueError(f"{len(transaction.conditions)} conditions are more than one transaction takes")
    found = [_Part()]
    number = 0
    for group in _groups(transaction.writes, belong_together):
        part = found[-1]
        mine = [own.get(each, []) for each in range(number, number + len(group))]
        number += len(group)
        is_full = (
            len(part.writes) + len(group) > ops_max
            or len(general) + len(part.conditions) + sum(map(len, mine)) > ops_max
            or part.octets + sum(map(_size, group)) > bytes_max
        )
        if part.writes and (is_full or any(map(part.touches, group))):
            part = _Part()
            found.append(part)
        for write, conditions in zip(group, mine, strict=True):
            part.add(write, conditions)
    return [StoreTransaction((*general, *part.conditions), tuple(part.writes)) for part in found]


def _groups(
    writes: Sequence[Write], belong_together: Callable[[Write, Write], bool]
) -> Iterator[list[Write]]:
    """Yield the writes in order, those that belong together in one list."""
    group: list[Write] = []
    for write in writes:
        if group and not belong_together(group[-1], write):
            yield group
            group = []
        group.append(write)
    if group:
        yield group


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


def _is_prefix(write: Write) -> bool:
    return isinstance(write, DeleteKey) and write.is_prefix


class _Part:
    """Writes that fit into one transaction."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
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

    def touches(self, write: Write) -> bool:
        """Return whether this part has a write of the same key: a transaction may write each key only once."""
        if write.key in self._keys or write.key.startswith(self._prefixes):
            return True
        return _is_prefix(write) and any(key.startswith(write.key) for key in self._keys)


def _size(write: Write) -> int:
    return len(write.key) + (len(write.value) if isinstance(write, PutKey) else 0)
