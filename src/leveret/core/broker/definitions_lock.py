"""The definitions lock: a single node always holds it, a node of a cluster acquires it (docs/adr/0008-cluster.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

DEFINITIONS_LOCK_TIMEOUT_S: Final = 30.0
"""How long whoever is asked to do something waits for it, and then tells the operator who does not hand it over."""


class DefinitionsLock:
    """See the module; the runtime fetches it, and gives it away.

    Attributes:
        is_here: whether this node may change definitions now.
        on_wanted: called when somebody wants to and may not.
    """

    def __init__(self) -> None:
        """A node alone."""
        self.is_here = True
        self.on_wanted: Callable[[], None] = _nobody_fetches_it
        self._put_off: list[Callable[[], None]] = []

    @property
    def has_work(self) -> bool:
        """Whether something was put off until the definitions lock is here."""
        return bool(self._put_off)

    def want(self) -> None:
        """Somebody waits for it."""
        if not self.is_here:
            self.on_wanted()

    def when_here(self, change: Callable[[], None]) -> None:
        """Make a change that nobody waits for, now or as soon as the definitions lock is here."""
        if self.is_here:
            change()
        else:
            self._put_off.append(change)
            self.on_wanted()

    def arrived(self) -> None:
        """This node has it: do what was put off."""
        self.is_here = True
        put_off, self._put_off = self._put_off, []
        for change in put_off:
            change()


def _nobody_fetches_it() -> None:
    """A node alone has the definitions lock for ever."""
