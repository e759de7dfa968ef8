from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import LeveretError, NotFound, PreconditionFailed, Refusal, StorageError
from leveret.session.stream.connection import (
    CLOSE_TIMEOUT_MS,
    HANDSHAKE_TIMEOUT_MS,
    TRANSITIONS,
    TURN_COMMANDS,
    UNSTORED_BYTES_MAX,
)
from leveret.session.stream.session import UNOPENED_FRAME_BYTES_MAX
from leveret.session.stream.types import (
    CODES,
    Append,
    AskSequence,
    StreamConnectionState,
    Subscribed,
    code_of,
)
from leveret.testing.sites.stream_host import FakeStreamHost
from leveret.wire.chunk import ChunkType, decode_header
from leveret.wire.record import OUTGOING_STREAM, RECOVERY_STREAM_PREFIX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import COMMANDS, Code, CommandKey, Response
from leveret.wire.stream.fields import NO_LEADER, FailedPublish, OffsetSpec, OffsetType, StreamMetadata
from leveret.wire.stream.publish import MessageRun
from tests.unit.session.stream.stream_peer import GUEST, HANDSHAKE, Peer

QUEUE = RECOVERY_STREAM_PREFIX + "orders"
FROM_FIRST = OffsetSpec(OffsetType.FIRST)


@pytest.fixture
def peer() -> Peer:
    return Peer().opened()


# --- Turns ----------------------------------------------------------------------------------------


def waits(peer: Peer) -> bool:
    """Whether others have their turn before the peer is served, or read from, further."""
    assert peer.session.takes_more != peer.session.is_turn_over
    return peer.session.is_turn_over


def test_of_many_commands_in_a_read_a_turns_worth_is_served_in_a_row(peer: Peer) -> None:
    """A read holds 13,000 of them, and others waited 0.2 s until all were answered."""
    count = 2 * TURN_COMMANDS + 7
    octets = b"".join(wire.QueryOffset(number, "r", "s").encode() for number in range(count))
    cut = len(octets) - 5
    answered = [peer.send_octets(octets[:cut])]
    assert waits(peer)
    answered.append(peer.send_octets(octets[cut:]))
    while waits(peer):
        answered.append(peer.send_octets(b""))
    assert [len(each) for each in answered] == [TURN_COMMANDS, TURN_COMMANDS, 7]
    correlations = [each.correlation for part in answered for each in part if isinstance(each, Response)]
    assert correlations == list(range(count))


def test_a_connection_that_ends_in_its_turn_goes_on_with_nothing(peer: Peer) -> None:
    many = [wire.QueryOffset(number, "r", "s") for number in range(TURN_COMMANDS)]
    peer.send(*many, wire.Close(7, Code.OK, "done"), *many)
    assert waits(peer)
    assert peer.send_octets(b"") == [wire.CloseResponse(7, Code.OK)]
    while waits(peer):
        assert peer.send_octets(b"") == []
    assert peer.state() is StreamConnectionState.CLOSED


def test_a_command_that_names_many_streams_is_a_turn_of_its_own(peer: Peer) -> None:
    many = wire.Metadata(1, [f"stream-{number}" for number in range(2000)])
    assert len(peer.send(many, wire.QueryOffset(2, "r", "s"))) == 1
    assert len(peer.send_octets(b"")) == 1


# --- Handshake ------------------------------------------------------------------------------------


def test_the_handshake_opens_a_vhost_and_tells_where_the_node_is() -> None:
    host = FakeStreamHost(advertised_host="node.example", advertised_port=5552)
    peer = Peer(host)
    properties, mechanisms, authenticated, tune, opened = peer.send(*HANDSHAKE)
    assert isinstance(properties, wire.PeerPropertiesResponse)
    assert (properties.properties["product"], properties.properties["version"]) == ("Leveret", "3.13.7")
    assert mechanisms == wire.SaslHandshakeResponse(2, Code.OK, ["PLAIN"])
    assert authenticated == wire.SaslAuthenticateResponse(3, Code.OK)
    assert tune == wire.Tune(1_048_576, 60)
    assert opened == wire.OpenResponse(
        4, Code.OK, {"advertised_host": "node.example", "advertised_port": "5552"}
    )
    assert (peer.session.user, peer.session.vhost) == ("guest", "/")


