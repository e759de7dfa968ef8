"""A scene that looks the same on every broker, and the shape of what the HTTP API says about it.

A shape is a line for each value: the path, where in the answer it is, and of what type. The shapes of
RabbitMQ are recorded in `http_shapes.txt`; `python -m tests.conformance.http_scene` records them anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pika

from leveret.testing.network.ports import wait_until
from leveret.wire.stream import commands as wire
from tests.conformance.brokers import RABBITMQ, Broker, running
from tests.conformance.rawclient import PATIENCE_S
from tests.conformance.stream_talker import StreamTalker

RECORDED: Final = Path(__file__).with_name("http_shapes.txt")
VHOST: Final = "scene"
PLUGINS: Final = ("rabbitmq_stream", "rabbitmq_stream_management")
"""Of RabbitMQ's, what the scene needs."""
SAMPLED_S: Final = 25.0
"""Statistics appear this late at worst; RabbitMQ samples every five seconds, and twice for a rate."""

PATHS: Final = (
    "overview",
    "cluster-name",
    "nodes",
    "nodes/$node",
    "whoami",
    "definitions",
    "definitions/scene",
    "connections",
    "vhosts/scene/connections",
    "connections/$connection",
    "connections/$connection/channels",
    "connections/username/guest",
    "channels",
    "vhosts/scene/channels",
    "channels/$channel",
    "consumers",
    "consumers/scene",
    "exchanges",
    "exchanges/scene",
    "exchanges/scene?page=1&page_size=3&columns=name,type",
    "exchanges/scene/e1",
    "exchanges/scene/e1/bindings/source",
    "exchanges/scene/e2/bindings/destination",
    "queues",
    "queues/scene",
    "queues/scene?page=1&page_size=2&columns=name,messages,message_stats.publish",
    "queues/scene?disable_stats=true",
    "queues/scene?disable_stats=true&enable_queue_totals=true",
    "queues/scene/q1",
    "queues/scene/qx",
    "queues/scene/q1/bindings",
    "bindings",
    "bindings/scene",
    "bindings/scene/e/e1/q/q1",
    "bindings/scene/e/e1/e/e2",
    "bindings/scene/e/e1/q/q1/a.%23",
    "vhosts",
    "vhosts/scene",
    "vhosts/scene/permissions",
    "vhosts/scene/topic-permissions",
    "users",
    "users/scene",
    "users/without-permissions",
    "users/scene/permissions",
    "users/scene/topic-permissions",
    "user-limits",
    "user-limits/scene",
    "vhost-limits",
    "vhost-limits/scene",
    "permissions",
    "permissions/scene/scene",
    "topic-permissions",
    "topic-permissions/scene/scene",
    "parameters",
    "parameters/operator_policy",
    "parameters/operator_policy/scene",
    "parameters/operator_policy/scene/op1",
    "global-parameters",
    "global-parameters/scene",
    "policies",
    "policies/scene",
    "policies/scene/p1",
    "operator-policies",
    "operator-policies/scene",
    "operator-policies/scene/op1",
    "aliveness-test/scene",
    "health/checks/alarms",
    "health/checks/local-alarms",
    "health/checks/certificate-expiration/1/months",
    "health/checks/port-listener/$port",
    "health/checks/port-listener/1",
    "health/checks/protocol-listener/amqp091",
    "health/checks/protocol-listener/mqtt",
    "health/checks/virtual-hosts",
    "health/checks/node-is-mirror-sync-critical",
    "health/checks/node-is-quorum-critical",
    "healthchecks/node",
    "feature-flags",
    "auth/attempts/$node",
    "extensions",
    "stream/connections",
    "stream/connections/scene",
    "stream/consumers",
    "stream/publishers",
)
"""What is asked for; `$node` and so on stand for names that the broker chose."""

OPAQUE: Final = frozenset(
    {
        "arguments",
        "client_properties",
        "cluster_state",
        "definition",
        "effective_policy_definition",
        "limits",
        "open_files",
        "readers",
        "socket_opts",
        "value",
    }
)
"""Objects whose keys somebody chose."""


@contextmanager
def played(broker: Broker) -> Iterator[httpx.Client]:
    """The scene, as long as the block lasts: messages, one got and not acknowledged, a consumer, all definitions."""
    with client_of(broker) as http, ExitStack() as stack:
        _declare(http)
        _play_streams(broker, stack)
        with broker.connect(vhost=VHOST, client_properties={"connection_name": "scene"}) as connection:
            _act(connection)
            wait_until(lambda: _is_sampled(connection, http), "statistics of the scene", SAMPLED_S)
            yield http


def client_of(broker: Broker, username: str = "guest", password: str = "guest") -> httpx.Client:
    """A client of the broker's API; paths are relative to it."""
    base = f"http://127.0.0.1:{broker.management_port}/api/"
    # RabbitMQ 3.10 answers a HEAD for what is not there with a body, and closes connections it said to keep.
    once = {"connection": "close"}
    return httpx.Client(base_url=base, auth=(username, password), timeout=PATIENCE_S, headers=once)


