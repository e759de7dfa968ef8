"""The placements of queues in a simulated etcd, as worlds read them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from leveret.core.replication.cluster import ClusterKeys, Placement
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.runtime.logs.log_home import directory_of


@lru_cache(maxsize=1024)
def decoded(value: bytes) -> Placement:
    """Decode a record of a queue; a world asks for the same ones again and again."""
    return msgspec.json.decode(value, type=Placement)


def placements_below(prefix: str) -> str:
    """Return the prefix of all placements of a cluster, whose setting is `prefix`."""
    return ClusterKeys.under(prefix).placement("", "").rstrip("/") + "/"


class DeletedLogs:
    """The logs of a cluster that no placement has any more: a mirror may remove one before its leader hears of that."""

    def __init__(self, prefix: str) -> None:
        """Begin without one; `prefix` is the setting of the cluster."""
        self._placements = placements_below(prefix)
        self._placed: dict[str, str] = {}
        """The directory of the log of each placement in etcd, by its key."""
        self._deleted: set[str] = set()

    def recorded(self, transaction: StoreTransaction) -> None:
        """Take a change of the records in etcd."""
        for write in transaction.writes:
            if write.key in self._placed:
                self._deleted.add(self._placed.pop(write.key))
            if isinstance(write, PutKey) and write.key.startswith(self._placements):
                # A queue that is deleted and declared anew at once has another log.
                self._placed[write.key] = directory_of(decoded(write.value).epoch)
                self._deleted.discard(self._placed[write.key])

    def __contains__(self, log: str) -> bool:
        """Return whether a log had a placement, and has none; `log` is its path below a data directory."""
        return Path(log).name in self._deleted
