"""Long answers are made in slices, and bodies arrive late: what was looked up may be gone or changed by then."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from leveret.management.metrics import scrape
from leveret.management.metrics.text import ROWS_AT_ONCE
from leveret.management.request import paged_lists
from leveret.model.definitions import Delete, Exchange, Put, Queue, User, Vhost
from tests.unit.management.resources.test_streams import FakeConnection

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import Message

    from tests.unit.management.conftest import Client, FakeNode


def slices_with(step: Callable[[], object]) -> Callable[[Iterable[Any]], AsyncIterator[Any]]:
    """`in_slices`, with a step of others before each item."""

    async def in_slices(items: Iterable[Any]) -> AsyncIterator[Any]:
        for item in items:
            step()
            yield item

    return in_slices


@pytest.fixture
def full(node: FakeNode) -> FakeNode:
    """A node with one of each in the virtual host `gone`."""
    node.broker.apply(Put(Vhost(name="gone")))
    node.broker.declare_queue(Queue(name="c", vhost="gone"))
    node.broker.declare_queue(Queue(name="s", vhost="gone", arguments={"x-queue-type": "stream"}))
    node.broker.apply(Put(Exchange(name="x", vhost="gone", type="direct")))
    connection = FakeConnection()
    connection.vhost = "gone"
    streams: Any = node.streams
    streams.connections = (connection,)
    return node


def delete_all(node: FakeNode) -> None:
    node.broker.apply(Delete("vhosts", ("gone",)))
    for connection in node.streams.connections:
        connection.subscriptions.clear()
        connection.publishers.clear()


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("queues", 2),
        ("queues?disable_stats=true", 2),
        ("queues?sort=memory", 2),
        ("exchanges/gone", 8),
        ("bindings", 2),
        ("consumers", 2),
        ("stream/consumers", 2),
        ("stream/publishers", 1),
        ("stream/connections", 1),
        ("connections", 1),
        ("permissions", 1),
    ],
)
def test_a_list_is_that_of_the_moment_of_its_request(
    operator: Client, full: FakeNode, monkeypatch: pytest.MonkeyPatch, path: str, count: int
) -> None:
    monkeypatch.setattr(paged_lists, "in_slices", slices_with(lambda: delete_all(full)))
    reply = operator.get(f"/api/{path}")
    assert (reply.status_code, len(reply.json())) == (200, count)
    assert ("gone",) not in full.broker.definitions.by_kind["vhosts"]


def test_exchanges_may_be_declared_during_a_scrape_of_them(
    anonymous: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(ROWS_AT_ONCE):
        node.broker.apply(Put(Exchange(name=f"x{number}", vhost="/", type="direct")))
    names = map("y{}".format, range(1000))

    def declare() -> None:
        node.broker.apply(Put(Vhost(name=next(names))))
        node.broker.apply(Put(Exchange(name=next(names), vhost="/", type="direct")))

    monkeypatch.setattr(scrape, "in_slices", slices_with(declare))
    text = anonymous.get("/metrics/detailed?family=exchange_names").text
    assert text.count('exchange="x') == ROWS_AT_ONCE
    assert "rabbitmq_identity_info" in text


def put_without_timeout(
    app: Starlette, path: str, body: dict[str, Any], meanwhile: Callable[[], object]
) -> int:
    """The status of a PUT of `guest`, with a step of others before its body arrives."""
    statuses: list[int] = []

    async def receive() -> Message:
        meanwhile()
        return {"type": "http.request", "body": msgspec.json.encode(body)}

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    scope = {"type": "http", "method": "PUT", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"authorization", b"Basic " + b64encode(b"guest:secret"))], "scheme": "http"}
    asyncio.run(app({**scope, "client": ("127.0.0.1", 5), "server": ("node", 80)}, receive, send))
    return statuses[0]


def test_a_limit_of_a_user_does_not_bring_an_earlier_password_or_a_deleted_user_back(
    app: Starlette, node: FakeNode
) -> None:
    node.add_user("u")
    new = User(name="u", password_hash="bmV3", tags=("monitoring",))
    users = node.broker.definitions.by_kind["users"]
    path = "/api/user-limits/u/max-channels"
    assert put_without_timeout(app, path, {"value": 5}, lambda: node.broker.apply(Put(new))) == 204
    assert users["u",] == msgspec.structs.replace(new, limits={"max-channels": 5})
    assert (
        put_without_timeout(app, path, {"value": 6}, lambda: node.broker.apply(Delete("users", ("u",))))
        == 400
    )
    assert ("u",) not in users


def test_a_purge_ends_in_order_although_the_node_has_stopped_serving_who_asked_for_it(
    admin: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception at its end would be one in the flush, which makes the changes of all clients durable."""
    node.broker.declare_queue(Queue(name="q", vhost="/"))

    async def commit() -> None:
        node.ended.set()
        await asyncio.sleep(0)

    monkeypatch.setattr(node, "messages_durable", commit)
    assert admin.delete("/api/queues/%2F/q/contents").status_code == 503
    node.host.flush()
