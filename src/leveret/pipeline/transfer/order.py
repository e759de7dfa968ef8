"""The order of an upstream cluster's logs: finds out which moves (`wire.site_order`) count.

A *round* notes the positions that are stored here, and then asks each node how its log stands. If all logs together
have everything that is promised, then the copies of all messages that the stored moves have moved are before the ends
that the nodes named: a copy was promised before its move was logged, so before the move was stored here. Once these
ends are stored too, the moves before the noted positions count. A node that does not run and leads collected queues, or
a queue without a leader, delays that.

Only vhosts with moves that wait ask for it. Nodes of earlier versions do not know the question: then moves count at
once, as they did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from leveret.model.errors import LeveretError
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.transfer.upstream_logs import UpstreamLogs
from leveret.pipeline.upstream.stream_connection import ConnectionLost
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.site_order import ORDER_STATISTIC, ORDER_STREAM, LogCoverage, is_whole


class _Round(NamedTuple):
    """The positions stored at its begin, and how the logs stood after that; both by log."""

    stored: dict[str, int]
    coverages: dict[str, LogCoverage]

    def is_stored(self, manifest: Manifest) -> bool:
        """Whether all that the nodes named is here."""
        return all(_stored(log, manifest) >= each.end for log, each in self.coverages.items())


class SiteOrder:
    """The rounds of all vhosts; see the module.

    Attributes:
        job: the transfer's; its vhosts may change.
    """

    def __init__(
        self, job: TransferJob, upstream: UpstreamLogs, writers: Mapping[str, tuple[int, int]]
    ) -> None:
        """Begin without rounds; `writers` has, by log, the id and the writer by which it is fetched now."""
        self.job = job
        self._upstream = upstream
        self._writers = writers
        self._rounds: dict[str, _Round] = {}

    def turn(self, manifest: Manifest) -> None:
        """Go on with the round of each vhost with moves that wait, by the manifest as it was read last.

        Raises:
            StorageError: the manifest cannot be written.
        """
        waiting = {file.vhost for file in manifest.waiting.values()}
        for vhost in waiting.intersection(self.job.vhosts):
            begun = self._rounds.pop(vhost, None) or self._begun(vhost, manifest)
            if begun is None or not self._is_valid(begun, manifest):
                continue
            if begun.is_stored(manifest):
                manifest.order(begun.stored, self.job.terms)
            else:
                self._rounds[vhost] = begun

    def _begun(self, vhost: str, manifest: Manifest) -> _Round | None:
        """A new round; None if the logs lack something now, or a node that may have it does not answer."""
        stored = {log: manifest.next_by_log[log] for log in manifest.logs_of(vhost)}
        try:
            coverages = self._coverages(vhost)
        except LeveretError:
            return None
        if coverages is None:
            return _Round(stored, {})
        return _Round(stored, coverages) if is_whole(coverages.values()) else None

    def _coverages(self, vhost: str) -> dict[str, LogCoverage] | None:
        """What the logs of all nodes cover; None if a node does not know the question. Raises LeveretError."""
        found = {}
        for each in self._upstream.all_of(vhost):
            try:
                client = each.client(self.job)
                if ORDER_STATISTIC not in client.stats(OUTGOING_STREAM):
                    return None
                found[each.log] = LogCoverage.of(client.stats(ORDER_STREAM))
            except ConnectionLost as error:
                # A refusal says nothing about the link, which the transfer needs.
                each.link.failed(error)
                raise
        return found

    def _is_valid(self, begun: _Round, manifest: Manifest) -> bool:
        """Whether the ends mean what they meant, and what is missing of them may still come."""
        links = dict(self._upstream.links())
        for log, coverage in begun.coverages.items():
            if self._writers.get(log, (0, 0))[1] != coverage.writer:
                return False
            if _stored(log, manifest) < coverage.end and not (log in links and links[log].is_open):
                return False
        return True


def _stored(log: str, manifest: Manifest) -> int:
    return manifest.next_by_log.get(log, 0)
