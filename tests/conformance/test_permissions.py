"""Every operation on what is in a vhost, over every protocol that offers it, by users with each lack of permission.

A row says what an operation needs. A user who has just that may do it; a user who lacks one of it may not, whichever
door is asked. RabbitMQ runs the same rows, so what they say is what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError

from leveret.model.errors import AccessRefused
from leveret.model.stream import OffsetSpec, OffsetType
from leveret.wire.stream import commands as stream
from leveret.wire.stream.codec import Code
from tests.conformance.brokers import LEVERET, RABBITMQ, Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.http_scene import client_of
from tests.conformance.stream_talker import StreamTalker

VHOST: Final = "permissions"
USER: Final = "limited"
PASSWORD: Final = "guest"
TOPIC_KEY: Final = "a.b"
PROTOCOLS: Final = ("amqp", "http", "stream")
Need = tuple[str, str]
Do = Callable[["User"], object]


class Row(NamedTuple):
    """What an operation needs, and how each protocol that has it is asked."""

    needs: set[Need]
    amqp: Do | None = None
    http: Do | None = None
    stream: Do | None = None


class User:
    """The limited user, at each of the doors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def amqp(self, do: Callable[[Any], object]) -> None:
        """Do it on a channel, and wait until it was done."""
        connection = self._broker.connect(USER, PASSWORD, vhost=VHOST)
        try:
            channel = connection.channel()
            do(channel)
            channel.basic_qos(prefetch_count=1)
        finally:
            with suppress(pika.exceptions.AMQPError):
                connection.close()

    def http(self, method: str, path: str, body: Any = None) -> None:
        """Ask; what is refused is an AccessRefused."""
        with client_of(self._broker, USER, PASSWORD) as client:
            content = {} if body is None else {"json": body}
            reply = client.request(method, path.replace("$", VHOST), **content)
        if reply.status_code == 401 or '"403 ACCESS_REFUSED' in reply.text:
            raise AccessRefused(reply.text)
        assert reply.status_code < 300, reply.text

    def stream(self, request: Any, answer: Any) -> None:
        """Ask; what is refused is an AccessRefused."""
        client = StreamTalker(self._broker.stream_port)
        with closing(client.socket):
            code = client.enter(VHOST, USER)
            if code == Code.OK:
                code = client.ask(request, answer).code
        if code in (Code.ACCESS_REFUSED, Code.VHOST_ACCESS_FAILURE):
            raise AccessRefused(f"code {code}")
        assert code == Code.OK


def amqp(do: Callable[[Any], object]) -> Do:
    return lambda user: user.amqp(do)


def http(method: str, path: str, body: Any = None) -> Do:
    return lambda user: user.http(method, path, body)


def streams(request: Any, answer: Any) -> Do:
    return lambda user: user.stream(request, answer)


DEAD: Final = {"x-dead-letter-exchange": "vault"}
ALTERNATE: Final = {"alternate-exchange": "vault"}
MESSAGE: Final = {"properties": {}, "routing_key": TOPIC_KEY, "payload": "x", "payload_encoding": "string"}
WISH: Final = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
OF_TOPIC: Final = {("write", "q"), ("read", "topics"), ("topic read", TOPIC_KEY)}

