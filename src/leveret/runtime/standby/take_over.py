"""Decides when a vhost's new owner has all data that the holder has, so that the owner no longer needs the holder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_HEARD_MS: Final = 1000
"""A younger report of the upstream came after the loss of a holder: the limit is less than a lease."""


class TakeOvers:
    """The vhosts that this node takes over, each with the ends of the upstream's logs that it has to reach.

    A running holder continues its transfer, so the new owner needs every record. A lost holder has at most the records
    that the upstream had at the loss. So under load, while more records always come, the ends in the first report after
    the loss suffice.
    """

    def __init__(self) -> None:
        """Begin without vhosts."""
        self._ends: dict[str, tuple[int, dict[str, int]]] = {}

    def is_done(self, term: int, row: Mapping[str, Any], *, holder_runs: bool) -> bool:
        """Return whether this node has all data of a vhost that the holder has.

        Args:
            term: the term of this node's ownership.
            row: the state of the vhost's transfer, see TransferSupervisor.rows.
            holder_runs: whether the holder runs.
        """
        vhost = row["virtual_host"]
        if row["state"] != "connected" or row["heard_ago_ms"] is None:
            return False
        if row["missing_records"] or row["missing_messages"] or row["error"]:
            return False
        if not row["lag_records"]:
            self._ends.pop(vhost, None)
            return True
        if holder_runs:
            self._ends.pop(vhost, None)
            return False
        logs = {each["node"]: each for each in row["nodes"]} or {"": row}
        known, ends = self._ends.get(vhost, (0, {}))
        if known != term:
            if row["heard_ago_ms"] < _HEARD_MS:
                ends = {name: each["transferred"] + each["lag_records"] for name, each in logs.items()}
                self._ends[vhost] = term, ends
            return False
        return all(name in logs and logs[name]["transferred"] >= end for name, end in ends.items())
