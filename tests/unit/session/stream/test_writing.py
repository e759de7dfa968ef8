from __future__ import annotations

import pytest

from leveret.model.errors import NotFound
from leveret.model.stream import OffsetSpec, OffsetType
from leveret.session.stream.types import Append, AskOffset, AskSequence, Declared, KeepOffset, StoreBatch
from leveret.testing.sites.stream_host import FakeStream, FakeStreamHost
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.staged_segment import STAGED_STREAM_PREFIX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream.fields import FailedPublish
from tests.unit.session.stream.stream_peer import Peer


@pytest.fixture
def peer() -> Peer:
    return Peer(FakeStreamHost(streams={("/", "s"): FakeStream()})).opened()


def declare(peer: Peer, number: int = 1, reference: str = "", stream: str = "s") -> Code:
    request = wire.DeclarePublisher(1, number, reference, stream)
    return Code(peer.ask(request, wire.DeclarePublisherResponse).code)


def writes(peer: Peer) -> list[StoreBatch]:
    return [effect for effect in peer.effects if isinstance(effect, StoreBatch)]


def test_publishing_needs_the_write_permission(peer: Peer) -> None:
    peer.host.refused = {("guest", "write", "s")}
    assert declare(peer) is Code.ACCESS_REFUSED
    query = wire.QueryPublisherSequence(2, "w", "s")
    assert peer.ask(query, wire.QueryPublisherSequenceResponse).code == Code.ACCESS_REFUSED


def test_a_publisher_whose_permission_is_taken_away_writes_no_more(peer: Peer) -> None:
    """Its connection may last for months."""
    declare(peer)
    peer.send_octets(published(1))
    assert [each.ids for each in writes(peer)] == [[1]]
    peer.host.refused = {("guest", "write", "s")}
    assert peer.send_octets(published(2)) == [wire.PublishError(1, [FailedPublish(2, Code.ACCESS_REFUSED)])]
    assert writes(peer) == []
    assert peer.session.takes_more
    peer.host.refused = set()
    peer.send_octets(published(3))
    assert [each.ids for each in writes(peer)] == [[3]]


def test_who_is_no_administrator_any_more_recovers_nothing_more(peer: Peer) -> None:
    queue = RECOVERY_STREAM_PREFIX + "orders"
    declare(peer, reference="r", stream=queue)
    peer.host.administrators.discard("guest")
    assert peer.send_octets(published(5)) == [wire.PublishError(1, [FailedPublish(5, Code.ACCESS_REFUSED)])]
    assert peer.effects == []


def published(number: int) -> bytes:
    return wire.Publish(1, [(number, b"x")], []).encode()


def test_a_stream_that_another_node_leads_takes_publishers_while_it_has_a_leader() -> None:
    stream = FakeStream()
    stream.is_replica, stream.is_readable, stream.is_writable = True, False, False
    peer = Peer(FakeStreamHost(streams={("/", "s"): stream})).opened()
    assert declare(peer) is Code.STREAM_NOT_AVAILABLE
    stream.is_writable = True
    assert declare(peer) is Code.OK
    # Only the leader knows ids and offsets; only a node with a copy serves readers.
    assert peer.send(wire.QueryPublisherSequence(2, "w", "s"), wire.QueryOffset(3, "r", "s")) == []
    assert peer.effects == [AskSequence(2, "w", "s", of_stream=True), AskOffset(3, "s", "r")]
    peer.send(wire.StoreOffset("r", "s", 7))
    assert peer.effects == [KeepOffset("r", 7, "s")]
    subscribe = wire.Subscribe(4, 1, "s", OffsetSpec(OffsetType.FIRST), 1, {})
    assert peer.ask(subscribe, wire.SubscribeResponse).code == Code.STREAM_NOT_AVAILABLE


def test_a_publisher_needs_no_reference_and_the_stream_is_looked_at_for_it(peer: Peer) -> None:
    assert declare(peer) is Code.OK
    assert peer.effects == [Declared("s")]
    assert declare(peer, 2) is Code.OK
    assert declare(peer, 3, "r" * 256) is Code.PRECONDITION_FAILED


def test_what_comes_in_one_read_is_one_batch_for_each_publisher_in_turn(peer: Peer) -> None:
    declare(peer, 1, "w")
    declare(peer, 2)
    peer.send(
        wire.Publish(1, [(1, b"a"), (2, b"b")], []),
        wire.Publish(1, [(3, b"c")], []),
        wire.Publish(2, [(1, b"d")], []),
        wire.Publish(1, [(4, b"e")], []),
    )
    assert [(write.publisher.number, write.ids) for write in writes(peer)] == [
        (1, [1, 2, 3]),
        (2, [1]),
        (1, [4]),
    ]
    # Each entry keeps its id: a flush that makes several chunks logs in each chunk the last id of its own messages.
    assert [list(write.batch.entry_ids) for write in writes(peer)] == [[1, 2, 3], [1], [4]]
    first, second, _ = (write.batch for write in writes(peer))
    assert (first.reference, first.entries) == (b"w", [b"\0\0\0\1a", b"\0\0\0\1b", b"\0\0\0\1c"])
    assert (first.records, second.reference) == (3, b"")


