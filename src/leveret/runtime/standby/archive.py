"""The archive of a downstream: inspected and deleted by pipeline processes of their own.

The archive may be in a store on other machines; this node never touches it itself. An inspection is cheap (it reads the
manifest alone), and yet a process: so its last answer is reused for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from leveret.runtime.standby.pipeline_process import Event, ask

_CACHE_S: Final = 2.0


class StandbyArchive:
    """The archive of a downstream.

    Attributes:
        place: what every job on it says of where it is.
    """

    def __init__(self, data_dir: str, work_dir: Path, node_name: str, spark: dict[str, Any]) -> None:
        """In `data_dir`, a path or URI, of the node of this name; nothing is read yet.

        `work_dir` is for locks, logs and Spark's scratch if the archive is in a store; `spark` is for the pipeline
        (SparkSettings).
        """
        work = str(work_dir) if "://" in data_dir else data_dir
        self.place: Final = {"data_dir": data_dir, "work_dir": work}
        self._node_name = node_name
        self._spark = spark
        self._contents: tuple[float, Event] = (0.0, {})

    async def list_vhosts_available(self) -> list[str]:
        """Vhosts with data to recover."""
        return [row["vhost"] for row in (await self.contents())["vhosts"] if row["records"]]

    async def metrics(self) -> list[dict[str, Any]]:
        """A row a queue: queue, timestamp (of the newest record, ms), vhost, messages, settled."""
        rows: list[dict[str, Any]] = (await self.contents())["queues"]
        return rows

    async def disk_usage(self) -> list[dict[str, Any]]:
        """A row a vhost: node, size, unit, vhost, bytes."""
        return [
            {
                "node": self._node_name,
                "size": round(row["bytes"] / 1e9, 4),
                "unit": "gb",
                "vhost": row["vhost"],
                "bytes": row["bytes"],
            }
            for row in (await self.contents())["vhosts"]
        ]

    async def inspect(self, report: Callable[[Event], None]) -> list[dict[str, Any]]:
        """Messages by vhost, exchange and routing key; reads all that was transferred, and tells how far it is.

        Raises:
            PipelineFailed: why they cannot be counted.
        """
        job = {**self.place, "spark": self._spark}
        rows: list[dict[str, Any]] = (await ask("inspect", job, report))["rows"]
        return rows

    async def unfinished_plans(self) -> list[Event]:
        """A row for each plan of a promotion that is frozen and not carried out: vhost, plan_id, queues.

        Raises:
            PipelineFailed: why they cannot be read.
        """
        rows: list[Event] = (await ask("plans", self.place))["rows"]
        return rows

    async def missing(self) -> dict[str, dict[str, int]]:
        """By vhost, what never came because the upstream retained it no longer: missing_records, missing_messages."""
        rows = await self._vhosts()
        return {
            row["vhost"]: {"missing_records": row["missing"], "missing_messages": row["missing_messages"]}
            for row in rows
        }

    async def orphans(self, wanted: Collection[str]) -> list[str]:
        """Vhosts that there is data of, and that are not `wanted` or are other ones at the upstream by now."""
        rows = await self._vhosts()
        return [row["vhost"] for row in rows if row["vhost"] not in wanted or row["is_replaced"]]

    async def forget(self, vhosts: list[str]) -> list[dict[str, Any]]:
        """Delete the data of these vhosts, while nothing is transferred; a row each: vhost, bytes.

        Raises:
            PipelineFailed: why they are not deleted.
        """
        done = await ask("forget", {**self.place, "vhosts": vhosts})
        self._contents = (0.0, {})
        rows: list[dict[str, Any]] = done["rows"]
        return rows

    async def delete_all(self) -> None:
        """Delete everything, while nothing is transferred.

        Raises:
            PipelineFailed: why not all of it is deleted.
        """
        await ask("delete", self.place)
        self._contents = (0.0, {})

    async def keep_former(self, at_ms: int) -> None:
        """Move everything to `former/<at_ms>` in it, while nothing is transferred; nothing reads it there.

        Raises:
            PipelineFailed: why it is still where it was, or in part.
        """
        await ask("set_aside", {**self.place, "at_ms": at_ms})
        self._contents = (0.0, {})

    async def _vhosts(self) -> list[Event]:
        """A row a vhost, as of now; without the queues, of which there may be very many."""
        rows: list[Event] = (await ask("contents", {**self.place, "with_queues": False}))["vhosts"]
        return rows

    async def contents(self, *, fresh: bool = False) -> Event:
        """What the manifest says; a moment old, unless `fresh`."""
        at_s, found = self._contents
        if fresh or not found or time.monotonic() - at_s > _CACHE_S:
            found = await ask("contents", self.place)
            self._contents = (time.monotonic(), found)
        return found
