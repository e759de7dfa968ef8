"""Streams of applications over the stream protocol, command by command."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from leveret.testing.network.ports import wait_until
from leveret.wire.chunk import ChunkType, split_entries
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, Response, StreamCommand
from leveret.wire.stream.fields import NO_LEADER, FailedPublish, OffsetSpec, OffsetType
from tests.conformance.brokers import RABBITMQ, Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.stream_talker import TIMEOUT_S, StreamTalker

FIRST = OffsetSpec(OffsetType.FIRST)


@pytest.fixture(scope="module", params=BROKERS)
def stage(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with streams."""
    kind = kind_of(request)
    with running(kind, plugins=("rabbitmq_stream",) if kind == RABBITMQ else ()) as broker:
        yield broker


@dataclass
class Script:
    """A connection that asks and waits for what it is told."""

    peer: StreamTalker
    stream: str

    def ask(self, command: StreamCommand) -> StreamCommand | None:
        self.peer.send(command)
        return self.peer.next()

    def code(self, command: StreamCommand) -> int:
        answer = self.ask(command)
        assert isinstance(answer, Response), f"{command} was answered with {answer}"
        return answer.code

    def publish(self, publisher: int, entries: list[tuple[int, bytes]]) -> None:
        """Publish, and wait until all of it is confirmed."""
        self.peer.send(wire.Publish(publisher, entries, []))
        waiting = [publishing_id for publishing_id, _ in entries]
        while waiting:
            confirm = self.peer.next()
            assert isinstance(confirm, wire.PublishConfirm)
            for publishing_id in confirm.publishing_ids:
                waiting.remove(publishing_id)

    def chunk(self) -> tuple[int, list[bytes]]:
        """Wait for a chunk: its id and the messages in it."""
        deliver = self.peer.next()
        assert isinstance(deliver, wire.Deliver)
        return chunk_of(deliver.chunk)


def chunk_of(chunk: bytes) -> tuple[int, list[bytes]]:
    assert chunk[1] == ChunkType.USER
    data_bytes = int.from_bytes(chunk[36:40], "big")
    return int.from_bytes(chunk[24:32], "big"), split_entries(chunk[48 : 48 + data_bytes])


@pytest.fixture
def connect(stage: Broker) -> Iterator[Callable[[], Script]]:
    """Makes connections that end with the test, all for one stream."""
    scripts: list[Script] = []
    name = f"stream-{uuid.uuid4().hex}"

    def make() -> Script:
        scripts.append(Script(StreamTalker(stage.stream_port), name))
        assert scripts[-1].peer.enter() == Code.OK
        return scripts[-1]

    yield make
    for each in scripts:
        each.peer.socket.close()


@pytest.fixture
def script(connect: Callable[[], Script]) -> Script:
    """A connection, and a stream with a publisher 0 that has no reference."""
    made = connect()
    assert made.code(wire.Create(1, made.stream, {})) == Code.OK
    assert made.code(wire.DeclarePublisher(2, 0, "", made.stream)) == Code.OK
    return made


# --- Making and deleting --------------------------------------------------------------------------


def test_a_stream_that_is_made_again_exists_and_with_other_arguments_is_refused(script: Script) -> None:
    assert script.code(wire.Create(1, script.stream, {})) == Code.STREAM_EXISTS
    other = {"max-length-bytes": "1000"}
    assert script.code(wire.Create(1, script.stream, other)) == Code.PRECONDITION_FAILED
    assert script.code(wire.Create(1, "", {})) == Code.PRECONDITION_FAILED


@pytest.mark.parametrize("arguments", [{"queue-leader-locator": "nowhere"}, {"initial-cluster-size": "0"}])
def test_arguments_that_mean_nothing_are_refused(script: Script, arguments: dict[str, str]) -> None:
    assert script.code(wire.Create(1, script.stream + "x", arguments)) == Code.PRECONDITION_FAILED


def test_line_ends_are_no_part_of_a_streams_name(script: Script) -> None:
    assert script.code(wire.Create(1, f"\n{script.stream}\r\n-x", {})) == Code.OK
    assert script.code(wire.DeleteStream(2, script.stream + "-x")) == Code.OK
    assert script.code(wire.Create(3, "\r\n", {})) == Code.PRECONDITION_FAILED


@pytest.mark.parametrize("name", ["amq.mine", "a\nmq.mine"])
def test_a_stream_has_no_reserved_name(script: Script, name: str) -> None:
    assert script.code(wire.Create(1, name, {})) == Code.PRECONDITION_FAILED


def test_spaces_are_part_of_a_streams_name(script: Script) -> None:
    for name in (f" {script.stream}-x ", "  "):
        assert script.code(wire.Create(1, name, {})) == Code.OK
        assert script.code(wire.DeleteStream(2, name.strip())) == Code.STREAM_DOES_NOT_EXIST
        assert script.code(wire.DeleteStream(3, name)) == Code.OK


