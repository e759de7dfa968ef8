"""Run-time decisions of the standby - mode, link off, promotions - in a state file.

The file wins over the configuration, also after a restart. A promotion is recorded here from its begin on, with its
request, so that an interrupted promotion is finished and no link begins meanwhile. A finished promotion stays recorded:
the rejoin of the previous upstream asks up to which position its messages were transferred.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any, Final

import msgspec

from leveret.core.queues.queue import Queue
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.definitions import REHEARSAL_VHOSTS
from leveret.model.errors import InvalidCommand, StorageError
from leveret.runtime.standby.recovery import EVERYTHING, RecoveryRequest, reported_rows
from leveret.storage.state_file import StateFile
from leveret.wire.record import is_recovery

logger = logging.getLogger(__name__)

_DOWNSTREAM_ID_BYTES: Final = 6
_LACKS: Final = ("unreadable_records", "missing_records", "missing_messages")
"""The counts, in a promotion's summary, of a vhost's earlier records that are not here."""


class PromotionAttempt(msgspec.Struct, kw_only=True):
    """One attempt to promote, from its begin on.

    Attributes:
        wanted: the requested recovery.
        summary: a row for each vhost once it is done.
        transferred: by vhost, the id of the previous upstream's outgoing log, and the offset up to which it is here.
        marks: by vhost, the fingerprint (`wire.chunk.fingerprint_of`) of the last chunk before that offset.
        left_out: a row a vhost with the messages that were not requested and that a later promotion would recover:
            virtual_host, queues, messages, unreadable_records; None if they were not counted.
        error: the reason why it did not finish.
    """

    begun_ms: int
    done_ms: int = 0
    wanted: RecoveryRequest = EVERYTHING
    summary: list[dict[str, Any]] = []
    transferred: dict[str, tuple[int, int]] = {}
    marks: dict[str, int] = {}
    left_out: list[dict[str, Any]] | None = None
    error: str = ""

    def log_id(self, vhost: str) -> int | None:
        """The id of the vhost's recovered outgoing log; None for none."""
        return self.transferred[vhost][0] if vhost in self.transferred else None

    def lacks(self, vhost: str) -> bool:
        """Whether it lacked some earlier records of the vhost."""
        rows = [row for row in self.summary if row["virtual_host"] == vhost]
        return any(row.get(name) for row in rows for name in _LACKS)

    def is_whole(self) -> bool:
        """Whether the request was for everything transferred."""
        wanted = self.wanted
        return not wanted.queues and not wanted.exclude and wanted.as_of_ms is None


class _Content(msgspec.Struct, kw_only=True):
    """The content of the state file; without a mode the configured one applies."""

    operating_mode: OperatingMode | None = None
    connected: bool = True
    promoting: PromotionAttempt | None = None
    promotions: list[PromotionAttempt] = []
    is_partial: bool = False
    deleted: dict[str, dict[str, dict[str, int]]] = {}
    downstream_id: str = ""


