"""The firehose in a cluster: each node has its own, which copies the messages that the node's clients send and get.

RabbitMQ has no suite for it; its guide says "on a per-node, per-vhost basis".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from leveret.testing.mirror_scenarios.stage import Case, Stage
from leveret.testing.sites.mirror_cluster import ClusterNode

TRACES: Final = "traces"


def _report(stage: Stage) -> None:
    for node in stage.nodes:
        (row,) = stage.cluster.api("GET", "vhosts", at=node)
        stage.say(f"traced at {stage.letter(node)}: {row['tracing']}")


def _use(stage: Stage, node: ClusterNode, channel: Any, queues: Sequence[str]) -> None:
    for queue in queues:
        channel.basic_publish("", queue, f"by {stage.letter(node)} to {queue}".encode())
        assert channel.basic_get(queue, auto_ack=True)[0] is not None, f"{queue} is empty"


def of_one_node(stage: Stage) -> None:
    """Turned on at one node, it copies no message of other nodes' clients, at any leader of the queue."""
    a, b, _ = stage.nodes
    queues = ["led-by-a", "led-by-b"]
    with stage.cluster.channel(a) as here, stage.cluster.channel(b) as there:
        here.queue_declare(queues[0], durable=True)
        there.queue_declare(queues[1], durable=True)
        here.queue_declare(TRACES, durable=True)
        here.queue_bind(TRACES, "amq.rabbitmq.trace", "#")
        stage.cluster.api("PUT", "vhosts/%2F", {"tracing": True}, at=a)
        _report(stage)
        # The messages that must not be copied go first: their copies would come before the last expected one.
        _use(stage, b, there, queues)
        _use(stage, a, here, queues)
        stage.cluster.wait_messages(TRACES, 2 * len(queues))
        stage.cluster.api("PUT", "vhosts/%2F", {"tracing": False}, at=a)
        while (message := here.basic_get(TRACES, auto_ack=True))[0] is not None:
            method, properties, body = message
            stage.say(f"{properties.headers['node']} copied {method.routing_key}: {body.decode()}")


CASES: Final = (Case(of_one_node),)
