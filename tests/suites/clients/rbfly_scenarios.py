"""What an application does with rbfly, a client of the stream protocol whose sdist has no test for a broker."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
import rbfly.streams as rbs

PATIENCE_S = 10
COUNT = 1000


@pytest.fixture
def stream() -> Iterator[str]:
    """A stream of its own."""
    name = f"s-{uuid.uuid4().hex[:12]}"
    once(lambda client: client.create_stream(name))
    yield name
    once(lambda client: client.delete_stream(name))


def once(work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Do something on a connection of its own."""

    async def connected(client: Any) -> Any:
        return await work(client)

    port = int(os.environ["SUITE_STREAM_PORT"])
    client = rbs.streams_client(f"rabbitmq-stream://guest:guest@127.0.0.1:{port}/")
    return asyncio.run(asyncio.wait_for(rbs.connection(connected)(client), PATIENCE_S))


async def take(messages: AsyncIterator[Any], count: int) -> list[Any]:
    """The next messages of a subscription, with what the client knows about each."""
    taken: list[Any] = []
    async for body in messages:
        taken.append((body, rbs.get_message_ctx()))
        if len(taken) == count:
            return taken
    raise AssertionError("the subscription ended")


def sent(stream: str, bodies: list[Any], **options: Any) -> None:
    """Send with confirms, one after the other."""

    async def send(client: Any) -> None:
        async with client.publisher(stream, **options) as publisher:
            for body in bodies:
                await publisher.send(body)

    once(send)


def bodies_from(stream: str, count: int, offset: Any) -> list[Any]:
    """What a subscription gives, without the rest."""
    taken = once(lambda client: take(client.subscribe(stream, offset=offset, timeout=PATIENCE_S), count))
    return [body for body, _ in taken]


def test_what_is_sent_is_read_in_order(stream: str) -> None:
    bodies = [f"message {number}" for number in range(100)]
    sent(stream, bodies)
    assert bodies_from(stream, 100, rbs.Offset.FIRST) == bodies


def test_a_batch_is_read_in_order(stream: str) -> None:
    async def send(client: Any) -> None:
        async with client.publisher(stream, cls=rbs.PublisherBatchFast) as publisher:
            for number in range(COUNT):
                publisher.batch(number)
            await publisher.flush()

    once(send)
    assert bodies_from(stream, COUNT, rbs.Offset.FIRST) == list(range(COUNT))


def test_a_batch_larger_than_the_frames_that_were_agreed_is_taken(stream: str) -> None:
    bodies = [bytes([number]) * 100_000 for number in range(30)]

    async def send(client: Any) -> None:
        async with client.publisher(stream, cls=rbs.PublisherBatchFast) as publisher:
            for body in bodies:
                publisher.batch(body)
            await publisher.flush()

    once(send)
    assert bodies_from(stream, len(bodies), rbs.Offset.FIRST) == bodies


def test_batches_with_a_limit_are_read_in_order(stream: str) -> None:
    async def batch(publisher: Any, numbers: range) -> None:
        for number in numbers:
            await publisher.batch(number, max_len=10)

    async def flush(publisher: Any, total: int) -> None:
        for _ in range(total // 10):
            await asyncio.sleep(0)
            await publisher.flush()

    async def send(client: Any) -> None:
        async with client.publisher(stream, cls=rbs.PublisherBatchLimit) as publisher:
            await asyncio.gather(batch(publisher, range(100)), flush(publisher, 200))
            await publisher.flush()

    once(send)
    assert bodies_from(stream, 100, rbs.Offset.FIRST) == list(range(100))


def test_a_subscription_from_an_offset_begins_there(stream: str) -> None:
    sent(stream, list(range(50)))
    assert bodies_from(stream, 10, rbs.Offset.offset(40)) == list(range(40, 50))


def test_every_message_knows_its_offset(stream: str) -> None:
    sent(stream, list(range(20)))
    taken = once(
        lambda client: take(client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=PATIENCE_S), 20)
    )
    assert [context.stream_offset for _, context in taken] == list(range(20))


def test_a_subscription_from_a_time_begins_with_what_was_sent_then(stream: str) -> None:
    sent(stream, ["before"])
    time.sleep(1.1)  # the time of a chunk, which is what decides, has no finer grain in this client
    between_s = time.time()
    sent(stream, ["after"])
    assert bodies_from(stream, 1, rbs.Offset.timestamp(between_s)) == ["after"]


def test_a_subscription_from_next_gets_what_comes(stream: str) -> None:
    async def work(client: Any) -> list[Any]:
        messages = client.subscribe(stream, offset=rbs.Offset.NEXT, timeout=PATIENCE_S)
        reading = asyncio.create_task(take(messages, 1))
        async with client.publisher(stream) as publisher:
            while not reading.done():
                await publisher.send("new")
                await asyncio.sleep(0.05)
        return [body for body, _ in reading.result()]

    sent(stream, ["old"])
    assert once(work) == ["new"]


def test_a_stored_offset_is_where_the_next_subscription_goes_on(stream: str) -> None:
    reference = rbs.Offset.reference("reader")

    async def read_and_store(client: Any) -> list[Any]:
        taken = await take(client.subscribe(stream, offset=reference, timeout=PATIENCE_S), 10)
        await client.write_offset(stream, "reader")
        return [body for body, _ in taken]

    sent(stream, list(range(30)))
    assert once(read_and_store) == list(range(10))
    assert bodies_from(stream, 20, reference) == list(range(10, 30))


def test_a_named_publisher_sends_a_message_once(stream: str) -> None:
    async def send(client: Any) -> None:
        async with client.publisher(stream, name="writer") as publisher:
            for number in range(10):
                await publisher.send(rbs.stream_message_ctx(number, publish_id=number + 1))

    once(send)
    once(send)
    sent(stream, ["end"])
    assert bodies_from(stream, 11, rbs.Offset.FIRST) == [*range(10), "end"]


def test_two_subscriptions_of_one_connection_both_get_all(stream: str) -> None:
    async def work(client: Any) -> list[list[Any]]:
        subscriptions = [
            client.subscribe(stream, offset=rbs.Offset.FIRST, timeout=PATIENCE_S) for _ in range(2)
        ]
        return list(await asyncio.gather(*(take(messages, COUNT) for messages in subscriptions)))

    async def send(client: Any) -> None:
        async with client.publisher(stream, cls=rbs.PublisherBatchFast) as publisher:
            for number in range(COUNT):
                publisher.batch(number)
            await publisher.flush()

    once(send)
    for taken in once(work):
        assert [body for body, _ in taken] == list(range(COUNT))


@pytest.mark.parametrize(
    "body", ["text", b"octets", 7, -7, 2**40, 1.5, True, None, [1, "a"], {"a": 1}, "x" * 100_000]
)
def test_a_value_comes_back_as_it_went(stream: str, body: Any) -> None:
    sent(stream, [body])
    assert bodies_from(stream, 1, rbs.Offset.FIRST) == [body]


def test_creating_a_stream_that_exists_is_no_error(stream: str) -> None:
    once(lambda client: client.create_stream(stream))
