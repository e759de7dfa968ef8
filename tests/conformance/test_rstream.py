"""rstream (PyPI), a stock client of the stream protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from rstream.client import Client
from rstream.exceptions import AuthenticationFailure, StreamDoesNotExist
from rstream.schema import Message, Publish, PublishConfirm

from leveret.testing.network.ports import LOOPBACK
from tests.conformance.brokers import RABBITMQ, Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.stream_talker import TIMEOUT_S

STREAM = "s"


@pytest.fixture(scope="module", params=BROKERS)
def stage(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with a stream."""
    kind = kind_of(request)
    with running(kind, plugins=("rabbitmq_stream",) if kind == RABBITMQ else ()) as broker:
        with broker.connect() as connection:
            arguments = {"x-queue-type": "stream"}
            connection.channel().queue_declare(STREAM, durable=True, arguments=arguments)
        yield broker


@asynccontextmanager
async def rstream(broker: Broker, password: str = "guest", vhost: str = "/") -> AsyncIterator[Client]:
    client = Client(LOOPBACK, broker.stream_port, frame_max=1_048_576, heartbeat=60)
    await client.start()
    try:
        await client.authenticate(vhost, "guest", password)
        yield client
    finally:
        await client.close()
        if client._conn is not None:
            # It lets go of a connection that the server has ended without closing it.
            await client._conn.close()


def test_it_connects_and_sees_which_streams_there_are(stage: Broker) -> None:
    async def script() -> None:
        async with rstream(stage) as client:
            assert client.server_properties is not None
            assert client.server_properties["advertised_port"] == str(stage.stream_port)
            assert await client.stream_exists(STREAM)
            assert not await client.stream_exists("missing")
            leader, replicas = await client.query_leader_and_replicas(STREAM)
            assert (leader.port, replicas) == (stage.stream_port, [])

    asyncio.run(script())


def test_it_is_told_that_its_password_is_wrong(stage: Broker) -> None:
    async def script() -> None:
        async with rstream(stage, password="wrong"):
            pass

    with pytest.raises(AuthenticationFailure):
        asyncio.run(script())


def test_it_is_told_that_a_stream_is_missing(stage: Broker) -> None:
    async def script() -> None:
        async with rstream(stage) as client:
            with pytest.raises(StreamDoesNotExist):
                await client.subscribe("missing", 0)
            with pytest.raises(StreamDoesNotExist):
                await client.declare_publisher("missing", "r", 0)

    asyncio.run(script())


def test_it_publishes_and_is_confirmed(stage: Broker) -> None:
    async def script() -> None:
        async with rstream(stage) as client:
            await client.declare_publisher(STREAM, "r", 0)
            confirmed: list[int] = []
            done = asyncio.Event()

            def on_confirm(frame: PublishConfirm) -> None:
                confirmed.extend(frame.publishing_ids)
                if len(confirmed) == 3:
                    done.set()

            client.add_handler(PublishConfirm, on_confirm)
            messages = [Message(number, None, b"%d" % number) for number in (1, 2, 3)]
            await client.send_publish_frame(Publish(0, messages))
            await asyncio.wait_for(done.wait(), TIMEOUT_S)
            assert sorted(confirmed) == [1, 2, 3]
            assert await client.query_publisher_sequence(STREAM, "r") == 3

    asyncio.run(script())
