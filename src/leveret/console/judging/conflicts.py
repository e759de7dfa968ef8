"""Definitions of a standby that differ from its upstream's and stay as they are: a promotion would serve them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leveret.console.judging.links import StandbyLink, is_downstream
from leveret.console.sites.facts import SiteFacts


def conflict_warnings(sites: Sequence[SiteFacts]) -> list[str]:
    """A sentence a standby that has any."""
    return [
        f"Definitions of site {site.site}: {site.schema.conflict_count} are in conflict with its upstream's, such as "
        f"{next(iter(site.schema.conflicts), 'one that it does not name')}."
        for site in sites
        if is_downstream(site) and site.schema.conflict_count
    ]


def queues_in_conflict(link: StandbyLink, sites: Sequence[SiteFacts]) -> Mapping[str, str]:
    """Of a standby, why each queue stayed another one, by the name in the report; a standby reports the first few."""
    standby = next((site for site in sites if site.site == link.downstream), None)
    texts = [] if standby is None else [text for text in standby.schema.conflicts if isinstance(text, str)]
    return {place: reason for place, _, reason in (text.rpartition(": ") for text in texts)}


def place_of(vhost: str, queue: str) -> str:
    """What a report calls a queue."""
    return f"queues {vhost}/{queue}"
