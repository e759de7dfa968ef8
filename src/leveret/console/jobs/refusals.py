"""Why an operation makes no sense at a site, by what the site reports; empty where it does. Pure."""

from __future__ import annotations

from typing import Final

from leveret.console.jobs.readings import compared, scrubbed
from leveret.console.judging.links import cluster_of, is_downstream
from leveret.console.sites.documents import KnownDownstream
from leveret.console.sites.facts import SiteFacts

FOLLOWING_MS: Final = 60_000
"""A downstream gives a sign of life more often, also where nothing happens."""


def _not_serving(site: SiteFacts) -> str:
    """Neither RabbitMQ nor a follower or a fenced node has any part in what the commands of a standby are about."""
    return "" if site.replication.role == "leader" else "The node of this address leads nothing."


def _is_promoting(site: SiteFacts) -> bool:
    return site.standby.promotion is not None and site.standby.promotion.get("is_running") is True


def nothing_transferred(site: SiteFacts) -> str:
    """There is something to recover from: what a standby has, or what its promotion left out."""
    if refused := _not_serving(site):
        return refused
    if _is_promoting(site):
        return "The site is being promoted."
    return "" if is_downstream(site) or site.standby.left_out is not None else "The site is no standby."


def not_promotable(site: SiteFacts) -> str:
    """Also a promotion that was interrupted goes on, by promoting again."""
    if site.standby.promotion is not None and not _is_promoting(site):
        return _not_serving(site)
    return nothing_transferred(site)


def _is_following(downstream: KnownDownstream, site: SiteFacts) -> bool:
    return (
        downstream.last_seen is not None
        and site.heard_ms is not None
        and site.heard_ms - downstream.last_seen < FOLLOWING_MS
    )


def _follower(downstream: KnownDownstream) -> tuple[str, str]:
    return cluster_of(downstream), downstream.virtual_host


def not_replaced(site: SiteFacts) -> str:
    """A site returns to the one that took its place: so it was followed. One that was promoted took a place itself."""
    if refused := _not_serving(site):
        return refused
    if is_downstream(site) or site.standby.promotion is not None:
        return "The site is a standby."
    if not site.standby.downstreams:
        return "No site took the place of this one: none has followed it."
    # A vhost of a cluster moves between its nodes, each of which was seen when it had the vhost.
    following = {_follower(each) for each in site.standby.downstreams if _is_following(each, site)}
    if all(_follower(each) in following for each in site.standby.downstreams):
        return "The site is followed: none took its place."
    if not site.schema.upstream_endpoints:
        return (
            "The site has no upstream to return to: set the endpoints of the site that took its place first."
        )
    return ""


def not_follower(site: SiteFacts) -> str:
    """Only a follower becomes a leader."""
    return "" if site.replication.role == "follower" else "The node of this address is no follower."


def no_other_node(site: SiteFacts) -> str:
    """Leaders are spread over nodes that live."""
    if site.cluster.state != "member":
        return "The site is no cluster."
    alive = sum(member.alive for member in site.cluster.members)
    return "" if alive > 1 else "No other node of the cluster is alive."


def no_mirrors(site: SiteFacts) -> str:
    """Only a mirrored queue is synchronised."""
    if site.cluster.state != "member":
        return "The site is no cluster."
    return "" if any(queue.slave_nodes for queue in site.queues) else "No queue has mirrors."


def nothing_to_compare(site: SiteFacts) -> str:
    """There is another side, and no comparison yet."""
    if compared(site) is not None:
        return "A comparison is running."
    leader = site.replication.leader
    if (
        site.replication.role == "follower"
        and leader is not None
        and leader.state in ("streaming", "delayed")
    ):
        return ""
    return "" if site.replication.followers else "The node has no followers to compare with."


def cannot_scrub(site: SiteFacts) -> str:
    """One scrub at a time, and none of RabbitMQ."""
    if not site.replication.role:
        return "The site is no node of Leveret."
    return "A scrub is running." if scrubbed(site) is not None else ""
