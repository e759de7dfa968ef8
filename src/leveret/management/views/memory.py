"""The node's memory by use, where known: waiting bodies, connections, the rest."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from leveret.core.rules.validation import QUORUM, STREAM, queue_type
from leveret.management.node import ManagedNode
from leveret.management.peers import amqp_connections
from leveret.runtime.process.proc import read_proc, used_memory_bytes

_BY_TYPE: Final = {QUORUM: "quorum_queue_procs", STREAM: "stream_queue_procs"}
_CLASSIC: Final = "queue_procs"
_KIB: Final = 1024

_NOT_APART: Final = (
    "allocated_unused", "atom", "binary", "connection_channels", "connection_other", "connection_readers", "mgmt_db",
    "mnesia", "msg_index", "other_ets", "other_system", "plugins", "queue_slave_procs", "quorum_ets",
    "quorum_queue_dlx_procs", "reserved_unallocated", "stream_queue_coordinator_procs",
    "stream_queue_replica_reader_procs",
)  # fmt: skip
"""RabbitMQ's uses that Leveret lacks or does not measure: `other_proc` includes them."""


def memory_of(node: ManagedNode) -> dict[str, Any]:
    """Octets by use; their sum is the resident memory."""
    resident = used_memory_bytes()
    code = min(_of_files(), resident)
    held = Counter({_CLASSIC: 0, **dict.fromkeys(_BY_TYPE.values(), 0)})
    for queue in node.broker.queues.values():
        held[_BY_TYPE.get(queue_type(queue.definition.arguments), _CLASSIC)] += queue.window_bytes
    writers = sum(connection.out_bytes for connection in amqp_connections(node))
    return {
        **dict.fromkeys(_NOT_APART, 0),
        **held,
        "connection_writers": writers,
        "code": code,
        "other_proc": max(0, resident - code - writers - held.total()),
        "strategy": "rss",
        "total": {"rss": resident, "allocated": resident, "erlang": resident - code},
    }


def _of_files() -> int:
    """The resident octets of the program and its libraries."""
    status = read_proc("/proc/self/status")
    return _KIB * int(status.partition("RssFile:")[2].split(maxsplit=1)[0])


def relative(memory: dict[str, Any]) -> dict[str, Any]:
    """The same in percent of the resident memory, rounded up as in RabbitMQ."""
    total = memory["total"]["rss"]
    parts = {name: octets for name, octets in memory.items() if isinstance(octets, int)}
    return {
        "total": 100,
        **{name: -(-octets * 100 // total) for name, octets in parts.items()},
    }
