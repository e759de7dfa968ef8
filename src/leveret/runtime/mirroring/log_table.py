"""Mirroring's questions to the node: the owner of a log, and whether the node serves it.

This module is a port: mirroring knows logs and links, and no queues. `runtime.cluster.placement.queues` knows both.
"""

from __future__ import annotations

from typing import Protocol


class LogTable(Protocol):
    """The logs of a node by their names in the tree, such as `queues/EPOCH`."""

    def key_of(self, name: str) -> tuple[str, str] | None:
        """The vhost and name of the queue that a log is of; None if that is not known here."""

    def is_led(self, name: str) -> bool:
        """Whether this node leads the log."""

    def begin_segment(self, name: str) -> int:
        """Begin a segment of a log that is led here, with a chunk that settles nothing; the offset of that.

        Raises:
            StorageError: that cannot be.
        """

    def has_log(self, name: str) -> bool:
        """Whether the log was recorded here as one in which there is something."""

    def record_existence(self, name: str) -> None:
        """Record that: should the log be missing one day, that is a loss, and no copy that has all of nothing."""

    def begins_anew(self, name: str) -> None:
        """The copy of a log is about to begin anew: it is not complete until the record says so."""

    def copy_again(self, name: str) -> None:
        """The copy of a log is damaged or gone: `MirrorCopies.mirror` is to be called for it again."""
