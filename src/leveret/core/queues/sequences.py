"""The last publishing id of each numbering publisher of a queue: a message that is published twice is stored once.

The id goes into the log in the very chunk that holds the message, so the two agree after any crash.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from leveret.wire.record import is_recovery

SEQUENCES_MAX: Final = 255
"""The most publishers whose last id is kept; the longest inactive one is forgotten first (as in Osiris)."""


class NumberedRun(NamedTuple):
    """The last of `many` messages of a publisher is the `place`th that is gathered, and has the number `sequence`.

    With 0 for `many` the places of its messages are unknown.
    """

    place: int
    many: int
    reference: bytes
    sequence: int


class Sequences:
    """The sequences of one queue.

    Attributes:
        logged: by publisher, the last number in the log.
        unlogged: by publisher, the last number gathered since then.
    """

    __slots__ = ("_none", "_numbered", "logged", "unlogged")

    def __init__(self, none: int = 0) -> None:
        """Begin without publishers; `none` is the last number of an unknown publisher."""
        self.logged: dict[bytes, int] = {}
        self.unlogged: dict[bytes, int] = {}
        self._none = none
        self._numbered: list[NumberedRun] = []

    def last(self, reference: bytes) -> int:
        """The last number of a publisher."""
        return self.unlogged.get(reference, self.logged.get(reference, self._none))

    def advance(self, numbered: NumberedRun) -> None:
        """Note that a publisher's messages are gathered."""
        self.unlogged[numbered.reference] = numbered.sequence
        self._numbered.append(numbered)

    def take_numbered(self) -> list[NumberedRun]:
        """The runs passed to `advance`, once; to be called before the messages are appended."""
        numbered, self._numbered = self._numbered, []
        self.unlogged = {}
        return numbered

    def note_logged(self, sequences: dict[bytes, int]) -> None:
        """Note the numbers in the log, the newest last; if there are too many, the oldest are forgotten.

        Recoveries are never forgotten: an interrupted one may go on at any later time, and must not publish messages
        twice.
        """
        logged = self.logged
        for reference, sequence in sequences.items():
            logged.pop(reference, None)
            logged[reference] = sequence
        while len(logged) > SEQUENCES_MAX:
            oldest = next((each for each in logged if not is_recovery(each)), None)
            if oldest is None:
                return
            del logged[oldest]