def test_confirms_of_one_publisher_go_out_as_one(peer: Peer) -> None:
    declare(peer)
    declare(peer, 2)
    peer.send(
        wire.Publish(1, [(1, b"a")], []), wire.Publish(2, [(7, b"b")], []), wire.Publish(1, [(2, b"c")], [])
    )
    for write in writes(peer):
        peer.session.stored(write)
    assert peer.output() == [wire.PublishConfirm(1, [1, 2]), wire.PublishConfirm(2, [7])]
    assert peer.session.unstored_bytes == 0


def test_confirms_and_errors_of_many_messages_fit_the_frames_that_the_client_agreed_on(peer: Peer) -> None:
    declare(peer)
    peer.send(*(wire.Publish(1, [(number, b"a")], []) for number in range(10)))
    peer.session.frame_max_bytes = 13 + 4 * 8
    [write] = writes(peer)
    peer.session.stored(write)
    assert peer.output() == [wire.PublishConfirm(1, part) for part in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])]
    peer.session.not_stored(write, NotFound("the stream was deleted"))
    failed = [FailedPublish(number, Code.STREAM_DOES_NOT_EXIST) for number in range(10)]
    assert peer.output() == [wire.PublishError(1, failed[first : first + 3]) for first in range(0, 10, 3)]


def test_what_was_not_stored_is_told_after_what_was(peer: Peer) -> None:
    declare(peer)
    declare(peer, 2)
    peer.send(wire.Publish(1, [(1, b"a")], []), wire.Publish(2, [(7, b"b")], []))
    stored, declined = writes(peer)
    peer.session.stored(stored)
    peer.session.not_stored(declined, NotFound("the stream was deleted"))
    assert peer.output() == [
        wire.PublishConfirm(1, [1]),
        wire.PublishError(2, [FailedPublish(7, Code.STREAM_DOES_NOT_EXIST)]),
    ]


def test_publish_of_version_2_has_filter_values(peer: Peer) -> None:
    declare(peer)
    entry = (5).to_bytes(8, "big") + b"\0\2eu" + b"\0\0\0\1x"
    frame = bytes.fromhex("0002 0002 01 00000001") + entry
    assert peer.send_octets(len(frame).to_bytes(4, "big") + frame) == []
    (write,) = writes(peer)
    assert (write.ids, write.batch.entries, write.batch.filters) == ([5], [b"\0\0\0\1x"], {b"eu"})


@pytest.mark.parametrize("version", [0, 3])
def test_other_versions_of_publish_end_the_connection(peer: Peer, version: int) -> None:
    declare(peer)
    frame = b"\0\2" + version.to_bytes(2, "big") + bytes.fromhex("01 00000000")
    (close,) = peer.send_octets(len(frame).to_bytes(4, "big") + frame)
    assert isinstance(close, wire.Close)
    assert close.code == Code.UNKNOWN_FRAME


def test_an_empty_publish_is_nothing(peer: Peer) -> None:
    declare(peer)
    assert peer.send(wire.Publish(1, [], [])) == []
    assert (peer.effects, peer.session.unstored_bytes) == ([], 0)


def test_recovered_messages_and_streams_do_not_mix(peer: Peer) -> None:
    declare(peer)
    declare(peer, 2, "recovery.1", RECOVERY_STREAM_PREFIX + "orders")
    peer.send(wire.Publish(2, [(1, b"stored")], []), wire.Publish(1, [(1, b"a")], []))
    assert [type(effect) for effect in peer.effects] == [Append, StoreBatch]
    assert peer.session.streams == {"s"}


def test_a_queue_whose_log_is_not_here_takes_no_staged_segments(peer: Peer) -> None:
    stream = STAGED_STREAM_PREFIX + "orders"
    assert declare(peer, 1, "recovery.1", stream) is Code.STREAM_DOES_NOT_EXIST
    found = peer.ask(wire.StreamStats(2, stream), wire.StreamStatsResponse)
    assert (found.code, found.statistics) == (Code.STREAM_DOES_NOT_EXIST, {})
    create = wire.Create(3, stream, {})
    assert peer.ask(create, wire.CreateResponse).code == Code.PRECONDITION_FAILED
