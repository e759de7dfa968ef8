"""`/api/nodes`: the nodes, with the operating system's figures for each; `/api/cluster-name`."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

import leveret
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.other_nodes import documents_of_others
from leveret.management.request.places import at_node, need_this_node
from leveret.management.request.replies import done
from leveret.management.resources.nodes.health import is_etcd_full
from leveret.management.resources.nodes.operations import log_places
from leveret.management.resources.nodes.overview import cluster_name, contexts, exchange_types
from leveret.management.views import node_stats
from leveret.management.views.memory import memory_of, relative
from leveret.model.definitions import GlobalParameter, Put

_OF_LISTS: Final = frozenset({"columns", "sort", "sort_reverse"})


class NodeNameBody(msgspec.Struct):
    """The body that names the cluster."""

    name: str


async def show_all(call: Call) -> Response:
    """All nodes by name, also stopped ones, and those that do not answer."""
    query = [each for each in call.query.multi_items() if each[0] not in _OF_LISTS]
    reported = {row["name"]: row for rows in await documents_of_others(call, query=query) for row in rows}
    reported[call.cluster.name] = node_json(call)
    names = [call.cluster.name] if call.is_part else call.cluster.members()
    return await call.plain_list([reported.get(name) or _named(call, name) for name in names], "name")


async def show(call: Call) -> Response:
    """One node; with `memory=true`, its memory by use; with `binary=true`, figures that only Erlang has."""
    name = call.path("name")
    if name != call.cluster.name and name in call.cluster.members():
        return call.show(_named(call, name))
    need_this_node(call)
    shown = node_json(call)
    if call.flag("memory"):
        shown["memory"] = memory_of(call.node)
    if call.flag("binary"):
        shown["binary"] = "not_available"
    return call.show(shown)


async def show_memory(call: Call) -> Response:
    """The node's memory by use."""
    need_this_node(call)
    return call.show({"memory": memory_of(call.node)})


async def show_relative_memory(call: Call) -> Response:
    """The same in percent."""
    need_this_node(call)
    return call.show({"memory": relative(memory_of(call.node))})


async def show_cluster_name(call: Call) -> Response:
    """The cluster's name."""
    return call.show({"name": cluster_name(call.node)})


async def set_cluster_name(call: Call) -> Response:
    """Name the cluster."""
    wanted = await call.body(NodeNameBody)
    await call.apply(Put(GlobalParameter(name="cluster_name", value=wanted.name)))
    return done()


def _named(call: Call, name: str) -> dict[str, Any]:
    """The row of another member that does not run, or does not answer."""
    return {"name": name, "type": "disc", "running": name in call.cluster.alive(), "cluster_links": []}


def _partitions(call: Call) -> list[str]:
    """The running nodes that this one cannot reach."""
    found: list[str] = call.cluster.status()["partitions"].get(call.cluster.name, [])
    return found


def node_json(call: Call) -> dict[str, Any]:
    """A node as RabbitMQ shows it, without unknown fields."""
    node = call.node
    return {
        "name": node.config.node_name,
        "type": "disc",
        "running": True,
        "being_drained": node.maintenance.is_draining,
        "uptime": node.uptime_ms,
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name}", "enabled": True}
            for name in node.config.amqp.auth_mechanisms
        ],
        "applications": [
            {
                "name": "leveret",
                "description": "Leveret",
                "version": leveret.__version__,
            },
        ],
        "contexts": contexts(call),
        "config_files": list(node.config.files),
        "log_files": list(log_places()),
        "enabled_plugins": [],
        "partitions": _partitions(call),
        "cluster_links": [],
        "followers": [_follower_json(each) for each in node.replication.status()["followers"]],
        "net_ticktime": 60,
        **node_stats.limits(node),
        "etcd_full_alarm": is_etcd_full(call),
        **call.rates.node(call.ranges()),
        **call.rates.overview((), call.ranges())["churn_rates"],
    }


def _follower_json(follower: dict[str, Any]) -> dict[str, Any]:
    """A follower under LavinMQ's names, also one that is not in sync."""
    return {
        "id": follower["node_id"],
        "name": follower["name"],
        "remote_address": follower["address"],
        "state": follower["state"],
        "in_sync": follower["in_sync"],
        "sent_bytes": follower["sent_bytes"],
        "acked_bytes": follower["acked_bytes"],
        "lag_in_bytes": follower["lag_bytes"],
        "compression_ratio": follower["compression_ratio"],
    }


_MONITORING: Final = Requirement.MONITORING
_THERE: Final = at_node()
ROUTES = [
    resource("/api/nodes", need=_MONITORING, GET=show_all),
    resource("/api/nodes/{name}", need=_MONITORING, place=_THERE, GET=show),
    resource("/api/nodes/{name}/memory", need=_MONITORING, place=_THERE, GET=show_memory),
    resource("/api/nodes/{name}/memory/relative", need=_MONITORING, place=_THERE, GET=show_relative_memory),
    resource(
        "/api/cluster-name",
        change=Requirement.ADMINISTRATOR,
        GET=show_cluster_name,
        PUT=set_cluster_name,
    ),
]
