"""What tests of followers do at whoever leads, with pika."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

import pika

from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.testing.applications.applications import ReceivedMessage, channel_of, parameters
from leveret.testing.applications.contents import number_of
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSiteNode

PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
_MARK: Final = b"end of stream "


def channel_at(member: FollowerSiteNode, vhost: str = "/") -> AbstractContextManager[Any]:
    """A channel in confirm mode; its node may be gone at the end."""
    return channel_of(pika.BlockingConnection(parameters(member.node.amqp_port, vhost)))


def declare(member: FollowerSiteNode, queue: str, **arguments: Any) -> None:
    """A durable queue; `_` in names of arguments stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    with channel_at(member) as channel:
        channel.queue_declare(queue, durable=True, arguments=named)


def publish(member: FollowerSiteNode, queue: str, bodies: Iterable[bytes]) -> None:
    """Publish persistently; each is confirmed before the next."""
    with channel_at(member) as channel:
        for body in bodies:
            channel.basic_publish("", queue, body, PERSISTENT)


def numbered(first: int, count: int, size: int = 0) -> list[bytes]:
    """Bodies that are told by their number, filled up to a size."""
    return [f"{number}".encode().ljust(size) for number in range(first, first + count)]


def bodies(member: FollowerSiteNode, queue: str) -> list[bytes]:
    """What a queue has, in its order; all of it stays."""
    found = []
    with channel_at(member) as channel:
        while (message := channel.basic_get(queue))[0] is not None:
            found.append(message[2])
    return found


def log_of(leader: FollowerSiteNode, queue: str) -> str:
    """The name of a queue's log."""
    answer = leader.ask("POST", "replication/verify", {})
    [name] = [row["log"] for row in answer.json() if row["queue"] == queue]
    return str(name)


def fill(leader: FollowerSiteNode, queue: str, size: int, *, seed: int = 0) -> None:
    """Messages of `size` octets together that no two are alike."""
    declare(leader, queue)
    chance = random.Random(seed)
    publish(leader, queue, (chance.randbytes(200_000) for _ in range(size // 200_000)))


def live(leader: FollowerSiteNode) -> None:
    """Something of every kind of definition, message and settlement."""
    ctl = leader.node.ctl
    ctl("add_vhost", "shop")
    ctl("add_user", "app", "s3cret")
    ctl("set_permissions", "-p", "shop", "app", ".*", ".*", ".*")
    ctl("set_policy", "--vhost", "/", "short", "^short$", '{"max-length": 3}')
    ctl("set_operator_policy", "--vhost", "/", "many", "^many$", '{"max-length": 100000}')
    ctl("set_vhost_limits", "-p", "shop", '{"max-queues": 7}')
    ctl("delete_user", "guest", check=False)
    ctl("add_user", "guest", "guest")
    ctl("set_user_tags", "guest", "administrator")
    ctl("set_permissions", "guest", ".*", ".*", ".*")
    with channel_at(leader) as channel:
        channel.exchange_declare("topics", exchange_type="topic", durable=True)
        for name, arguments in {
            "plain": {},
            "short": {},
            "safe": {"x-queue-type": "quorum"},
            "events": {"x-queue-type": "stream"},
            "ranked": {"x-max-priority": 3},
            "grave": {},
            "dying": {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"},
            "gone": {},
        }.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.queue_bind(name, "topics", f"{name}.#")
    for name in ("plain", "short", "safe", "events", "ranked", "dying", "gone"):
        publish(leader, name, numbered(0, 20, 100))
    with channel_at(leader) as channel:
        for _ in range(7):
            method, _, _ = channel.basic_get("plain")
            channel.basic_ack(method.delivery_tag)
        channel.basic_get("safe", auto_ack=True)
        channel.queue_purge("ranked")
        channel.queue_delete("gone")
        wait_until(
            lambda: channel.queue_declare("grave", passive=True).method.message_count == 20,
            "the dead",
            PATIENCE_S,
        )


def store_offset(leader: FollowerSiteNode, stream: str, offset: int) -> None:
    """A reader says how far it is; waits until that is known."""
    with _stream_client(leader) as client:
        client.store_offset("reader", stream, offset)
        wait_until(lambda: client.query_offset("reader", stream) == offset, "the offset", PATIENCE_S)


def stored_offset(leader: FollowerSiteNode, stream: str) -> int | None:
    """What the reader said last."""
    with _stream_client(leader) as client:
        return client.query_offset("reader", stream)


def _stream_client(leader: FollowerSiteNode) -> StreamClient:
    return connect([(LOOPBACK, leader.node.stream_port)], vhost="/", username="guest", password="guest")


def count(port: int, queue: str) -> int:
    """How many messages a queue or stream has."""
    with pika.BlockingConnection(parameters(port, "/")) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def read_stream(port: int, stream: str) -> list[ReceivedMessage]:
    """All messages of a stream, from its begin: a mark is published behind the last, and left there."""
    taken: list[ReceivedMessage] = []
    with pika.BlockingConnection(parameters(port, "/")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        mark = b"%s%d" % (_MARK, random.randrange(1 << 62))
        channel.basic_publish("", stream, mark, PERSISTENT)
        channel.basic_qos(prefetch_count=500)
        for method, properties, body in channel.consume(stream, arguments={"x-stream-offset": "first"}):
            if body == mark:
                break
            channel.basic_ack(method.delivery_tag)
            if not body.startswith(_MARK):
                number = number_of(properties.message_id, body)
                taken.append(ReceivedMessage(number, method.exchange, method.routing_key, body, properties))
        channel.cancel()
    return taken
