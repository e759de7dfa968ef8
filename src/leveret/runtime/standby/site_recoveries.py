"""Recoveries from a downstream cluster's data without effect on production: all nodes do their parts in parallel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from leveret.core.replication.standby_site import RecoveryRequest
from leveret.model.errors import InvalidCommand, PreconditionFailed
from leveret.runtime.link.questions import read_as
from leveret.runtime.standby.other_archives import choose_archive
from leveret.runtime.standby.pipeline_process import Event, Report
from leveret.runtime.standby.recovery import Recoveries, RecoveryTarget, check_wanted, names_something
from leveret.runtime.standby.site import SiteParts
from leveret.runtime.standby.site_archive import SiteArchive

_SUMS: Final = ("compared",)
_LONGEST: Final = ("recovered_s", "compared_s")


class SiteRecoveries:
    """See management.node.StandbyRecoveries."""

    def __init__(
        self,
        own: Recoveries,
        archive: SiteArchive,
        parts: SiteParts,
        defined: Callable[[], Mapping[str, Mapping[tuple[str, ...], object]]],
    ) -> None:
        """Use this node's recoveries, and those of the others; `defined` returns the definitions by kind."""
        self._own = own
        self._archive = archive
        self._parts = parts
        self._defined = defined

    async def dry_run(
        self, wanted: RecoveryRequest, target: RecoveryTarget | None, report: Report
    ) -> dict[str, Any]:
        """See Recoveries."""
        nodes = await self._check(wanted)
        about = {"wanted": msgspec.to_builtins(wanted), "target": _built(target)}
        found = await self._parts.work(nodes, "dry_run", report, **about)
        await self._check_archives(wanted)
        return _joined(found.values())

    async def into(
        self, wanted: RecoveryRequest, target: RecoveryTarget, report: Report
    ) -> list[dict[str, Any]]:
        """See Recoveries."""
        nodes = await self._check(wanted)
        if target.vhost is not None:
            await self._check_names(wanted)
        about = {"wanted": msgspec.to_builtins(wanted), "target": _built(target)}
        found = await self._parts.work(nodes, "into", report, **about)
        return sorted((row for rows in found.values() for row in rows), key=lambda row: row["virtual_host"])

    async def rehearse(self, wanted: RecoveryRequest, report: Report) -> dict[str, Any]:
        """See Recoveries."""
        nodes = await self._check(wanted)
        vhosts = (await self._archive.contents())["vhosts"]
        nodes = sorted({row["node"] for row in vhosts if row["records"]} & {*nodes})
        if not nodes:
            raise PreconditionFailed(
                "nothing was transferred to this site, so there is nothing to rehearse; see standby_replication_status"
            )
        about = {"wanted": msgspec.to_builtins(wanted)}
        found = await self._parts.work(nodes, "rehearse", report, **about)
        await self._check_archives(wanted)
        return _joined(found.values())

    async def check_wanted(self, wanted: RecoveryRequest) -> None:
        """See recovery.check_wanted.

        Raises:
            InvalidCommand, PreconditionFailed: as for that function.
        """
        if names_something(wanted):
            check_wanted(wanted, await self._archive.contents(fresh=True), self._defined())

    async def _check(self, wanted: RecoveryRequest) -> list[str]:
        """Check the request; return the nodes that recover a part of it.

        Raises:
            PreconditionFailed: one of these nodes does not run, or one archive lacks what another one has.
        """
        await self.check_wanted(wanted)
        site = self._parts.site
        for vhost, owner in sorted(site.owners.items()):
            if vhost not in wanted.exclude and owner.recoverer not in site.running and site.is_shared:
                raise PreconditionFailed(
                    f"vhost '{vhost}': node {owner.recoverer}, its owner, does not run, and no other node has taken it "
                    "over yet: repeat the command in some seconds"
                )
        await self._choose_archives(wanted)
        owners = {vhost: owner for vhost, owner in site.owners.items() if vhost not in wanted.exclude}
        return sorted({owner.recoverer for owner in owners.values()} & {*site.running})

    async def _check_archives(self, wanted: RecoveryRequest) -> None:
        """Check at a trial's end that it read archives that have what all have.

        A link to the upstream that looked alive may have brought nothing more. A promotion that begins now would be
        refused then, or read another archive, and the trial's numbers would promise another result.

        Raises:
            PreconditionFailed: see `_check`.
        """
        if changed := await self._choose_archives(wanted):
            raise PreconditionFailed(
                f"the archive that was read has not all records of {', '.join(changed)}, and another node's has: "
                "repeat the command, which reads that one"
            )

    async def _choose_archives(self, wanted: RecoveryRequest) -> list[str]:
        """Have each vhost recovered from an archive that has what all have; return those of which that is another one.

        Raises:
            PreconditionFailed: see `_check`.
        """
        changed = []
        for vhost, owner in sorted(self._parts.site.owners.items()):
            if wanted.all_available or not owner.has_data or vhost in wanted.exclude:
                continue
            if owner.recoverer not in self._parts.site.running:
                raise PreconditionFailed(away(vhost, owner.recoverer))
            if await choose_archive(self._parts, vhost, owner):
                changed.append(vhost)
        return changed

    async def _check_names(self, wanted: RecoveryRequest) -> None:
        """Check that no two vhosts have queues of one name for one target vhost; each node checks only its own.

        Raises:
            InvalidCommand: two vhosts have.
        """
        places: dict[str, str] = {}
        for row in (await self._archive.contents())["queues"]:
            is_wanted = row["vhost"] not in wanted.exclude
            if not is_wanted or (wanted.queues and row["queue"] not in wanted.queues):
                continue
            other = places.setdefault(row["queue"], row["vhost"])
            if other != row["vhost"]:
                raise InvalidCommand(
                    f"queue '{row['queue']}' is in the virtual hosts '{other}' and '{row['vhost']}', which cannot go "
                    "into one virtual host together: recover one at a time, with --exclude-virtual-hosts"
                )


