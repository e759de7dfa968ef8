"""Definitions of a standby that stay different from its upstream's: a promotion would serve them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leveret.console.judging.links import StandbyLink, is_downstream
from leveret.console.sites.facts import SiteFacts


def conflict_warnings(sites: Sequence[SiteFacts]) -> list[str]:
    """Return a sentence for each standby with conflicts."""
    return [
        f"Definitions of site {site.site}: {site.schema.conflict_count} are in conflict with its upstream's, such as "
        f"{next(iter(site.schema.conflicts), 'one that it does not name')}."
        for site in sites
        if is_downstream(site) and site.schema.conflict_count
    ]


def queues_in_conflict(link: StandbyLink, sites: Sequence[SiteFacts]) -> Mapping[str, str]:
    """Return why queues of a standby stay different, by their names in its report; a standby reports only the first."""
    standby = next((site for site in sites if site.site == link.downstream), None)
    texts = [] if standby is None else [text for text in standby.schema.conflicts if isinstance(text, str)]
    return {place: reason for place, _, reason in (text.rpartition(": ") for text in texts)}


def place_of(vhost: str, queue: str) -> str:
    """Return the name of a queue in a report."""
    return f"queues {vhost}/{queue}"