class StandbyDecided:
    """The decisions; after a change of an attribute call `save`.

    Attributes:
        mode_at_run_time: the mode set at run time; None if the configured one applies.
        connected: whether the link is wanted.
        promoting: the unfinished promotion.
        promotions: the finished promotions, oldest first.
        is_partial: whether one of them may have left a plan that its request excluded.
        deleted: by vhost, queue and reference, the last number of a plan's messages in a queue when the queue was
            deleted; kept while a plan may go on.
        downstream_id: distinguishes this downstream from others of the same name; "" before `identify` has drawn it. It
            stays when the transferred data are deleted, because the upstream would keep records for the previous id.
    """

    def __init__(self, state_file: StateFile, configured: OperatingMode) -> None:
        """Read the earlier decisions.

        Raises:
            StorageError: the state file is damaged.
            InvalidCommand: it has an impossible value.
        """
        self._state_file = state_file
        self.configured = configured
        kept = state_file.load()
        if kept.get("operating_mode") == "":
            # Earlier versions wrote this instead of None.
            del kept["operating_mode"]
        try:
            content = msgspec.convert(kept, _Content)
        except msgspec.ValidationError as error:
            raise InvalidCommand(f"{state_file.path}: {error}") from None
        self.mode_at_run_time = content.operating_mode
        self.connected = content.connected
        self.promoting = content.promoting
        self.promotions = content.promotions
        self.is_partial = content.is_partial
        self.deleted = content.deleted
        self.downstream_id = content.downstream_id

    @property
    def mode(self) -> OperatingMode:
        """The node's operating mode."""
        return self.mode_at_run_time or self.configured

    def save(self) -> None:
        """Make the decisions durable.

        Raises:
            StorageError: the disk refused it.
        """
        content = _Content(
            operating_mode=self.mode_at_run_time,
            connected=self.connected,
            promoting=self.promoting,
            promotions=self.promotions,
            is_partial=self.is_partial,
            deleted=self.deleted,
            downstream_id=self.downstream_id,
        )
        self._state_file.save(msgspec.to_builtins(content))

    def identify(self) -> str:
        """The id of this downstream, durable before an upstream hears it.

        Raises:
            StorageError: the disk refused it.
        """
        if not self.downstream_id:
            self.downstream_id = secrets.token_hex(_DOWNSTREAM_ID_BYTES)
            try:
                self.save()
            except StorageError:
                self.downstream_id = ""
                raise
        return self.downstream_id

    def finish(self, promotion: PromotionAttempt) -> None:
        """Record a finished promotion: this node is an upstream. If all was requested, every plan is carried out.

        Raises:
            StorageError: the disk refused it.
        """
        self.promotions.append(promotion)
        self.mode_at_run_time = OperatingMode.UPSTREAM
        self.end_promoting(is_partial=not promotion.is_whole())

    def end_promoting(self, *, is_partial: bool) -> None:
        """Record that no promotion is unfinished; unless `is_partial`, no plan is left.

        Raises:
            StorageError: the disk refused it.
        """
        self.promoting = None
        self.is_partial = is_partial
        if not is_partial:
            self.deleted.clear()
        self.save()

    def left_out(self) -> dict[str, Any] | None:
        """The messages that the last promotion left to a later one; None for none."""
        last = self.promoting or (self.promotions[-1] if self.is_partial and self.promotions else None)
        if last is None or last.is_whole():
            return None
        wanted = last.wanted
        return {
            "exclude": wanted.exclude,
            "only_queues": wanted.queues,
            "as_of_ms": wanted.as_of_ms,
            "vhosts": last.left_out,
        }

    def transferred(self, vhost: str, log_id: int) -> int | None:
        """The offset up to which the queues have a previous upstream's outgoing log; None if none has this log.

        0 means that the offset is unknown, so the previous upstream has to keep everything: some promotion lacked
        records of the log, or none was requested for all of it.
        """
        promotions = self.promotions
        if (
            not promotions
            or self.mode is not OperatingMode.UPSTREAM
            or promotions[-1].log_id(vhost) != log_id
        ):
            return None
        last = self._furthest(vhost, log_id)
        return 0 if last is None else last.transferred[vhost][1]

    def transferred_fingerprint(self, vhost: str, log_id: int) -> int | None:
        """The fingerprint of the last chunk before that offset; None if there is none, or it was not stored."""
        last = self._furthest(vhost, log_id) if self.transferred(vhost, log_id) else None
        return None if last is None else last.marks.get(vhost) or None

    def _furthest(self, vhost: str, log_id: int) -> PromotionAttempt | None:
        """The promotion that recovered all of a log up to the highest offset; None if that is unknown."""
        own = [each for each in self.promotions if each.log_id(vhost) == log_id]
        if any(each.lacks(vhost) for each in own):
            return None
        whole = [each for each in own if each.is_whole()]
        return max(whole, key=lambda each: each.transferred[vhost][1], default=None)

    def promotion_summary(self) -> list[dict[str, Any]]:
        """The results of promotions, oldest first; rows as `promote` returns them."""
        found = [row for promotion in self.promotions for row in reported_rows(promotion.summary)]
        recovered = [row for row in found if row["message_count"]]
        return recovered or found[-1:]

    def note_deleted(self, queues: list[Queue]) -> None:
        """Keep the recovered numbers of deleted queues while plans may go on, because their logs go.

        Messages that a client consumed, in a queue that it deleted, must not come back. They do if another node of a
        cluster leads the queue.
        """
        if self.promoting is None and not self.is_partial:
            return
        found = {queue.key: numbers for queue in queues if (numbers := _recovered_numbers(queue))}
        for (vhost, name), numbers in found.items():
            self.deleted.setdefault(vhost, {}).setdefault(name, {}).update(numbers)
            messages = max(numbers.values())
            logger.warning(
                "standby_promotion_queue_deleted vhost=%s queue=%s messages=%d", vhost, name, messages
            )
        try:
            if found:
                self.save()
        except StorageError as error:
            logger.error("standby_promotion_queue_deleted_not_kept error=%s", error)

    def deleted_at(self, key: tuple[str, str], reference: str) -> int:
        """See RecoveryIngest."""
        return self.deleted.get(key[0], {}).get(key[1], {}).get(reference, 0)


def _recovered_numbers(queue: Queue) -> dict[str, int]:
    """The last number of each recovery in a queue; none for a rehearsal's queues, which go with their vhosts."""
    if queue.key[0].startswith(REHEARSAL_VHOSTS):
        return {}
    return {name.decode(): last for name, last in queue.sequences.logged.items() if is_recovery(name)}
