"""The pipeline's own client of the stream protocol: what it reads of Leveret, it reads of RabbitMQ.

The product is RabbitMQ's client here, so that its answers are not recorded; `make conformance` asks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.model.errors import AccessRefused, AuthenticationFailed, NotAllowed, NotFound
from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.wire.chunk import Attribute, ChunkType, decode_trailer, split_entries
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream.publish import MessageRun
from tests.conformance.brokers import LEVERET, RABBITMQ, Broker, running
from tests.conformance.conftest import kind_of
from tests.conformance.stream_talker import TIMEOUT_S

ON_RABBITMQ = (pytest.mark.oracle, pytest.mark.rabbitmq, pytest.mark.xdist_group("rabbitmq"))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(LEVERET, marks=pytest.mark.xdist_group("leveret")),
        pytest.param(RABBITMQ, marks=ON_RABBITMQ),
    ],
)
def stage(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with streams."""
    kind = kind_of(request)
    with running(kind, plugins=("rabbitmq_stream",) if kind == RABBITMQ else ()) as broker:
        yield broker


def client_of(stage: Broker, vhost: str = "/", password: str = "guest") -> StreamClient:
    return connect([(LOOPBACK, stage.stream_port)], vhost=vhost, username="guest", password=password)


@pytest.fixture
def client(stage: Broker) -> Iterator[StreamClient]:
    with client_of(stage) as one:
        yield one


@pytest.fixture
def stream(client: StreamClient, name: str) -> str:
    """A stream that nobody else has."""
    link = client.connection
    link.request(wire.Create(link.next_id(), name, {}), wire.CreateResponse)
    return name


def entries_of(chunk: memoryview | bytes) -> list[bytes]:
    """RabbitMQ's chunks have no header check."""
    data_bytes = int.from_bytes(chunk[36:40], "big")
    return split_entries(chunk[48 : 48 + data_bytes])


def publish(client: StreamClient, stream: str, numbers: range) -> None:
    """Publish, as who may have done so before; wait for the confirms."""
    publisher = client.declare_publisher("recovery.1", stream)
    for number in numbers:
        publisher.publish(MessageRun.of(number, [b"message %d" % number]))
    publisher.wait_confirmed(numbers[-1], TIMEOUT_S)
    publisher.close()


def test_what_was_published_even_twice_is_fetched_once_whole_and_in_order(
    client: StreamClient, stage: Broker, stream: str
) -> None:
    publish(client, stream, range(1, 601))
    with client_of(stage) as another:
        publish(another, stream, range(1, 1001))
        assert another.declare_publisher("recovery.1", stream).last_sequence == 1000
    chunks = list(client.fetch(stream, 0, 1000))
    assert [body for raw in chunks for body in entries_of(raw)] == [b"message %d" % n for n in range(1, 1001)]
    assert int.from_bytes(chunks[0][24:32], "big") == 0


def test_a_wrong_password_and_a_vhost_that_is_missing_are_refused(stage: Broker) -> None:
    with pytest.raises(AuthenticationFailed, match="code 8"):
        client_of(stage, password="wrong")
    with pytest.raises(AccessRefused, match="code 12"):
        client_of(stage, vhost="missing")


def test_a_stream_that_does_not_exist_is_not_found(client: StreamClient, stream: str) -> None:
    (there, missing) = client.metadata([stream, "missing"])
    assert (there.code, there.leader) == (Code.OK, 0)
    assert (missing.code, missing.leader) == (Code.STREAM_DOES_NOT_EXIST, 0xFFFF)
    # As at a server that has no statistics.
    client.connection.server_properties["version"] = "3.10.0"
    with pytest.raises(NotFound, match="declines Subscribe: stream does not exist"):
        list(client.fetch("missing", 0, 1))
    assert client.metadata([stream])[0].code == Code.OK, "the connection goes on"


def test_a_stored_offset_is_told_again_and_none_is_none(client: StreamClient, stream: str) -> None:
    assert client.query_offset("dc2", stream) is None
    client.store_offset("dc2", stream, 4711)
    wait_until(lambda: client.query_offset("dc2", stream) == 4711, "the offset", TIMEOUT_S)


def test_statistics_are_asked_for_only_where_they_are_served(client: StreamClient, stream: str) -> None:
    if client.connection.is_leveret:
        assert client.stats(stream)["committed_offset"] == -1
    else:
        with pytest.raises(NotAllowed, match="no stream statistics"):
            client.stats(stream)


def test_tracking_chunks_and_trailers_come_with_the_rest(client: StreamClient, stream: str) -> None:
    publisher = client.declare_publisher("writer", stream)
    for number in (1, 2):
        publisher.publish(MessageRun.of(number, [b"message"]))
        publisher.wait_confirmed(number, TIMEOUT_S)
        client.store_offset("reader", stream, number)
        wait_until(lambda n=number: client.query_offset("reader", stream) == n, "it", TIMEOUT_S)  # type: ignore[misc]  # a default is how a loop variable is bound
    chunks = [(raw[1], bytes(raw)) for raw in client.fetch(stream, 0, 3)]
    assert ChunkType.TRACKING in [kind for kind, _ in chunks]
    users = [raw for kind, raw in chunks if kind == ChunkType.USER]
    trailers = [raw[48 + int.from_bytes(raw[36:40], "big") :] for raw in users]
    sequences = [entry for trailer in trailers for entry in decode_trailer(trailer)]
    assert (Attribute.SEQUENCE, b"writer", 1) in sequences
