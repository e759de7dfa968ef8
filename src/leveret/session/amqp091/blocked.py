"""The reasons for which a connection takes no further frames."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.core.broker.broker import Broker


class BlockedReason(Enum):
    """The event that a blocked connection waits for."""

    ALARM = auto()
    """The end of an alarm."""
    OUTPUT = auto()
    """Room in its output."""
    DEFINITIONS_LOCK = auto()
    """The definitions lock of the cluster."""
    REMOTE = auto()
    """An answer from another node."""
    TURN = auto()
    """Its next turn, after other connections."""


class Postponed(Exception):
    """The current frame has to wait; it is processed again from its beginning, because no part of it took effect."""

    def __init__(self, blocked_reason: BlockedReason) -> None:
        """`blocked_reason` is the event that the frame waits for."""
        super().__init__(blocked_reason.name)
        self.blocked_reason = blocked_reason


def need_definitions_lock(broker: Broker) -> None:
    """Ask for the definitions lock, before the first change of a method.

    Raises:
        Postponed: another node holds the lock; the method is processed again when this node holds it.
    """
    if not broker.definitions_lock.is_here:
        broker.definitions_lock.want()
        raise Postponed(BlockedReason.DEFINITIONS_LOCK)
