"""Applications that come and go for as long as a soak lasts: each does one thing that a node has to clean up after.

Each is a function of a `Place` that does its thing once, and `keep_doing` repeats it. They are small on purpose: a leak
of one object a connection shows in an hour at any rate, and a busy machine hides it.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import httpx
import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from leveret.testing.applications.contents import content_of
from leveret.testing.network.ports import LOOPBACK

VHOST: Final = "orders"
STREAM: Final = "journal"
_STREAM_BYTES_MAX: Final = 8_000_000
_SEGMENT_BYTES: Final = 1_000_000
_STREAM_MESSAGES: Final = 60
_EXPIRY_MS: Final = 300
_PATIENCE_S: Final = 10.0
_FAILURES: Final = (pika.exceptions.AMQPError, AMQPConnectorException, OSError, httpx.HTTPError)


class Place(NamedTuple):
    """A node that applications connect to: its ports, and the source of their choices."""

    amqp_port: int
    management_port: int
    chance: random.Random


class Count:
    """The number of times that each application did its thing, and of its failures, with the last reason."""

    def __init__(self) -> None:
        """Count from nothing."""
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}


def keep_doing(
    act: Callable[[Place], None], places: Sequence[Place], pause_s: float, stop: threading.Event, count: Count
) -> None:
    """Repeat one application at one node after the other until `stop` is set."""
    turn = 0
    while not stop.wait(pause_s):
        place = places[turn % len(places)]
        turn += 1
        try:
            act(place)
        except _FAILURES as error:
            count.failed[act.__name__] += 1
            count.reasons[act.__name__] = repr(error)
        else:
            count.done[act.__name__] += 1


@contextlib.contextmanager
def channel_of(place: Place, vhost: str = VHOST) -> Iterator[Any]:
    """Connect to the node, and give a channel; the connection is closed in order."""
    asked = pika.ConnectionParameters(
        LOOPBACK, place.amqp_port, vhost, blocked_connection_timeout=_PATIENCE_S, socket_timeout=_PATIENCE_S
    )
    with pika.BlockingConnection(asked) as connection:
        yield connection.channel()


def orders(place: Place) -> None:
    """Publish mixed messages with confirms to a durable queue that stays, and settle them in three ways."""
    queue = f"orders.{place.chance.randrange(10)}"
    with channel_of(place) as channel:
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=10)
        channel.queue_declare(queue, durable=True)
        for number in range(40):
            _publish(channel, "", queue, place.chance.randrange(1 << 30) + number)
        for number, (method, _properties, _body) in enumerate(channel.consume(queue, inactivity_timeout=1)):
            if method is None or number >= 40:
                break
            if number % 10 == 9 and not method.redelivered:
                channel.basic_nack(method.delivery_tag, requeue=True)
            else:
                channel.basic_ack(method.delivery_tag)
        channel.cancel()


def short_connection(place: Place) -> None:
    """Connect, bind an exclusive queue to a topic exchange, publish, get, and leave."""
    with channel_of(place) as channel:
        channel.exchange_declare("topics", exchange_type="topic", durable=True)
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "topics", f"{queue}.#")
        for number in range(5):
            _publish(channel, "topics", f"{queue}.{number}", number)
        channel.basic_get(queue, auto_ack=True)


def short_channels(place: Place) -> None:
    """Open channels of one connection; a transaction, a consumer, a refused declaration that closes the channel."""
    with channel_of(place) as first:
        connection = first.connection
        first.queue_declare("channels", durable=True)
        with connection.channel() as channel:
            channel.tx_select()
            _publish(channel, "", "channels", 1)
            channel.tx_commit()
        with connection.channel() as channel:
            channel.basic_consume("channels", lambda *_delivery: None, auto_ack=True)
            connection.process_data_events(0.05)
        with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
            connection.channel().queue_declare("channels", durable=False)


def lost_connection(place: Place) -> None:
    """Vanish with unacked deliveries and a transaction that was not committed."""
    # An abort leaves pika without the reason that it asserts to have.
    with contextlib.suppress(*_FAILURES, AssertionError), channel_of(place) as channel:
        channel.queue_declare("lost", durable=True)
        _publish(channel, "", "lost", 1)
        channel.basic_get("lost")
        channel.tx_select()
        _publish(channel, "", "lost", 2)
        channel.connection._impl._transport.abort()
    with channel_of(place) as channel:
        channel.queue_purge("lost")


def question(place: Place) -> None:
    """Ask by direct reply-to, and answer."""
    with channel_of(place) as server, channel_of(place) as client:
        asked = server.queue_declare("", exclusive=True).method.queue
        client.basic_consume("amq.rabbitmq.reply-to", lambda *_reply: None, auto_ack=True)
        for number in range(5):
            client.basic_publish("", asked, b"?", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
            client.connection.process_data_events(0.01)
            _method, properties, _body = server.basic_get(asked, auto_ack=True)
            if properties is not None:
                server.basic_publish("", properties.reply_to, b"%d" % number)
        client.connection.process_data_events(0.01)


def new_queue(place: Place) -> None:
    """Declare a durable queue of a new name, classic or quorum, use it, and delete it with messages in it."""
    kind = place.chance.choice(("classic", "quorum"))
    name = f"new.{uuid.UUID(int=place.chance.getrandbits(128))}"
    with channel_of(place) as channel:
        channel.confirm_delivery()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        channel.queue_bind(name, "amq.headers", arguments={"x-match": "any", "name": name})
        for number in range(20):
            _publish(channel, "", name, number)
        for _ in range(15):
            channel.basic_get(name, auto_ack=True)
        channel.queue_delete(name)


def dead_letters(place: Place) -> None:
    """Let messages expire, be rejected and be dropped by a limit, with priorities; their letters are consumed."""
    with channel_of(place) as channel:
        channel.queue_declare("letters", durable=True)
        target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
        limits = {"x-message-ttl": _EXPIRY_MS, "x-max-length": 20, "x-max-priority": 4}
        channel.queue_declare("dying", durable=True, arguments={**target, **limits})
        for number in range(30):
            channel.basic_publish(
                "", "dying", b"x" * 100, pika.BasicProperties(priority=number % 5, delivery_mode=2)
            )
        method, _properties, _body = channel.basic_get("dying")
        if method is not None:
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.connection.sleep(2 * _EXPIRY_MS / 1000)
        while channel.basic_get("letters", auto_ack=True)[0] is not None:
            pass


def journal(place: Place) -> None:
    """Publish to a stream whose retention drops old segments, and read what comes."""
    arguments = {
        "x-queue-type": "stream",
        "x-max-length-bytes": _STREAM_BYTES_MAX,
        "x-stream-max-segment-size-bytes": _SEGMENT_BYTES,
    }
    read: list[int] = []

    def take(channel: Any, method: Any, _properties: object, _body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        read.append(method.delivery_tag)

    with channel_of(place) as channel:
        channel.queue_declare(STREAM, durable=True, arguments=arguments)
        channel.basic_qos(prefetch_count=20)
        channel.basic_consume(STREAM, take, arguments={"x-stream-offset": "next"})
        for number in range(_STREAM_MESSAGES):
            _publish(channel, "", STREAM, number)
        # pika nacks deliveries that wait at the end, and a stream refuses that.
        deadline_s = time.monotonic() + _PATIENCE_S
        while len(read) < _STREAM_MESSAGES and time.monotonic() < deadline_s:
            channel.connection.process_data_events(0.1)


def tenant(place: Place) -> None:
    """Make a vhost with a user, a policy and a queue over HTTP, use it, and remove all of it."""
    name = f"tenant-{uuid.UUID(int=place.chance.getrandbits(128))}"
    with httpx.Client(base_url=_api(place), auth=("guest", "guest"), timeout=_PATIENCE_S) as client:

        def put(path: str, document: object) -> None:
            client.put(path, content=json.dumps(document)).raise_for_status()

        put(f"vhosts/{name}", {"tags": "standby_replication"})
        put(f"users/{name}", {"password": name, "tags": ""})
        for user in (name, "guest"):
            put(f"permissions/{name}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})
        put(
            f"policies/{name}/p",
            {"pattern": "^q", "definition": {"ha-mode": "all", "remote-dc-replicate": True}},
        )
        with channel_of(place, name) as channel:
            channel.confirm_delivery()
            channel.queue_declare("q1", durable=True)
            for number in range(10):
                _publish(channel, "", "q1", number)
        client.delete(f"vhosts/{name}").raise_for_status()
        client.delete(f"users/{name}").raise_for_status()


def monitoring(place: Place) -> None:
    """Ask for all that a dashboard asks for."""
    with httpx.Client(base_url=_api(place), auth=("guest", "guest"), timeout=_PATIENCE_S) as client:
        for path in ("overview", "nodes", "queues", "connections", "channels", "consumers", "exchanges"):
            client.get(path, params={"msg_rates_age": 60, "msg_rates_incr": 5}).raise_for_status()
        client.get(f"http://{LOOPBACK}:{place.management_port}/metrics").raise_for_status()


PACES_S: Final[dict[Callable[[Place], None], float]] = {
    orders: 0.2,
    short_connection: 0.2,
    short_channels: 0.5,
    lost_connection: 1.0,
    question: 0.5,
    new_queue: 0.5,
    dead_letters: 1.0,
    journal: 1.0,
    tenant: 15.0,
    monitoring: 5.0,
}
"""All applications, with their pauses between two turns."""


def start_all(places: Sequence[Place], stop: threading.Event, count: Count) -> list[threading.Thread]:
    """Start a thread for each application; they end soon after `stop` is set."""
    threads = [
        threading.Thread(target=keep_doing, args=(act, places, pause_s, stop, count), daemon=True)
        for act, pause_s in PACES_S.items()
    ]
    for thread in threads:
        thread.start()
    return threads


def _api(place: Place) -> str:
    return f"http://{LOOPBACK}:{place.management_port}/api/"


def _publish(channel: Any, exchange: str, key: str, number: int) -> None:
    content = content_of(number, "soak")
    channel.basic_publish(exchange, key, content.body, pika.BasicProperties(**content.properties))
