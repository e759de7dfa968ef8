"""The cost of ten thousand queues: their import, their memory, and a start with them.

A definitions file has a durable queue and a binding to `amq.topic` for each; one POST to the HTTP API imports it, as an
operator would do.
"""

from __future__ import annotations

import time
from typing import Any, Final

from bench.client import Connection
from bench.contenders import Node
from bench.management import call
from bench.rows import Reading, Row, Scenario, Settings, Target
from leveret.testing.network.ports import wait_until

QUEUES: Final = 10_000
QUEUES_QUICK: Final = 500
MEMORY_MB_MAX: Final = 300
START_S_MAX: Final = 10
IMPORT_S_MAX: Final = 4
START_TIMEOUT_S: Final = 120.0


def definitions(
    count: int, *, vhost: str = "/", exchange: str = "amq.topic"
) -> dict[str, list[dict[str, Any]]]:
    """Return the content of a definitions file: `count` durable queues, each bound with a key of its own."""
    names = [f"queue-{number:05}" for number in range(count)]
    return {
        "queues": [
            {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
            for name in names
        ],
        "bindings": [
            {
                "source": exchange,
                "vhost": vhost,
                "destination": name,
                "destination_type": "queue",
                "routing_key": f"{name}.#",
                "arguments": {},
            }
            for name in names
        ],
    }


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    count = QUEUES_QUICK if settings.quick else QUEUES
    started = time.monotonic()
    call(node, "POST", "/api/definitions", definitions(count))
    imported_s = time.monotonic() - started
    node.stop()
    started = time.monotonic()
    node.start()
    wait_until(lambda: _last_is_there(node, count), "the last queue after a restart", START_TIMEOUT_S)
    started_s = time.monotonic() - started
    return {
        "import": Reading(imported_s),
        "queues-start": Reading(started_s),
        "queues-memory": Reading(node.rss_bytes() / 1e6),
    }


def _last_is_there(node: Node, count: int) -> bool:
    connection = Connection(node.amqp_port)
    ready = connection.ready_messages(f"queue-{count - 1:05}")
    connection.close()
    return ready == 0


QUEUES_SCENARIO: Final = Scenario(
    (
        Row(
            "import",
            f"import {QUEUES:,} queues and bindings over HTTP",
            "s",
            False,
            Target("value", IMPORT_S_MAX),
        ),
        Row("queues-start", f"start with {QUEUES:,} queues", "s", False, Target("value", START_S_MAX)),
        Row(
            "queues-memory",
            f"resident memory with {QUEUES:,} queues",
            "MB",
            False,
            Target("value", MEMORY_MB_MAX),
        ),
    ),
    _run,
    once=True,
)
