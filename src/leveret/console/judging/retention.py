"""Warnings before an upstream's retention drops records that a standby still lacks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leveret.console.judging.links import StandbyLink
from leveret.console.sites.documents import CollectedVhost
from leveret.console.sites.facts import SiteFacts

WARN_FROM: Final = 0.5
"""The part of the retention that a standby may lack without a warning: an equal part is left for a reaction."""


def retention_used(upstream: SiteFacts, link: StandbyLink, now_ms: int) -> float | None:
    """Return the part of the upstream's retention that the standby lacks: by size or by age, whichever is larger.

    At 1 the upstream drops records that the standby lacks. The size is estimated as if all records had the same size.
    None if no site reports it.
    """
    rows = [each for each in upstream.standby.collected if each.virtual_host == link.vhost]
    # In a cluster each node has a log of the queues that it leads, and the retention limits each log alone.
    used = [
        _used_of_log(upstream, row, link.upstream_lags.get(row.node, link.lag_records), now_ms)
        for row in rows
    ]
    return max((each for each in used if each is not None), default=None)


def _used_of_log(upstream: SiteFacts, row: CollectedVhost, lag: int, now_ms: int) -> float | None:
    if not row.kept:
        return None
    part = min(1.0, lag / row.kept)
    used: list[float] = []
    if upstream.standby.retention_bytes_max:
        used.append(part * row.bytes / upstream.standby.retention_bytes_max)
    if upstream.standby.retention_ms_max and row.oldest_ms is not None:
        # The standby lacks the newest part; this is the age of its first record if records came evenly.
        oldest_lacked_ms = (
            now_ms - (row.newest_ms or now_ms) + part * ((row.newest_ms or now_ms) - row.oldest_ms)
        )
        used.append(oldest_lacked_ms / upstream.standby.retention_ms_max if lag else 0.0)
    return max(used, default=None)


def retention_warning(upstream: SiteFacts, link: StandbyLink, now_ms: int) -> str:
    """Return the warning, one or two sentences; empty below `WARN_FROM`."""
    used = retention_used(upstream, link, now_ms)
    if used is None or used < WARN_FROM:
        return ""
    place = link.downstream or link.known_as
    return (
        f"Retention overtakes standby {place} soon: the missing records of vhost {link.vhost} are {min(used, 1):.0%} "
        f"of the limit at site {upstream.site} (standby.replication.retention). Connect the standby, or raise the "
        "limit."
    )


def retention_warnings(sites: Sequence[SiteFacts], links: Sequence[StandbyLink], now_ms: int) -> list[str]:
    """Return the warnings of all links."""
    by_name = {site.site: site for site in sites}
    found = [
        retention_warning(by_name[link.upstream], link, now_ms) for link in links if link.upstream in by_name
    ]
    return [text for text in found if text]
