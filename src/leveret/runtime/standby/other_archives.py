"""Finds records that a recovery would leave out, because they are in the archive of another node of the site alone.

Each node has an archive of its own. A vhost is recovered from one of them, which may have begun before its node was
away, and lack what the next owner transferred meanwhile. While the upstream is there, the recoverer gets that from it.
Otherwise an archive that has what all have is recovered; if none has, the operator decides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from leveret.core.replication.vhost_owners import VhostOwner
from leveret.model.errors import PreconditionFailed
from leveret.model.moment import moment_text
from leveret.runtime.standby.site import SiteParts

logger = logging.getLogger(__name__)

_HEARD_MS: Final = 10_000
"""An upstream that reported within this time is there; the transfer reports each second or two."""
_NOTHING: Final[dict[str, Any]] = {"logs": {}, "newest_ms": 0, "missing": 0, "missing_messages": 0}


async def choose_archive(parts: SiteParts, vhost: str, owner: VhostOwner) -> bool:
    """Before a recovery is begun: have it read an archive that has what all archives have.

    Returns:
        Whether that is another one than before.

    Raises:
        PreconditionFailed: none has, or a node that may have more does not run; the text says what to do.
        LeveretError: a node does not answer.
    """
    if not owner.others or await _is_linked(parts, vhost, owner):
        return False
    for other in owner.others:
        if other not in parts.site.running:
            raise PreconditionFailed(
                f"vhost '{vhost}': node {other}, which may have transferred it as well, does not run, and may have "
                f"later records than node {owner.recoverer}, from whose archive a recovery reads: start it. "
                f"{_remedies(vhost, owner, other)}"
            )
    return await choose_drained_archive(parts, vhost, owner)


async def choose_drained_archive(parts: SiteParts, vhost: str, owner: VhostOwner) -> bool:
    """As `choose_archive`, once no node gets more records: nodes that do not run do not count."""
    rows = await _rows(parts, vhost, owner)
    refusal = _refusal(rows, vhost, owner)
    if not refusal:
        return False
    node = next(
        (node for node, row in rows.items() if all(_covers(row, each) for each in rows.values())), None
    )
    if node is None:
        raise PreconditionFailed(refusal)
    logger.warning("standby_vhost_archive vhost=%s node=%s before=%s", vhost, node, owner.recoverer)
    await parts.site.note(vhost, owner.recovered_by(node))
    return True


async def _rows(parts: SiteParts, vhost: str, owner: VhostOwner) -> dict[str, dict[str, Any]]:
    """Return the row of a vhost in each running node's own archive, by node, the recoverer first."""
    others = [other for other in owner.others if other in parts.site.running]
    nodes = [owner.recoverer, *others] if others else []
    return {node: await _archived(parts, node, vhost) for node in nodes}


def _refusal(rows: Mapping[str, dict[str, Any]], vhost: str, owner: VhostOwner) -> str:
    """Return why the recoverer's archive does not do; empty if no other one has later records."""
    for other, there in rows.items():
        here = rows[owner.recoverer]
        if count := _later(here["logs"], there["logs"]):
            return (
                f"vhost '{vhost}': a recovery reads the archive of node {owner.recoverer}, whose newest record is of "
                f"{_moment(here)}; node {other}, which transferred it as well, has {count} records more, up "
                f"to {_moment(there)}. If the upstream can be reached, connect it, and wait until "
                f"standby_replication_status shows no lag. {_remedies(vhost, owner, other)}"
            )
    return ""


def _covers(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Return whether an archive has everything that another one has."""
    logs, others = here["logs"], there["logs"]
    is_whole = not (here["missing"] or here["missing_messages"])
    begins_no_later = all(log in logs and logs[log][1] <= first for log, (_, first, _) in others.items())
    return is_whole and begins_no_later and not _later(logs, others)


def _remedies(vhost: str, owner: VhostOwner, other: str) -> str:
    return (
        f"--all-available recovers what node {owner.recoverer} has, and leaves the archive of node {other} as it is; "
        f"to recover that one alone, stop node {owner.recoverer} and run forget_cluster_node {owner.recoverer}; "
        f"--exclude-virtual-hosts leaves the vhost out"
    )


async def _is_linked(parts: SiteParts, vhost: str, owner: VhostOwner) -> bool:
    """Return whether the recoverer is connected to the upstream, so that a promotion gets the later records there."""
    rows = (await parts.of(owner.recoverer, "status"))["vhosts"]
    return any(
        row["state"] == "connected" and row["heard_ago_ms"] is not None and row["heard_ago_ms"] < _HEARD_MS
        for row in rows
        if row["virtual_host"] == vhost
    )


async def _archived(parts: SiteParts, node: str, vhost: str) -> dict[str, Any]:
    """Return the row of a vhost in a node's own archive."""
    rows = (await parts.of(node, "contents"))["vhosts"]
    return next((row for row in rows if row["vhost"] == vhost), _NOTHING)


def _later(here: dict[str, list[int]], there: dict[str, list[int]]) -> int:
    """Return the number of records of `there` that are behind those of `here`; logs as in `archive.contents`."""
    count = 0
    for log, (log_id, first, end) in there.items():
        known_id, _, known_end = here.get(log, (0, 0, 0))
        count += max(0, end - max(first, known_end if known_id == log_id else 0))
    return count


def _moment(row: dict[str, Any]) -> str:
    return moment_text(row["newest_ms"]) if row["newest_ms"] else "no time"
