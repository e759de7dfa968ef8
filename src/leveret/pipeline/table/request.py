"""The rows and columns that a reader of the table asks for, from the options of a query or the fields of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from leveret.model.errors import InvalidCommand
from leveret.model.moment import moment_ms
from leveret.model.whole_number import whole_number
from leveret.pipeline.archive.manifest import QueuePart, StoredFile
from leveret.pipeline.table.columns import MESSAGES, STATES

_OPTIONS: Final = ("path", "asOf", "vhost", "queue", "from", "to", "state", "columns", "maxFilesPerTrigger")

_FILES_MAX: Final = 1_000_000_000


class TableRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The rows and columns that are wanted.

    Attributes:
        columns: names of MESSAGES, in the wanted order.
        vhosts: only these vhosts; None is all. queues: only queues of these names; None is all.
        from_ms: only messages that came at that time or later. to_ms: only those that came before that time.
        as_of_ms: the state at that time, without later messages; None is now.
        state: only messages in it; empty is any.
        files_max: the most files in one micro-batch of a stream; 0 is any number.
    """

    columns: tuple[str, ...] = tuple(MESSAGES.names)
    vhosts: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    as_of_ms: int | None = None
    state: str = ""
    files_max: int = 0

    @property
    def end_ms(self) -> int | None:
        """Messages from this time on are not wanted."""
        ends = [
            end
            for end in (self.to_ms, None if self.as_of_ms is None else self.as_of_ms + 1)
            if end is not None
        ]
        return min(ends, default=None)

    def wants_vhost(self, vhost: str) -> bool:
        """Whether messages of a vhost are wanted."""
        return self.vhosts is None or vhost in self.vhosts

    def wants_queue(self, queue: str) -> bool:
        """Whether messages of queues of a name are wanted."""
        return self.queues is None or queue in self.queues

    def wants_times(self, min_ms: int, max_ms: int) -> bool:
        """Whether some times between these are wanted."""
        return (self.from_ms is None or max_ms >= self.from_ms) and (
            self.end_ms is None or min_ms < self.end_ms
        )

    def wanted_parts(self, file: StoredFile) -> list[QueuePart]:
        """The parts of a file that may have wanted messages."""
        if not self.wants_vhost(file.vhost) or not self.wants_times(file.min_ms, file.max_ms):
            return []
        return [
            part
            for part in file.queues
            if part.messages and self.wants_queue(part.queue) and self.wants_times(part.min_ms, part.max_ms)
        ]


def request_of(options: Mapping[str, str]) -> TableRequest:
    """The request of a query's options; their names count in any case, as Spark's do.

    Raises:
        InvalidCommand: an option is unknown, or has no possible value.
    """
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(given.keys() - {name.lower() for name in _OPTIONS}):
        raise InvalidCommand(f"there is no option '{unknown[0]}': there are {', '.join(_OPTIONS[1:])}")
    columns = given.get("columns")
    state = given.get("state", "")
    if state and state not in STATES:
        raise InvalidCommand(f"option state: '{state}' is none; there are {', '.join(STATES)}")
    from_ms, to_ms = _moment("from", given.get("from")), _moment("to", given.get("to"))
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidCommand(
            f"no message came between '{given['from']}' and '{given['to']}': to is not later than from"
        )
    return TableRequest(
        columns=tuple(MESSAGES.names) if columns is None else columns_of(columns.split(",")),
        vhosts=_one(given.get("vhost")),
        queues=_one(given.get("queue")),
        from_ms=from_ms,
        to_ms=to_ms,
        as_of_ms=_moment("asOf", given.get("asof")),
        state=state,
        files_max=_count("maxFilesPerTrigger", given.get("maxfilespertrigger")),
    )


def columns_of(names: list[str]) -> tuple[str, ...]:
    """These columns.

    Raises:
        InvalidCommand: one does not exist, or is named twice.
    """
    wanted = tuple(name.strip() for name in names)
    for at, name in enumerate(wanted):
        if name not in MESSAGES.names:
            raise InvalidCommand(f"there is no column '{name}': there are {', '.join(MESSAGES.names)}")
        if name in wanted[:at]:
            raise InvalidCommand(f"column '{name}' is named twice")
    return wanted


def _one(name: str | None) -> frozenset[str] | None:
    return None if name is None else frozenset({name})


def _moment(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return moment_ms(text.strip())
    except ValueError:
        raise InvalidCommand(
            f"option {option}: '{text}' is no moment: the form is 2026-11-21T14:00:00Z, or 2026-11-21 14:00:00, which "
            "is UTC too"
        ) from None


def _count(option: str, text: str | None) -> int:
    if text is None:
        return 0
    number = whole_number(text.strip(), most=_FILES_MAX)
    if not number:
        raise InvalidCommand(f"option {option}: '{text[:20]}' is no number of files from 1 on")
    return number
