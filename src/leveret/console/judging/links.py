"""Which site is whose standby, as the sites say it: nothing of it is configured here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from leveret.console.sites.documents import TransferredVhost
from leveret.console.sites.facts import SiteFacts

_ID_MARK: Final = "#"
DOWNSTREAM: Final = "downstream"
UPSTREAM: Final = "upstream"


class StandbyLink(NamedTuple):
    """A vhost of an upstream that a downstream transfers.

    Attributes:
        upstream: name of the site that is followed; empty if no site here is it.
        downstream: name of the site that follows; empty if only the upstream reports it, under `known_as`.
        lag_records: what the downstream lacks of what is known of the upstream, as who of the two is heard says.
        lag_ms: how long ago, at most, it had everything; None if nobody says.
        row: what the downstream reports; None if it is not heard of.
        upstream_lag_records: what the downstream lacks as the upstream reports it; None if it does not.
    """

    upstream: str
    downstream: str
    known_as: str
    vhost: str
    lag_records: int
    lag_ms: int | None
    missing_messages: int
    row: TransferredVhost | None
    upstream_lag_records: int | None = None


def standby_links(sites: Sequence[SiteFacts]) -> list[StandbyLink]:
    """Every link that a site reports, downstreams' reports first: they know more."""
    links: list[StandbyLink] = []
    for site in sites:
        if is_downstream(site):
            upstream = upstream_of(site, sites)
            links += [_reported(upstream, site, row) for row in site.standby.vhosts]
    seen = {(link.upstream, link.known_as, link.vhost) for link in links}
    for site in sites:
        for known in site.standby.downstreams:
            name, vhost = _cluster_of(known.downstream), known.virtual_host
            if (site.site, name, vhost) not in seen:
                lag, missing = known.lag_records, known.missing_messages
                links.append(StandbyLink(site.site, "", name, vhost, lag, None, missing, None, lag))
    return links


def is_downstream(site: SiteFacts) -> bool:
    """Whether a site follows another one, and is not promoted."""
    return site.standby.operating_mode == DOWNSTREAM


def upstream_of(site: SiteFacts, sites: Sequence[SiteFacts]) -> SiteFacts | None:
    """The site that a downstream follows: the one that knows this downstream, or else has the cluster's name."""
    names = {site.standby.downstream, _cluster_of(site.standby.downstream), site.overview.cluster_name} - {""}
    for other in sites:
        if other is not site and names & {known.downstream for known in other.standby.downstreams}:
            return other
    wanted = site.schema.upstream_cluster
    for other in sites:
        if other is not site and wanted and other.overview.cluster_name == wanted:
            return other
    return None


def _reported(upstream: SiteFacts | None, site: SiteFacts, row: TransferredVhost) -> StandbyLink:
    known_as = _cluster_of(site.standby.downstream) or site.overview.cluster_name
    missing, lag = row.missing_messages, None
    if upstream is not None:
        known = [each for each in upstream.standby.downstreams if each.virtual_host == row.virtual_host]
        lags = [each.lag_records for each in known if _cluster_of(each.downstream) == known_as]
        lag = max(lags, default=None)
        collected = upstream.standby.collected
        reported = (each.missing_messages for each in collected if each.virtual_host == row.virtual_host)
        missing = max(missing, *reported, 0)
    return StandbyLink(
        upstream.site if upstream else "",
        site.site,
        known_as,
        row.virtual_host,
        row.lag_records,
        row.lag_ms,
        missing,
        row,
        lag,
    )


def _cluster_of(reference: str) -> str:
    """The name of the cluster in the reference of a downstream."""
    name, mark, _ = reference.rpartition(_ID_MARK)
    return name if mark else reference
