"""The downstreams of all outgoing logs of a node, as operators see them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from leveret.model.errors import PreconditionFailed
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.wire.record import named_downstream

logger = logging.getLogger(__name__)


class KnownDownstreams:
    """The downstreams of a node; see the module."""

    def __init__(self, logs: Mapping[str, OutgoingLog]) -> None:
        """Use these logs, by vhost; the mapping may change."""
        self._logs = logs
        self._overtaken: set[tuple[str, str]] = set()
        self._reported_twice: set[str] = set()

    def rows(self) -> list[dict[str, Any]]:
        """A row a vhost and known downstream: its position, and the number of dropped records that it lacks."""
        names = self._shown_names()
        return [
            {
                "virtual_host": vhost,
                "downstream": names[reference],
                "transferred": each.offset,
                "lag_records": max(0, log.committed_offset - each.offset),
                "missing_records": max(0, log.first_offset - each.offset),
                "missing_messages": each.missing_messages,
                "last_seen": each.seen_ms,
            }
            for vhost, log in sorted(self._logs.items())
            for reference, each in sorted(log.downstreams.by_reference.items())
        ]

    def forget(self, name: str) -> bool:
        """Forget a downstream in all vhosts; return whether one has this name.

        Raises:
            PreconditionFailed: several have the name; the text has their other names.
            StorageError: the disk refused it.
        """
        found = [each for each, shown in self._shown_names().items() if name in (each, shown)]
        if not found and (namesakes := self._namesakes(name)):
            raise PreconditionFailed(
                f"several downstreams are called '{name}': name one of {', '.join(namesakes)}"
            )
        for log in self._logs.values():
            for reference in found:
                log.downstreams.forget(reference)
        return bool(found)

    def report_overtaken(self, vhost: str, log: OutgoingLog) -> None:
        """Log once that retention has dropped records that a downstream lacks."""
        for name, downstream in log.downstreams.by_reference.items():
            missing = log.first_offset - downstream.offset
            if missing <= 0:
                self._overtaken.discard((vhost, name))
            elif (vhost, name) not in self._overtaken:
                self._overtaken.add((vhost, name))
                logger.warning(
                    "retention_overtook_downstream vhost=%s downstream=%s first_missing=%d first_retained=%d",
                    vhost,
                    name,
                    downstream.offset,
                    log.first_offset,
                )

    def report_used_twice(self, log: OutgoingLog, reference: str) -> None:
        """Warn once for each name that two downstreams of a log have; no record is lost by it."""
        name = named_downstream(reference)[0]
        if name in self._reported_twice:
            return
        used = sorted(each for each in log.downstreams.by_reference if named_downstream(each)[0] == name)
        if len(used) > 1:
            self._reported_twice.add(name)
            logger.warning(
                "downstream_name_used_twice name=%s downstreams=%s action=give_each_site_its_own_cluster_name "
                "else=forget_standby_replication_downstream",
                name,
                ",".join(used),
            )

    def _shown_names(self) -> dict[str, str]:
        """By reference, the name of its cluster or, if several have that name, the whole reference."""
        references = {each for log in self._logs.values() for each in log.downstreams.by_reference}
        names = {reference: named_downstream(reference)[0] for reference in references}
        counts = Counter(names.values())
        return {reference: name if counts[name] == 1 else reference for reference, name in names.items()}

    def _namesakes(self, name: str) -> list[str]:
        return sorted(each for each in self._shown_names() if named_downstream(each)[0] == name)
