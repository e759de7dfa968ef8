"""The links between upstreams and standbys, from the sites' reports: links are not configured here. Pure."""

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
        upstream: the name of the upstream; empty if the console does not know the site.
        downstream: the name of the downstream; empty if only the upstream reports it, under `known_as`.
        lag_records: the number of known records that the downstream lacks, by its own report, else by the upstream's.
        lag_ms: the longest possible time since the downstream had every record; None if no site reports it.
        row: the downstream's report; None without one.
        upstream_lags: by node of the upstream, the number of records that the downstream lacks by the node's report;
            empty without reports.
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
        """The number of records that the downstream lacks by the upstream nodes' reports; None without reports."""
        return sum(self.upstream_lags.values()) if self.upstream_lags else None


def standby_links(sites: Sequence[SiteFacts]) -> list[StandbyLink]:
    """Return every reported link; the reports of downstreams come first, because they have more details."""
    links: list[StandbyLink] = []
    for site in sites:
        if is_downstream(site):
            upstream = upstream_of(site, sites)
            links += [_reported(upstream, site, row) for row in site.standby.vhosts]
    seen = {(link.upstream, link.known_as, link.vhost) for link in links}
    for site in sites:
        left = {each.overview.cluster_name for each in standbys_that_left(site, sites)}
        # Several nodes of a cluster transfer, and the upstream lists each of them.
        for name, vhost in dict.fromkeys(
            (cluster_of(each), each.virtual_host) for each in _downstreams(site)
        ):
            if (site.site, name, vhost) not in seen and name not in left:
                links.append(_known(site, name, vhost))
    return links


def standbys_that_left(site: SiteFacts, sites: Sequence[SiteFacts]) -> list[SiteFacts]:
    """Return the promoted standbys of a site: it lists them as its downstreams, and they follow no site now."""
    known = {cluster_of(each) for each in _downstreams(site)}
    return [
        other
        for other in sites
        if other is not site
        and other.standby.operating_mode == UPSTREAM
        and other.overview.cluster_name in known
    ]


def is_downstream(site: SiteFacts) -> bool:
    """Return whether a site follows another one and is not promoted."""
    return site.standby.operating_mode == DOWNSTREAM


def upstream_of(site: SiteFacts, sites: Sequence[SiteFacts]) -> SiteFacts | None:
    """Return a downstream's upstream: the site that lists this downstream, else the site of its upstream's name."""
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
    """Return the name under which an upstream lists this site."""
    return _without_node(site.standby.downstream) or site.overview.cluster_name


def cluster_of(known: KnownDownstream) -> str:
    """Return the cluster name of a downstream that an upstream lists."""
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
    """Return a link that only the upstream reports."""
    lags = _lags_by_node(site, name, vhost, "")
    missing = max(
        each.missing_messages
        for each in _downstreams(site)
        if each.virtual_host == vhost and cluster_of(each) == name
    )
    return StandbyLink(site.site, "", name, vhost, sum(lags.values()), None, missing, None, lags)


def _lags_by_node(upstream: SiteFacts, name: str, vhost: str, transferring: str) -> dict[str, int]:
    """Return, by node of the upstream, the number of records of its log that a downstream lacks.

    If several nodes of the downstream are listed, the one that is `transferring` the vhost counts, else the one with
    the smallest lag.
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
    """Return the cluster's name from a reference to its node, `CLUSTER/NAME@HOST`; other references stay."""
    name = _without_id(reference)
    cluster, slash, node = name.rpartition(_NODE_MARK)
    return cluster if slash and "@" in node else name
