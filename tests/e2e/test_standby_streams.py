"""Streams at an upstream that dies, over encrypted links, and what their readers and publishers find at the standby."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pika
import pytest
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext, OffsetType, Producer, RawMessage

from leveret.pipeline.upstream.stream_client import connect
from leveret.testing.applications.applications import parameters
from leveret.testing.applications.contents import Content, content_of, is_streamed
from leveret.testing.network.ports import LOOPBACK, free_port, wait_until
from leveret.testing.servers.certificates import CertificateAuthority
from leveret.testing.sites.standby_pair import PROMOTE_TIMEOUT_S, StandbyPair
from leveret.wire.stream.commands import QueryPublisherSequence, QueryPublisherSequenceResponse

pytestmark = [pytest.mark.story, pytest.mark.spark, pytest.mark.timeout(900)]

VHOST = "orders"
COUNT = 500
EVENTS = 400
STORED = 320
LIMITS = {"max-length-bytes": "300000", "stream-max-segment-size-bytes": "50000"}
EVENT_BYTES = 2000
PATIENCE_S = 60.0


def published(number: int) -> Content:
    """Properties and body; no two messages have the same ones."""
    return content_of(number, "ledger", transient=0.2)


def publish(port: int) -> None:
    with pika.BlockingConnection(parameters(port, VHOST)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("ledger", durable=True, arguments={"x-queue-type": "stream"})
        for properties, body in map(published, range(COUNT)):
            channel.basic_publish("", "ledger", body, pika.BasicProperties(**properties))


def event(number: int) -> bytes:
    return b"%d." % number + b"x" * EVENT_BYTES


def at(port: int) -> dict[str, Any]:
    """A client of the stream protocol is given this."""
    return {"host": LOOPBACK, "port": port, "vhost": VHOST, "username": "guest", "password": "guest"}


async def publish_events(port: int) -> int:
    """By a publisher with a name, more than the stream may keep; a reader stores twice how far it is.

    Returns the publisher's last id.
    """
    async with Producer(**at(port)) as producer:
        await producer.create_stream("events", LIMITS)
        for first in range(0, EVENTS, 100):
            last = await send_events(port, producer, range(first, first + 100))
            async with Consumer(**at(port)) as consumer:
                # It takes an offset of the stream, as there is no message that it could ride on.
                await consumer.store_offset("events", "reader", first + STORED % 100)
                assert await consumer.query_offset("events", "reader") == first + STORED % 100
        return last


async def send_events(port: int, producer: Producer, numbers: range) -> int:
    """Returns the last publishing id, once it is in the stream: rstream may miss a confirm that comes at once."""
    ids = await producer.send_batch("events", list(map(RawMessage, map(event, numbers))), publisher_name="p")
    await asyncio.to_thread(wait_until, lambda: last_id(port) == ids[-1], "the events", PATIENCE_S)
    return ids[-1]


def last_id(port: int) -> int:
    """The id that the stream has of the publisher."""
    with connect([f"{LOOPBACK}:{port}"], vhost=VHOST, username="guest", password="guest") as client:
        link = client.connection
        query = QueryPublisherSequence(link.next_id(), "p", "events")
        return link.request(query, QueryPublisherSequenceResponse).sequence


async def events_from(port: int, offset: int, last: int) -> list[tuple[int, bytes]]:
    """(offset, message) of the stream from an offset on up to this event."""
    found: list[tuple[int, bytes]] = []
    done = asyncio.Event()

    async def take(message: Any, context: MessageContext) -> None:
        found.append((context.offset, bytes(message)))
        if found[-1][1] == event(last):
            done.set()

    async with Consumer(**at(port)) as consumer:
        begin = ConsumerOffsetSpecification(OffsetType.OFFSET, offset)
        await consumer.subscribe("events", take, offset_specification=begin, decoder=bytes)
        await asyncio.wait_for(done.wait(), PATIENCE_S)
    return found


async def stored_offset(port: int) -> int:
    async with Consumer(**at(port)) as consumer:
        found: int = await consumer.query_offset("events", "reader")
        return found


async def go_on(port: int) -> int:
    """The publisher, started again, publishes one more; returns its id."""
    async with Producer(**at(port)) as producer:
        return await send_events(port, producer, range(EVENTS, EVENTS + 1))


def read(port: int) -> list[Content]:
    found: list[Content] = []
    with pika.BlockingConnection(parameters(port, VHOST)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=COUNT)
        consumed = channel.consume(
            "ledger", arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE_S
        )
        for method, properties, body in consumed:
            if method is None:
                break
            found.append(Content(vars(properties), body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == COUNT:
                break
    return found


def test_a_stream_is_at_the_standby_as_it_was(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = authority.issue("upstream", names=f"IP:{LOOPBACK}")
    options = "standby.replication.downstream.ssl_options"
    verifying = {f"{options}.verify": "verify_peer", f"{options}.cacertfile": str(authority.cacertfile)}
    plain_port = free_port()
    with StandbyPair(VHOST, tmp_path, verifying) as pair:
        pair.upstream.config |= certificate.settings() | {
            "stream.listeners.ssl.1": f"{LOOPBACK}:{pair.upstream.stream_port}",
            "stream.listeners.tcp.1": f"{LOOPBACK}:{plain_port}",
        }
        pair.start()
        pair.replicate("osr", "^.*")
        publish(pair.upstream.amqp_port)
        pair.follow()
        before = asyncio.run(publish_events(plain_port))
        pair.wait_queues(["ledger", "events"])
        wait_until(lambda: pair.transferred().get("ledger") == COUNT, "the stream at the standby", PATIENCE_S)
        pair.wait_transferred()
        kept = asyncio.run(events_from(plain_port, 0, EVENTS - 1))
        assert STORED > kept[0][0] > 0, "retention took some"
        shown = pair.upstream.ctl("list_standby_replication_downstreams", "--formatter", "json").stdout
        [row] = json.loads(shown)
        assert (row["virtual_host"], row["downstream"], row["missing_records"]) == (VHOST, "eu.2", 0)
        pair.upstream.kill9()
        promoted = pair.downstream.ctl(
            "promote_warm_standby", "--formatter", "json", timeout_s=PROMOTE_TIMEOUT_S
        )
        [summary] = json.loads(promoted.stdout)
        assert (summary["reader_offsets"], summary["publisher_ids"]) == (1, 1)
        for number, got in enumerate(read(pair.downstream.amqp_port)):
            wanted = published(number)
            assert got.body == wanted.body
            assert is_streamed(wanted.properties, got.properties), f"message {number}: {got.properties}"
        assert number == COUNT - 1
        port = pair.downstream.stream_port
        found = asyncio.run(events_from(port, 0, EVENTS - 1))
        # The retention of either site drops segments every few seconds, each its own: both have the newest events.
        assert COUNT + len(found) <= summary["message_count"] <= COUNT + EVENTS
        both = min(len(found), len(kept))
        assert found[-both:] == kept[-both:], "at the offsets that they had"
        assert asyncio.run(stored_offset(port)) == STORED
        later = asyncio.run(events_from(port, STORED + 1, EVENTS - 1))
        assert later == [each for each in kept if each[0] >= later[0][0]]
        assert asyncio.run(go_on(port)) == before + 1
        assert [body for _, body in asyncio.run(events_from(port, kept[-1][0], EVENTS))] == [
            event(EVENTS - 1),
            event(EVENTS),
        ]
