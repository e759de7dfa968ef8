"""What a downstream has transferred: looked at, and deleted, by pipeline processes of their own.

Looking is cheap (the manifest alone), and yet a process: so its last answer serves for a moment.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from leveret.runtime.pipeline_process import Event, ask

_LOOK_CACHE_S: Final = 2.0
_EVERYTHING: Final = ("plans", "exports", "rehearsals", "manifest", "data", "origins.json")


class StandbyArchive:
    """The data directory of a downstream."""

    def __init__(self, data_dir: Path, node_name: str, spark: dict[str, Any]) -> None:
        """Of the node of this name; `spark` is for the pipeline (SparkSettings). Nothing is read yet."""
        self.data_dir = data_dir
        self._node_name = node_name
        self._spark = spark
        self._looked: tuple[float, Event] = (0.0, {})

    async def list_vhosts_available(self) -> list[str]:
        """Vhosts with data to recover."""
        return [row["vhost"] for row in (await self.look())["vhosts"] if row["records"]]

    async def metrics(self) -> list[dict[str, Any]]:
        """A row a queue: queue, timestamp (of the newest record, ms), vhost, messages, settled."""
        rows: list[dict[str, Any]] = (await self.look())["queues"]
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
            for row in (await self.look())["vhosts"]
        ]

    async def inspect(self) -> list[dict[str, Any]]:
        """Messages by vhost, exchange and routing key; reads all that was transferred."""
        job = {"data_dir": str(self.data_dir), "spark": self._spark}
        rows: list[dict[str, Any]] = (await ask("inspect", job))["rows"]
        return rows

    async def missing(self) -> dict[str, int]:
        """By vhost, how many records never came because the upstream retained them no longer."""
        rows = (await self.look(fresh=True))["vhosts"]
        return {row["vhost"]: row["missing"] for row in rows if row["missing"]}

    async def orphans(self, wanted: Collection[str]) -> list[str]:
        """Vhosts that there is data of, and that are not `wanted` or are other ones at the upstream by now."""
        rows = (await self.look(fresh=True))["vhosts"]
        return [row["vhost"] for row in rows if row["vhost"] not in wanted or row["is_replaced"]]

    async def forget(self, vhosts: list[str]) -> list[dict[str, Any]]:
        """Delete the data of these vhosts, while nothing is transferred; a row each: vhost, bytes.

        Raises:
            PipelineFailed: why they are not deleted.
        """
        done = await ask("forget", {"data_dir": str(self.data_dir), "vhosts": vhosts})
        self._looked = (0.0, {})
        rows: list[dict[str, Any]] = done["rows"]
        return rows

    async def delete_all(self) -> None:
        """Delete everything, while nothing is transferred."""
        for name in _EVERYTHING:
            await asyncio.to_thread(_delete, self.data_dir / name)
        self._looked = (0.0, {})

    async def keep_former(self, at_ms: int) -> None:
        """Move everything to a directory `former/<at_ms>`, while nothing is transferred; nothing reads it there."""
        names = [name for name in _EVERYTHING if (self.data_dir / name).exists()]
        if names:
            former = self.data_dir / "former" / str(at_ms)
            former.mkdir(mode=0o700, parents=True)
            for name in names:
                (self.data_dir / name).rename(former / name)
        self._looked = (0.0, {})

    async def look(self, *, fresh: bool = False) -> Event:
        """What the manifest says; a moment old, unless `fresh`."""
        at_s, found = self._looked
        if fresh or not found or time.monotonic() - at_s > _LOOK_CACHE_S:
            found = await ask("look", {"data_dir": str(self.data_dir)})
            self._looked = (time.monotonic(), found)
        return found


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
