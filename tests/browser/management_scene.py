"""A scene that looks the same on every broker, and which cells of the management page it fills.

A line is a page and the section and heading of a cell that says something there, or a chart that is drawn. Those of
RabbitMQ are recorded in `management_cells.txt`; `python -m tests.browser.management_scene` records them anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pika

from leveret.testing.network.ports import wait_until
from leveret.testing.servers.chromium import Chromium
from tests.browser.management_page import FILES, ManagementPage, has_value
from tests.conformance.brokers import LEVERET, RABBITMQ, Broker, running
from tests.conformance.http_scene import client_of

RECORDED: Final = Path(__file__).with_name("management_cells.txt")
USERS: Final = ("administrator", "monitoring", "policymaker", "management", "none")
"""Users whose name and password is the tag that they have."""
_RATES_S: Final = 40.0
"""Rates appear this late at worst: RabbitMQ samples every five seconds, and its page looks at the last but one."""
_ASK_S: Final = 0.5
_STEP_S: Final = 0.02
_ALL: Final = {"configure": ".*", "write": ".*", "read": ".*"}
_SHOW_ALL_COLUMNS: Final = """() => {
    for (const mode in COLUMNS)
        for (const group in COLUMNS[mode])
            for (const column of COLUMNS[mode][group]) store_pref('column-' + mode + '-' + column[0], 'true');
}"""


@contextmanager
def serving(kind: str) -> Iterator[Broker]:
    """Run a broker of this kind that serves the page."""
    if kind == RABBITMQ:
        with running(RABBITMQ, plugins=("rabbitmq_stream",)) as broker:
            yield broker
    else:
        with running(LEVERET, {"management.ui.path": FILES}) as broker:
            yield broker


def declare(broker: Broker) -> None:
    """Make one of everything."""
    classic = {"x-message-ttl": 600_000, "x-max-length": 100_000}
    bodies: dict[str, dict[str, object]] = {
        "vhosts/other": {"description": "the other", "tags": "a,b"},
        "permissions/other/guest": {**_ALL},
        **{f"users/{user}": {"password": user, "tags": "" if user == "none" else user} for user in USERS},
        **{f"permissions/%2F/{user}": {**_ALL} for user in USERS},
        "topic-permissions/%2F/monitoring": {"exchange": "amq.topic", "write": "^a", "read": "^b"},
        "queues/%2F/classic": {"durable": True, "arguments": classic},
        "queues/%2F/quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
        "queues/%2F/stream": {"durable": True, "arguments": {"x-queue-type": "stream"}},
        "queues/other/elsewhere": {"durable": False},
        "exchanges/%2F/e1": {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "e2"}},
        "exchanges/%2F/e2": {"type": "fanout", "durable": True},
        "policies/%2F/p1": {"pattern": "^cl", "definition": {"max-length": 50_000}, "apply-to": "queues"},
        "operator-policies/%2F/op1": {"pattern": "^cl", "definition": {"max-length": 60_000}},
        "vhost-limits/%2F/max-connections": {"value": 100},
        "user-limits/guest/max-channels": {"value": 200},
    }
    with client_of(broker) as http:
        for path, body in bodies.items():
            http.put(path, json=body).raise_for_status()
        for queue in ("classic", "quorum", "stream"):
            http.post(f"bindings/%2F/e/e1/q/{queue}", json={"routing_key": "a.#"}).raise_for_status()
        http.post(
            "bindings/%2F/e/e1/e/e2", json={"routing_key": "b", "arguments": {"k": "v"}}
        ).raise_for_status()


@contextmanager
def applications(broker: Broker) -> Iterator[None]:
    """Clients that publish with confirms, consume, get and have a transaction, until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=_work, args=(broker, stop))
    thread.start()
    try:
        wait_until(lambda: _has_rates(broker), "rates", _RATES_S, interval_s=_ASK_S)
        yield
    finally:
        stop.set()
        thread.join()


