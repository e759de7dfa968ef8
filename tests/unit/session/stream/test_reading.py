from __future__ import annotations

import pytest

from leveret.model.errors import NotFound
from leveret.session.stream.types import KeepOffset, SteppedDown, Subscribed
from leveret.testing.sites.stream_host import FakeStream, FakeStreamHost
from leveret.wire.chunk import Attribute, decode_header, encode_attribute, encode_trailer
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, CommandKey
from leveret.wire.stream.fields import CommandVersions, OffsetSpec, OffsetType
from tests.unit.session.stream.stream_peer import Peer

FIRST = OffsetSpec(OffsetType.FIRST)
SINGLE = {"single-active-consumer": "true", "name": "app"}


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
def peer(stream: FakeStream) -> Peer:
    return Peer(FakeStreamHost(streams={("/", "s"): stream})).opened()


def subscribe(peer: Peer, number: int, properties: dict[str, str], offset: OffsetSpec = FIRST) -> Code:
    answer = peer.ask(wire.Subscribe(1, number, "s", offset, 10, properties), wire.SubscribeResponse)
    return Code(answer.code)


def delivered(peer: Peer, stream: FakeStream, number: int) -> list[int]:
    """Deliver all there is, as the runtime would; return the chunk ids."""
    subscription = peer.session.subscriptions[number]
    peer.session.deliver(number, stream.read(subscription.next_offset, 1 << 30))
    return [decode_header(each.chunk).chunk_id for each in peer.output() if isinstance(each, wire.Deliver)]


def filtered(chunk: bytes, *values: tuple[bytes, int]) -> bytes:
    """A chunk with another trailer: these filter values."""
    header = decode_header(chunk)
    trailer = encode_trailer(*(encode_attribute(Attribute.FILTER, *value) for value in values))
    return chunk[:40] + len(trailer).to_bytes(4, "big") + chunk[44 : 48 + header.data_bytes] + trailer


def test_reading_needs_the_read_permission(peer: Peer) -> None:
    peer.host.refused = {("guest", "read", "s")}
    assert subscribe(peer, 1, {}) is Code.ACCESS_REFUSED
    assert peer.ask(wire.QueryOffset(2, "r", "s"), wire.QueryOffsetResponse).code == Code.ACCESS_REFUSED
    assert peer.send(wire.StoreOffset("r", "s", 1)) == []
    assert peer.effects == []


@pytest.mark.parametrize(
    ("properties", "ids"),
    [
        ({}, [0, 1, 2, 3]),
        ({"filter.0": "eu"}, [0, 3]),
        ({"filter.0": "eu", "filter.1": "us"}, [0, 1, 3]),
        ({"filter.0": "none"}, [3]),
        ({"filter.0": "none", "match-unfiltered": "true"}, [1, 2, 3]),
    ],
)
def test_a_filter_leaves_out_chunks_that_have_no_such_message(
    peer: Peer, stream: FakeStream, properties: dict[str, str], ids: list[int]
) -> None:
    chunks = [stream.append([b"x"]) for _ in range(4)]
    subscribe(peer, 1, properties)
    trailers: list[list[tuple[bytes, int]]] = [[(b"eu", 0)], [(b"us", 0), (b"", 0)], [], [(b"", 1)]]
    peer.session.deliver(
        1, [filtered(chunk, *values) for chunk, values in zip(chunks, trailers, strict=True)]
    )
    got = [
        int.from_bytes(each.chunk[24:32], "big") for each in peer.output() if isinstance(each, wire.Deliver)
    ]
    assert got == ids
    assert peer.session.subscriptions[1].credit == 10 - len(ids), "what is left out costs nothing"
    assert peer.session.subscriptions[1].next_offset == 4


def test_one_of_several_waits_until_it_is_told_to_read_and_begins_where_it_says(
    peer: Peer, stream: FakeStream
) -> None:
    for _ in range(3):
        stream.append([b"a", b"b"])
    assert subscribe(peer, 1, SINGLE) is Code.OK
    assert peer.effects == [Subscribed(1)]
    assert delivered(peer, stream, 1) == []
    peer.session.consumer_update(1, True)
    (update,) = peer.output()
    assert isinstance(update, wire.ConsumerUpdate)
    assert (update.subscription, update.active) == (1, 1)
    assert delivered(peer, stream, 1) == [], "not before it has answered"
    begin = OffsetSpec(OffsetType.OFFSET, 4)
    assert peer.send(wire.ConsumerUpdateResponse(update.correlation, Code.OK, begin)) == []
    assert delivered(peer, stream, 1) == [4]


def test_without_an_answer_s_offset_it_begins_where_it_subscribed(peer: Peer, stream: FakeStream) -> None:
    stream.append([b"a"])
    subscribe(peer, 1, SINGLE)
    peer.session.consumer_update(1, True)
    (update,) = peer.output()
    assert isinstance(update, wire.ConsumerUpdate)
    peer.send(wire.ConsumerUpdateResponse(update.correlation, Code.OK, None))
    assert delivered(peer, stream, 1) == [0]


