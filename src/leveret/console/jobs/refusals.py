"""The reasons why an operation does not apply to a site, from the site's reports; empty if it applies. Pure."""

from __future__ import annotations

from typing import Final

from leveret.console.jobs.readings import compared, scrubbed
from leveret.console.judging.links import cluster_of, is_downstream
from leveret.console.sites.documents import KnownDownstream
from leveret.console.sites.facts import SiteFacts

FOLLOWING_MS: Final = 60_000
"""An idle downstream, too, contacts its upstream more often than this."""


def _not_serving(site: SiteFacts) -> str:
    """Refuse the commands of a standby at RabbitMQ, at a follower and at a fenced node."""
    return "" if site.replication.role == "leader" else "The node of this address leads nothing."


def _is_promoting(site: SiteFacts) -> bool:
    return site.standby.promotion is not None and site.standby.promotion.get("is_running") is True


def nothing_transferred(site: SiteFacts) -> str:
    """Refuse a site without data to recover: neither a standby's archive nor data that its promotion left out."""
    if refused := _not_serving(site):
        return refused
    if _is_promoting(site):
        return "The site is being promoted."
    return "" if is_downstream(site) or site.standby.left_out is not None else "The site is no standby."


def not_promotable(site: SiteFacts) -> str:
    """Refuse as `nothing_transferred`, but allow the continuation of an interrupted promotion."""
    if site.standby.promotion is not None and not _is_promoting(site):
        return _not_serving(site)
    return nothing_transferred(site)


def _is_following(downstream: KnownDownstream, site: SiteFacts) -> bool:
    return (
        downstream.last_seen is not None
        and site.heard_ms is not None
        and site.heard_ms - downstream.last_seen < FOLLOWING_MS
    )


def _place(downstream: KnownDownstream) -> tuple[str, str]:
    """The downstream's cluster, whichever of its nodes it is, and the vhost."""
    return cluster_of(downstream), downstream.virtual_host


def not_replaced(site: SiteFacts) -> str:
    """Refuse the return of a site that no other site replaced: it is a standby, has none, or is still followed."""
    if refused := _not_serving(site):
        return refused
    if is_downstream(site) or site.standby.promotion is not None:
        return "The site is a standby."
    if not site.standby.downstreams:
        return "No site took the place of this one: none has followed it."
    # A cluster's vhost moves between nodes, and `last_seen` of each node is from its own time with the vhost.
    following = {_place(each) for each in site.standby.downstreams if _is_following(each, site)}
    if all(_place(each) in following for each in site.standby.downstreams):
        return "The site is followed: none took its place."
    if not site.schema.upstream_endpoints:
        return (
            "The site has no upstream to return to: set the endpoints of the site that took its place first."
        )
    return ""


def not_follower(site: SiteFacts) -> str:
    """Refuse a node that is no follower."""
    return "" if site.replication.role == "follower" else "The node of this address is no follower."


def no_other_node(site: SiteFacts) -> str:
    """Refuse a cluster without a second running node to spread leaders to."""
    if site.cluster.state != "member":
        return "The site is no cluster."
    alive = sum(member.alive for member in site.cluster.members)
    return "" if alive > 1 else "No other node of the cluster is alive."


def no_mirrors(site: SiteFacts) -> str:
    """Refuse a site without mirrored queues."""
    if site.cluster.state != "member":
        return "The site is no cluster."
    return "" if any(queue.slave_nodes for queue in site.queues) else "No queue has mirrors."


def nothing_to_compare(site: SiteFacts) -> str:
    """Refuse a node without a leader or followers to compare with, and during a comparison."""
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
    """Refuse RabbitMQ, and a second scrub at the same time."""
    if not site.replication.role:
        return "The site is no node of Leveret."
    return "A scrub is running." if scrubbed(site) is not None else ""
