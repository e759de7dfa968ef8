"""Changes of definitions on their way to other nodes, and the promises that wait for them."""

from __future__ import annotations

from collections.abc import Callable


class SharedChanges:
    """The changes of one flush.

    Attributes:
        is_known: whether all live nodes have them.
        then: the promises that wait for that.
    """

    __slots__ = ("is_known", "then")

    def __init__(self) -> None:
        """Begin with changes that no other node has."""
        self.is_known = False
        self.then: list[Callable[[], None]] = []

    def known(self) -> None:
        """Note that all live nodes have the changes, and keep the promises."""
        self.is_known = True
        then, self.then = self.then, []
        for step in then:
            step()
