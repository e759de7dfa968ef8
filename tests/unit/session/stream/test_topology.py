from __future__ import annotations

import pytest

from leveret.session.stream.types import ChangeStreams, SendResponse, StreamPlaces
from leveret.testing.sites.stream_host import FakeStream, FakeStreamHost
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, Response, StreamRequest
from leveret.wire.stream.fields import NO_LEADER, BrokerNode, StreamMetadata
from tests.unit.session.stream.stream_peer import Peer


@pytest.fixture
def peer() -> Peer:
    return Peer(FakeStreamHost(streams={("/", "s"): FakeStream()})).opened()


def change(peer: Peer, request: StreamRequest, answer: type[Response]) -> None:
    """Ask for a change, and have it made durable."""
    assert peer.send(request) == [], "the answer waits for the disk"
    assert peer.effects == [SendResponse(answer(request.correlation, Code.OK))]
    peer.session.answer(answer(request.correlation, Code.OK))
    assert peer.output() == [answer(request.correlation, Code.OK)]


def test_streams_are_made_and_deleted(peer: Peer) -> None:
    change(peer, wire.Create(1, "new", {}), wire.CreateResponse)
    assert ("/", "new") in peer.host.streams
    change(peer, wire.DeleteStream(2, "new"), wire.DeleteResponse)
    assert ("/", "new") not in peer.host.streams


def test_where_another_node_may_change_things_they_wait_and_are_asked_for_then(peer: Peer) -> None:
    peer.host.may_change = False
    assert peer.send(wire.Create(1, "new", {}), wire.Create(2, "s", {})) == []
    first, second = peer.effects
    assert isinstance(first, ChangeStreams)
    assert isinstance(second, ChangeStreams)
    assert ("/", "new") not in peer.host.streams
    assert peer.session.change(first) == [SendResponse(wire.CreateResponse(1, Code.OK))]
    assert ("/", "new") in peer.host.streams
    # What is refused need not wait for the disk.
    assert peer.session.change(second) == []
    assert peer.output() == [wire.CreateResponse(2, Code.STREAM_EXISTS)]
    peer.send(wire.DeleteStream(3, "new"))
    [late] = peer.effects
    assert isinstance(late, ChangeStreams)
    peer.send(wire.Close(4, Code.OK, ""))
    assert peer.session.change(late) == []
    assert ("/", "new") in peer.host.streams


def test_streams_that_other_nodes_lead_are_found_there(peer: Peer) -> None:
    b, c = ("b.example", 5552), ("c", 1)
    elsewhere = {
        "b": StreamPlaces(b),
        "b2": StreamPlaces(b, (c,)),
        "c": StreamPlaces(c),
        "down": StreamPlaces(None, (b,)),
    }
    peer.host.elsewhere = {("/", name): places for name, places in elsewhere.items()}
    asked = wire.Metadata(1, ["b", "s", "c", "b2", "down", "missing"])
    [found] = peer.send(asked)
    assert found == wire.MetadataResponse(
        1,
        [BrokerNode(0, "b.example", 5552), BrokerNode(1, "127.0.0.1", 0), BrokerNode(2, "c", 1)],
        [
            StreamMetadata("b", Code.OK, 0, []),
            StreamMetadata("s", Code.OK, 1, []),
            StreamMetadata("c", Code.OK, 2, []),
            StreamMetadata("b2", Code.OK, 0, [2]),
            StreamMetadata("down", Code.OK, NO_LEADER, [0]),
            StreamMetadata("missing", Code.STREAM_DOES_NOT_EXIST, NO_LEADER, []),
        ],
    )


def test_making_and_deleting_needs_the_configure_permission(peer: Peer) -> None:
    peer.host.refused = {("guest", "configure", "s"), ("guest", "configure", "n")}
    assert peer.send(wire.Create(1, "n", {}), wire.DeleteStream(2, "s")) == [
        wire.CreateResponse(1, Code.ACCESS_REFUSED),
        wire.DeleteResponse(2, Code.ACCESS_REFUSED),
    ]


def test_a_super_stream_is_all_of_its_partitions(peer: Peer) -> None:
    made = wire.CreateSuperStream(1, "super", ["super-0", "super-1"], ["0", "1"], {})
    change(peer, made, wire.CreateSuperStreamResponse)
    assert peer.send(
        made,
        wire.Partitions(2, "super"),
        wire.Route(3, "1", "super"),
        wire.Route(4, "9", "super"),
        wire.Route(5, "1", "missing"),
        wire.Partitions(6, "missing"),
    ) == [
        wire.CreateSuperStreamResponse(1, Code.STREAM_EXISTS),
        wire.PartitionsResponse(2, Code.OK, ["super-0", "super-1"]),
        wire.RouteResponse(3, Code.OK, ["super-1"]),
        wire.RouteResponse(4, Code.OK, []),
        wire.RouteResponse(5, Code.STREAM_DOES_NOT_EXIST, []),
        wire.PartitionsResponse(6, Code.STREAM_DOES_NOT_EXIST, []),
    ]
    change(peer, wire.DeleteSuperStream(7, "super"), wire.DeleteSuperStreamResponse)
    assert list(peer.host.streams) == [("/", "s")]


@pytest.mark.parametrize(
    ("partitions", "keys"),
    [
        ([], []),
        (["a", "b"], ["0"]),
        (["a", "a"], ["0", "1"]),
        (["a", ""], ["0", "1"]),
        ([OUTGOING_STREAM], ["0"]),
    ],
)
def test_a_super_stream_has_as_many_names_as_keys(peer: Peer, partitions: list[str], keys: list[str]) -> None:
    request = wire.CreateSuperStream(1, "super", partitions, keys, {})
    assert peer.send(request) == [wire.CreateSuperStreamResponse(1, Code.PRECONDITION_FAILED)]


def test_metadata_needs_no_permission_on_a_stream(peer: Peer) -> None:
    peer.host.refused = {("guest", "read", "s")}
    answer = peer.ask(wire.Metadata(1, ["s", "no"]), wire.MetadataResponse)
    assert answer.streams == [
        StreamMetadata("s", Code.OK, 0, []),
        StreamMetadata("no", Code.STREAM_DOES_NOT_EXIST, NO_LEADER, []),
    ]


def test_statistics_of_a_stream_end_with_its_last_message(peer: Peer) -> None:
    stream = peer.host.streams["/", "s"]
    nothing = {"first_chunk_id": -1, "last_chunk_id": -1, "committed_chunk_id": -1, "committed_offset": -1}
    assert peer.ask(wire.StreamStats(1, "s"), wire.StreamStatsResponse).statistics == nothing
    stream.append([b"a", b"b"])
    stream.append([b"c"])
    bounds = {"first_chunk_id": 0, "last_chunk_id": 2, "committed_chunk_id": 2, "committed_offset": 2}
    assert peer.ask(wire.StreamStats(2, "s"), wire.StreamStatsResponse).statistics == bounds
    peer.host.refused = {("guest", "read", "s")}
    assert peer.ask(wire.StreamStats(3, "s"), wire.StreamStatsResponse).code == Code.ACCESS_REFUSED
