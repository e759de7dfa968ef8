from __future__ import annotations

import pytest

from leveret.core.queues.queue import Queue
from leveret.model.definitions import Permission, Put
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import AccessRefused, NotFound
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.ingest import ApiClient
from leveret.wire import properties as props

from .amqp091.fakes import FakeNode

HEADER = props.join({props.DELIVERY_MODE: b"\x02"}, 1)


class Node(FakeNode):
    """A node whose api_clients are flushed with it."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[ClientConnection] = []

    def api_client(self, user: str | None = "guest") -> ApiClient:
        return ApiClient(self, user, "/", now_ms=0, touch=self.touched.append)

    def declare(self, name: str, **arguments: object) -> Queue:
        renamed = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return self.broker.declare_queue(QueueDefinition(name=name, vhost="/", arguments=renamed))


@pytest.fixture
def node() -> Node:
    return Node()


def bodies(found: list[bytes]) -> list[str]:
    return [each.decode() for each in found]


def test_what_is_published_is_safe_once_it_was_flushed(node: Node) -> None:
    node.declare("q")
    api_client = node.api_client()
    assert api_client.publish("", "q", HEADER, b"a") is True
    before = api_client.outcome
    node.flush(*node.touched)
    assert (before, api_client.outcome) == (None, True)
    assert len(node.broker.connections) == 0


def test_a_message_for_nobody_is_said_to_be_so(node: Node) -> None:
    assert node.api_client().publish("", "nowhere", HEADER, b"a") is False
    with pytest.raises(NotFound):
        node.api_client().publish("none", "q", HEADER, b"a")


def test_a_message_that_a_full_queue_refuses_is_not_safe(node: Node) -> None:
    node.declare("q", max_length=0, overflow="reject-publish")
    api_client = node.api_client()
    assert api_client.publish("", "q", HEADER, b"a") is True
    node.flush(*node.touched)
    assert api_client.outcome is False


def test_what_was_got_is_held_until_it_is_given_back(node: Node) -> None:
    queue = node.declare("q")
    for body in (b"a", b"b"):
        node.api_client().publish("", "q", HEADER, body)
    node.flush(*node.touched)
    api_client = node.api_client()
    assert bodies([each.body for each in api_client.get("q", 5, no_ack=False)]) == ["a", "b"]
    assert (queue.ready_count, queue.unacked_count) == (0, 2)
    api_client.requeue()
    api_client.requeue()
    assert (queue.ready_count, queue.unacked_count) == (2, 0)
    assert [each.redelivered for each in api_client.get("q", 5, no_ack=True)] == [True, True]
    assert queue.message_count == 0


def test_a_node_that_may_not_lead_any_more_gives_no_message(node: Node) -> None:
    queue = node.declare("q")
    node.api_client().publish("", "q", HEADER, b"a")
    node.flush(*node.touched)
    node.broker.may_deliver = lambda: False
    with pytest.raises(NotFound, match="another node may lead it"):
        node.api_client().get("q", 1, no_ack=True)
    assert queue.ready_count == 1


def test_what_is_rejected_is_gone(node: Node) -> None:
    queue = node.declare("q")
    api_client = node.api_client()
    api_client.publish("", "q", HEADER, b"a")
    node.flush(*node.touched)
    api_client.get("q", 1, no_ack=False)
    api_client.reject()
    node.flush()
    assert queue.message_count == 0


def test_a_user_needs_permissions_and_the_operator_none(node: Node) -> None:
    node.declare("q")
    node.broker.apply(Put(Permission(user="guest", vhost="/", configure="", write="", read="")))
    with pytest.raises(AccessRefused):
        node.api_client().publish("", "q", HEADER, b"a")
    with pytest.raises(AccessRefused):
        node.api_client().get("q", 1, no_ack=True)
    operator = node.api_client(None)
    operator.publish("", "q", HEADER, b"a")
    assert len(operator.get("q", 1, no_ack=True)) == 1
