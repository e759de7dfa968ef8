"""Which site is whose standby, as the sites say it: nothing of it is configured here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from leveret.console.sites.documents import KnownDownstream, TransferredVhost
from leveret.console.sites.facts import SiteFacts

_ID_MARK: Final = "#"
_NODE_MARK: Final = "/"
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
        upstream_lags: what the downstream lacks as the upstream's nodes report it, by node; empty if none does.
    """

    upstream: str
    downstream: str
    known_as: str
    vhost: str
    lag_records: int
    lag_ms: int | None
    missing_messages: int
    row: TransferredVhost | None
    upstream_lags: Mapping[str, int] = MappingProxyType({})

    @property
    def upstream_lag_records(self) -> int | None:
        """What the downstream lacks of the logs of all of the upstream's nodes; None if none of them says."""
        return sum(self.upstream_lags.values()) if self.upstream_lags else None


def standby_links(sites: Sequence[SiteFacts]) -> list[StandbyLink]:
    """Every link that a site reports, downstreams' reports first: they know more."""
    links: list[StandbyLink] = []
    for site in sites:
        if is_downstream(site):
            upstream = upstream_of(site, sites)
            links += [_reported(upstream, site, row) for row in site.standby.vhosts]
    seen = {(link.upstream, link.known_as, link.vhost) for link in links}
    for site in sites:
        left = {each.overview.cluster_name for each in standbys_that_left(site, sites)}
        # A cluster transfers by several nodes, of which the upstream knows each by itself.
        for name, vhost in dict.fromkeys(
            (cluster_of(each), each.virtual_host) for each in _downstreams(site)
        ):
            if (site.site, name, vhost) not in seen and name not in left:
                links.append(_known(site, name, vhost))
    return links


def standbys_that_left(site: SiteFacts, sites: Sequence[SiteFacts]) -> list[SiteFacts]:
    """The sites that have followed this one, as it remembers, and follow nobody now: they were promoted."""
    known = {cluster_of(each) for each in _downstreams(site)}
    return [
        other
        for other in sites
        if other is not site
        and other.standby.operating_mode == UPSTREAM
        and other.overview.cluster_name in known
    ]


def is_downstream(site: SiteFacts) -> bool:
    """Whether a site follows another one, and is not promoted."""
    return site.standby.operating_mode == DOWNSTREAM


def upstream_of(site: SiteFacts, sites: Sequence[SiteFacts]) -> SiteFacts | None:
    """The site that a downstream follows: the one that knows this downstream, or else has the cluster's name."""
    names = {site.standby.downstream, name_of(site)} - {""}
    for other in sites:
        known = {name for each in _downstreams(other) for name in (each.downstream, cluster_of(each))}
        if other is not site and names & known:
            return other
    wanted = site.schema.upstream_cluster
    for other in sites:
        if other is not site and wanted and other.overview.cluster_name == wanted:
            return other
    return None


def name_of(site: SiteFacts) -> str:
    """The name by which an upstream knows this site."""
    return _without_node(site.standby.downstream) or site.overview.cluster_name


def cluster_of(known: KnownDownstream) -> str:
    """The name of the cluster of a downstream that an upstream knows."""
    return _without_node(known.downstream)


def _reported(upstream: SiteFacts | None, site: SiteFacts, row: TransferredVhost) -> StandbyLink:
    known_as, missing = name_of(site), row.missing_messages
    lags: Mapping[str, int] = {}
    if upstream is not None:
        lags = _lags_by_node(upstream, known_as, row.virtual_host, row.node)
        collected = [each for each in upstream.standby.collected if each.virtual_host == row.virtual_host]
        missing = max(missing, sum(each.missing_messages for each in collected))
    return StandbyLink(
        upstream.site if upstream else "",
        site.site,
        known_as,
        row.virtual_host,
        row.lag_records,
        row.lag_ms,
        missing,
        row,
        lags,
    )


def _known(site: SiteFacts, name: str, vhost: str) -> StandbyLink:
    """A link that only the upstream reports."""
    lags = _lags_by_node(site, name, vhost, "")
    missing = max(
        each.missing_messages
        for each in _downstreams(site)
        if each.virtual_host == vhost and cluster_of(each) == name
    )
    return StandbyLink(site.site, "", name, vhost, sum(lags.values()), None, missing, None, lags)


def _lags_by_node(upstream: SiteFacts, name: str, vhost: str, transferring: str) -> dict[str, int]:
    """By node of the upstream, what a downstream lacks of its log.

    Of a downstream with several nodes the one that is `transferring` the vhost counts; without that, the nearest.
    """
    known = [
        each for each in _downstreams(upstream) if each.virtual_host == vhost and cluster_of(each) == name
    ]
    own = [
        each for each in known if transferring and _without_id(each.downstream) == f"{name}/{transferring}"
    ]
    lags: dict[str, int] = {}
    for each in own or known:
        lags[each.node] = min(each.lag_records, lags.get(each.node, each.lag_records))
    return lags


def _downstreams(site: SiteFacts) -> Sequence[KnownDownstream]:
    return site.standby.downstreams


def _without_id(reference: str) -> str:
    name, mark, _ = reference.rpartition(_ID_MARK)
    return name if mark else reference


def _without_node(reference: str) -> str:
    """A cluster's node is known as `CLUSTER/NAME@HOST`."""
    name = _without_id(reference)
    cluster, slash, node = name.rpartition(_NODE_MARK)
    return cluster if slash and "@" in node else name
