"""The transferred data of a downstream cluster: those of all nodes, for an operator at any of them.

If the nodes share an archive, this node reads all of it. Otherwise a vhost's data are at the node that recovers it, so
each node reports the vhosts that it recovers. Data of other vhosts in a node's archive are left over, and count for its
disk usage only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from leveret.model.errors import InvalidCommand, PreconditionFailed
from leveret.runtime.standby.archive import ReadableArchive, StandbyArchive
from leveret.runtime.standby.pipeline_process import Event, Report
from leveret.runtime.standby.site import SiteParts

_OF_ONE_VHOST: Final = (
    "each node of this cluster has an archive of its own: name one virtual host with --virtual-host, whose data are "
    "at one node"
)


class SiteArchive(ReadableArchive):
    """See management.node.ArchiveOperations."""

    def __init__(self, parts: SiteParts, own: StandbyArchive) -> None:
        """Use the archives of all nodes, or `own` alone if that is shared."""
        self._parts = parts
        self._own = own

    async def contents(self, *, fresh: bool = False) -> Event:
        """Return the content of all manifests: `vhosts`, each with its node, and `queues`.

        Raises:
            LeveretError: a node does not answer.
        """
        if self._own.is_shared:
            found = await self._own.contents(fresh=fresh)
            return {
                **found,
                "vhosts": [row | {"node": self._node_of(row["vhost"])} for row in found["vhosts"]],
            }
        vhosts, queues = [], []
        for node, found in (await self._parts.of_all("contents")).items():
            here = [row for row in found["vhosts"] if self._node_of(row["vhost"]) == node]
            names = {row["vhost"] for row in here}
            vhosts += [row | {"node": node} for row in here]
            queues += [row for row in found["queues"] if row["vhost"] in names]
        return {
            "vhosts": sorted(vhosts, key=lambda row: row["vhost"]),
            "queues": sorted(queues, key=lambda row: (row["vhost"], row["queue"])),
        }

    def _node_of(self, vhost: str) -> str:
        owner = self._parts.site.owners.get(vhost)
        return "" if owner is None else owner.recoverer

    async def disk_usage(self) -> list[dict[str, Any]]:
        """Return a row for each node and vhost: node, size, unit, vhost, bytes."""
        if self._own.is_shared:
            rows = await self._own.disk_usage()
            return [row | {"node": self._node_of(row["vhost"]) or row["node"]} for row in rows]
        found = await self._parts.of_all("disk_usage")
        return [row for rows in found.values() for row in rows]

    async def messages(self, vhost: str, queue: str, from_ms: int, count: int) -> list[dict[str, Any]]:
        """See StandbyArchive; the answer of the node with the vhost's data."""
        if self._own.is_shared:
            return await self._own.messages(vhost, queue, from_ms, count)
        about = {"vhost": vhost, "queue": queue, "from_ms": from_ms, "count": count}
        rows: list[dict[str, Any]] = await self._parts.of(self._place_of(vhost), "messages", **about)
        return rows

    async def inspect(self, report: Report) -> list[dict[str, Any]]:
        """See StandbyArchive."""
        if self._own.is_shared:
            return await self._own.inspect(report)
        nodes = {owner.recoverer for owner in self._parts.site.owners.values()} & {*self._parts.site.running}
        found = await self._parts.work(sorted(nodes), "inspect", report)
        own = [row for node, rows in found.items() for row in rows if self._node_of(row["vhost"]) == node]
        return sorted(own, key=lambda row: (row["vhost"], row["queue"]))

    async def export(
        self, target: str, form: str, options: dict[str, str], report: Report
    ) -> list[dict[str, Any]]:
        """See StandbyArchive; one vhost at a time, unless the archive is shared.

        Raises:
            InvalidCommand: no vhost is named.
        """
        if self._own.is_shared:
            return await self._own.export(target, form, options, report)
        if "vhost" not in options:
            raise InvalidCommand(_OF_ONE_VHOST)
        node = self._place_of(options["vhost"])
        about = {"target": target, "form": form, "options": options}
        rows: list[dict[str, Any]] = (await self._parts.work([node], "export", report, **about))[node]
        return rows

    def _place_of(self, vhost: str) -> str:
        """Return the running node with a vhost's data.

        Raises:
            PreconditionFailed: the node does not run.
        """
        site = self._parts.site
        node = self._node_of(vhost) or site.name
        if node not in site.running:
            raise PreconditionFailed(f"vhost '{vhost}': its data are at node {node}, which does not run")
        return node


def answers_of(archive: StandbyArchive) -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
    """Return the answers of a node about its own archive, by the names of the questions."""

    async def contents(about: Mapping[str, Any]) -> Any:
        return await archive.contents(fresh=True)

    async def disk_usage(about: Mapping[str, Any]) -> Any:
        return await archive.disk_usage()

    async def messages(about: Mapping[str, Any]) -> Any:
        return await archive.messages(about["vhost"], about["queue"], about["from_ms"], about["count"])

    async def missing(about: Mapping[str, Any]) -> Any:
        return await archive.missing()

    return {"contents": contents, "disk_usage": disk_usage, "messages": messages, "missing": missing}
