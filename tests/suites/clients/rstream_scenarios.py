"""What an application does with rstream, a client of the stream protocol whose sdist has no tests."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rstream import (
    AMQPMessage,
    CompressionType,
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetNotFound,
    OffsetType,
    Producer,
    StreamDoesNotExist,
    amqp_decoder,
)

PATIENCE_S = 10
COUNT = 1000
LOGIN: dict[str, Any] = {"username": "guest", "password": "guest"}
Work = Callable[[], Coroutine[Any, Any, Any]]


def port() -> int:
    return int(os.environ["SUITE_STREAM_PORT"])


def producing(**options: Any) -> Producer:
    return Producer("127.0.0.1", port(), default_batch_publishing_delay=0.05, **LOGIN, **options)


def run(work: Work) -> Any:
    """Run to the end, or fail in time."""
    return asyncio.run(asyncio.wait_for(work(), 3 * PATIENCE_S))


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds, or fail in time."""

    async def look() -> None:
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)

    await asyncio.wait_for(look(), PATIENCE_S)


@pytest.fixture
def stream() -> Iterator[str]:
    """A stream of its own."""
    name = f"s-{uuid.uuid4().hex[:12]}"

    async def create() -> None:
        async with producing() as producer:
            await producer.create_stream(name)

    async def delete() -> None:
        async with producing() as producer:
            await producer.delete_stream(name, missing_ok=True)

    run(create)
    yield name
    run(delete)


