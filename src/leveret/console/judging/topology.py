"""The picture of all sites: their nodes, states and warnings, and the links between them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from leveret.console.judging.links import is_downstream, standby_links
from leveret.console.sites.documents import NodeStatus, TransferredVhost
from leveret.console.sites.facts import SiteFacts

Json = dict[str, Any]

CONNECTED: Final = "connected"
VHOSTS_MAX: Final = 20
"""The number of a standby's vhosts that are shown, the worst ones; the page `Am I safe?` has all."""


def site_rows(sites: Sequence[SiteFacts], now_ms: int) -> list[Json]:
    """Return a row for each site: whether and since when it answers, its role, nodes and warnings."""
    return [_site_row(site, now_ms) for site in sites]


def link_rows(sites: Sequence[SiteFacts], now_ms: int) -> list[Json]:
    """Return a row for each pair of sites: the number of transferred vhosts, and their longest lag."""
    by_name = {site.site: site for site in sites}
    pairs: dict[tuple[str, str], Json] = {}
    for link in standby_links(sites):
        target = link.downstream or link.known_as
        pair = pairs.setdefault(
            (link.upstream, target),
            {
                "from": link.upstream,
                "to": target,
                "vhosts": 0,
                "lag_records": 0,
                "lag_ms": None,
                "states": [],
            },
        )
        pair["vhosts"] += 1
        pair["lag_records"] = max(pair["lag_records"], link.lag_records)
        if link.lag_ms is not None:
            pair["lag_ms"] = max(pair["lag_ms"] or 0, link.lag_ms)
        state = link.row.state if link.row is not None else "not heard of"
        follower = by_name.get(link.downstream)
        if follower is not None and not follower.is_heard(now_ms):
            state = "not heard of"
        if state not in pair["states"]:
            pair["states"].append(state)
    return list(pairs.values())


def _site_row(site: SiteFacts, now_ms: int) -> Json:
    return {
        "site": site.site,
        "cluster_name": site.overview.cluster_name,
        "product": f"{site.overview.product_name} {site.overview.product_version}".strip(),
        "is_heard": site.is_heard(now_ms),
        "alive_since_ms": site.alive_since_ms,
        "heard_ms": site.heard_ms,
        "age_ms": site.age_ms(now_ms),
        "error": site.error,
        "refused": site.refused,
        "user": site.user,
        "tags": list(site.tags),
        "role": site_role(site),
        "vhost_count": len(site.standby.vhosts),
        "nodes": _nodes(site) if site.is_heard(now_ms) else [_as_not_heard(node) for node in _nodes(site)],
        "queues": len(site.queues),
        "queues_age_ms": None if site.queues_ms is None else now_ms - site.queues_ms,
        "messages": site.overview.queue_totals.get("messages"),
        "promotion": site.standby.promotion,
        "vhosts": _vhosts(site),
        "warnings": _warnings(site),
    }


def site_role(site: SiteFacts) -> str:
    """Return the site's role among the others, in a word or two."""
    if site.heard_ms is None:
        return "not heard of"
    if site.replication.role in ("follower", "fenced"):
        return site.replication.role
    if is_downstream(site):
        return "standby"
    if site.standby.downstreams:
        return "upstream"
    return "serving"


def _as_not_heard(node: Json) -> Json:
    """Return the row of a node whose site does not answer, without its state, which is unknown."""
    return node | {
        "is_running": False,
        "state": "not heard of",
        "link": "",
        "uptime_ms": None,
        "lag_records": None,
        "lag_s": None,
    }


def _vhosts(site: SiteFacts) -> list[Json]:
    """Return a standby's vhosts, worst link first, each with its node and the state of each upstream log."""
    return [
        {
            "vhost": row.virtual_host,
            "node": row.node,
            "owner": row.owner,
            "state": row.state or "unknown",
            "lag_ms": row.lag_ms,
            "lag_records": row.lag_records,
            "error": row.error,
            "logs": [
                {"node": each.node, "state": each.state, "lag_records": each.lag_records, "error": each.error}
                for each in row.nodes
            ],
        }
        for row in _worst_vhosts(site)
    ]


def _worst_vhosts(site: SiteFacts) -> list[TransferredVhost]:
    """Return the vhosts of a standby that are shown; none of a site that is no standby."""
    if not is_downstream(site):
        return []
    rows = sorted(site.standby.vhosts, key=lambda row: (row.state == CONNECTED, -(row.lag_ms or 0)))
    return rows[:VHOSTS_MAX]


def _nodes(site: SiteFacts) -> list[Json]:
    rows = [_node(node, site) for node in site.nodes]
    for follower in site.replication.followers:
        rows.append(
            {
                "name": follower.name,
                "role": "follower",
                "is_running": True,
                "state": "in sync" if follower.in_sync else follower.state.replace("_", " "),
                "link": "",
                "uptime_ms": None,
                "lag_records": follower.lag_records,
                "lag_s": follower.lag_s,
            }
        )
    return rows


def _node(node: NodeStatus, site: SiteFacts) -> Json:
    is_clustered = len(site.nodes) > 1
    role = "member" if is_clustered else (site.replication.role or "node")
    state = "running" if node.running else "not running"
    if node.being_drained:
        state = "draining"
    links = {each.node: each.state or "unknown" for each in site.standby.nodes} if is_downstream(site) else {}
    return {
        "name": node.name,
        "role": role,
        "is_running": node.running,
        "state": state,
        "link": links.get(node.name, "") if node.running else "",
        "uptime_ms": node.uptime,
        "lag_records": None,
        "lag_s": None,
    }


def _warnings(site: SiteFacts) -> list[str]:
    """Return warnings about the site for its operator, one sentence or text each."""
    found: list[str] = []
    for node in site.nodes:
        if node.partitions:
            found.append(f"Node {node.name} does not reach {', '.join(sorted(node.partitions))}.")
        for name, is_on in (
            ("memory", node.mem_alarm),
            ("disk", node.disk_free_alarm),
            ("file descriptor", node.file_descriptor_alarm),
        ):
            if is_on:
                found.append(f"Node {node.name} has a {name} alarm: publishers are blocked.")
    if site.replication.is_short:
        found.append("Fewer followers than replication.min_in_sync are in sync.")
    found += [
        f"Vhost {name}: a policy asks for a standby, but the vhost has no tag."
        for name in site.standby.untagged
    ]
    if site.schema.conflict_count:
        found.append(
            f"Definitions: {site.schema.conflict_count} entities are in conflict with the upstream's."
        )
    if site.schema.last_error:
        found.append(f"Definitions: {site.schema.last_error}")
    # The table of vhosts has the errors of their links.
    in_table = any(row.error and row.error in site.standby.error for row in _worst_vhosts(site))
    found += [error for error in ("" if in_table else site.standby.error, site.replication.error) if error]
    found += [f"{name}: {trouble}" for name, trouble in sorted(site.troubles.items())]
    if site.tags and not {"monitoring", "administrator"} & set(site.tags):
        found.append(f"User {site.user} has no tag monitoring: the site reports its queues only.")
    return found
