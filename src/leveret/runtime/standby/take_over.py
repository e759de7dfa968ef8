"""Decides when a vhost's new owner has all data that other nodes have, so that it no longer needs them.

A running holder continues its transfer until it reads that the owner has taken over. So the owner takes over once it
has everything that the upstream has told of; what the holder, or a lost one, has beyond that is no more than what the
upstream had as it ended. Under load more records always come: the ends in the first report after that suffice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from leveret.core.replication.vhost_owners import VhostOwner

_ENDING_S: Final = 2.0
"""A transfer has ended this time after its node's record changed: it looks each half second."""


class _Alone(NamedTuple):
    """An owner beside which no other node transfers, with the ends of the upstream's logs that it has to reach."""

    case: tuple[int, str, tuple[str, ...]]
    since_s: float
    ends: dict[str, int] | None = None


class TakeOvers:
    """The vhosts that this node takes over. Times are of the monotonic clock; rows as in TransferSupervisor.rows."""

    def __init__(self) -> None:
        """Begin without vhosts."""
        self._alone: dict[str, _Alone] = {}

    def is_level(self, row: Mapping[str, Any]) -> bool:
        """Return whether the owner has all that the upstream has told of: it takes over from a running holder then."""
        self._alone.pop(row["virtual_host"], None)
        return _is_whole(row) and not row["lag_records"]

    def has_all(self, owner: VhostOwner, row: Mapping[str, Any], now_s: float) -> bool:
        """Return whether the owner, which transfers alone, has all that any other node has."""
        vhost, case = row["virtual_host"], (owner.term, owner.holder, owner.beside)
        alone = self._alone.get(vhost)
        if alone is None or alone.case != case:
            alone = self._alone[vhost] = _Alone(case, now_s)
        if not _is_whole(row):
            return False
        logs = {each["node"]: each for each in row["nodes"]} or {"": row}
        if alone.ends is None:
            if now_s - row["heard_ago_ms"] / 1000 < alone.since_s + _ENDING_S:
                return False
            ends = {name: each["transferred"] + each["lag_records"] for name, each in logs.items()}
            alone = self._alone[vhost] = alone._replace(ends=ends)
        return all(
            name in logs and logs[name]["transferred"] >= end for name, end in (alone.ends or {}).items()
        )


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Return whether the upstream tells of its logs, and lacks none of their records."""
    return (
        row["state"] == "connected"
        and row["heard_ago_ms"] is not None
        and not (row["missing_records"] or row["missing_messages"] or row["error"])
    )
