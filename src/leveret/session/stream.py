"""One peer of the stream protocol, from its first octet to its last; pure.

The runtime hands in octets and the time, and does what it gets back, in this order: writes
`take_output()`, then performs the effects of `receive()`. It reads logs for whatever is in
`subscriptions` and hands the chunks to `deliver()`; it stores what an `Append` holds and then calls
`stored()`. Questions that need no I/O (who is this, is there such a log, what are its bounds) go to a
`StreamAuthority`.

    START --PeerProperties--> GREETED --SaslHandshake--> AUTHENTICATING --SaslAuthenticate-->
    TUNING --Tune--> TUNED --Open--> OPEN --Close, either way--> CLOSING --answer--> CLOSED

Served are the outgoing log of the vhost, under the name `OUTGOING_STREAM` and for reading only, and
queues that take recovered messages, under `RECOVERY_STREAM_PREFIX` and for writing only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from leveret.model.errors import (
    AccessRefused,
    LeveretError,
    NotFound,
    PeerError,
    Refusal,
)
from leveret.session.stream_types import (
    Append,
    Effect,
    KeepOffset,
    LogBounds,
    Publisher,
    SequenceBook,
    State,
    StreamAuthority,
    Subscribed,
    Subscription,
    code_of,
)
from leveret.wire.chunk import HEADER, HEADER_BYTES, ChunkType
from leveret.wire.record import OUTGOING_STREAM, RECOVERY_STREAM_PREFIX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import RESPONSE, VERSION, Code, Command, Key, Request, Response
from leveret.wire.stream.fields import (
    NO_LEADER,
    Broker,
    CommandVersions,
    FailedPublish,
    OffsetSpec,
    OffsetType,
    StreamMetadata,
)
from leveret.wire.stream.frames import FrameDecoder, FrameError, FrameTooLarge

SERVED_VERSION: Final = "3.11.0"
"""The RabbitMQ whose commands are served; clients read from it that they may send 0x1b and 0x1c."""
UNOPENED_FRAME_BYTES_MAX: Final = 8192
"""For a peer that has shown no password yet."""
RECOVERY_FRAME_BYTES_MAX: Final = 129 * 1024 * 1024
"""For a peer that may publish stored messages: each comes whole, however large it once was."""
UNSTORED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Published octets that wait for the disk; beyond, the peer is not read from."""
HANDSHAKE_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_MS: Final = 2_000

SELECTOR: Final = "chunk_selector"
UNTIL: Final = "leveret.until"
"""Subscription property of our own: no chunk from this offset on is wanted."""
VERSIONS: Final = [CommandVersions(key, VERSION, VERSION) for key in Key]
R = TypeVar("R", bound=Request)

TRANSITIONS: Final[dict[tuple[State, type[Command]], State]] = {
    (State.START, wire.PeerProperties): State.GREETED,
    (State.GREETED, wire.SaslHandshake): State.AUTHENTICATING,
    (State.AUTHENTICATING, wire.SaslAuthenticate): State.TUNING,
    (State.TUNING, wire.Tune): State.TUNED,
    (State.TUNED, wire.Open): State.OPEN,
}
"""The handshake. Close may come in any state, Heartbeat from TUNED on, all the rest in OPEN."""


