"""The downstreams of an outgoing log and their positions: `downstreams.json` beside the log."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from leveret.model.errors import StorageError
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

DOWNSTREAMS_MAX: Final = 1000
"""References that positions are kept for; whoever may read the log could make up any number of them."""


class Downstream(msgspec.Struct):
    """A downstream that transfers the log, under the name of its cluster.

    Attributes:
        offset: it has everything before.
        seen_ms: when it said so last.
        missing_messages: at most so many that the queues still hold were not in the log any more when it began.
    """

    offset: int
    seen_ms: int
    missing_messages: int = 0


class Downstreams:
    """See the module.

    Attributes:
        by_name: each by the name of its cluster; read only.
    """

    def __init__(self, file: StateFile) -> None:
        """Read who has how much.

        Raises:
            StorageError: the file is damaged.
        """
        self._file = file
        self._is_saved = True
        try:
            self.by_name = msgspec.convert(file.load(), dict[str, Downstream])
        except msgspec.ValidationError as error:
            raise StorageError(f"{file.path}: {error}; remove it, downstreams will tell again") from None

    def cut(self, end: int) -> None:
        """The log ends there: what they have beyond is of another one, and nothing here is spared for it."""
        for each in self.by_name.values():
            each.offset = min(each.offset, end)

    def clear(self) -> None:
        """Nobody has anything of the log, which is another one."""
        self.by_name.clear()

    def note(
        self, name: str, offset: int, now_ms: int, *, first: int, committed: int, missing_messages: int
    ) -> bool:
        """A downstream has everything before `offset` of a log from `first` to `committed`; durable with `save`.

        Returns:
            Whether it begins, and lacks some of the `missing_messages` that queues hold and the log does not.
        """
        known = self.by_name.get(name)
        if offset > committed or (known is None and len(self.by_name) >= DOWNSTREAMS_MAX):
            logger.warning("downstream_position_refused downstream=%r offset=%d", name, offset)
            return False
        # Who has something goes on behind it, or from where it is.
        begins = offset == first and (known is None or known.offset != offset)
        missing = known.missing_messages if known is not None else 0
        if begins:
            missing = missing_messages
        elif offset >= committed:
            # It has all that is here: it can lack no more than is not.
            missing = min(missing, missing_messages)
        self.by_name[name] = Downstream(offset, now_ms, missing)
        self._is_saved &= known is not None and (known.offset, known.missing_messages) == (offset, missing)
        return begins and missing > 0

    def forget(self, name: str) -> bool:
        """Nothing is kept for that downstream any more; whether it was known.

        Raises:
            StorageError: the disk refused it.
        """
        known = self.by_name.pop(name, None) is not None
        if known:
            self._is_saved = False
            self.save()
        return known

    def save(self) -> None:
        """Make their positions durable.

        Raises:
            StorageError: the disk refused it.
        """
        if not self._is_saved:
            self._file.save(msgspec.to_builtins(self.by_name))
            self._is_saved = True

    def all_have(self, default: int) -> int:
        """All of them have everything before this; the default when none is known."""
        return min((each.offset for each in self.by_name.values()), default=default)

    def others_have(self, name: str, end: int) -> bool:
        """Whether all but that one have everything before `end`."""
        return all(each.offset >= end for other, each in self.by_name.items() if other != name)

    @property
    def lack_nothing(self) -> bool:
        """Whether none of them began without messages that queues held."""
        return not any(each.missing_messages for each in self.by_name.values())
