"""Why outgoing logs could not be opened, and which of them are worth another attempt."""

from __future__ import annotations

from leveret.model.errors import StorageError
from leveret.runtime.collecting.outgoing_log import STOPPED


class ClosedLogs:
    """The vhosts whose outgoing logs a node tried to open in vain; see the module."""

    def __init__(self) -> None:
        """Begin without a failure."""
        self._broken: dict[str, str] = {}
        self._refused: set[str] = set()

    def failed(self, vhost: str, error: StorageError) -> None:
        """Note why a log could not be opened: the disk refused something, or it is damaged."""
        if isinstance(error.__cause__, OSError):
            self._refused.add(vhost)
        else:
            self._broken[vhost] = str(error)

    def stopped(self, vhost: str) -> None:
        """Note that a log was closed after a sync had failed."""
        # Opened again in this process it would be taken for durable; a start cuts off what may not be.
        self._broken[vhost] = STOPPED

    def opened(self, vhost: str) -> None:
        """Note that a log is open."""
        self._refused.discard(vhost)

    def forget(self, vhost: str) -> None:
        """Forget a vhost whose log is gone."""
        self._broken.pop(vhost, None)
        self._refused.discard(vhost)

    def clear(self) -> None:
        """Forget all of them."""
        self._broken.clear()
        self._refused.clear()

    def why_not_again(self, vhost: str) -> str:
        """The reason why a log must not be opened before an operator or a start mends it; empty if it may be."""
        return self._broken.get(vhost, "")

    def why(self, vhost: str) -> str:
        """The reason for an operator; empty if the node has not tried, as where another node leads."""
        refused = "the disk refused the outgoing log; see the node's log; the node tries again"
        return self._broken.get(vhost) or (refused if vhost in self._refused else "")