ROWS: Final[dict[str, Row]] = {
    "queue.declare": Row(
        {("configure", "new")},
        amqp(lambda channel: channel.queue_declare("new")),
        http("PUT", "queues/$/new", {}),
    ),
    "queue.declare of one that is there": Row(
        {("configure", "q")}, amqp(lambda channel: channel.queue_declare("q")), http("PUT", "queues/$/q", {})
    ),
    "queue.declare passive": Row(set(), amqp(lambda channel: channel.queue_declare("q", passive=True))),
    "queue.declare with a dead letter exchange": Row(
        {("configure", "new"), ("read", "new"), ("write", "vault")},
        amqp(lambda channel: channel.queue_declare("new", arguments=DEAD)),
        http("PUT", "queues/$/new", {"arguments": DEAD}),
    ),
    "queue.delete": Row(
        {("configure", "q")}, amqp(lambda channel: channel.queue_delete("q")), http("DELETE", "queues/$/q")
    ),
    "queue.purge": Row(
        {("read", "q")}, amqp(lambda channel: channel.queue_purge("q")), http("DELETE", "queues/$/q/contents")
    ),
    "basic.get": Row(
        {("read", "q")}, amqp(lambda channel: channel.basic_get("q")), http("POST", "queues/$/q/get", WISH)
    ),
    "basic.consume": Row({("read", "q")}, amqp(lambda channel: channel.basic_consume("q", print))),
    "basic.publish": Row(
        {("write", "vault")},
        amqp(lambda channel: channel.basic_publish("vault", TOPIC_KEY, b"x")),
        http("POST", "exchanges/$/vault/publish", MESSAGE),
    ),
    "basic.publish to the default exchange": Row(
        {("write", "amq.default")},
        amqp(lambda channel: channel.basic_publish("", "q", b"x")),
        http("POST", "exchanges/$/amq.default/publish", {**MESSAGE, "routing_key": "q"}),
    ),
    "basic.publish to a topic": Row(
        {("write", "topics"), ("topic write", TOPIC_KEY)},
        amqp(lambda channel: channel.basic_publish("topics", TOPIC_KEY, b"x")),
        http("POST", "exchanges/$/topics/publish", MESSAGE),
    ),
    "exchange.declare": Row(
        {("configure", "new")},
        amqp(lambda channel: channel.exchange_declare("new")),
        http("PUT", "exchanges/$/new", {"type": "direct"}),
    ),
    "exchange.declare passive": Row(
        set(), amqp(lambda channel: channel.exchange_declare("vault", passive=True))
    ),
    "exchange.declare with an alternate": Row(
        {("configure", "new"), ("read", "new"), ("write", "vault")},
        amqp(lambda channel: channel.exchange_declare("new", arguments=ALTERNATE)),
        http("PUT", "exchanges/$/new", {"type": "direct", "arguments": ALTERNATE}),
    ),
    "exchange.delete": Row(
        {("configure", "vault")},
        amqp(lambda channel: channel.exchange_delete("vault")),
        http("DELETE", "exchanges/$/vault"),
    ),
    "queue.bind": Row(
        {("write", "q"), ("read", "vault")},
        amqp(lambda channel: channel.queue_bind("q", "vault", TOPIC_KEY)),
        http("POST", "bindings/$/e/vault/q/q", {"routing_key": TOPIC_KEY}),
    ),
    "queue.bind to a topic": Row(
        OF_TOPIC,
        amqp(lambda channel: channel.queue_bind("q", "topics", TOPIC_KEY)),
        http("POST", "bindings/$/e/topics/q/q", {"routing_key": TOPIC_KEY}),
    ),
    "queue.unbind": Row(
        OF_TOPIC,
        amqp(lambda channel: channel.queue_unbind("q", "topics", TOPIC_KEY)),
        http("DELETE", f"bindings/$/e/topics/q/q/{TOPIC_KEY}"),
    ),
    "exchange.bind": Row(
        {("write", "vault"), ("read", "topics"), ("topic read", TOPIC_KEY)},
        amqp(lambda channel: channel.exchange_bind("vault", "topics", TOPIC_KEY)),
        http("POST", "bindings/$/e/topics/e/vault", {"routing_key": TOPIC_KEY}),
    ),
    "exchange.unbind": Row(
        {("write", "vault"), ("read", "topics"), ("topic read", TOPIC_KEY)},
        amqp(lambda channel: channel.exchange_unbind("vault", "topics", TOPIC_KEY)),
        http("DELETE", f"bindings/$/e/topics/e/vault/{TOPIC_KEY}"),
    ),
    # Policies are a policymaker's, whatever the permissions on what they name: so it is at RabbitMQ.
    "a policy with a dead letter exchange": Row(
        set(),
        http=http("PUT", "policies/$/p", {"pattern": "^q$", "definition": {"dead-letter-exchange": "vault"}}),
    ),
    "a policy with an alternate exchange": Row(
        set(),
        http=http("PUT", "policies/$/p", {"pattern": "^x", "definition": {"alternate-exchange": "vault"}}),
    ),
    "create a stream": Row(
        {("configure", "new")}, stream=streams(stream.Create(1, "new", {}), stream.CreateResponse)
    ),
    "delete a stream": Row(
        {("configure", "s")}, stream=streams(stream.DeleteStream(1, "s"), stream.DeleteResponse)
    ),
    "declare a publisher": Row(
        {("write", "s")},
        stream=streams(stream.DeclarePublisher(1, 1, "p", "s"), stream.DeclarePublisherResponse),
    ),
    "subscribe": Row(
        {("read", "s")},
        stream=streams(
            stream.Subscribe(1, 1, "s", OffsetSpec(OffsetType.FIRST, 0), 1, {}), stream.SubscribeResponse
        ),
    ),
}
SUPER: Final = Row(
    {("configure", "new"), ("read", "new"), ("configure", "new-0"), ("write", "new-0")},
    stream=streams(
        stream.CreateSuperStream(1, "new", ["new-0"], ["0"], {}), stream.CreateSuperStreamResponse
    ),
)
CASES: Final = [
    (name, protocol) for name, row in ROWS.items() for protocol in PROTOCOLS if getattr(row, protocol)
]


