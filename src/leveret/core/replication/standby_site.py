"""The decisions of a site on message replication: mode, link, promotions; pure.

A site is a node, or a cluster, whose nodes share one `SiteDecisions`. A promotion is recorded from its begin on, with
its request, so that an interrupted promotion is finished and no link begins meanwhile. Each node of the site recovers
the vhosts that it owns, and records that; the last one ends the promotion. A finished promotion stays recorded: the
rejoin of the previous upstream asks up to which position its messages were transferred.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from leveret.core.schema.operating_mode import OperatingMode
from leveret.wire.log_name import vhost_of

PROMOTIONS_MAX: Final = 50
"""The finished promotions that are kept, the newest; a value in etcd is limited."""
_LACKS: Final = ("unreadable_records", "missing_records", "missing_messages")
"""The counts, in a promotion's summary, of a vhost's earlier records that this site lacks."""


class RecoveryRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The messages to recover; see `pipeline.jobs.job.RecoverJob`."""

    start_from_scratch: bool = False
    all_available: bool = False
    exclude: list[str] = []
    queues: list[str] = []
    as_of_ms: int | None = None


EVERYTHING: Final = RecoveryRequest()


class RecoveredPart(msgspec.Struct, kw_only=True, frozen=True):
    """One node's part of a site's recovery: the vhosts that it owns.

    Attributes:
        vhosts: the vhosts.
        summary, transferred, marks, unfollowed: see PromotionAttempt.
    """

    vhosts: list[str] = []
    summary: list[dict[str, Any]] = []
    transferred: dict[str, tuple[int, int]] = {}
    marks: dict[str, int] = {}
    unfollowed: list[str] = []


class KeptQueue(msgspec.Struct, array_like=True):
    """A queue to be emptied, whose records before `next_offset` are quarantined if the new upstream lacks them.

    A queue of the same name with another epoch is another one, without quarantined records.
    """

    vhost: str
    name: str
    epoch: int = 0
    next_offset: int = 0


class PromotionAttempt(msgspec.Struct, kw_only=True, frozen=True):
    """One attempt to promote, from its begin on.

    Attributes:
        wanted: the requested recovery.
        recovered: in a cluster, the vhosts that their owners have recovered.
        summary: a row for each vhost once it is done.
        transferred: by outgoing log (`wire.log_name`; of a single upstream by vhost), its id, and the end of the
            transferred records.
        marks: by outgoing log, the fingerprint (`wire.chunk.fingerprint_of`) of the last chunk before that offset.
        left_out: a row a vhost with the messages that were not requested and that a later promotion would recover:
            virtual_host, queues, messages, unreadable_records; None if they were not counted.
        unfollowed: the vhosts with records that this site did not follow any more, and that it therefore left out.
        error: the reason why it did not finish.
    """

    begun_ms: int
    done_ms: int = 0
    wanted: RecoveryRequest = EVERYTHING
    recovered: list[str] = []
    summary: list[dict[str, Any]] = []
    transferred: dict[str, tuple[int, int]] = {}
    marks: dict[str, int] = {}
    left_out: list[dict[str, Any]] | None = None
    unfollowed: list[str] = []
    error: str = ""

    def log_named(self, vhost: str, log_id: int) -> str | None:
        """Return the name of the recovered outgoing log of the vhost with this id; None for none."""
        named = (name for name, (own, _) in self.transferred.items() if own == log_id)
        return next((name for name in named if vhost_of(name) == vhost), None)

    def end_of(self, vhost: str, log_id: int) -> int:
        """Return the offset up to which it has that log; 0 if it has nothing of it."""
        name = self.log_named(vhost, log_id)
        return 0 if name is None else self.transferred[name][1]

    def lacks(self, vhost: str) -> bool:
        """Return whether it lacked some earlier records of the vhost."""
        rows = [row for row in self.summary if row["virtual_host"] == vhost]
        return any(row.get(name) for row in rows for name in _LACKS)

    def recovered_logs(self) -> set[int]:
        """Return the ids of the outgoing logs of the vhosts of which it recovered messages."""
        vhosts = {row["virtual_host"] for row in self.summary if row.get("message_count")}
        return {log_id for log, (log_id, _) in self.transferred.items() if vhost_of(log) in vhosts}

    def is_whole(self) -> bool:
        """Return whether the request was for everything transferred."""
        wanted = self.wanted
        return not wanted.queues and not wanted.exclude and wanted.as_of_ms is None

    def with_part(self, part: RecoveredPart) -> PromotionAttempt:
        """Return the attempt with one node's part; a vhost that is recovered again has its newest row."""
        again = set(part.vhosts)
        return msgspec.structs.replace(
            self,
            recovered=sorted({*self.recovered, *part.vhosts}),
            summary=sorted(
                [*(row for row in self.summary if row["virtual_host"] not in again), *part.summary],
                key=lambda row: row["virtual_host"],
            ),
            transferred=self.transferred | part.transferred,
            marks=self.marks | part.marks,
            unfollowed=sorted({*self.unfollowed, *part.unfollowed}),
        )

    def with_left_out(self, rows: list[dict[str, Any]]) -> PromotionAttempt:
        """Return the attempt with the counts of some vhosts' messages that it leaves out."""
        counted = {row["virtual_host"] for row in rows}
        others = [row for row in self.left_out or () if row["virtual_host"] not in counted]
        return msgspec.structs.replace(self, left_out=[*others, *rows])

    def remaining(self, vhosts: Collection[str]) -> list[str]:
        """Return the vhosts of these that are requested and not recovered yet."""
        return sorted({*vhosts} - {*self.recovered, *self.wanted.exclude})


