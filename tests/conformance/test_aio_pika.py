"""aio-pika out of the box: the ways its users write things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import PATIENCE_S


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run one scenario to its end, or fail in time."""

    async def bounded() -> None:
        await asyncio.wait_for(scenario(), PATIENCE_S)

    asyncio.run(bounded())


def test_publish_with_confirms_and_iterate(broker: Broker, name: str) -> None:
    async def scenario() -> None:
        async with await aio_pika.connect_robust(broker.url) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue(name, durable=True)
            for number in range(50):
                message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, routing_key=name)
            found: list[bytes] = []
            async with queue.iterator() as incoming:
                async for message_in in incoming:
                    async with message_in.process():
                        found.append(message_in.body)
                    if len(found) == 50:
                        break
            assert found == [b"%d" % number for number in range(50)]
            await queue.delete(if_empty=True)

    run(scenario)


def test_many_publishes_at_once_are_all_confirmed(broker: Broker, name: str) -> None:
    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, exclusive=True)
            publishing = (
                channel.default_exchange.publish(aio_pika.Message(b"%d" % number), routing_key=name)
                for number in range(200)
            )
            await asyncio.gather(*publishing)
            declared = await channel.declare_queue(name, passive=True)
            assert declared.declaration_result.message_count == 200
            await queue.purge()

    run(scenario)


def test_a_mandatory_message_that_no_queue_takes_raises(broker: Broker, name: str) -> None:
    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key=name)

    run(scenario)


def test_a_callback_consumer_rejects_and_sees_the_message_again(broker: Broker, name: str) -> None:
    async def scenario() -> None:
        seen: list[bool] = []
        done = asyncio.Event()

        async def on_message(message: AbstractIncomingMessage) -> None:
            seen.append(bool(message.redelivered))
            if message.redelivered:
                await message.ack()
                done.set()
            else:
                await message.nack(requeue=True)

        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, auto_delete=True)
            tag = await queue.consume(on_message)
            await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key=name)
            await done.wait()
            assert seen == [False, True]
            await queue.cancel(tag)

    run(scenario)


def test_a_topic_exchange_with_two_queues(broker: Broker, name: str) -> None:
    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, auto_delete=True)
            kennedy = await channel.declare_queue(exclusive=True)
            united = await channel.declare_queue(exclusive=True)
            await kennedy.bind(exchange, "JFK.*")
            await united.bind(exchange, "#.UA")
            for key in ("JFK.UA", "JFK.AA", "LGA.UA", "LGA.AA"):
                await exchange.publish(aio_pika.Message(key.encode()), routing_key=key)
            assert [(await kennedy.get()).body for _ in range(2)] == [b"JFK.UA", b"JFK.AA"]
            assert [(await united.get()).body for _ in range(2)] == [b"JFK.UA", b"LGA.UA"]
            assert await kennedy.get(fail=False) is None

    run(scenario)


def test_errors_have_their_own_classes(broker: Broker, name: str) -> None:
    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.get_queue(name, ensure=True)
            channel = await connection.channel()
            await channel.declare_queue(name, exclusive=True)
            with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
                await channel.declare_queue(name, exclusive=True, auto_delete=True)

    run(scenario)


def test_a_wrong_password_is_an_authentication_error(broker: Broker) -> None:
    async def scenario() -> None:
        with pytest.raises(aio_pika.exceptions.ProbableAuthenticationError):
            await aio_pika.connect(broker.url.replace("guest:guest", "guest:wrong"))

    run(scenario)