def test_one_that_is_told_to_stop_stops_at_once_and_says_when_it_has(peer: Peer, stream: FakeStream) -> None:
    subscribe(peer, 1, SINGLE)
    peer.session.consumer_update(1, True)
    peer.session.consumer_update(1, False)
    first, second = peer.output()
    assert isinstance(first, wire.ConsumerUpdate)
    assert isinstance(second, wire.ConsumerUpdate)
    assert (first.active, second.active) == (1, 0)
    peer.send(wire.ConsumerUpdateResponse(second.correlation, Code.OK, None))
    assert peer.effects == [SteppedDown(1)]
    stream.append([b"a"])
    assert delivered(peer, stream, 1) == []


def test_an_answer_that_nobody_waits_for_means_nothing(peer: Peer) -> None:
    subscribe(peer, 1, SINGLE)
    peer.session.consumer_update(1, True)
    (update,) = peer.output()
    assert isinstance(update, wire.ConsumerUpdate)
    peer.send(wire.Unsubscribe(5, 1))
    assert not peer.session.updating, "a client that never answers fills no memory"
    assert (
        peer.send(
            wire.ConsumerUpdateResponse(update.correlation, Code.OK, None),
            wire.ConsumerUpdateResponse(99, Code.OK, None),
        )
        == []
    )


def test_a_reader_whose_permission_ended_before_its_answer_hears_so(peer: Peer) -> None:
    subscribe(peer, 1, SINGLE)
    peer.session.consumer_update(1, True)
    (update,) = peer.output()
    assert isinstance(update, wire.ConsumerUpdate)
    peer.host.refused = {("guest", "read", "s")}
    begin = OffsetSpec(OffsetType.OFFSET, 4)
    answers = peer.send(wire.ConsumerUpdateResponse(update.correlation, Code.OK, begin))
    assert answers == [wire.MetadataUpdate(Code.ACCESS_REFUSED, "s")]
    assert not peer.session.subscriptions


@pytest.mark.parametrize(
    ("properties", "code"),
    [({"leveret.until": "9" * 5000}, Code.PRECONDITION_FAILED), ({"leveret.until": "9"}, Code.OK)],
)
def test_an_end_is_an_offset(peer: Peer, properties: dict[str, str], code: Code) -> None:
    assert subscribe(peer, 1, properties) is code


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"single-active-consumer": "true"}, Code.PRECONDITION_FAILED),
        ({**SINGLE, "super-stream": "missing"}, Code.STREAM_DOES_NOT_EXIST),
        ({**SINGLE, "super-stream": "other"}, Code.PRECONDITION_FAILED),
        ({**SINGLE, "super-stream": "super"}, Code.OK),
    ],
)
def test_a_group_has_a_name_and_its_super_stream_the_stream(
    peer: Peer, properties: dict[str, str], code: Code
) -> None:
    peer.host.super_streams = {"super": {"first": "0", "s": "1"}, "other": {"first": "0"}}
    assert subscribe(peer, 1, properties) is code
    if code is Code.OK:
        assert peer.session.subscriptions[1].partition == 1


def test_deliver_is_of_the_version_that_both_speak(peer: Peer, stream: FakeStream) -> None:
    chunk = stream.append([b"a"])
    subscribe(peer, 1, {})
    peer.ask(
        wire.ExchangeCommandVersions(1, [CommandVersions(CommandKey.DELIVER, 1, 9)]),
        wire.ExchangeCommandVersionsResponse,
    )
    peer.session.deliver(1, [chunk], 7)
    head, octets = peer.session.take_output(0)
    assert head[4:] == bytes.fromhex("0008 0002 01 0000000000000007")
    assert int.from_bytes(head[:4], "big") == len(head) - 4 + len(octets)


def test_offsets_of_a_stream_are_kept_with_it(peer: Peer, stream: FakeStream) -> None:
    peer.send(wire.StoreOffset("r", "s", 5), wire.StoreOffset("r" * 256, "s", 5))
    assert peer.effects == [KeepOffset("r", 5, "s")]
    stream.offsets["r"] = 5
    assert peer.send(wire.QueryOffset(1, "r", "s")) == [wire.QueryOffsetResponse(1, Code.OK, 5)]


def test_a_stream_that_is_gone_is_told_once_and_takes_readers_and_publishers_with_it(peer: Peer) -> None:
    subscribe(peer, 1, {})
    subscribe(peer, 2, {})
    peer.send(wire.DeclarePublisher(3, 3, "", "s"))
    assert peer.session.streams == {"s"}
    peer.session.stream_gone("s", NotFound("it was deleted"))
    assert peer.output() == [wire.MetadataUpdate(Code.STREAM_NOT_AVAILABLE, "s")]
    assert (peer.session.subscriptions, peer.session.publishers, peer.session.streams) == ({}, {}, set())


def test_a_standby_whose_permission_is_taken_away_gets_no_more_of_the_outgoing_log() -> None:
    """It reads for months, and all messages of the vhost come this way."""
    host = FakeStreamHost()
    peer = Peer(host).opened()
    request = wire.Subscribe(1, 1, OUTGOING_STREAM, OffsetSpec(OffsetType.FIRST), 1, {})
    assert peer.ask(request, wire.SubscribeResponse).code == Code.OK
    assert peer.send(wire.Credit(1, 1)) == []
    host.unreadable.add(("guest", "/"))
    assert peer.send(wire.Credit(1, 1)) == [wire.MetadataUpdate(Code.ACCESS_REFUSED, OUTGOING_STREAM)]
    assert not peer.session.subscriptions
