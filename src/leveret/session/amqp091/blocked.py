"""What a connection waits for before it takes more of what it was sent."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.core.broker.broker import Broker


class BlockedReason(Enum):
    """See the module."""

    ALARM = auto()
    """The alarm's end."""
    OUTPUT = auto()
    """Its output's going."""
    DEFINITIONS_LOCK = auto()
    """That this node may change definitions."""
    REMOTE = auto()
    """An answer from another node."""
    TURN = auto()
    """Others' turn: it was served as much as one may be in a row."""


class Postponed(Exception):
    """The frame that was being taken has to wait, and is taken again from its beginning: nothing was done for it."""

    def __init__(self, blocked_reason: BlockedReason) -> None:
        """`blocked_reason` is what it waits for."""
        super().__init__(blocked_reason.name)
        self.blocked_reason = blocked_reason


def need_definitions_lock(broker: Broker) -> None:
    """Ask before the first change: another node of the cluster may be the one that may change definitions.

    Raises:
        Postponed: it is; the method is taken again when this node may.
    """
    if not broker.definitions_lock.is_here:
        broker.definitions_lock.want()
        raise Postponed(BlockedReason.DEFINITIONS_LOCK)