@pytest.mark.parametrize(
    ("mechanism", "proof", "code"),
    [
        ("PLAIN", b"\0guest\0wrong", Code.AUTHENTICATION_FAILURE),
        ("PLAIN", b"\0nobody\0guest", Code.AUTHENTICATION_FAILURE),
        ("PLAIN", b"\0\xff\0\xff", Code.AUTHENTICATION_FAILURE),
        ("PLAIN", b"guest", Code.SASL_ERROR),
        ("SCRAM-SHA-256", GUEST, Code.SASL_MECHANISM_UNSUPPORTED),
    ],
)
def test_a_login_that_fails_is_answered_and_ends_the_connection(
    mechanism: str, proof: bytes, code: Code
) -> None:
    peer = Peer()
    peer.send(*HANDSHAKE[:2])
    assert peer.send(wire.SaslAuthenticate(3, mechanism, proof)) == [wire.SaslAuthenticateResponse(3, code)]
    assert peer.state() is StreamConnectionState.CLOSED
    assert peer.send(*HANDSHAKE[3:]) == []


def test_where_a_peer_comes_from_is_part_of_the_login() -> None:
    peer = Peer(from_loopback=False)
    *_, answer = peer.send(*HANDSHAKE[:3])
    assert answer == wire.SaslAuthenticateResponse(3, Code.AUTHENTICATION_FAILURE)


def test_a_vhost_that_may_not_be_entered_ends_the_connection() -> None:
    peer = Peer()
    peer.send(*HANDSHAKE[:4])
    assert peer.send(wire.Open(4, "missing")) == [wire.OpenResponse(4, Code.VHOST_ACCESS_FAILURE, {})]
    assert peer.state() is StreamConnectionState.CLOSED


def test_each_state_of_the_handshake_has_one_command_that_leads_to_the_next() -> None:
    states = list(StreamConnectionState)
    for state in states[: states.index(StreamConnectionState.OPEN)]:
        leads = [TRANSITIONS[state, kind] for kind in COMMANDS.values() if (state, kind) in TRANSITIONS]
        assert leads == [states[states.index(state) + 1]]
    assert not any(
        state in (StreamConnectionState.OPEN, StreamConnectionState.CLOSING, StreamConnectionState.CLOSED)
        for state, _ in TRANSITIONS
    )


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("wrong", range(5))
def test_a_command_out_of_turn_is_answered_with_close_13(step: int, wrong: int) -> None:
    if step == wrong:
        return
    peer = Peer()
    peer.send(*HANDSHAKE[:step])
    (close,) = peer.send(HANDSHAKE[wrong])
    assert isinstance(close, wire.Close)
    assert close.code == Code.UNKNOWN_FRAME
    assert "not served while" in close.reason


def test_a_peer_that_is_not_through_the_handshake_in_time_is_dropped() -> None:
    peer = Peer()
    peer.send(*HANDSHAKE[:3])
    assert peer.session.next_deadline_ms() == HANDSHAKE_TIMEOUT_MS
    peer.tick(HANDSHAKE_TIMEOUT_MS - 1)
    assert peer.state() is StreamConnectionState.TUNING
    peer.tick(HANDSHAKE_TIMEOUT_MS)
    assert peer.state() is StreamConnectionState.CLOSED


# --- Ending ---------------------------------------------------------------------------------------


def test_a_close_is_answered_and_nothing_after_it_is_served(peer: Peer) -> None:
    answers = peer.send(wire.Close(9, Code.OK, "bye"), wire.StreamStats(10, OUTGOING_STREAM))
    assert answers == [wire.CloseResponse(9, Code.OK)]
    assert peer.state() is StreamConnectionState.CLOSED
    assert peer.session.next_deadline_ms() is None


def test_our_close_waits_for_its_answer_but_not_for_long(peer: Peer) -> None:
    peer.session.close(Code.OK, "the node is stopping", 500)
    assert peer.output() == [wire.Close(0, Code.OK, "the node is stopping")]
    assert peer.send(wire.StreamStats(1, OUTGOING_STREAM)) == []
    assert peer.state() is StreamConnectionState.CLOSING
    assert peer.session.next_deadline_ms() == 500 + CLOSE_TIMEOUT_MS
    peer.send(wire.CloseResponse(0, Code.OK))
    assert peer.state() is StreamConnectionState.CLOSED


