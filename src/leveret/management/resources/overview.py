"""`/api/overview`: the whole in a few numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from starlette.responses import Response

import leveret
from leveret.core.routing import ROUTERS
from leveret.management.call import Call, resource
from leveret.management.consumer_view import channels_of, connections_of, consumers_of
from leveret.management.replies import json_reply

RABBITMQ_VERSION: Final = "3.13.7"
"""The release whose API this one follows; RabbitMQ's tools look at it before they ask for more."""


async def show(call: Call) -> Response:
    """Versions, listeners and totals, over what the caller sees."""
    config = call.node.config
    return json_reply(
        {
            "management_version": leveret.__version__,
            "product_name": "Leveret",
            "product_version": leveret.__version__,
            "rabbitmq_version": RABBITMQ_VERSION,
            "cluster_name": config.cluster_name,
            "node": config.node_name,
            "rates_mode": "none",
            "disable_stats": False,
            "enable_queue_totals": True,
            "exchange_types": [{"name": name, "enabled": True} for name in sorted(ROUTERS)],
            "queue_totals": _queue_totals(call),
            "object_totals": _object_totals(call),
            "message_stats": {"publish": sum(queue.published_total for queue in call.broker.queues.values())},
            "listeners": list(_listeners(call)),
        }
    )


def _queue_totals(call: Call) -> dict[str, int]:
    seen = [queue for key, queue in call.broker.queues.items() if call.caller.sees(key[0])]
    ready = sum(queue.ready_count for queue in seen)
    unacked = sum(queue.unacked_count for queue in seen)
    return {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}


def _object_totals(call: Call) -> dict[str, int]:
    seen = [topology for name, topology in call.broker.topologies.items() if call.caller.sees(name)]
    return {
        "channels": len(channels_of(call.node)),
        "connections": len(connections_of(call.node)),
        "consumers": len(consumers_of(call.node)),
        "exchanges": sum(len(topology.exchanges) for topology in seen),
        "queues": sum(len(topology.queue_names) for topology in seen),
    }


def _listeners(call: Call) -> Iterator[dict[str, Any]]:
    config = call.node.config
    places = [
        *(("amqp", *address) for address in config.listeners.amqp),
        *(("stream", *address) for address in config.listeners.stream),
        ("http", config.management.ip, config.management.port),
    ]
    for protocol, ip, port in places:
        yield {"node": config.node_name, "protocol": protocol, "ip_address": ip, "port": port}


ROUTES = [resource("/api/overview", GET=show)]
