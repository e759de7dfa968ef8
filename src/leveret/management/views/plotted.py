"""The node's measurements for the console's plots besides message rates: disk, event loop, lag behind an upstream."""

from __future__ import annotations

from collections.abc import Iterable

from leveret.management.node import ManagedNode
from leveret.management.rates.plots import UNKNOWN
from leveret.storage.disk import free_disk_bytes


class PlottedValues:
    """See the module. Attributes: `logs_bytes`, of all logs, at the last measurement."""

    def __init__(self, node: ManagedNode) -> None:
        """Measure this node."""
        self._node = node
        self.logs_bytes = UNKNOWN

    def read(self) -> tuple[int, ...]:
        """The values in the order of `rates.plots.OWN`."""
        node = self._node
        status = node.standby.status()
        lags_ms = [row["lag_ms"] for row in status["vhosts"]]
        records = [row["lag_records"] for row in status["vhosts"]]
        leader = node.replication.status()["leader"]
        if leader is not None:
            lags_ms.append(None if leader["lag_s"] is None else round(leader["lag_s"] * 1000))
            records.append(leader["lag_records"])
        return (
            _known(free_disk_bytes(node.data_dir)),
            round(node.loop_watch.longest_s * 1000),
            self.logs_bytes,
            _known(status["archive_bytes"]),
            _worst(lags_ms),
            _worst(records),
        )


def _known(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _worst(values: Iterable[int | None]) -> int:
    return max((value for value in values if value is not None), default=UNKNOWN)
