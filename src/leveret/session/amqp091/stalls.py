"""What a connection waits for before it takes more of what it was sent."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.core.broker.broker import Broker


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
    TURN = auto()
    """Others' turn: it was served as much as one may be in a row."""


class Postponed(Exception):
    """The frame that was being taken has to wait, and is taken again from its beginning: nothing was done for it."""

    def __init__(self, stall: Stall) -> None:
        """`stall` is what it waits for."""
        super().__init__(stall.name)
        self.stall = stall


def need_pen(broker: Broker) -> None:
    """Ask before the first change: another node of the cluster may be the one that may change definitions.

    Raises:
        Postponed: it is; the method is taken again when this node may.
    """
    if not broker.pen.is_here:
        broker.pen.want()
        raise Postponed(Stall.PEN)
