"""Mirroring's interface to the node: the queue of a log, and whether the node leads it.

This module is a port: mirroring knows logs and links, and no queues. `runtime.cluster.placement.queues` knows both.
"""

from __future__ import annotations

from typing import Protocol


class LogTable(Protocol):
    """The logs of a node by their names in the tree, such as `queues/EPOCH`."""

    def key_of(self, name: str) -> tuple[str, str] | None:
        """Return vhost and name of a log's queue; None if this node does not know the queue."""

    def is_led(self, name: str) -> bool:
        """Whether this node leads the log."""

    def begin_segment(self, name: str) -> int:
        """Begin a segment of a log that is led here, with a chunk that settles nothing; return that chunk's offset.

        Raises:
            StorageError: the log is not led here, or a disk operation fails.
        """

    def has_log(self, name: str) -> bool:
        """Whether an existence record says that this node's log once had records."""

    def record_existence(self, name: str) -> None:
        """Write the existence record: if the log is missing later, it counts as lost, not as an empty complete copy."""

    def begins_anew(self, name: str) -> None:
        """Note that a copy is about to begin anew: it is incomplete until the queue's record names it again."""

    def copy_again(self, name: str) -> None:
        """Request a new call of `MirrorCopies.mirror` for a log whose copy is damaged or gone."""