def works_of(recoveries: Recoveries) -> Mapping[str, Callable[[Mapping[str, Any], Report], Awaitable[Any]]]:
    """Return a node's parts of long work, by the names of the works."""

    async def dry_run(about: Mapping[str, Any], report: Report) -> Any:
        return await recoveries.dry_run_part(_wanted(about), _target(about), report)

    async def into(about: Mapping[str, Any], report: Report) -> Any:
        target = _target(about)
        assert target is not None
        return await recoveries.into_part(_wanted(about), target, report)

    async def rehearse(about: Mapping[str, Any], report: Report) -> Any:
        return await recoveries.rehearse_part(_wanted(about), report)

    return {"dry_run": dry_run, "into": into, "rehearse": rehearse}


def away(vhost: str, node: str) -> str:
    """Return the text of the refusal of a recovery whose data are at a stopped node."""
    return (
        f"vhost '{vhost}': node {node}, whose archive has its data, does not run: start it, or leave the vhost "
        "out with --exclude-virtual-hosts, or recover the records of the other nodes with --all-available; if the "
        f"node is gone for good, run forget_cluster_node {node}"
    )


def _wanted(about: Mapping[str, Any]) -> RecoveryRequest:
    return read_as(RecoveryRequest, about["wanted"])


def _target(about: Mapping[str, Any]) -> RecoveryTarget | None:
    return None if about["target"] is None else read_as(RecoveryTarget, about["target"])


def _built(target: RecoveryTarget | None) -> dict[str, Any] | None:
    return None if target is None else msgspec.to_builtins(target)


def _joined(found: Iterable[Event]) -> dict[str, Any]:
    """Join the results of nodes into one: all rows, the sum of messages, the longest time."""
    joined: dict[str, Any] = {"queues": [], "vhosts": [], "unfollowed": []}
    for each in found:
        joined["queues"] += each["queues"]
        joined["vhosts"] += each["vhosts"]
        joined["unfollowed"] += each.get("unfollowed", [])  # Versions before 2026-11-30 have none.
        for name in _SUMS:
            if name in each:
                joined[name] = joined.get(name, 0) + each[name]
        for name in _LONGEST:
            if name in each:
                joined[name] = max(joined.get(name, 0), each[name])
    joined["queues"].sort(key=lambda row: (row["virtual_host"], row["queue"]))
    joined["vhosts"].sort(key=lambda row: row["virtual_host"])
    return joined
