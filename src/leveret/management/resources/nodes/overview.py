"""`/api/overview`: the totals of the cluster."""

from __future__ import annotations

import platform
import sys
from typing import Any, Final

from starlette.responses import Response

import leveret
from leveret.core.broker.routing import ROUTERS
from leveret.management.node import ManagedNode
from leveret.management.peers import (
    AnyPeer,
    amqp_connections,
    channels,
    consumers,
    other_connections,
)
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import sums_of, with_sum
from leveret.management.request.other_nodes import parts
from leveret.management.request.places import at_node, need_this_node
from leveret.management.request.replies import done
from leveret.management.views.listeners import open_listeners
from leveret.management.views.peer_view import user_of
from leveret.model.served_release import RABBITMQ_VERSION

_RETENTION_S: Final = {
    "global": [600, 3600, 28800, 86400],
    "basic": [600, 3600],
    "detailed": [600],
}


async def show(call: Call) -> Response:
    """Versions, and totals over the vhosts that the caller may see; for monitors, the listeners as well."""
    shown = {
        "management_version": leveret.__version__,
        "product_name": "Leveret",
        "product_version": leveret.__version__,
        "rabbitmq_version": RABBITMQ_VERSION,
        "erlang_version": "none",
        "erlang_full_version": f"none: Leveret runs on Python {platform.python_version()}",
        "python_version": platform.python_version(),
        "python_full_version": sys.version,
        "release_series_support_status": "supported",
        "cluster_name": cluster_name(call.node),
        "rates_mode": "basic",
        "sample_retention_policies": _RETENTION_S,
        "disable_stats": False,
        "enable_queue_totals": False,
        "is_op_policy_updating_enabled": True,
        "exchange_types": exchange_types(),
        "statistics_db_event_queue": 0,
        "object_totals": _object_totals(call),
        **call.rates.overview(_known_vhosts(call), call.ranges()),
    }
    if call.caller.has(Requirement.MONITORING):
        shown |= _listeners(call)
    for part in (await sums_of(call, ())).get((), ()):
        shown = _with_part(shown, part)
    return call.show(shown)


async def forget_all(call: Call) -> Response:
    """Forget the history of rates, on all nodes."""
    await parts(call, method="DELETE")
    call.rates.forget()
    return done()


async def forget(call: Call) -> Response:
    """Forget the history of rates of one node."""
    need_this_node(call)
    call.rates.forget()
    return done()


def _with_part(shown: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Totals with another node's counts added; definitions are equal at all nodes."""
    totals = with_sum(
        shown["object_totals"], (part["object_totals"],), ("channels", "connections", "consumers")
    )
    summed = with_sum(shown, (part,), ("message_stats", "queue_totals", "churn_rates"))
    lists: dict[str, Any] = {
        name: shown[name] + part[name] for name in ("listeners", "contexts") if name in shown
    }
    return {**summed, "object_totals": totals, **lists}


def exchange_types() -> list[dict[str, Any]]:
    """The types of exchanges."""
    return [
        {
            "name": name,
            "description": f"AMQP {name} exchange, as per the AMQP specification",
            "enabled": True,
        }
        for name in sorted(ROUTERS)
    ]


def cluster_name(node: ManagedNode) -> str:
    """The cluster's name set over the API, or else the configured one."""
    existing = node.broker.definitions.by_kind["global_parameters"].get(("cluster_name",))
    name = getattr(existing, "value", None)
    return name if isinstance(name, str) else node.config.cluster_name


def contexts(call: Call) -> list[dict[str, Any]]:
    """The web applications of the node: this one."""
    management = call.node.config.management
    return [
        {
            "description": "Leveret Management",
            "path": management.path_prefix or "/",
            "ip": management.ip,
            "port": str(management.port),
        }
    ]


def _known_vhosts(call: Call) -> list[str]:
    return [name for name in call.broker.topologies if call.caller.knows(name)]


def _object_totals(call: Call) -> dict[str, int]:
    seen = [call.broker.topologies[name] for name in _known_vhosts(call)]
    watched, node = call.caller.watched, call.node
    connections: list[AnyPeer] = [*amqp_connections(node), *other_connections(node)]
    return {
        "channels": len(watched(channels(node), lambda each: each.connection.user)),
        "connections": len(watched(connections, lambda each: each.user)),
        "consumers": len(watched(consumers(node), user_of)),
        "exchanges": sum(len(topology.exchanges) for topology in seen),
        "queues": sum(len(topology.queues) for topology in seen),
    }


def _listeners(call: Call) -> dict[str, Any]:
    name = call.node.config.node_name
    listeners = [
        {
            "node": name,
            "protocol": listener.protocol,
            "ip_address": listener.ip,
            "port": listener.port,
            "socket_opts": {},
        }
        for listener in open_listeners(call.node)
    ]
    return {
        "node": name,
        "listeners": listeners,
        "contexts": [{**each, "node": name} for each in contexts(call)],
    }


_OWN: Final[dict[str, Any]] = {"need": Requirement.ADMINISTRATOR, "on_followers": True, "defines": False}
ROUTES = [
    resource("/api/overview", GET=show),
    resource("/api/reset", **_OWN, DELETE=forget_all),
    resource("/api/reset/{name}", **_OWN, place=at_node(), DELETE=forget),
]
