"""Log lines of a queue's leader about its mirrors: added, gone, synchronised, not synchronised any more. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from leveret.core.replication.cluster import Placement, PlacementChanged, StoredPlacement
from leveret.model.definitions import QueueKey


class MirrorEvents:
    """Compares each record of a mirrored queue with the one before it."""

    def __init__(self, me: str) -> None:
        """Start without known records; `me` is this node."""
        self._me = me
        self._known: dict[QueueKey, Placement] = {}

    def begin(self, placements: Mapping[QueueKey, StoredPlacement]) -> None:
        """Take the present records, which are no events."""
        for key, (placement, _) in placements.items():
            self._know(key, placement)

    def changed(self, change: PlacementChanged) -> list[str]:
        """Return log texts to follow `Mirrored queue 'q' in vhost 'v': `; none for queues of other leaders."""
        before, after = self._known.pop(change.key, None), change.placement
        if after is None:
            return []
        self._know(change.key, after)
        return events(before, after) if after.leader == self._me else []

    def _know(self, key: QueueKey, placement: Placement) -> None:
        # Records without mirrors need no memory, and there may be a great many.
        if placement.mirrors:
            self._known[key] = placement


def events(before: Placement | None, after: Placement) -> list[str]:
    """Return the texts of changes of a queue's mirrors; the first two are RabbitMQ's words."""
    is_same = before is not None and before.epoch == after.epoch
    had, had_all = (before.mirrors, before.synchronised) if before is not None and is_same else ((), ())
    found = [f"Adding mirror on node {node}" for node in after.mirrors if node not in had]
    for node in had:
        if node in after.mirrors or node == after.leader:
            continue
        is_gone = node in after.stopped
        found.append(f"Mirror on node {node} is gone" if is_gone else f"Dropping queue mirror on node {node}")
    for node in had:
        if node in after.mirrors and (node in had_all) != (node in after.synchronised):
            is_ready = node in after.synchronised
            found.append(
                f"Mirror on node {node} is {'synchronised' if is_ready else 'not synchronised any more'}"
            )
    return found