def test_a_peer_that_does_not_answer_our_close_is_dropped(peer: Peer) -> None:
    peer.session.close(Code.OK, "bye", 0)
    peer.tick(CLOSE_TIMEOUT_MS)
    assert (peer.session.state, peer.session.close_reason) == (StreamConnectionState.CLOSED, "bye")


@pytest.mark.parametrize(
    "octets",
    [
        "00000004 0063 0001",
        "00000004 0017 0002",
        "00000008 001d 0001 00000000",
        "00000005 0017 0001 00",
        "00000004 000f 0001",
        "00000003 001700",
    ],
)
def test_what_is_no_command_is_answered_with_close_13(peer: Peer, octets: str) -> None:
    (close,) = peer.send_octets(bytes.fromhex(octets))
    assert isinstance(close, wire.Close)
    assert close.code == Code.UNKNOWN_FRAME


def test_a_frame_that_lies_about_its_size_is_answered_with_close_14_and_not_stored(peer: Peer) -> None:
    (close,) = peer.send_octets(b"\x7f\xff\xff\xff" + bytes(5000))
    assert isinstance(close, wire.Close)
    assert close.code == Code.FRAME_TOO_LARGE
    assert [peer.send_octets(bytes(100_000)) for _ in range(5)] == [[]] * 5
    assert len(peer.session._decoder._buffer) < 10_000


def test_before_open_a_frame_may_only_be_small_and_after_it_what_was_agreed() -> None:
    big = wire.Metadata(1, ["x" * UNOPENED_FRAME_BYTES_MAX])
    (close,) = Peer().send(big)
    assert isinstance(close, wire.Close)
    assert close.code == Code.FRAME_TOO_LARGE
    *_, answer = Peer().send(*HANDSHAKE, big)
    assert isinstance(answer, wire.MetadataResponse)


def test_the_peer_may_agree_to_smaller_frames() -> None:
    peer = Peer()
    peer.send(*HANDSHAKE[:3], wire.Tune(300, 60), HANDSHAKE[4])
    (close,) = peer.send(wire.Metadata(1, ["x" * 300]))
    assert isinstance(close, wire.Close)
    assert close.code == Code.FRAME_TOO_LARGE


def test_a_connection_that_is_cut_ends_without_a_word(peer: Peer) -> None:
    peer.session.cut("an operator asked for it")
    assert peer.output() == []
    assert peer.session.state is StreamConnectionState.CLOSED
    assert peer.session.close_reason == "an operator asked for it"


# --- Heartbeats -----------------------------------------------------------------------------------


def test_a_heartbeat_is_sent_when_nothing_was_sent_for_its_length(peer: Peer) -> None:
    assert peer.tick(59_999) == []
    assert peer.tick(60_000) == [wire.Heartbeat()]
    assert peer.tick(60_001) == []


def test_a_peer_that_is_silent_for_two_heartbeats_is_dropped(peer: Peer) -> None:
    peer.now_ms = 30_000
    assert peer.send(wire.Heartbeat()) == []
    peer.tick(100_000)
    peer.tick(149_999)
    assert peer.state() is StreamConnectionState.OPEN
    peer.tick(150_000)
    assert (peer.session.state, "no frame came" in peer.session.close_reason) == (
        StreamConnectionState.CLOSED,
        True,
    )


def test_a_peer_that_is_not_read_from_is_not_silent(peer: Peer) -> None:
    peer.session.set_reading(False, 0)
    for now_ms in range(0, 600_001, 60_000):
        peer.tick(now_ms)
    assert peer.state() is StreamConnectionState.OPEN
    peer.session.set_reading(True, 600_000)
    peer.tick(719_999)
    assert peer.state() is StreamConnectionState.OPEN


def test_a_peer_may_do_without_heartbeats() -> None:
    peer = Peer()
    peer.send(*HANDSHAKE[:3], wire.Tune(0, 0), HANDSHAKE[4])
    assert peer.session.next_deadline_ms() is None
    assert peer.tick(10_000_000) == []
    assert peer.state() is StreamConnectionState.OPEN