class SiteReturn(msgspec.Struct, kw_only=True, frozen=True):
    """The return of a cluster as a downstream that cannot be undone any more, until it is done.

    Attributes:
        begun_ms: the time of its begin.
        queues: the queues to empty.
        is_emptied: whether they are empty, so that this site may collect new records.
    """

    begun_ms: int
    queues: list[KeptQueue] = []
    is_emptied: bool = False


class SiteDecisions(msgspec.Struct, kw_only=True, frozen=True):
    """The decisions; without a mode the configured one applies.

    Attributes:
        operating_mode: the mode set at run time; None if the configured one applies.
        configured: in a cluster, the mode in the settings of the node that chooses the vhosts' owners.
        connected: whether the link is wanted.
        promoting: the unfinished promotion.
        promotions: the finished promotions, oldest first.
        is_partial: whether one of them may have left a plan that its request excluded, or of a vhost that is not
            followed.
        returning: in a cluster, the return as a downstream that has begun.
        archive: in a cluster, the place of the archive that all nodes share; empty if each has an archive of its own.
        archive_id: the id that the first node found there or made; empty before that.
        misplaced: the nodes that found another archive, or none, at that place.
    """

    operating_mode: OperatingMode | None = None
    configured: OperatingMode | None = None
    connected: bool = True
    promoting: PromotionAttempt | None = None
    promotions: list[PromotionAttempt] = []
    is_partial: bool = False
    returning: SiteReturn | None = None
    archive: str = ""
    archive_id: str = ""
    misplaced: list[str] = []

    def promotes(self, attempt: PromotionAttempt) -> SiteDecisions:
        """Return the decisions with a begun promotion; one with the same request keeps the vhosts recovered so far."""
        before = self.promoting
        if before is not None and before.wanted == attempt.wanted:
            attempt = msgspec.structs.replace(before, begun_ms=attempt.begun_ms, error="")
        return msgspec.structs.replace(self, promoting=attempt)

    def with_settings(self, configured: OperatingMode, archive: str) -> SiteDecisions:
        """Return the decisions with the settings of the node that joined first."""
        site = msgspec.structs.replace(self, configured=configured)
        if site.archive == archive:
            return site
        return msgspec.structs.replace(site, archive=archive, archive_id="", misplaced=[])

    def with_archive(self, node: str, archive_id: str) -> SiteDecisions:
        """Return the decisions after a node found the archive: the first node's find counts."""
        misplaced = [each for each in self.misplaced if each != node]
        return msgspec.structs.replace(self, archive_id=self.archive_id or archive_id, misplaced=misplaced)

    def without_archive(self, node: str) -> SiteDecisions:
        """Return the decisions after a node did not find the archive."""
        return msgspec.structs.replace(self, misplaced=sorted({*self.misplaced, node}))

    def finished(self, done_ms: int) -> SiteDecisions:
        """Return the decisions after the promotion: an upstream's. A request for everything leaves no plan open."""
        attempt = self.promoting
        if attempt is None:
            return self
        done = msgspec.structs.replace(attempt, done_ms=done_ms, error="")
        return msgspec.structs.replace(
            self,
            operating_mode=OperatingMode.UPSTREAM,
            promoting=None,
            promotions=[*self.promotions, done][-PROMOTIONS_MAX:],
            is_partial=not attempt.is_whole() or bool(attempt.unfollowed),
        )

    def failed(self, error: str) -> SiteDecisions:
        """Return the decisions with the reason for which the promotion did not finish."""
        if self.promoting is None:
            return self
        return msgspec.structs.replace(self, promoting=msgspec.structs.replace(self.promoting, error=error))

    def left_out(self) -> dict[str, Any] | None:
        """Return the messages that the last promotion left to a later one; None for none."""
        last = self.promoting or (self.promotions[-1] if self.is_partial and self.promotions else None)
        if last is None or (last.is_whole() and not last.unfollowed):
            return None
        wanted = last.wanted
        return {
            "exclude": wanted.exclude,
            "only_queues": wanted.queues,
            "as_of_ms": wanted.as_of_ms,
            "vhosts": last.left_out,
            "unfollowed": last.unfollowed,
        }

    def transferred(self, vhost: str, log_id: int) -> int | None:
        """Return the offset up to which the queues have a previous upstream's outgoing log; None if none has this log.

        0 means that the offset is unknown, so the previous upstream has to keep everything: some promotion lacked
        records of the log, or none was requested for all of it.
        """
        if not self.promotions or self.promotions[-1].log_named(vhost, log_id) is None:
            return None
        last = self._furthest(vhost, log_id)
        return 0 if last is None else last.end_of(vhost, log_id)

    def transferred_fingerprint(self, vhost: str, log_id: int) -> int | None:
        """Return the fingerprint of the last chunk before that offset; None if there is none, or it was not stored."""
        last = self._furthest(vhost, log_id) if self.transferred(vhost, log_id) else None
        return None if last is None else last.marks.get(last.log_named(vhost, log_id) or "") or None

    def _furthest(self, vhost: str, log_id: int) -> PromotionAttempt | None:
        """Return the promotion that recovered all of a log up to the highest offset; None if that is unknown."""
        own = [each for each in self.promotions if each.log_named(vhost, log_id) is not None]
        if any(each.lacks(vhost) for each in own):
            return None
        whole = [each for each in own if each.is_whole()]
        return max(whole, key=lambda each: each.end_of(vhost, log_id), default=None)