def _work(broker: Broker, stop: threading.Event) -> None:
    with broker.connect(client_properties={"connection_name": "applications"}) as connection:
        publisher, consumer, owner = (connection.channel() for _ in range(3))
        publisher.confirm_delivery()
        publisher.basic_qos(prefetch_count=10)
        consumer.basic_qos(prefetch_count=5)
        consumer.basic_consume("quorum", lambda channel, method, *_: channel.basic_ack(method.delivery_tag))
        held: list[int] = []
        consumer.basic_consume("classic", lambda _, method, *__: held.append(method.delivery_tag))
        owner.queue_declare("owned", exclusive=True)
        owner.tx_select()
        # More than is taken away, so that all that looks for a message finds one.
        for turn in count():
            publisher.basic_publish("e1", "a.b", b"x" * 100, pika.BasicProperties(delivery_mode=2))
            connection.process_data_events(0)
            if not turn % 4:
                publisher.basic_get("classic", auto_ack=True)
            elif turn % 2 and held:
                consumer.basic_ack(held.pop(0))
            if stop.wait(_STEP_S):
                return


def _has_rates(broker: Broker) -> bool:
    stats = broker.api("overview").get("message_stats", {})
    classic = broker.api("queues/%2F/classic")
    return (
        stats.get("publish_details", {}).get("rate", 0) > 0
        and stats.get("deliver_details", {}).get("rate", 0) > 0
        and stats.get("get_no_ack_details", {}).get("rate", 0) > 0
        and classic.get("message_stats", {}).get("ack_details", {}).get("rate", 0) > 0
        and len(broker.api("channels")) == len(("publisher", "consumer", "owner"))
        and all("memory" in each for each in broker.api("queues"))
    )


def pages_of(broker: Broker) -> dict[str, tuple[str, ...]]:
    """Each page that the scene has, by a name, with the parts of its path."""
    node = broker.api("nodes")[0]["name"]
    connection = broker.api("connections")[0]["name"]
    return {
        "overview": ("",),
        "node": ("nodes", node),
        "connections": ("connections",),
        "connection": ("connections", connection),
        "channels": ("channels",),
        **{f"channel {number}": ("channels", f"{connection} ({number})") for number in (1, 2, 3)},
        "exchanges": ("exchanges",),
        "exchange": ("exchanges", "/", "e1"),
        "default exchange": ("exchanges", "/", "amq.default"),
        "queues": ("queues",),
        **{f"queue {name}": ("queues", "/", name) for name in ("classic", "quorum", "stream", "owned")},
        "users": ("users",),
        "user": ("users", "monitoring"),
        "vhosts": ("vhosts",),
        "vhost": ("vhosts", "/"),
        "feature flags": ("feature-flags",),
        "policies": ("policies",),
        "policy": ("policies", "/", "p1"),
        "limits": ("limits",),
        "cluster name": ("cluster-name",),
    }


def walk(
    page: ManagementPage, broker: Broker, pictures: Path | None = None
) -> Iterator[tuple[str, set[str]]]:
    """Open one page after the other, and let it refresh itself; its name, and the lines of what it fills.

    Args:
        page: where an administrator is logged in.
        broker: with `applications` at work.
        pictures: a folder for a picture of each page.
    """
    node = broker.api("nodes")[0]["name"]
    page.page.evaluate(_SHOW_ALL_COLUMNS)
    for name, path in pages_of(broker).items():
        page.open(*path)
        if name == "node":
            page.page.locator("[query=memory]").click()
            page.page.locator("[query=binary]").click()
        page.refresh()
        if pictures is not None:
            page.picture(pictures / f"{name}.png")
        filled = {key for key, texts in page.cells().items() if any(map(has_value, texts))}
        drawn = {f"chart {chart}" for chart, is_drawn in page.charts().items() if is_drawn}
        yield name, {f"{name}  {line}".replace(node, "$node") for line in filled | drawn}


def record() -> None:
    """Write what RabbitMQ fills."""
    with serving(RABBITMQ) as broker, Chromium() as chromium, chromium.visit() as visit:
        declare(broker)
        with applications(broker):
            page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
            page.log_in("guest", "guest")
            lines = {line for _, filled in walk(page, broker) for line in filled}
    RECORDED.write_text("\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    record()
