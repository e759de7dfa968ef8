"""The definitions lock: a single node always holds it, a node of a cluster acquires it (docs/adr/0008-cluster.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

DEFINITIONS_LOCK_TIMEOUT_S: Final = 30.0
"""The longest wait of an operation for the lock; then the operator gets the name of the node that holds it."""


class DefinitionsLock:
    """The lock's state at this node; the runtime acquires and releases it.

    Attributes:
        is_here: whether this node holds the lock.
        on_wanted: called when an operation needs the lock and this node does not hold it.
    """

    def __init__(self) -> None:
        """Begin as a single node, which holds the lock."""
        self.is_here = True
        self.on_wanted: Callable[[], None] = _nobody_fetches_it
        self._put_off: list[Callable[[], None]] = []

    @property
    def has_work(self) -> bool:
        """Whether changes wait for the lock."""
        return bool(self._put_off)

    def want(self) -> None:
        """Ask for the lock."""
        if not self.is_here:
            self.on_wanted()

    def when_here(self, change: Callable[[], None]) -> None:
        """Make a change without waiting for it: now, or when this node gets the lock."""
        if self.is_here:
            change()
        else:
            self._put_off.append(change)
            self.on_wanted()

    def arrived(self) -> None:
        """This node holds the lock: make the changes that waited."""
        self.is_here = True
        put_off, self._put_off = self._put_off, []
        for change in put_off:
            change()


def _nobody_fetches_it() -> None:
    """Do nothing: a single node holds the lock for ever."""
