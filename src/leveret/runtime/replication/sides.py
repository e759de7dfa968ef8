"""The node at the other end of a replication link, as far as it can be asked for what it holds."""

from __future__ import annotations

from typing import Any, Final, Protocol

JOINED: Final = frozenset({"leader", "fenced", "streaming", "delayed"})
"""States of a node whose logs are compared with its leader's and cut to them, so that they only grow."""
IN_STEP: Final = frozenset({"leader", "streaming"})
"""States of a node that has applied what it was told before it is asked anything: both go the same way, in order."""


class Side(Protocol):
    """See the module.

    Attributes:
        node_id, name: which node it is.
        is_leader: whether this node follows it; else it follows this one.
        is_connected: whether it can still be asked; once it cannot, it is another side that comes back.
        state: what the follower of the two is at, as it is known here.
    """

    @property
    def node_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def state(self) -> str: ...

    async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
        """What it found; see answering.

        Raises:
            LeveretError: nothing.
        """
