"""The transferred records by queue and by vhost, and frozen plans, from the manifest alone, fast enough for metrics."""

from __future__ import annotations

from typing import Any

from leveret.pipeline.archive.history import known_from_ms
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest, QueuePart, StoredFile
from leveret.pipeline.archive.recovery_plan import unfinished
from leveret.pipeline.files.files import Place


def contents(data_dir: Place, *, with_queues: bool = True) -> dict[str, Any]:
    """The transferred records; `queues` is empty unless `with_queues`.

    Returns:
        `queues`: queue, vhost, timestamp (of the newest record, ms), oldest_ms, messages, settled (offsets in
        settlements, also offsets of messages that were never transferred); `vhosts`: vhost, bytes, files, records,
        transferred (offsets in the upstream's outgoing logs), missing (records that the upstream dropped before their
        transfer), missing_messages (the most messages of its queues that its log had dropped when the transfer began),
        is_replaced (it has another log by now), known_from_ms (the time before which the state of its queues is
        unknown; 0: it is known from the begin), newest_ms (the time of its newest record), logs (by outgoing log its
        id, 0 if unknown, and the offsets of the first transferred record and after the last one); `terms`: in an
        archive that nodes share, by vhost, the highest term in which an owner claimed it.
    """
    manifest = Manifest(data_dir)
    identities = UpstreamIdentities(data_dir)
    files_by_vhost: dict[str, list[StoredFile]] = {}
    for file in manifest.files():
        files_by_vhost.setdefault(file.vhost, []).append(file)
    vhosts, queues = [], []
    for vhost, files in files_by_vhost.items():
        vhosts.append(_vhost_row(manifest, identities, vhost, files))
        if with_queues:
            queues += _queue_rows(vhost, files)
    return {"queues": queues, "vhosts": vhosts, "terms": manifest.terms}


def _vhost_row(
    manifest: Manifest, identities: UpstreamIdentities, vhost: str, files: list[StoredFile]
) -> dict[str, Any]:
    missing = identities.missing_of(vhost)
    firsts: dict[str, int] = {}
    for file in files:
        firsts.setdefault(file.log, file.first)
    return {
        "vhost": vhost,
        "bytes": sum(file.bytes for file in files),
        "files": len(files),
        "records": sum(file.records for file in files),
        "newest_ms": max(file.max_ms for file in files),
        "logs": {
            log: [identities.of(log).log_id, first, manifest.next_by_log[log]]
            for log, first in firsts.items()
        },
        "transferred": sum(manifest.next_by_log[log] for log in manifest.logs_of(vhost)),
        "missing": missing["missing_records"],
        "missing_messages": missing["missing_messages"],
        "is_replaced": any(each.is_replaced for each in identities.of_vhost(vhost)),
        "known_from_ms": known_from_ms(manifest, identities, vhost),
    }


def _queue_rows(vhost: str, files: list[StoredFile]) -> list[dict[str, Any]]:
    """The rows of a vhost's queues, in the order of their names."""
    parts: dict[str, list[QueuePart]] = {}
    for part in (part for file in files for part in file.queues):
        parts.setdefault(part.queue, []).append(part)
    return [
        {
            "queue": queue,
            "vhost": vhost,
            "timestamp": max(part.max_ms for part in mine),
            "oldest_ms": min(part.min_ms for part in mine),
            "messages": sum(part.messages for part in mine),
            "settled": sum(part.settled for part in mine),
        }
        for queue, mine in sorted(parts.items())
    ]


def unfinished_plans(data_dir: Place) -> list[dict[str, Any]]:
    """A row for each unfinished plan of a promotion: vhost, plan_id, queues (the number of messages of each).

    Raises:
        StorageError: a plan cannot be read.
    """
    manifest = Manifest(data_dir)
    plans = [directory.load() for directory in unfinished(data_dir)]
    plans = [plan for plan in plans if manifest.counts(plan.vhost, plan.plan_id)]
    return [{"vhost": plan.vhost, "plan_id": plan.plan_id, "queues": plan.queues} for plan in plans]