# --- Streams --------------------------------------------------------------------------------------


def test_metadata_tells_streams_that_are_from_streams_that_are_not() -> None:
    host = FakeStreamHost(advertised_port=1234)
    answer = Peer(host).opened().ask(wire.Metadata(5, [OUTGOING_STREAM, "no"]), wire.MetadataResponse)
    assert answer.brokers == [(0, "127.0.0.1", 1234)]
    assert answer.streams == [
        StreamMetadata(OUTGOING_STREAM, Code.OK, 0, []),
        StreamMetadata("no", Code.STREAM_DOES_NOT_EXIST, NO_LEADER, []),
    ]


def test_statistics_are_the_bounds_of_the_log(peer: Peer) -> None:
    log = peer.host.logs["/"]
    for stamp in (10, 20, 30):
        log.append([b"a", b"b"], timestamp_ms=stamp)
    log.retain_from(2)
    log.missing_messages, log.uncollected, log.confirms_waiting = 3, 2, 4
    answer = peer.ask(wire.StreamStats(5, OUTGOING_STREAM), wire.StreamStatsResponse)
    assert answer.statistics == {
        "first_chunk_id": 2,
        "committed_chunk_id": 4,
        "committed_offset": 6,
        "committed_timestamp_ms": 30,
        "bytes": log.bytes,
        "log_id": log.log_id,
        "writer": log.writer,
        "missing_messages": 3,
        "has_stopped": 0,
        "uncollected": 2,
        "is_downstream": 0,
        "catching_up": 0,
        "confirms_waiting": 4,
        "has_order": 1,
    }


def test_an_empty_log_has_no_last_chunk(peer: Peer) -> None:
    answer = peer.ask(wire.StreamStats(5, OUTGOING_STREAM), wire.StreamStatsResponse)
    assert (answer.statistics["committed_chunk_id"], answer.statistics["committed_offset"]) == (-1, 0)


@pytest.mark.parametrize(
    ("stream", "unreadable", "code"),
    [
        ("missing", False, Code.STREAM_DOES_NOT_EXIST),
        (QUEUE, False, Code.STREAM_DOES_NOT_EXIST),
        (OUTGOING_STREAM, True, Code.ACCESS_REFUSED),
    ],
)
def test_a_stream_that_is_not_there_or_not_for_this_user_is_refused(
    peer: Peer, stream: str, unreadable: bool, code: Code
) -> None:
    if unreadable:
        peer.host.unreadable.add(("guest", "/"))
    assert peer.send(
        wire.StreamStats(1, stream),
        wire.Subscribe(2, 0, stream, FROM_FIRST, 1, {}),
        wire.QueryOffset(3, "r", stream),
    ) == [
        wire.StreamStatsResponse(1, code, {}),
        wire.SubscribeResponse(2, code),
        wire.QueryOffsetResponse(3, code, 0),
    ]
    assert peer.effects == []


def test_the_names_of_what_the_node_writes_itself_are_not_for_streams(peer: Peer) -> None:
    assert peer.send(
        wire.Create(1, OUTGOING_STREAM, {}),
        wire.Create(2, QUEUE, {}),
        wire.Create(3, "\n", {}),
        wire.DeleteStream(4, OUTGOING_STREAM),
    ) == [
        wire.CreateResponse(1, Code.PRECONDITION_FAILED),
        wire.CreateResponse(2, Code.PRECONDITION_FAILED),
        wire.CreateResponse(3, Code.PRECONDITION_FAILED),
        wire.DeleteResponse(4, Code.ACCESS_REFUSED),
    ]


def test_the_versions_served_are_told_in_the_order_of_the_keys(peer: Peer) -> None:
    answer = peer.ask(wire.ExchangeCommandVersions(1, []), wire.ExchangeCommandVersionsResponse)
    assert answer.commands == [
        (key, 1, 2 if key in (CommandKey.PUBLISH, CommandKey.DELIVER) else 1) for key in sorted(CommandKey)
    ]


# --- Consuming ------------------------------------------------------------------------------------