class Reader:
    """A subscription that keeps what it gets."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.taken: list[Any] = []
        self.contexts: list[MessageContext] = []
        self.more = asyncio.Event()

    async def take(self, message: Any, context: MessageContext) -> None:
        self.taken.append(bytes(message.body) if isinstance(message, AMQPMessage) else bytes(message))
        self.contexts.append(context)
        self.more.set()

    async def wait(self, count: int) -> list[Any]:
        async def until() -> None:
            while len(self.taken) < count:
                self.more.clear()
                await self.more.wait()

        await asyncio.wait_for(until(), PATIENCE_S)
        return self.taken


@asynccontextmanager
async def reading(
    stream: str, kind: OffsetType = OffsetType.FIRST, value: int | None = None, **options: Any
) -> AsyncIterator[Reader]:
    consumer = Consumer("127.0.0.1", port(), **LOGIN)
    reader = Reader(consumer)
    try:
        specification = ConsumerOffsetSpecification(kind, value)
        await consumer.subscribe(stream, reader.take, offset_specification=specification, **options)
        yield reader
    finally:
        await consumer.close()


async def read(
    stream: str, count: int, kind: OffsetType = OffsetType.FIRST, value: int | None = None
) -> list[Any]:
    async with reading(stream, kind, value) as reader:
        return list(await reader.wait(count))


async def send(stream: str, bodies: list[Any], **options: Any) -> None:
    async with producing() as producer:
        for body in bodies:
            await producer.send_wait(stream, body, **options)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_what_is_sent_one_by_one_is_read_in_order(stream: str) -> None:
    async def work() -> None:
        await send(stream, numbers(100))
        assert await read(stream, 100) == numbers(100)

    run(work)


def test_what_is_sent_in_a_batch_is_read_in_order(stream: str) -> None:
    async def work() -> None:
        async with producing() as producer:
            await producer.send_batch(stream, numbers(COUNT))
        assert await read(stream, COUNT) == numbers(COUNT)

    run(work)


def test_what_is_gathered_in_the_background_is_read_in_order(stream: str) -> None:
    async def work() -> None:
        async with producing() as producer:
            for body in numbers(COUNT):
                await producer.send(stream, body)
        assert await read(stream, COUNT) == numbers(COUNT)

    run(work)


@pytest.mark.parametrize("compression", [CompressionType.No, CompressionType.Gzip])
def test_a_batch_in_one_entry_is_read_message_by_message(stream: str, compression: CompressionType) -> None:
    async def work() -> None:
        messages = [AMQPMessage(body=body) for body in numbers(100)]
        async with producing() as producer:
            await producer.send_sub_entry(stream, sub_entry_messages=messages, compression_type=compression)
        async with reading(stream, decoder=amqp_decoder) as reader:
            assert await reader.wait(100) == numbers(100)

    run(work)


def test_entries_of_both_kinds_share_a_stream(stream: str) -> None:
    async def work() -> None:
        async with producing() as producer:
            await producer.send_wait(stream, AMQPMessage(body=b"0"))
            await producer.send_sub_entry(
                stream,
                sub_entry_messages=[AMQPMessage(body=body) for body in numbers(10, 1)],
                compression_type=CompressionType.Gzip,
            )
        await send(stream, [AMQPMessage(body=b"11")])
        async with reading(stream, decoder=amqp_decoder) as reader:
            assert await reader.wait(12) == numbers(12)

    run(work)


def test_every_message_is_confirmed_once(stream: str) -> None:
    async def work() -> None:
        confirmed: list[int] = []

        async def note(status: ConfirmationStatus) -> None:
            assert status.is_confirmed
            confirmed.append(status.message_id)

        async with producing() as producer:
            for body in numbers(100):
                await producer.send(stream, body, on_publish_confirm=note)
            await eventually(lambda: len(confirmed) >= 100)
        assert sorted(confirmed) == list(range(1, 101))

    run(work)


def test_a_named_publisher_sends_a_message_once(stream: str) -> None:
    async def work() -> None:
        for _ in range(2):
            async with producing() as producer:
                messages = [AMQPMessage(body=body) for body in numbers(50)]
                for at, message in enumerate(messages, start=1):
                    message.publishing_id = at
                await producer.send_batch(stream, messages, publisher_name="writer")
        await send(stream, [AMQPMessage(body=b"end")])
        async with reading(stream, decoder=amqp_decoder) as reader:
            assert await reader.wait(51) == [*numbers(50), b"end"]

    run(work)


def test_a_named_publisher_goes_on_where_it_ended(stream: str) -> None:
    async def work() -> None:
        await send(stream, numbers(5), publisher_name="writer")
        await send(stream, numbers(5, 5), publisher_name="writer")
        assert await read(stream, 10) == numbers(10)

    run(work)


def test_a_subscription_from_an_offset_begins_there(stream: str) -> None:
    async def work() -> None:
        async with producing() as producer:
            await producer.send_batch(stream, numbers(COUNT))
        async with reading(stream, OffsetType.OFFSET, 990) as reader:
            assert await reader.wait(10) == numbers(10, 990)
            assert [context.offset for context in reader.contexts] == list(range(990, 1000))

    run(work)


def test_a_subscription_from_last_begins_with_the_last_chunk(stream: str) -> None:
    async def work() -> None:
        await send(stream, numbers(5))
        assert await read(stream, 1, OffsetType.LAST) == numbers(1, 4)

    run(work)


def test_a_subscription_from_a_time_begins_with_what_was_sent_then(stream: str) -> None:
    async def work() -> None:
        await send(stream, [b"before"])
        between_ms = int(time.time() * 1000) + 1
        await eventually(lambda: int(time.time() * 1000) > between_ms)
        await send(stream, [b"after"])
        assert await read(stream, 1, OffsetType.TIMESTAMP, between_ms) == [b"after"]

    run(work)


def test_a_subscription_from_next_gets_what_comes(stream: str) -> None:
    async def work() -> None:
        await send(stream, [b"old"])
        async with reading(stream, OffsetType.NEXT) as reader:
            await send(stream, [b"new"])
            assert await reader.wait(1) == [b"new"]

    run(work)


def test_a_stored_offset_is_told_again(stream: str) -> None:
    async def work() -> None:
        await send(stream, numbers(10))
        async with reading(stream) as reader:
            await reader.wait(10)
            await reader.consumer.store_offset(stream, "reader", 7)
            # It is not confirmed; a question on the same connection comes after it.
            assert await reader.consumer.query_offset(stream, "reader") == 7
        async with reading(stream) as reader:
            assert await reader.consumer.query_offset(stream, "reader") == 7

    run(work)


def test_an_offset_that_was_never_stored_is_not_found(stream: str) -> None:
    async def work() -> None:
        await send(stream, numbers(1))
        async with reading(stream) as reader:
            await reader.wait(1)
            with pytest.raises(OffsetNotFound):
                await reader.consumer.query_offset(stream, "nobody")

    run(work)


def test_two_subscribers_both_get_all(stream: str) -> None:
    async def work() -> None:
        async with reading(stream) as one, reading(stream) as other:
            async with producing() as producer:
                await producer.send_batch(stream, numbers(COUNT))
            assert await one.wait(COUNT) == numbers(COUNT)
            assert await other.wait(COUNT) == numbers(COUNT)

    run(work)


def test_a_reader_that_left_gets_nothing_more(stream: str) -> None:
    async def work() -> None:
        async with reading(stream) as leaving, reading(stream) as staying:
            await send(stream, [b"1"])
            await leaving.wait(1)
            await leaving.consumer.close()
            await send(stream, [b"2"])
            assert await staying.wait(2) == [b"1", b"2"]
            assert leaving.taken == [b"1"]

    run(work)


def test_a_stream_that_is_not_there_is_named_so() -> None:
    async def work() -> None:
        async with producing() as producer:
            with pytest.raises(StreamDoesNotExist):
                await producer.send_wait("nowhere", b"")
            with pytest.raises(StreamDoesNotExist):
                await producer.delete_stream("nowhere")

    run(work)


def test_creating_a_stream_that_exists_is_fine_if_asked_so(stream: str) -> None:
    async def work() -> None:
        async with producing() as producer:
            await producer.create_stream(stream, exists_ok=True)
            assert await producer.stream_exists(stream)

    run(work)


def test_properties_of_a_message_come_back(stream: str) -> None:
    async def work() -> None:
        sent = AMQPMessage(body=b"x", application_properties={"kind": "order", "total": 7})
        await send(stream, [sent])
        got: list[Any] = []
        consumer = Consumer("127.0.0.1", port(), **LOGIN)
        try:
            await consumer.subscribe(stream, lambda message, _: got.append(message), decoder=amqp_decoder)
            await eventually(lambda: bool(got))
        finally:
            await consumer.close()
        assert got[0].application_properties == {b"kind": b"order", b"total": 7}

    run(work)


def test_a_large_message_passes(stream: str) -> None:
    async def work() -> None:
        body = os.urandom(900_000)
        await send(stream, [body])
        assert await read(stream, 1) == [body]

    run(work)
