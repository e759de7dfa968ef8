"""A node's reports of long reads and of its delay, as operations use them. Pure."""

from __future__ import annotations

from leveret.console.sites.documents import HeldBack, ReadingStatus
from leveret.console.sites.facts import SiteFacts


def scrubbed(site: SiteFacts) -> tuple[int, int] | None:
    """Return the octets that a running scrub has read, and all octets to read; None while no scrub runs."""
    return _read(site.replication.scrub)


def compared(site: SiteFacts) -> tuple[int, int] | None:
    """Return the same numbers for a running comparison."""
    return _read(site.replication.verify)


def _read(status: ReadingStatus | None) -> tuple[int, int] | None:
    return (status.octets_done, status.octets_total) if status is not None and status.running else None


def held_back(site: SiteFacts) -> HeldBack | None:
    """Return the changes that a delayed follower can leave out; None for other nodes."""
    return site.replication.leader.held_back if site.replication.leader is not None else None


def is_delayed(site: SiteFacts) -> bool:
    """Return whether the node is a delayed follower."""
    return held_back(site) is not None


def held_span(site: SiteFacts) -> tuple[int, int] | None:
    """Return the first and the last moment to which the node can be promoted; None if it holds no change back."""
    held = held_back(site)
    if held is None or held.oldest_at_ms is None or held.newest_at_ms is None:
        return None
    # A promotion to just before the first change applies none of the changes, to the last change all of them.
    return held.oldest_at_ms - 1, held.newest_at_ms
