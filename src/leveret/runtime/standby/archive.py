"""The archive of a downstream, which pipeline processes read and delete.

The archive may be in a store on other machines; this node never accesses it directly. An inspection is cheap (it reads
the manifest alone), but needs a process: so its last answer is reused for `_CACHE_S`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from leveret.runtime.standby.pipeline_process import Event, Report, ask
from leveret.session.message_json import payload_json, properties_json
from leveret.wire.record import content_header

SHOWN_BYTES_MAX: Final = 64 * 1024
"""The most octets shown of a message's body."""
_CACHE_S: Final = 2.0


class ReadableArchive:
    """What a downstream's manifests tell of the transferred data."""

    async def contents(self, *, fresh: bool = False) -> Event:
        """Return the content of the manifests, which may be some seconds old, unless `fresh`.

        Raises:
            LeveretError: a manifest cannot be read, or a node does not answer; the text has the reason.
        """
        raise NotImplementedError

    async def list_vhosts_available(self) -> list[str]:
        """Return the vhosts with data to recover."""
        return [row["vhost"] for row in (await self.contents())["vhosts"] if row["records"]]

    async def metrics(self) -> list[dict[str, Any]]:
        """Return a row for each queue: queue, timestamp (of the newest record, ms), vhost, messages, settled."""
        rows: list[dict[str, Any]] = (await self.contents())["queues"]
        return rows

    async def moments(self) -> list[dict[str, Any]]:
        """Return a row for each vhost: virtual_host; earliest_ms and newest_ms bound the known states of its queues."""
        rows, found = [], await self.contents()
        for vhost in found["vhosts"]:
            queues = [row for row in found["queues"] if row["vhost"] == vhost["vhost"]]
            if queues:
                earliest_ms = max(vhost["known_from_ms"], min(row["oldest_ms"] for row in queues))
                newest_ms = max(row["timestamp"] for row in queues)
                bounds = {"earliest_ms": earliest_ms, "newest_ms": newest_ms}
                rows.append({"virtual_host": vhost["vhost"], **bounds})
        return rows


