"""What a connection waits for before it takes more of what it was sent."""

from __future__ import annotations

from enum import Enum, auto


class Stall(Enum):
    """See the module."""

    ALARM = auto()
    """The alarm's end."""
    OUTPUT = auto()
    """Its output's going."""
    PEN = auto()
    """That this node may change definitions."""
    REMOTE = auto()
    """An answer from another node."""


class Postponed(Exception):
    """The frame that was being taken has to wait, and is taken again from its beginning: nothing was done for it."""

    def __init__(self, stall: Stall) -> None:
        """`stall` is what it waits for."""
        super().__init__(stall.name)
        self.stall = stall
