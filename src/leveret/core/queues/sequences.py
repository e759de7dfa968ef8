"""The last publishing id of each numbering publisher of a queue: a message that is published twice is stored once.

The id goes into the log in the very chunk that holds the message, so the two agree after any crash.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from leveret.wire.record import is_recovery

SEQUENCES_MAX: Final = 255
"""Publishers whose last id is known; beyond, the one that published longest ago is forgotten (as in Osiris)."""


class NumberedRun(NamedTuple):
    """The last of `many` messages of a publisher is the `place`th that is gathered, and has the number `sequence`.

    With 0 for `many` it is not known which of those that are gathered are its messages.
    """

    place: int
    many: int
    reference: bytes
    sequence: int


class Sequences:
    """Those of one queue.

    Attributes:
        logged: by publisher, how far its messages are in the log.
        unlogged: the same, of those that were gathered since.
    """

    __slots__ = ("_none", "_numbered", "logged", "unlogged")

    def __init__(self, none: int = 0) -> None:
        """Nothing was numbered; `none` is the last number of a publisher that has not published."""
        self.logged: dict[bytes, int] = {}
        self.unlogged: dict[bytes, int] = {}
        self._none = none
        self._numbered: list[NumberedRun] = []

    def last(self, reference: bytes) -> int:
        """The number of the last message of a publisher that was taken."""
        return self.unlogged.get(reference, self.logged.get(reference, self._none))

    def advance(self, numbered: NumberedRun) -> None:
        """A publisher's messages are gathered."""
        self.unlogged[numbered.reference] = numbered.sequence
        self._numbered.append(numbered)

    def take_numbered(self) -> list[NumberedRun]:
        """What `advance` was told, once; ask before what is gathered is appended."""
        numbered, self._numbered = self._numbered, []
        self.unlogged = {}
        return numbered

    def note_logged(self, sequences: dict[bytes, int]) -> None:
        """These stand in the log; the newest are last, and too many are forgotten from the oldest on.

        Recoveries are not: one that was interrupted, however long ago, would bring again what it brought.
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