def subscribe(
    peer: Peer, offset: OffsetSpec = FROM_FIRST, credit: int = 10, properties: dict[str, str] | None = None
) -> None:
    request = wire.Subscribe(1, 3, OUTGOING_STREAM, offset, credit, properties or {})
    assert peer.send(request) == [wire.SubscribeResponse(1, Code.OK)]
    assert peer.effects == [Subscribed(3)]


def delivered(peer: Peer) -> list[int]:
    """Deliver all there is, as the runtime would; return the chunk ids."""
    log, subscription = peer.host.logs["/"], peer.session.subscriptions[3]
    peer.session.deliver(3, log.read(subscription.next_offset, 1 << 30))
    return [decode_header(each.chunk).chunk_id for each in peer.output() if isinstance(each, wire.Deliver)]


@pytest.mark.parametrize(
    ("offset", "first"),
    [
        (OffsetSpec(OffsetType.FIRST), 2),
        (OffsetSpec(OffsetType.LAST), 6),
        (OffsetSpec(OffsetType.NEXT), None),
        (OffsetSpec(OffsetType.OFFSET, 0), 2),
        (OffsetSpec(OffsetType.OFFSET, 4), 4),
        (OffsetSpec(OffsetType.OFFSET, 5), 4),
        (OffsetSpec(OffsetType.OFFSET, 99), None),
        (OffsetSpec(OffsetType.TIMESTAMP, 25), 4),
        (OffsetSpec(OffsetType.TIMESTAMP, -1), 2),
    ],
)
def test_a_subscription_begins_where_its_offset_says(
    peer: Peer, offset: OffsetSpec, first: int | None
) -> None:
    log = peer.host.logs["/"]
    for stamp in (10, 20, 30, 40):
        log.append([b"a", b"b"], timestamp_ms=stamp)
    log.retain_from(2)
    subscribe(peer, offset)
    assert delivered(peer)[:1] == ([] if first is None else [first])


def test_last_of_an_empty_log_is_what_comes_next(peer: Peer) -> None:
    subscribe(peer, OffsetSpec(OffsetType.LAST))
    peer.host.logs["/"].append([b"a"])
    assert delivered(peer) == [0]


def test_with_selector_all_chunks_are_served_whole_and_of_every_type(peer: Peer) -> None:
    log = peer.host.logs["/"]
    chunks = [log.append([b"a"]), log.append([b"b"], kind=ChunkType.TRACKING)]
    subscribe(peer, properties={"chunk_selector": "all"})
    peer.session.deliver(3, chunks)
    assert peer.output() == [wire.Deliver(3, chunk) for chunk in chunks]


def test_without_it_only_messages_are_served_and_trailers_are_not(peer: Peer) -> None:
    log = peer.host.logs["/"]
    log.append([b"a"], kind=ChunkType.TRACKING)
    chunk = log.append([b"b"])
    subscribe(peer, credit=1)
    peer.session.deliver(3, log.read(0, 1 << 20))
    header = decode_header(chunk)
    assert header.trailer_bytes > 0
    assert peer.output() == [wire.Deliver(3, chunk[: 48 + header.data_bytes])]
    assert peer.session.subscriptions[3].next_offset == 2


def test_no_chunk_is_sent_from_the_offset_on_that_the_reader_wants_no_more(peer: Peer) -> None:
    for _ in range(4):
        peer.host.logs["/"].append([b"a", b"b"])
    subscribe(peer, properties={"leveret.until": "4"})
    assert delivered(peer) == [0, 2]
    assert not peer.session.subscriptions[3].wanting


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"chunk_selector": "some"}, Code.PRECONDITION_FAILED),
        ({"leveret.until": "soon"}, Code.PRECONDITION_FAILED),
        ({"single-active-consumer": "true", "name": "x"}, Code.PRECONDITION_FAILED),
        ({"name": "reader", "filter.0": "a"}, Code.OK),
    ],
)
def test_what_a_subscription_cannot_have_is_refused(
    peer: Peer, properties: dict[str, str], code: Code
) -> None:
    request = wire.Subscribe(1, 3, OUTGOING_STREAM, FROM_FIRST, 1, properties)
    assert peer.send(request) == [wire.SubscribeResponse(1, code)]