class StandbyArchive(ReadableArchive):
    """The archive of a downstream.

    Attributes:
        is_shared: whether other nodes of a cluster use the same archive.
        terms: returns, by vhost, the terms in which this node owns vhosts of a shared archive.
    """

    def __init__(
        self,
        data_dir: str,
        work_dir: Path,
        node_name: str,
        spark: dict[str, Any],
        *,
        is_shared: bool = False,
    ) -> None:
        """Use the archive in `data_dir`, a path or URI, of the node of this name, without reading it yet.

        `work_dir` is for locks, logs and Spark's scratch files if the archive is in a store, or shared; `spark` are the
        pipeline's SparkSettings.
        """
        is_elsewhere = is_shared or "://" in data_dir
        self._place: Final = {"data_dir": data_dir, "work_dir": str(work_dir) if is_elsewhere else data_dir}
        self.is_shared = is_shared
        self.terms: Callable[[], dict[str, int]] = dict
        self._node_name = node_name
        self._spark = spark
        self._contents: tuple[float, Event] = (0.0, {})

    @property
    def place(self) -> dict[str, Any]:
        """The fields of every job that locate the archive, and say which of it is this node's."""
        return {**self._place, **({"terms": self.terms()} if self.is_shared else {})}

    async def identify(self, cluster_id: str, expected: str) -> str:
        """Return the id of a shared archive; without an expected one, make it if there is none.

        Raises:
            PipelineFailed: it is not that archive, or not this cluster's; the text has the reason.
        """
        found = await ask("identify", {**self.place, "cluster_id": cluster_id, "expected": expected})
        return str(found["archive_id"])

    async def disk_usage(self) -> list[dict[str, Any]]:
        """Return a row for each vhost: node, size, unit, vhost, bytes."""
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

    async def inspect(self, report: Report) -> list[dict[str, Any]]:
        """Count messages by vhost, queue, exchange and routing key; reads the whole archive, and reports progress.

        Raises:
            PipelineFailed: the messages cannot be counted; the text has the reason.
        """
        job = {**self.place, "spark": self._spark}
        rows: list[dict[str, Any]] = (await ask("inspect", job, report))["rows"]
        return rows

    async def export(
        self, target: str, form: str, options: dict[str, str], report: Report
    ) -> list[dict[str, Any]]:
        """Write messages to files in `target`; return a row for each queue: vhost, queue, messages, pending.

        `report` receives the progress; `options` are those of a query of the table of messages.

        Raises:
            PipelineFailed: the export failed; the text has the reason.
        """
        job = {**self.place, "spark": self._spark, "target": target, "format": form, "options": options}
        rows: list[dict[str, Any]] = (await ask("export", job, report))["rows"]
        return rows

    async def messages(self, vhost: str, queue: str, from_ms: int, count: int) -> list[dict[str, Any]]:
        """Return the first `count` messages of a queue that came at `from_ms` or later, settled ones included.

        The rows have the form of divergent messages.

        Raises:
            PipelineFailed: the messages cannot be read; the text has the reason.
        """
        wanted = {"vhost": vhost, "queue": queue, "from_ms": from_ms, "count": count}
        job = {**self.place, **wanted, "body_bytes_max": SHOWN_BYTES_MAX}
        rows: list[dict[str, Any]] = (await ask("browse", job))["rows"]
        return [_message_row(vhost, queue, row) for row in rows]

    async def unfinished_plans(self) -> list[Event]:
        """Return a row for each frozen plan of a promotion that was not carried out: vhost, plan_id, queues.

        Raises:
            PipelineFailed: the plans cannot be read; the text has the reason.
        """
        rows: list[Event] = (await ask("plans", self.place))["rows"]
        return rows

    async def missing(self) -> dict[str, dict[str, int]]:
        """Return, by vhost, what the records here lack.

        missing_records, missing_messages: the counts that the upstream dropped untransferred; is_replaced: whether the
        upstream's present log does not continue the records here.
        """
        rows = await self._vhosts()
        return {
            row["vhost"]: {
                "missing_records": row["missing"],
                "missing_messages": row["missing_messages"],
                "is_replaced": row["is_replaced"],
            }
            for row in rows
        }

    async def orphans(self, wanted: Collection[str]) -> list[str]:
        """Return the archived vhosts that are not `wanted`, or that were made anew at the upstream."""
        rows = await self._vhosts()
        return [row["vhost"] for row in rows if row["vhost"] not in wanted or row["is_replaced"]]

    async def forget(self, vhosts: list[str]) -> list[dict[str, Any]]:
        """Delete the data of these vhosts, while no transfer runs; return a row for each: vhost, bytes.

        Raises:
            PipelineFailed: the data are not deleted; the text has the reason.
        """
        done = await ask("forget", {**self.place, "vhosts": vhosts})
        self._contents = (0.0, {})
        rows: list[dict[str, Any]] = done["rows"]
        return rows

    async def delete_all(self) -> None:
        """Delete the whole archive, while no transfer runs.

        Raises:
            PipelineFailed: a part is not deleted; the text has the reason.
        """
        await ask("delete", self.place)
        self._contents = (0.0, {})

    async def keep_former(self, at_ms: int) -> None:
        """Move all data to `former/<at_ms>` in the archive, where they are not read, while no transfer runs.

        Raises:
            PipelineFailed: the data, or a part of them, were not moved; the text has the reason.
        """
        await ask("set_aside", {**self.place, "at_ms": at_ms})
        self._contents = (0.0, {})

    async def _vhosts(self) -> list[Event]:
        """Return the present rows of vhosts."""
        rows: list[Event] = (await self._without_queues())["vhosts"]
        return rows

    async def _without_queues(self) -> Event:
        """Return the content of the manifest as it is now, without the queues, which may be very many."""
        return await ask("contents", {**self.place, "with_queues": False})

    async def claimed_terms(self) -> dict[str, int]:
        """Return the highest term in which an owner of a vhost claimed it in this shared archive, by vhost.

        Raises:
            PipelineFailed: the archive cannot be read; the text has the reason.
        """
        terms: dict[str, int] = (await self._without_queues())["terms"]
        return terms

    async def contents(self, *, fresh: bool = False) -> Event:
        """Return the content of the manifest; up to `_CACHE_S` old, unless `fresh`."""
        at_s, found = self._contents
        if fresh or not found or time.monotonic() - at_s > _CACHE_S:
            found = await ask("contents", self.place)
            self._contents = (time.monotonic(), found)
        return found


def _message_row(vhost: str, queue: str, row: Event) -> dict[str, Any]:
    """Return a row of `pipeline.archive.browse`, with its octets decoded."""
    octets = {name: base64.b64decode(row[name]) for name in ("exchange", "routing_key", "properties", "body")}
    payload, encoding = payload_json(octets["body"])
    return {
        "vhost": vhost,
        "queue": queue,
        "offset": row["offset"],
        "timestamp_ms": row["timestamp_ms"],
        "settled": row["settled"],
        "exchange": octets["exchange"].decode(errors="replace"),
        "routing_key": octets["routing_key"].decode(errors="replace"),
        "properties": properties_json(content_header(octets["properties"], row["body_bytes"])),
        "payload": payload,
        "payload_encoding": encoding,
        "payload_bytes": row["body_bytes"],
    }