@dataclass(slots=True)
class StreamSession:
    """Decides; never sends, sleeps or reads a clock."""

    authority: StreamAuthority
    from_loopback: bool
    frame_max_bytes: int
    heartbeat_s: int
    started_ms: int
    state: State = State.START
    user: str = ""
    vhost: str = ""
    peer_properties: dict[str, str] = field(default_factory=dict)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    publishers: dict[int, Publisher] = field(default_factory=dict)
    unstored_bytes: int = 0
    reading: bool = True
    close_reason: str = ""
    _decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(UNOPENED_FRAME_BYTES_MAX))
    _output: list[bytes] = field(default_factory=list)
    _effects: list[Effect] = field(default_factory=list)
    _deadline_ms: int = 0
    _received_ms: int = 0
    _sent_ms: int = 0
    _deaf: bool = False

    def __post_init__(self) -> None:
        self._received_ms = self._sent_ms = self.started_ms
        self._deadline_ms = self.started_ms + HANDSHAKE_TIMEOUT_MS

    # --- What the runtime calls -------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> list[Effect]:
        """Take what the peer sent; return what must now be done, in order."""
        self._received_ms = now_ms
        if self._deaf or self.state is State.CLOSED:
            return []
        try:
            for frame in self._decoder.feed(data):
                self._take(frame, now_ms)
        except (FrameTooLarge, FrameError) as error:
            # Where the next frame begins is lost, so the peer's answer to our Close is too: its end
            # of file or the deadline ends the connection.
            code = Code.FRAME_TOO_LARGE if isinstance(error, FrameTooLarge) else Code.UNKNOWN_FRAME
            self.close(code, str(error), now_ms)
            self._deaf = True
        effects, self._effects = self._effects, []
        return effects

    def take_output(self, now_ms: int) -> list[bytes]:
        """The octets to send now."""
        output, self._output = self._output, []
        if output:
            self._sent_ms = now_ms
        return output

    def deliver(self, number: int, chunks: Sequence[bytes]) -> None:
        """Send as many of these chunks (raw, trailer included) as the subscription has credit for."""
        subscription = self.subscriptions[number]
        for chunk in chunks:
            if not subscription.wanting:
                return
            _, kind, _, records, _, _, chunk_id, _, data_bytes, *_ = HEADER.unpack_from(chunk)
            if subscription.until is not None and chunk_id >= subscription.until:
                subscription.next_offset = subscription.until
                return
            subscription.next_offset = chunk_id + records
            if not subscription.whole:
                if kind != ChunkType.USER:
                    continue
                chunk = chunk[: HEADER_BYTES + data_bytes]
            subscription.credit -= 1
            self._output += (wire.deliver_head(number, len(chunk)), chunk)

    def stored(self, append: Append) -> None:
        """What an `Append` held is durable: confirm it, unless its publisher is gone."""
        self.unstored_bytes -= append.octets
        if self._listens(append):
            ids = [publishing_id for publishing_id, _ in append.entries]
            self._send(wire.PublishConfirm(append.publisher.number, ids))

    def not_stored(self, append: Append, error: LeveretError) -> None:
        """An `Append` was declined."""
        self.unstored_bytes -= append.octets
        if self._listens(append):
            self._fail(append.publisher.number, [each for each, _ in append.entries], code_of(error))

    def stream_gone(self, number: int, error: LeveretError) -> None:
        """A subscription's log cannot be read (any more): tell the peer and drop it."""
        subscription = self.subscriptions.pop(number)
        code = Code.STREAM_NOT_AVAILABLE if isinstance(error, Refusal) else code_of(error)
        self._send(wire.MetadataUpdate(code, subscription.stream))

    def set_reading(self, reading: bool, now_ms: int) -> None:
        """The runtime reads from the peer, or pauses; a peer that is not read from is not silent."""
        self.reading = reading
        self._received_ms = now_ms

    @property
    def takes_more(self) -> bool:
        """Whether the peer may be read from; else what it published has to be stored first."""
        return self.unstored_bytes < UNSTORED_BYTES_MAX

    def close(self, code: Code, reason: str, now_ms: int) -> None:
        """End the connection from our side; the peer has `CLOSE_TIMEOUT_MS` to answer."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        self._send(wire.Close(0, code, reason[:1000]))
        self._end(State.CLOSING, reason)
        self._deadline_ms = now_ms + CLOSE_TIMEOUT_MS

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, if nothing happens before."""
        if self.state is State.CLOSED:
            return None
        if self.state is not State.OPEN:
            return self._deadline_ms
        if self.heartbeat_s == 0:
            return None
        beat = self._sent_ms + self.heartbeat_s * 1000
        return min(beat, self._silent_ms) if self.reading else beat

    def tick(self, now_ms: int) -> None:
        """Send the heartbeat that is due, and end what takes too long."""
        deadline = self.next_deadline_ms()
        if deadline is None or now_ms < deadline:
            return
        if self.state is not State.OPEN:
            self._end(State.CLOSED, self.close_reason or f"not open after {HANDSHAKE_TIMEOUT_MS} ms")
        elif self.reading and now_ms >= self._silent_ms:
            self._end(State.CLOSED, f"nothing heard for twice the heartbeat of {self.heartbeat_s} s")
        else:
            self._send(wire.Heartbeat())

    # --- Commands ---------------------------------------------------------------------------------

    @property
    def _silent_ms(self) -> int:
        return self._received_ms + 2 * self.heartbeat_s * 1000

    def _take(self, frame: bytes, now_ms: int) -> None:
        if self.state is State.CLOSED:
            return
        if self.state is State.CLOSING:
            # Only the end of it matters now, and garbage does not change that.
            if frame[:2] in (_CLOSE_RESPONSE, _CLOSE):
                self._end(State.CLOSED, self.close_reason)
            return
        try:
            self._serve(wire.decode(frame))
        except PeerError as error:
            self.close(Code.UNKNOWN_FRAME, str(error), now_ms)

    def _serve(self, command: Command) -> None:
        if isinstance(command, wire.Close):
            self._send(wire.CloseResponse(command.correlation, Code.OK))
            self._end(State.CLOSED, command.reason or "closed by the peer")
        elif isinstance(command, wire.Heartbeat) and self.state in (State.TUNED, State.OPEN):
            return
        elif self.state is State.OPEN:
            self._serve_open(command)
        elif following := TRANSITIONS.get((self.state, type(command))):
            # Before the command is looked at, so that what it finds wrong can end the connection.
            self.state = following
            self._serve_handshake(command)
        else:
            raise _unexpected(command, self.state)

    def _serve_handshake(self, command: Command) -> None:
        match command:
            case wire.PeerProperties():
                self.peer_properties = command.properties
                ours = {"product": "Leveret", "version": SERVED_VERSION, "platform": "Python"}
                self._send(wire.PeerPropertiesResponse(command.correlation, Code.OK, ours))
            case wire.SaslHandshake():
                self._send(wire.SaslHandshakeResponse(command.correlation, Code.OK, ["PLAIN"]))
            case wire.SaslAuthenticate():
                self._authenticate(command)
            case wire.Tune():
                self._tune(command)
            case wire.Open():
                self._open(command)

    def _authenticate(self, command: wire.SaslAuthenticate) -> None:
        code, reason = Code.OK, ""
        _, _, proof = command.data.partition(b"\0")
        username, separator, password = proof.partition(b"\0")
        if command.mechanism != "PLAIN":
            code, reason = Code.SASL_MECHANISM_UNSUPPORTED, f"mechanism {command.mechanism} is not offered"
        elif not separator:
            code, reason = Code.SASL_ERROR, "PLAIN without user name and password"
        else:
            try:
                self.user = self.authority.authenticate(
                    username.decode(errors="replace"), password.decode(errors="replace"), self.from_loopback
                )
            except Refusal as error:
                code, reason = Code.AUTHENTICATION_FAILURE, str(error)
        self._send(wire.SaslAuthenticateResponse(command.correlation, code))
        if code == Code.OK:
            self._send(wire.Tune(self.frame_max_bytes, self.heartbeat_s))
        else:
            self._end(State.CLOSED, reason)

    def _tune(self, command: wire.Tune) -> None:
        """The peer may lower what was offered; a heartbeat of 0 turns both directions off."""
        if command.frame_max_bytes:
            self.frame_max_bytes = min(self.frame_max_bytes, command.frame_max_bytes)
        self.heartbeat_s = command.heartbeat_s

    def _open(self, command: wire.Open) -> None:
        try:
            self.authority.open_vhost(self.user, command.vhost)
        except Refusal as error:
            self._send(wire.OpenResponse(command.correlation, Code.VHOST_ACCESS_FAILURE, {}))
            self._end(State.CLOSED, str(error))
            return
        self.vhost = command.vhost
        self._decoder.frame_max_bytes = self.frame_max_bytes
        host, port = self.authority.advertised_host, self.authority.advertised_port
        where = {"advertised_host": host, "advertised_port": str(port)}
        self._send(wire.OpenResponse(command.correlation, Code.OK, where))

    def _serve_open(self, command: Command) -> None:
        match command:
            case wire.Publish():
                self._publish(command)
            case wire.Credit():
                self._credit(command)
            case wire.StoreOffset():
                if command.stream == OUTGOING_STREAM:
                    self._effects.append(KeepOffset(command.reference, command.offset))
            case wire.Subscribe():
                self._answer(command, wire.SubscribeResponse, self._subscribe)
            case wire.Unsubscribe():
                self._answer(command, wire.UnsubscribeResponse, self._unsubscribe)
            case wire.DeclarePublisher():
                self._answer(command, wire.DeclarePublisherResponse, self._declare_publisher)
            case wire.DeletePublisher():
                self._answer(command, wire.DeletePublisherResponse, self._delete_publisher)
            case wire.Create():
                # Making streams is not offered yet, whatever their arguments.
                self._send(wire.CreateResponse(command.correlation, Code.PRECONDITION_FAILED))
            case wire.Delete():
                self._send(wire.DeleteResponse(command.correlation, self._deletable(command.stream)))
            case _:
                self._serve_query(command)

    def _serve_query(self, command: Command) -> None:
        match command:
            case wire.Metadata():
                here = Broker(0, self.authority.advertised_host, self.authority.advertised_port)
                streams = [self._metadata(stream) for stream in command.streams]
                self._send(wire.MetadataResponse(command.correlation, [here], streams))
            case wire.StreamStats():
                self._stream_stats(command)
            case wire.QueryOffset():
                self._query_offset(command)
            case wire.QueryPublisherSequence():
                self._query_sequence(command)
            case wire.ExchangeCommandVersions():
                self._send(wire.ExchangeCommandVersionsResponse(command.correlation, Code.OK, VERSIONS))
            case wire.Route():
                self._send(wire.RouteResponse(command.correlation, Code.STREAM_DOES_NOT_EXIST, []))
            case wire.Partitions():
                self._send(wire.PartitionsResponse(command.correlation, Code.STREAM_DOES_NOT_EXIST, []))
            case _:
                raise _unexpected(command, self.state)

    # --- Logs -------------------------------------------------------------------------------------

    def _log(self, stream: str) -> LogBounds:
        """Raises NotFound, AccessRefused."""
        if stream != OUTGOING_STREAM:
            raise NotFound(f"no stream '{stream}' in vhost '{self.vhost}'")
        return self.authority.outgoing_log(self.user, self.vhost)

    def _metadata(self, stream: str) -> StreamMetadata:
        try:
            self._log(stream)
        except LeveretError as error:
            return StreamMetadata(stream, code_of(error), NO_LEADER, [])
        return StreamMetadata(stream, Code.OK, 0, [])

    def _deletable(self, stream: str) -> Code:
        return Code.ACCESS_REFUSED if stream == OUTGOING_STREAM else Code.STREAM_DOES_NOT_EXIST

    def _stream_stats(self, command: wire.StreamStats) -> None:
        try:
            log = self._log(command.stream)
        except LeveretError as error:
            self._send(wire.StreamStatsResponse(command.correlation, code_of(error), {}))
            return
        statistics = {
            "first_chunk_id": log.first_offset,
            "committed_chunk_id": log.last_chunk_id,
            "committed_offset": log.committed_offset,
            "committed_timestamp_ms": log.last_timestamp_ms,
            "bytes": log.bytes,
        }
        self._send(wire.StreamStatsResponse(command.correlation, Code.OK, statistics))

    def _subscribe(self, command: wire.Subscribe) -> Code:
        log = self._log(command.stream)
        if command.subscription in self.subscriptions:
            return Code.SUBSCRIPTION_ID_EXISTS
        properties = command.properties
        selector, until = properties.get(SELECTOR, "user_data"), properties.get(UNTIL)
        if selector not in ("all", "user_data") or not (until is None or until.isdecimal()):
            return Code.PRECONDITION_FAILED
        if properties.get("single-active-consumer") == "true":
            return Code.PRECONDITION_FAILED
        self.subscriptions[command.subscription] = Subscription(
            command.stream,
            _first_wanted(log, command.offset),
            command.credit,
            selector == "all",
            None if until is None else int(until),
        )
        self._effects.append(Subscribed(command.subscription))
        return Code.OK

    def _unsubscribe(self, command: wire.Unsubscribe) -> Code:
        gone = self.subscriptions.pop(command.subscription, None)
        return Code.SUBSCRIPTION_ID_UNKNOWN if gone is None else Code.OK

    def _credit(self, command: wire.Credit) -> None:
        subscription = self.subscriptions.get(command.subscription)
        if subscription is None:
            self._send(wire.CreditResponse(Code.SUBSCRIPTION_ID_UNKNOWN, command.subscription))
        else:
            subscription.credit += command.credit

    def _query_offset(self, command: wire.QueryOffset) -> None:
        code, offset = Code.OK, None
        try:
            self._log(command.stream)
            offset = self.authority.query_offset(self.vhost, command.reference)
            code = Code.NO_OFFSET if offset is None else Code.OK
        except LeveretError as error:
            code = code_of(error)
        self._send(wire.QueryOffsetResponse(command.correlation, code, offset or 0))

    # --- Recovered messages -----------------------------------------------------------------------

    def _book(self, stream: str) -> SequenceBook:
        """Raises NotFound, AccessRefused."""
        if stream.startswith(RECOVERY_STREAM_PREFIX):
            queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
            return self.authority.recovery_queue(self.user, self.vhost, queue)
        self._log(stream)
        raise AccessRefused(f"stream '{stream}' is written by the node alone")

    def _declare_publisher(self, command: wire.DeclarePublisher) -> Code:
        self._book(command.stream)
        queue = command.stream.removeprefix(RECOVERY_STREAM_PREFIX)
        publisher = Publisher(command.publisher, command.reference, queue)
        held = {(each.reference, each.queue) for each in self.publishers.values()}
        if (
            not command.reference
            or (publisher.reference, queue) in held
            or publisher.number in self.publishers
        ):
            return Code.PRECONDITION_FAILED
        self.publishers[publisher.number] = publisher
        self._decoder.frame_max_bytes = max(self._decoder.frame_max_bytes, RECOVERY_FRAME_BYTES_MAX)
        return Code.OK

    def _delete_publisher(self, command: wire.DeletePublisher) -> Code:
        gone = self.publishers.pop(command.publisher, None)
        return Code.PUBLISHER_UNKNOWN if gone is None else Code.OK

    def _query_sequence(self, command: wire.QueryPublisherSequence) -> None:
        code, sequence = Code.OK, 0
        try:
            sequence = self._book(command.stream).last_sequence(command.reference)
        except LeveretError as error:
            code = code_of(error)
        self._send(wire.QueryPublisherSequenceResponse(command.correlation, code, sequence))

    def _publish(self, command: wire.Publish) -> None:
        publisher = self.publishers.get(command.publisher)
        ids = [publishing_id for publishing_id, _ in command.entries]
        if publisher is None:
            self._fail(command.publisher, ids + command.sub_batches, Code.PUBLISHER_UNKNOWN)
        elif command.sub_batches:
            # A stored message is one entry; taking a part of the frame would break the order.
            self._fail(command.publisher, ids + command.sub_batches, Code.PRECONDITION_FAILED)
        elif command.entries:
            octets = sum([len(body) for _, body in command.entries])
            self.unstored_bytes += octets
            self._effects.append(Append(publisher, command.entries, octets))

    def _fail(self, publisher: int, ids: list[int], code: Code) -> None:
        self._send(wire.PublishError(publisher, [FailedPublish(each, code) for each in ids]))

    def _listens(self, append: Append) -> bool:
        return self.publishers.get(append.publisher.number) is append.publisher and self.state is State.OPEN

    # --- Sending ----------------------------------------------------------------------------------

    def _answer(self, request: R, answer: type[Response], serve: Callable[[R], Code]) -> None:
        """Serve a request whose answer is a code alone."""
        try:
            code = serve(request)
        except LeveretError as error:
            code = code_of(error)
        self._send(answer(request.correlation, code))

    def _send(self, command: Command) -> None:
        self._output.append(command.encode())

    def _end(self, state: State, reason: str) -> None:
        """No command is served any more."""
        self.state = state
        self.close_reason = reason
        self.subscriptions.clear()
        self.publishers.clear()


def _first_wanted(log: LogBounds, spec: OffsetSpec) -> int:
    """Where a subscription begins; offsets retained no more are skipped."""
    match spec.kind:
        case OffsetType.FIRST:
            return log.first_offset
        case OffsetType.LAST:
            return log.last_chunk_id if log.last_chunk_id >= 0 else log.committed_offset
        case OffsetType.NEXT:
            return log.committed_offset
        case OffsetType.TIMESTAMP:
            return log.offset_at(spec.value)
    return max(spec.value, log.first_offset)


def _unexpected(command: Command, state: State) -> PeerError:
    return PeerError(f"{type(command).__name__} is not served while the connection is {state.value}")


_CLOSE: Final = Key.CLOSE.to_bytes(2, "big")
_CLOSE_RESPONSE: Final = (RESPONSE | Key.CLOSE).to_bytes(2, "big")