def _declare(http: httpx.Client) -> None:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    bodies: dict[str, Any] = {
        "vhosts/scene": {"description": "d", "tags": "a,b"},
        "users/scene": {"password": "p", "tags": "management"},
        "permissions/scene/guest": everything,
        "permissions/scene/scene": everything,
        "topic-permissions/scene/scene": {"exchange": "amq.topic", "write": ".*", "read": ".*"},
        "users/nobody": {"password": "p", "tags": ""},
        "user-limits/scene/max-channels": {"value": 10},
        "vhost-limits/scene/max-connections": {"value": 100},
        "global-parameters/scene": {"value": {"a": 1}},
        "policies/scene/p1": {"pattern": "^q1", "definition": {"max-length": 50}, "apply-to": "queues"},
        "operator-policies/scene/op1": {"pattern": "^q", "definition": {"max-length": 40}},
    }
    for path, body in bodies.items():
        http.put(path, json=body).raise_for_status()


def _act(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q1", durable=True, arguments={"x-max-length": 100})
    channel.queue_declare("qx", exclusive=True)
    channel.exchange_declare("e1", "topic", durable=True)
    channel.exchange_declare("e2", "fanout", durable=True)
    channel.queue_bind("q1", "e1", "a.#")
    channel.queue_bind("q1", "e1", "b", arguments={"k": 1})
    channel.exchange_bind("e2", "e1", "x")
    channel.basic_qos(prefetch_count=10)
    for number in range(5):
        stamped = pika.BasicProperties(delivery_mode=2, timestamp=1_700_000_000 + number)
        channel.basic_publish("e1", "a.b", b"hello", stamped)
    channel.basic_consume("qx", lambda *_: None, consumer_tag="ct", arguments={"x-priority": 3})
    connection.channel().basic_get("q1")


def _play_streams(broker: Broker, stack: ExitStack) -> None:
    """A queue of each other type, and a client of the stream protocol that publishes and reads until the end."""
    with broker.connect(vhost=VHOST) as connection:
        channel = connection.channel()
        channel.queue_declare("lazy", durable=True, arguments={"x-queue-mode": "lazy"})
        channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 5})
        channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("single", durable=True, arguments={"x-single-active-consumer": True})
        channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare("transient")
        channel.exchange_declare("e3", "headers")
    client = StreamTalker(broker.stream_port)
    stack.callback(client.socket.close)
    client.enter(VHOST)
    client.declare_publisher(1, "stream", "scene")
    client.publish(1, 1, 2, 3)
    client.await_one(wire.PublishConfirm)
    client.subscribe("stream")
    client.await_one(wire.Deliver)


def _is_sampled(connection: pika.BlockingConnection, http: httpx.Client) -> bool:
    connection.process_data_events(0)
    queue = http.get("queues/scene/q1").json()
    stats = queue.get("message_stats", {})
    channels = http.get("channels").json()
    return (
        stats.get("publish") == 5
        and stats.get("get") == 1
        and queue.get("messages_unacknowledged") == 1
        and "idle_since" in queue
        and bool(http.get("connections").json()[0:1])
        and len([each for each in channels if "message_stats" in each]) == 2
        and http.get("queues/scene/qx").json().get("consumers") == 1
        and http.get("queues/scene/stream").json().get("readers") not in (None, {})
        and all("memory" in each for each in http.get("queues/scene").json())
        and "message_stats" in http.get("exchanges/scene/e1").json()
        and "recv_oct" in http.get("vhosts/scene").json()
    )


def shapes(http: httpx.Client, broker: Broker) -> list[str]:
    """A line for each value of all answers: status and path, place, type."""
    names = {
        "$node": http.get("nodes").json()[0]["name"],
        "$connection": next(
            each["name"] for each in http.get("connections").json() if each["protocol"] == "AMQP 0-9-1"
        ),
        "$channel": http.get("channels").json()[0]["name"],
        "$port": str(broker.amqp_port),
    }
    lines: set[str] = set()
    for path in PATHS:
        asked = path
        for name, value in names.items():
            asked = asked.replace(name, quote(value, safe=""))
        reply = http.get(asked)
        lines |= {f"{reply.status_code} {path}  {line}" for line in _lines(reply.json(), "")}
    return sorted(lines)


def _lines(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        if not value or place.rpartition(".")[2] in OPAQUE:
            yield f"{place} object"
            return
        for key, each in value.items():
            yield from _lines(each, f"{place}.{key}")
    elif isinstance(value, list):
        if not value:
            yield f"{place}[]"
        for each in value:
            yield from _lines(each, f"{place}[]")
    else:
        yield f"{place} {_type(value)}"


def _type(value: Any) -> str:
    """RabbitMQ has null and an empty text for the same thing in different lists."""
    if value is None or value == "":
        return "nothing"
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, (int, float)) else "text"


def record() -> None:
    """Write what RabbitMQ says."""
    with running(RABBITMQ, plugins=PLUGINS) as broker, played(broker) as http:
        RECORDED.write_text("\n".join(shapes(http, broker)) + "\n")


if __name__ == "__main__":
    started = time.monotonic()
    record()
    print(f"recorded in {time.monotonic() - started:.0f} s")
