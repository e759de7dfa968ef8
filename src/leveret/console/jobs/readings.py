"""What a node reports of its long work and of its delay, as operations need it. Pure."""

from __future__ import annotations

from leveret.console.sites.documents import HeldBack, ReadingStatus
from leveret.console.sites.facts import SiteFacts


def scrubbed(site: SiteFacts) -> tuple[int, int] | None:
    """Octets that a running scrub has read, and all of them; None while none runs."""
    return _read(site.replication.scrub)


def compared(site: SiteFacts) -> tuple[int, int] | None:
    """The same of comparisons."""
    return _read(site.replication.verify)


def _read(status: ReadingStatus | None) -> tuple[int, int] | None:
    return (status.octets_done, status.octets_total) if status is not None and status.running else None


def held_back(site: SiteFacts) -> HeldBack | None:
    """What the node can leave out, if it is a delayed follower."""
    return site.replication.leader.held_back if site.replication.leader is not None else None


def is_delayed(site: SiteFacts) -> bool:
    """Whether the node is a delayed follower."""
    return held_back(site) is not None


def held_span(site: SiteFacts) -> tuple[int, int] | None:
    """The moments between which it can be promoted; None if it holds nothing back."""
    held = held_back(site)
    if held is None or held.oldest_at_ms is None or held.newest_at_ms is None:
        return None
    # Just before the first change nothing of them is applied, at the last one all.
    return held.oldest_at_ms - 1, held.newest_at_ms
