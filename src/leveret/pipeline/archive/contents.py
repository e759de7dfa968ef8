"""The transferred records by queue and by vhost, from the manifest alone, fast enough for metrics.

Also frozen plans.
"""

from __future__ import annotations

from typing import Any

from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import unfinished
from leveret.pipeline.files.files import Place


def contents(data_dir: Place, *, with_queues: bool = True) -> dict[str, list[dict[str, Any]]]:
    """The transferred records; `queues` is empty unless `with_queues`.

    Returns:
        `queues`: queue, vhost, timestamp (of the newest record, ms), oldest_ms, messages, settled (offsets in
        settlements, also offsets of messages that were never transferred); `vhosts`: vhost, bytes, files, records,
        transferred (offsets in the upstream's outgoing logs), missing (records that the upstream dropped before their
        transfer), missing_messages (the most messages of its queues that its log had dropped when the transfer began),
        is_replaced (it has another log by now), known_from_ms (the time before which the state of its queues is
        unknown; 0: it is known from the begin), newest_ms (the time of its newest record), logs (by outgoing log its
        id, 0 if unknown, and the offsets of the first transferred record and after the last one).
    """
    queues: dict[tuple[str, str], dict[str, Any]] = {}
    vhosts: dict[str, dict[str, Any]] = {}
    manifest = Manifest(data_dir)
    identities = UpstreamIdentities(data_dir)
    for file in manifest.files():
        total = vhosts.setdefault(
            file.vhost,
            {
                "vhost": file.vhost,
                "bytes": 0,
                "files": 0,
                "records": 0,
                "newest_ms": 0,
                "logs": {},
                "transferred": sum(manifest.next_by_log[log] for log in manifest.logs_of(file.vhost)),
                **_upstream_of(identities, file.vhost),
            },
        )
        total["known_from_ms"] = max(total["known_from_ms"], file.history_from_ms)
        total["newest_ms"] = max(total["newest_ms"], file.max_ms)
        log_id, end = identities.log_id(file.log), manifest.next_by_log[file.log]
        total["logs"].setdefault(file.log, [log_id, file.first, end])
        total["bytes"] += file.bytes
        total["files"] += 1
        total["records"] += file.records
        for part in file.queues if with_queues else ():
            row = queues.setdefault(
                (file.vhost, part.queue),
                {
                    "queue": part.queue,
                    "vhost": file.vhost,
                    "timestamp": 0,
                    "oldest_ms": part.min_ms,
                    "messages": 0,
                    "settled": 0,
                },
            )
            row["oldest_ms"] = min(row["oldest_ms"], part.min_ms)
            row["timestamp"] = max(row["timestamp"], part.max_ms)
            row["messages"] += part.messages
            row["settled"] += part.settled
    return {
        "queues": [queues[key] for key in sorted(queues)],
        "vhosts": [vhosts[key] for key in sorted(vhosts)],
    }


def _upstream_of(identities: UpstreamIdentities, vhost: str) -> dict[str, Any]:
    """What is known of the upstream's logs of a vhost, together."""
    logs, missing = identities.of_vhost(vhost), identities.missing_of(vhost)
    return {
        "missing": missing["missing_records"],
        "missing_messages": missing["missing_messages"],
        "is_replaced": any(each.is_replaced for each in logs),
        "known_from_ms": max((each.history_from_ms for each in logs), default=0),
    }


def unfinished_plans(data_dir: Place) -> list[dict[str, Any]]:
    """A row for each unfinished plan of a promotion: vhost, plan_id, queues (the number of messages of each).

    Raises:
        StorageError: a plan cannot be read.
    """
    manifest = Manifest(data_dir)
    plans = [directory.load() for directory in unfinished(data_dir)]
    plans = [plan for plan in plans if manifest.counts(plan.vhost, plan.plan_id)]
    return [{"vhost": plan.vhost, "plan_id": plan.plan_id, "queues": plan.queues} for plan in plans]