@pytest.mark.parametrize(
    "error", [NotFound("the vhost was deleted"), StorageError("a damaged chunk")], ids=["gone", "damaged"]
)
def test_a_log_that_cannot_be_read_any_more_ends_its_subscription(peer: Peer, error: LeveretError) -> None:
    subscribe(peer)
    peer.session.stream_gone(OUTGOING_STREAM, error)
    assert peer.output() == [wire.MetadataUpdate(Code.STREAM_NOT_AVAILABLE, OUTGOING_STREAM)]
    assert peer.session.subscriptions == {}


def test_an_offset_is_told_by_the_very_read_that_brought_it(peer: Peer) -> None:
    assert peer.send(
        wire.StoreOffset("dc2", OUTGOING_STREAM, 17),
        wire.QueryOffset(1, "dc2", OUTGOING_STREAM),
        wire.QueryOffset(2, "dc3", OUTGOING_STREAM),
    ) == [wire.QueryOffsetResponse(1, Code.OK, 17), wire.QueryOffsetResponse(2, Code.NO_OFFSET, 0)]


# --- Publishing -----------------------------------------------------------------------------------


def declare(peer: Peer, number: int = 1, reference: str = "recovery.1", stream: str = QUEUE) -> Code:
    return Code(
        peer.ask(wire.DeclarePublisher(1, number, reference, stream), wire.DeclarePublisherResponse).code
    )


def test_published_messages_are_confirmed_when_they_are_durable(peer: Peer) -> None:
    assert declare(peer) is Code.OK
    assert peer.send(wire.Publish(1, [(1, b"a"), (2, b"bb")], [])) == []
    (append,) = peer.effects
    assert isinstance(append, Append)
    assert (append.publisher.queue, append.publisher.reference) == ("orders", "recovery.1")
    assert [list(run.messages()) for run in append.runs] == [[(1, b"a")], [(2, b"bb")]]
    peer.session.stored(append)
    assert peer.output() == [wire.PublishConfirm(1, [1, 2])]


def test_messages_that_were_declined_are_told_with_the_code(peer: Peer) -> None:
    declare(peer)
    peer.send(wire.Publish(1, [(1, b"a"), (2, b"b")], []))
    (append,) = peer.effects
    assert isinstance(append, Append)
    peer.session.not_stored(append, PreconditionFailed("the queue is full"))
    code = Code.PRECONDITION_FAILED
    assert peer.output() == [wire.PublishError(1, [FailedPublish(1, code), FailedPublish(2, code)])]


@pytest.mark.parametrize(
    ("reference", "stream", "code"),
    [
        ("", QUEUE, Code.PRECONDITION_FAILED),
        ("r", OUTGOING_STREAM, Code.ACCESS_REFUSED),
        ("r", "missing", Code.STREAM_DOES_NOT_EXIST),
    ],
)
def test_only_recovery_queues_are_published_to_and_only_under_a_reference(
    peer: Peer, reference: str, stream: str, code: Code
) -> None:
    assert declare(peer, 1, reference, stream) is code


def test_only_administrators_recover_messages() -> None:
    host = FakeStreamHost(administrators=set())
    peer = Peer(host).opened()
    assert declare(peer) is Code.ACCESS_REFUSED
    answer = peer.ask(wire.QueryPublisherSequence(1, "r", QUEUE), wire.QueryPublisherSequenceResponse)
    assert (answer.code, host.queues) == (Code.ACCESS_REFUSED, {})


def test_the_last_sequence_is_told_and_is_0_when_there_is_none(peer: Peer) -> None:
    """The queue's leader is asked; its answer comes later, and by then the peer may be gone."""
    query = wire.QueryPublisherSequence(1, "recovery.1", QUEUE)
    assert peer.send(query) == []
    assert peer.effects == [AskSequence(1, "recovery.1", "orders")]
    told = wire.QueryPublisherSequenceResponse(1, Code.OK, 9)
    peer.session.answer(told)
    assert peer.output() == [told]
    peer.session.cut("gone")
    peer.session.answer(told)
    assert peer.output() == []


SUB_BATCH = (
    "00000027 0002 0001 01 00000001 0000000000000005 {kind} 0002 0000000b 0000000b 0000000161 000000026262"
)
"""Two messages, the second with id 5."""


