"""What the node's memory is used for, as far as it is known: bodies that wait, what connections hold, the rest."""

from __future__ import annotations

from typing import Any

from leveret.management.node import ManagedNode
from leveret.management.peers import amqp_connections
from leveret.runtime.node.alarms import used_memory_bytes


def memory_of(node: ManagedNode) -> dict[str, Any]:
    """Octets by use; they add up to what is resident."""
    resident = used_memory_bytes()
    writers = sum(connection.out_bytes for connection in amqp_connections(node))
    queues = sum(queue.window_bytes for queue in node.broker.queues.values())
    other = max(0, resident - writers - queues)
    return {
        "connection_writers": writers,
        "queue_procs": queues,
        "other_proc": other,
        "strategy": "rss",
        "total": {"rss": resident, "allocated": resident, "erlang": 0},
    }


def relative(memory: dict[str, Any]) -> dict[str, Any]:
    """The same in percent of what is resident, rounded up as RabbitMQ does."""
    total = memory["total"]["rss"]
    parts = {name: octets for name, octets in memory.items() if isinstance(octets, int)}
    return {
        "total": 100,
        **{name: -(-octets * 100 // total) for name, octets in parts.items()},
    }