def test_very_many_commands_in_one_go_are_answered_in_their_order(script: Script) -> None:
    count = 5000
    script.peer.socket.sendall(
        b"".join(wire.QueryOffset(number, "reader", script.stream).encode() for number in range(count))
    )
    for number in range(count):
        answer = script.peer.next()
        assert isinstance(answer, wire.QueryOffsetResponse)
        assert (answer.correlation, answer.code) == (number, Code.NO_OFFSET)


def test_unknown_arguments_are_left_out(script: Script) -> None:
    assert script.code(wire.Create(1, script.stream + "x", {"nonsense": "1"})) == Code.OK


def test_a_stream_that_is_not_there_is_told_to_be_missing(script: Script) -> None:
    missing = script.stream + "x"
    for command in (
        wire.DeleteStream(1, missing),
        wire.DeclarePublisher(1, 9, "", missing),
        wire.Subscribe(1, 1, missing, FIRST, 1, {}),
        wire.QueryOffset(1, "reader", missing),
        wire.QueryPublisherSequence(1, "writer", missing),
    ):
        assert script.code(command) == Code.STREAM_DOES_NOT_EXIST


def test_metadata_tells_what_is_there_and_what_is_not(script: Script) -> None:
    answer = script.ask(wire.Metadata(1, [script.stream, "missing"]))
    assert isinstance(answer, wire.MetadataResponse)
    (node,) = answer.brokers
    assert sorted(answer.streams) == sorted(
        [(script.stream, Code.OK, node.reference, []), ("missing", Code.STREAM_DOES_NOT_EXIST, NO_LEADER, [])]
    )


def test_everybody_on_a_stream_is_told_when_it_is_deleted(
    script: Script, connect: Callable[[], Script]
) -> None:
    reader, writer = connect(), connect()
    assert reader.code(wire.Subscribe(1, 1, script.stream, FIRST, 1, {})) == Code.OK
    assert writer.code(wire.DeclarePublisher(1, 5, "w", script.stream)) == Code.OK
    script.peer.send(wire.DeleteStream(9, script.stream))
    update = wire.MetadataUpdate(Code.STREAM_NOT_AVAILABLE, script.stream)
    for each in (reader, writer):
        assert each.peer.next() == update
    both = [script.peer.next(), script.peer.next()]
    assert wire.DeleteResponse(9, Code.OK) in both
    assert update in both
    writer.peer.send(wire.Publish(5, [(1, b"late")], []))
    assert writer.peer.next() == wire.PublishError(5, [FailedPublish(1, Code.PUBLISHER_UNKNOWN)])
    reader.peer.send(wire.Credit(1, 1))
    assert reader.peer.next() == wire.CreditResponse(Code.SUBSCRIPTION_ID_UNKNOWN, 1)


# --- Publishing -----------------------------------------------------------------------------------


def test_publisher_ids_and_references_are_unique_on_a_connection(script: Script) -> None:
    assert script.code(wire.DeclarePublisher(1, 0, "", script.stream)) == Code.PRECONDITION_FAILED
    assert script.code(wire.DeclarePublisher(1, 1, "r", script.stream)) == Code.OK
    assert script.code(wire.DeclarePublisher(1, 2, "r", script.stream)) == Code.PRECONDITION_FAILED
    assert script.code(wire.DeclarePublisher(1, 2, "", script.stream)) == Code.OK
    assert script.code(wire.DeletePublisher(1, 2)) == Code.OK
    assert script.code(wire.DeletePublisher(1, 2)) == Code.PUBLISHER_UNKNOWN


def test_what_a_publisher_with_a_reference_publishes_twice_is_stored_once_and_confirmed_twice(
    script: Script,
) -> None:
    assert script.code(wire.DeclarePublisher(1, 1, "writer", script.stream)) == Code.OK
    script.publish(1, [(1, b"a"), (2, b"b")])
    script.publish(1, [(1, b"a"), (2, b"b")])
    script.publish(1, [(2, b"b"), (3, b"c")])
    script.publish(1, [(9, b"d"), (8, b"older")])
    answer = script.ask(wire.QueryPublisherSequence(1, "writer", script.stream))
    assert answer == wire.QueryPublisherSequenceResponse(1, Code.OK, 9)
    assert script.ask(wire.QueryPublisherSequence(1, "nobody", script.stream)) == (
        wire.QueryPublisherSequenceResponse(1, Code.OK, 0)
    )
    assert script.code(wire.Subscribe(1, 1, script.stream, FIRST, 10, {})) == Code.OK
    got: list[bytes] = []
    while len(got) < 4:
        got += script.chunk()[1]
    assert got == [b"a", b"b", b"c", b"d"]


def test_without_a_reference_ids_mean_nothing(script: Script) -> None:
    script.publish(0, [(0, b"x"), (0, b"y")])
    script.publish(0, [(0, b"z")])
    assert script.code(wire.Subscribe(1, 1, script.stream, FIRST, 10, {})) == Code.OK
    assert [script.chunk(), script.chunk()] == [(0, [b"x", b"y"]), (2, [b"z"])]


def test_publishing_without_a_publisher_fails_message_by_message(script: Script) -> None:
    code = Code.PUBLISHER_UNKNOWN
    assert script.ask(wire.Publish(77, [(1, b"a"), (2, b"b")], [])) == (
        wire.PublishError(77, [FailedPublish(1, code), FailedPublish(2, code)])
    )