def test_a_batch_is_a_run_of_messages_and_confirmed_as_one(peer: Peer) -> None:
    declare(peer)
    assert peer.send_octets(bytes.fromhex(SUB_BATCH.format(kind="80"))) == []
    (append,) = peer.effects
    assert isinstance(append, Append)
    assert append.runs == [MessageRun.of(4, [b"a", b"bb"])]
    peer.session.stored(append)
    assert peer.output() == [wire.PublishConfirm(1, [5])]


@pytest.mark.parametrize("kind", ["90", "c0", "f0"])
def test_compressed_batches_are_not_taken(peer: Peer, kind: str) -> None:
    declare(peer)
    (answer,) = peer.send_octets(bytes.fromhex(SUB_BATCH.format(kind=kind)))
    assert answer == wire.PublishError(1, [FailedPublish(5, Code.PRECONDITION_FAILED)])
    assert peer.effects == []


def test_a_confirm_for_a_publisher_that_is_gone_is_not_sent(peer: Peer) -> None:
    declare(peer)
    peer.send(wire.Publish(1, [(1, b"a")], []))
    (append,) = peer.effects
    assert isinstance(append, Append)
    peer.send(wire.DeletePublisher(2, 1))
    declare(peer)
    peer.session.stored(append)
    assert peer.output() == []


def test_messages_larger_than_the_agreed_frame_come_back_too(peer: Peer) -> None:
    declare(peer)
    large = bytes(2_000_000)
    assert peer.send(wire.Publish(1, [(1, large)], [])) == []
    (append,) = peer.effects
    assert isinstance(append, Append)
    assert append.runs == [MessageRun.of(1, [large])]


def test_a_peer_is_not_read_from_while_too_much_waits_for_the_disk(peer: Peer) -> None:
    declare(peer)
    peer.send(wire.Publish(1, [(1, bytes(UNSTORED_BYTES_MAX - 5))], []))
    (first,) = peer.effects
    before = peer.session.takes_more
    peer.send(wire.Publish(1, [(2, b"x")], []))
    full = peer.session.takes_more
    assert isinstance(first, Append)
    peer.session.stored(first)
    assert (before, full, peer.session.takes_more) == (True, False, True)


# --- All of it ------------------------------------------------------------------------------------


def test_every_refusal_has_its_code() -> None:
    for kind in Refusal.__subclasses__():
        assert kind in CODES, f"give {kind.__name__} a response code"
    assert code_of(LeveretError("?")) is Code.INTERNAL_ERROR


@given(st.binary(max_size=400), st.booleans())
def test_garbage_ends_the_connection_or_is_waited_for_and_never_raises(octets: bytes, opened: bool) -> None:
    peer = Peer().opened() if opened else Peer()
    for command in peer.send_octets(octets):
        assert isinstance(command, wire.Close | wire.PeerPropertiesResponse)


@given(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=60))
def test_any_content_of_any_command_is_answered_or_ends_the_connection(key: int, content: bytes) -> None:
    peer = Peer().opened()
    peer.send_octets((4 + len(content)).to_bytes(4, "big") + key.to_bytes(2, "big") + b"\0\1" + content)
    assert peer.session.state in (
        StreamConnectionState.OPEN,
        StreamConnectionState.CLOSING,
        StreamConnectionState.CLOSED,
    )


@given(st.lists(st.integers(0, 2000), max_size=20))
def test_any_split_of_a_conversation_gives_the_same_answers(cuts: list[int]) -> None:
    conversation = b"".join(
        command.encode()
        for command in (
            *HANDSHAKE,
            wire.StreamStats(5, OUTGOING_STREAM),
            wire.Subscribe(6, 0, OUTGOING_STREAM, FROM_FIRST, 1, {}),
            wire.DeclarePublisher(7, 0, "r", QUEUE),
            wire.Publish(1, [(1, b"a" * 9000)], []),
            wire.Close(8, Code.OK, ""),
        )
    )
    edges = [0, *sorted({cut % len(conversation) for cut in cuts}), len(conversation)]
    whole, pieces = Peer(), Peer()
    answers = [
        answer for a, b in itertools.pairwise(edges) for answer in pieces.send_octets(conversation[a:b])
    ]
    assert answers == whole.send_octets(conversation)
