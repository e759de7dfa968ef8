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


class PlacedLogs:
    """The logs of a cluster's placements in etcd, which say whether a node's account of a mirror binds the node.

    A mirror removes a log whose deletion is in etcd before the leader hears of that, and truncates a log to follow the
    next leader that etcd names while the former one has stood still: an ack from before may be under way to it.
    """

    def __init__(self, prefix: str) -> None:
        """Begin without one; `prefix` is the setting of the cluster."""
        self._placements = placements_below(prefix)
        self._placed: dict[str, str] = {}
        """The directory of the log of each placement in etcd, by its key."""
        self._leaders: dict[str, str] = {}
        """The names of the leaders by the directories of logs; empty for a log that had a placement and has none."""

    def recorded(self, transaction: StoreTransaction) -> None:
        """Take a change of the records in etcd."""
        for write in transaction.writes:
            if write.key in self._placed:
                self._leaders[self._placed.pop(write.key)] = ""
            if isinstance(write, PutKey) and write.key.startswith(self._placements):
                # A queue that is deleted and declared anew at once has another log.
                placement = decoded(write.value)
                directory = self._placed[write.key] = directory_of(placement.epoch)
                self._leaders[directory] = placement.leader.partition("@")[0]

    def binds(self, leader: str, log: str) -> bool:
        """Return whether the placements leave a log to this node; `log` is its path below a data directory."""
        return self._leaders.get(Path(log).name, leader) == leader
