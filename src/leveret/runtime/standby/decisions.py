"""Run-time decisions on the standby side - mode, link off, promotions - in a state file.

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
"""What a promotion's summary counts of a vhost that is not here although it lies before what was transferred."""


class PromotionAttempt(msgspec.Struct, kw_only=True):
    """One attempt to promote, from its begin on.

    Attributes:
        wanted: what it was asked to recover.
        summary: a row for each vhost once it is done.
        transferred: by vhost, the id of the previous upstream's outgoing log, and up to which offset it is here.
        marks: by vhost, the mark (`wire.chunk.fingerprint_of`) of the last chunk of that.
        left_out: a row a vhost of what it was not asked for and a later one would recover: virtual_host, queues,
            messages, unreadable_records; None: it is not counted.
        error: why it stopped short.
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
        """The id of the vhost's outgoing log that it recovered from; None for none."""
        return self.transferred[vhost][0] if vhost in self.transferred else None

    def lacks(self, vhost: str) -> bool:
        """Whether it did without something of the vhost that stood before what was transferred."""
        rows = [row for row in self.summary if row["virtual_host"] == vhost]
        return any(row.get(name) for row in rows for name in _LACKS)

    def is_whole(self) -> bool:
        """Whether it was asked for all that was transferred."""
        wanted = self.wanted
        return not wanted.queues and not wanted.exclude and wanted.as_of_ms is None


class _Content(msgspec.Struct, kw_only=True):
    """Of the state file; without a mode that of the configuration holds."""

    operating_mode: OperatingMode | None = None
    connected: bool = True
    promoting: PromotionAttempt | None = None
    promotions: list[PromotionAttempt] = []
    is_partial: bool = False
    deleted: dict[str, dict[str, dict[str, int]]] = {}
    downstream_id: str = ""


class StandbyDecided:
    """See the module; who changes an attribute calls `save`.

    Attributes:
        mode_at_run_time: set at run time; None: that of the configuration holds.
        connected: whether the link is wanted.
        promoting: the promotion that has begun.
        promotions: those that came to their end, oldest first.
        is_partial: whether one of them may have left a plan behind that it was not asked to carry out.
        deleted: by vhost, queue and reference, up to which number a queue had a plan's messages when it was deleted;
            as long as a plan may go on.
        downstream_id: what tells this downstream from others of its upstream that have the same name; "" before
            `identify` drew it. It stays if transferred data is deleted: the upstream would keep records for the former.
    """

    def __init__(self, state_file: StateFile, configured: OperatingMode) -> None:
        """Read what was decided before.

        Raises:
            StorageError: the state file is damaged.
            InvalidCommand: it says what cannot be.
        """
        self._state_file = state_file
        self.configured = configured
        kept = state_file.load()
        if kept.get("operating_mode") == "":
            # As it was written before there was None for it.
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
        """Which side this node is."""
        return self.mode_at_run_time or self.configured

    def save(self) -> None:
        """Keep it over restarts.

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
        """It came to its end: this node is an upstream. One that was asked for all has carried out every plan.

        Raises:
            StorageError: the disk refused it.
        """
        self.promotions.append(promotion)
        self.mode_at_run_time = OperatingMode.UPSTREAM
        self.end_promoting(is_partial=not promotion.is_whole())

    def end_promoting(self, *, is_partial: bool) -> None:
        """None goes on; unless `is_partial` there are no plans any more, or all are carried out.

        Raises:
            StorageError: the disk refused it.
        """
        self.promoting = None
        self.is_partial = is_partial
        if not is_partial:
            self.deleted.clear()
        self.save()

    def left_out(self) -> dict[str, Any] | None:
        """What promotions leave to a later one, as the last of them was asked; None if nothing is left so."""
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

        0 says that nobody can tell, and what is before that is lost if it is not kept there: where a promotion, be it
        the last one or not, did without something of the log, or none was asked for all of it.
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
        """The mark of the last chunk of that; None: there is none, or it was not kept."""
        last = self._furthest(vhost, log_id) if self.transferred(vhost, log_id) else None
        return None if last is None else last.marks.get(vhost) or None

    def _furthest(self, vhost: str, log_id: int) -> PromotionAttempt | None:
        """The promotion that recovered all of a log up to the highest offset; None if nobody can tell."""
        own = [each for each in self.promotions if each.log_id(vhost) == log_id]
        if any(each.lacks(vhost) for each in own):
            return None
        whole = [each for each in own if each.is_whole()]
        return max(whole, key=lambda each: each.transferred[vhost][1], default=None)

    def promotion_summary(self) -> list[dict[str, Any]]:
        """What promotions recovered, oldest first; rows as `promote` returns them."""
        found = [row for promotion in self.promotions for row in reported_rows(promotion.summary)]
        recovered = [row for row in found if row["message_count"]]
        return recovered or found[-1:]

    def note_deleted(self, queues: list[Queue]) -> None:
        """While plans may go on, keep how far queues are that are deleted: it would go with them.

        What a client consumed and deleted must not come back. Of a queue that another node of a cluster leads it does.
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
    """By reference, up to which number a queue has messages of recoveries; a rehearsal's go with its vhosts."""
    if queue.key[0].startswith(REHEARSAL_VHOSTS):
        return {}
    return {name.decode(): last for name, last in queue.sequences.logged.items() if is_recovery(name)}