@pytest.fixture(scope="module", params=BROKERS)
def stage(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with streams and a user who may nothing."""
    kind = kind_of(request)
    with running(kind, plugins=("rabbitmq_stream",) if kind == RABBITMQ else ()) as broker:
        broker.add_vhost(VHOST)
        with client_of(broker) as http:
            http.put(f"users/{USER}", json={"password": PASSWORD, "tags": "policymaker"})
        yield broker


def set_up(broker: Broker) -> None:
    """Have what the rows name, and nothing of what they make."""
    connection = broker.connect(vhost=VHOST)
    channel = connection.channel()
    channel.queue_delete("new")
    channel.exchange_delete("new")
    channel.queue_declare("q")
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.exchange_declare("vault", "fanout")
    channel.exchange_declare("topics", "topic")
    channel.queue_unbind("q", "vault", TOPIC_KEY)
    channel.queue_bind("q", "topics", TOPIC_KEY)
    channel.exchange_bind("vault", "topics", TOPIC_KEY)
    connection.close()


def allow(broker: Broker, needs: set[Need]) -> None:
    """The limited user has these permissions and no other."""

    def pattern(kind: str) -> str:
        return (
            "|".join(f"^{name}$" for each, name in sorted(needs) if each == kind).replace(".", r"\.") or "^$"
        )

    user, vhost = quote(USER), quote(VHOST)
    with client_of(broker) as http:
        body = {kind: pattern(kind) for kind in ("configure", "write", "read")}
        http.put(f"permissions/{vhost}/{user}", json=body).raise_for_status()
        body = {kind: pattern(f"topic {kind}") for kind in ("write", "read")}
        http.put(f"topic-permissions/{vhost}/{user}", json={"exchange": "topics", **body}).raise_for_status()


def outcome(broker: Broker, do: Do) -> str:
    """`allowed`, `refused`, or `no vhost` if it went no further than the door."""
    try:
        do(User(broker))
    except ChannelClosedByBroker as closed:
        return "refused" if closed.reply_code == 403 else f"closed with {closed.reply_code}"
    except AccessRefused:
        return "refused"
    except (ConnectionClosedByBroker, ProbableAccessDeniedError):
        return "no vhost"
    return "allowed"


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_an_operation_needs_all_its_permissions_and_no_other(stage: Broker, name: str, protocol: str) -> None:
    row = ROWS[name]
    expected = {"": "allowed"} | {f"{kind} {on}": "refused" for kind, on in sorted(row.needs)}
    seen = {}
    for missing in [None, *sorted(row.needs)]:
        set_up(stage)
        allow(stage, row.needs - {missing} if missing else row.needs)
        seen[" ".join(missing or ())] = outcome(stage, getattr(row, protocol))
    assert seen == expected


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_without_access_to_the_vhost_there_is_nothing(stage: Broker, name: str, protocol: str) -> None:
    set_up(stage)
    with client_of(stage) as http:
        http.delete(f"permissions/{VHOST}/{USER}")
    assert outcome(stage, getattr(ROWS[name], protocol)) != "allowed"


def test_a_super_stream_needs_what_its_parts_need() -> None:
    """RabbitMQ has this command since 3.13 only."""
    assert SUPER.stream is not None
    with running(LEVERET) as broker:
        broker.add_vhost(VHOST)
        broker.add_user(USER, PASSWORD)
        for missing in sorted(SUPER.needs):
            allow(broker, SUPER.needs - {missing})
            assert (missing, outcome(broker, SUPER.stream)) == (missing, "refused")
            assert broker.api(f"queues/{VHOST}") == []
        allow(broker, SUPER.needs)
        assert outcome(broker, SUPER.stream) == "allowed"


def test_a_name_that_is_not_there_is_not_told_to_who_may_not_use_it(stage: Broker) -> None:
    set_up(stage)
    allow(stage, set())
    for do in (
        lambda channel: channel.basic_get("nowhere"),
        lambda channel: channel.basic_consume("nowhere", print),
        lambda channel: channel.queue_purge("nowhere"),
        lambda channel: channel.queue_delete("nowhere"),
        lambda channel: channel.basic_publish("nowhere", "k", b"x"),
        lambda channel: channel.queue_bind("nowhere", "neither", "k"),
    ):
        assert outcome(stage, amqp(do)) == "refused"