def test_a_batch_of_messages_goes_through_as_it_is(script: Script) -> None:
    batch = b"".join(len(body).to_bytes(4, "big") + body for body in (b"one", b"two", b"three"))
    sub_batch = b"\x80" + (3).to_bytes(2, "big") + len(batch).to_bytes(4, "big") * 2 + batch
    simple = (4).to_bytes(4, "big") + b"four"
    entries = (1).to_bytes(8, "big") + sub_batch + (2).to_bytes(8, "big") + simple
    frame = bytes.fromhex("0002 0001 00 00000002") + entries
    script.peer.socket.sendall(len(frame).to_bytes(4, "big") + frame)
    confirm = script.peer.next()
    assert isinstance(confirm, wire.PublishConfirm)
    assert sorted(confirm.publishing_ids) == [1, 2]
    assert script.code(wire.Subscribe(1, 1, script.stream, FIRST, 10, {})) == Code.OK
    deliver = script.peer.next()
    assert isinstance(deliver, wire.Deliver)
    chunk = deliver.chunk
    assert (chunk[2:4], chunk[4:8]) == (b"\0\2", b"\0\0\0\4"), "two entries, four messages"
    assert chunk[48:] == sub_batch + simple


# --- Reading --------------------------------------------------------------------------------------


@pytest.fixture
def filled(script: Script) -> Script:
    """Chunks with the offsets 0-1, 2 and 3-4."""
    script.publish(0, [(0, b"0"), (1, b"1")])
    script.publish(0, [(2, b"2")])
    script.publish(0, [(3, b"3"), (4, b"4")])
    return script


@pytest.mark.parametrize(
    ("offset", "ids"),
    [
        (FIRST, [0, 2, 3]),
        (OffsetSpec(OffsetType.LAST), [3]),
        (OffsetSpec(OffsetType.NEXT), []),
        (OffsetSpec(OffsetType.OFFSET, 0), [0, 2, 3]),
        (OffsetSpec(OffsetType.OFFSET, 1), [0, 2, 3]),
        (OffsetSpec(OffsetType.OFFSET, 2), [2, 3]),
        (OffsetSpec(OffsetType.OFFSET, 4), [3]),
        (OffsetSpec(OffsetType.OFFSET, 1000), []),
        (OffsetSpec(OffsetType.TIMESTAMP, 0), [0, 2, 3]),
        (OffsetSpec(OffsetType.TIMESTAMP, 1 << 42), []),
    ],
)
def test_a_subscription_begins_where_its_offset_says(
    filled: Script, connect: Callable[[], Script], offset: OffsetSpec, ids: list[int]
) -> None:
    reader = connect()
    assert reader.code(wire.Subscribe(1, 1, filled.stream, offset, 10, {})) == Code.OK
    assert [reader.chunk()[0] for _ in ids] == ids
    filled.publish(0, [(5, b"5")])
    assert reader.chunk() == (5, [b"5"])


def test_a_chunk_costs_a_credit_and_without_credit_none_comes(
    filled: Script, connect: Callable[[], Script]
) -> None:
    reader = connect()
    assert reader.code(wire.Subscribe(1, 1, filled.stream, FIRST, 0, {})) == Code.OK
    reader.peer.send(wire.Credit(1, 1))
    assert reader.chunk()[0] == 0
    reader.peer.send(wire.Credit(1, 2))
    assert [reader.chunk()[0], reader.chunk()[0]] == [2, 3]
    assert reader.ask(wire.Credit(9, 1)) == wire.CreditResponse(Code.SUBSCRIPTION_ID_UNKNOWN, 9)


def test_subscription_ids_are_unique_on_a_connection(filled: Script) -> None:
    again = wire.Subscribe(1, 1, filled.stream, OffsetSpec(OffsetType.NEXT), 1, {})
    assert filled.code(again) == Code.OK
    assert filled.code(again) == Code.SUBSCRIPTION_ID_EXISTS
    assert filled.code(wire.Unsubscribe(1, 1)) == Code.OK
    assert filled.code(wire.Unsubscribe(1, 1)) == Code.SUBSCRIPTION_ID_UNKNOWN


def test_a_stored_offset_is_told_again_and_no_subscriber_sees_it(
    filled: Script, connect: Callable[[], Script]
) -> None:
    reader = connect()
    query = wire.QueryOffset(1, "reader", filled.stream)
    assert reader.code(query) == Code.NO_OFFSET
    reader.peer.send(wire.StoreOffset("reader", filled.stream, 3))
    stored = wire.QueryOffsetResponse(1, Code.OK, 3)
    wait_until(lambda: reader.ask(query) == stored, "the offset is stored", TIMEOUT_S)
    assert reader.code(wire.Subscribe(1, 1, filled.stream, FIRST, 10, {})) == Code.OK
    assert [reader.chunk()[0] for _ in range(3)] == [0, 2, 3]
    filled.publish(0, [(9, b"after")])
    assert reader.chunk()[1] == [b"after"]
