"""The downstreams of an outgoing log and their positions: `downstreams.json` beside the log.

A position belongs to a reference, which is the name of the downstream's cluster and an id that the downstream drew
(`wire.record.downstream_reference`). Names are often left at their default, or copied with a configuration file. If
positions were kept by name, the faster of two such downstreams would let the log drop what the slower one lacks.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from leveret.model.errors import StorageError
from leveret.storage.state_file import StateFile
from leveret.wire.record import named_downstream

logger = logging.getLogger(__name__)

_WITHOUT: Final = "otherwise remove it: downstreams will report again"
DOWNSTREAMS_MAX: Final = 1000
"""The most references with a stored position, because a reader of the log could invent any number of them."""


class Downstream(msgspec.Struct):
    """A downstream that transfers the log.

    Attributes:
        offset: the offset up to which it has the log.
        seen_ms: the time of its last report.
        missing_messages: the most messages that the queues held and the log had dropped when it began.
    """

    offset: int
    seen_ms: int
    missing_messages: int = 0


class Downstreams:
    """See the module.

    Attributes:
        by_reference: read only.
    """

    def __init__(self, file: StateFile) -> None:
        """Read the stored positions.

        Raises:
            StorageError: the file is damaged.
        """
        self._file = file
        self._is_saved = True
        self._went_back: set[str] = set()
        try:
            self.by_reference = msgspec.convert(file.load(_WITHOUT), dict[str, Downstream])
        except msgspec.ValidationError as error:
            raise StorageError(f"{file.path}: {error}; {_WITHOUT}") from None

    def cut(self, end: int) -> None:
        """Lower the positions to the log's end: records beyond it were another log's, and need no protection here."""
        for each in self.by_reference.values():
            each.offset = min(each.offset, end)

    def clear(self) -> None:
        """Forget all, because the log is another one."""
        self.by_reference.clear()

    def note(
        self, reference: str, offset: int, now_ms: int, *, first: int, committed: int, missing_messages: int
    ) -> bool:
        """Note that a downstream has everything before `offset` of a log from `first` to `committed`.

        Durable with `save`.

        Returns:
            Whether it begins, and lacks some of the `missing_messages` that queues hold and the log lacks.
        """
        self.follow_name(reference)
        known = self.by_reference.get(reference)
        if offset > committed or (known is None and len(self.by_reference) >= DOWNSTREAMS_MAX):
            logger.warning("downstream_position_refused downstream=%r offset=%d", reference, offset)
            return False
        if known is not None and first < offset < known.offset and reference not in self._went_back:
            # Of two copies the faster one would let the log drop what the slower one lacks.
            self._went_back.add(reference)
            logger.warning(
                "downstream_went_back downstream=%s from=%d to=%d hint=%s",
                reference,
                known.offset,
                offset,
                "if two sites are listed as this one, one is a copy of the other: start it with an empty directory",
            )
        # A downstream with records goes on behind them, or at the log's begin.
        begins = offset == first and (known is None or known.offset != offset)
        missing = known.missing_messages if known is not None else 0
        if begins:
            missing = missing_messages
        elif offset >= committed:
            # It has everything here, so it lacks no more than the log does.
            missing = min(missing, missing_messages)
        self.by_reference[reference] = Downstream(offset, now_ms, missing)
        self._is_saved &= known is not None and (known.offset, known.missing_messages) == (offset, missing)
        return begins and missing > 0

    def follow_name(self, reference: str) -> None:
        """Keep the position of a downstream that was renamed, or that had no id before; its previous name goes."""
        name, own_id = named_downstream(reference)
        if not own_id or reference in self.by_reference:
            return
        for each in self.by_reference:
            if each == name or named_downstream(each)[1] == own_id:
                self.by_reference[reference] = self.by_reference.pop(each)
                self._is_saved = False
                return

    def forget(self, reference: str) -> None:
        """Forget a downstream.

        Raises:
            StorageError: the disk refused it.
        """
        if self.by_reference.pop(reference, None) is not None:
            self._is_saved = False
            self.save()

    def save(self) -> None:
        """Make their positions durable.

        Raises:
            StorageError: the disk refused it.
        """
        if not self._is_saved:
            self._file.save(msgspec.to_builtins(self.by_reference))
            self._is_saved = True

    def all_have(self, default: int) -> int:
        """The offset before which all of them have everything; the default when none is known."""
        return min((each.offset for each in self.by_reference.values()), default=default)

    def others_have(self, reference: str, end: int) -> bool:
        """Whether all except that one have everything before `end`."""
        return all(each.offset >= end for other, each in self.by_reference.items() if other != reference)

    @property
    def lack_nothing(self) -> bool:
        """Whether none of them began without messages that queues held."""
        return not any(each.missing_messages for each in self.by_reference.values())
