"""Positions of delivered messages before a restart, so that exactly these are redelivered with the flag.

A node that stops in order records, for each queue that it leads and that holds messages, the offset before which it
had delivered messages (`handed_out.json`). After any other end the position is not known: a killed node, a leader whose
follower is promoted, a lost lease. Then every message may have been delivered, so all are redelivered with the flag, as
RabbitMQ does after a crash: an application that looks for duplicates only among flagged messages has to find them
there.

Of a queue that the file does not name, the position is not known either: a node of a cluster may stop after another
node has recorded it as the queue's next leader, and before it has begun to lead, or while it hands the queue over.

The file counts for one start only, the next one in the same epoch (`NodeIdentity.stamp`), and never for a follower:
a file from an earlier stop, or from a copy of the directory, is out of date.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.model.errors import StorageError
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

FILE: Final = "handed_out.json"
_STAMP: Final = "stamp"
_BEFORE: Final = "before"


class DeliveredPositions:
    """See the module."""

    def __init__(self, data_dir: Path, stamp: int) -> None:
        """Of the node that runs in `data_dir` with this stamp."""
        self._file = StateFile(data_dir / FILE)
        self._stamp = stamp
        self._before: dict[str, int] | None = None

    def load(self) -> None:
        """Read what the stop before this start wrote; nothing is known if there was none, or it was not that."""
        self._before = None
        try:
            found = self._file.load()
        except StorageError as error:
            logger.warning("delivered_positions_unknown error=%s action=redeliver_all", error)
            return
        if found.get(_STAMP) == self._stamp - 1:
            with suppress(msgspec.ValidationError):
                self._before = msgspec.convert(found.get(_BEFORE), dict[str, int])

    def redeliver(self, queue: Queue) -> None:
        """Redeliver what a queue had delivered, or may have; the queue was recovered from its log."""
        if isinstance(queue, Stream) or queue.damage is not None:
            return
        known = self._before if self._before is not None else {}
        before = known.get(str(queue.epoch), queue.next_offset)
        if before > queue.settled.floor:
            queue.backlog.give_back_before(before)

    def save(self, queues: Iterable[Queue]) -> None:
        """Write it down: nothing more is delivered from now on, and all is logged."""
        before = {
            str(queue.epoch): queue.backlog.delivered_before
            for queue in queues
            if queue.definition.durable
            and not isinstance(queue, Stream)
            and queue.damage is None
            # Of a queue that is not noted the next start flags all that it has: a full disk may have kept
            # settlements from being logged.
            and queue.next_offset > queue.settled.floor
        }
        try:
            self._file.save({_STAMP: self._stamp, _BEFORE: before})
        except StorageError as error:
            logger.warning("delivered_positions_not_saved error=%s next_start=redelivers_all", error)
