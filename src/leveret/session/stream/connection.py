"""One peer of the stream protocol, from its first octet to its last; pure.

The runtime passes in octets and the time, writes `take_output()`, then performs the effects of `receive()`. It reads
logs for all `subscriptions` and passes the chunks to `deliver()`; it stores the messages of an `Append` and then
calls `stored()`. Questions without I/O (logins, the existence and bounds of logs) go to a `StreamAuthority`.

    START --PeerProperties--> GREETED --SaslHandshake--> AUTHENTICATING --SaslAuthenticate-->
    TUNING --Tune--> TUNED --Open--> OPEN --Close, either way--> CLOSING --answer--> CLOSED

Served are streams, the outgoing log of the vhost, under the name `OUTGOING_STREAM` and for reading only,
and queues that take recovered messages, under `RECOVERY_STREAM_PREFIX` and for writing only. The modules
`topology`, `reading` and `writing` serve the commands of an open connection; they see its lower half, `session`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from leveret.model.errors import LeveretError, PeerError, Refusal
from leveret.model.served_release import RABBITMQ_VERSION
from leveret.session.stream import login, reading, topology, writing
from leveret.session.stream.session import CONFIRMED_BYTES, StreamSession
from leveret.session.stream.types import (
    Append,
    AskOffset,
    ChangeStreams,
    Effect,
    StoreBatch,
    StreamConnectionState,
    StreamPublisher,
    code_of,
)
from leveret.wire.log_name import CLUSTER_PROPERTY, LABEL_PROPERTY
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import (
    RESPONSE,
    VERSION,
    Code,
    CommandKey,
    Response,
    StreamCommand,
    StreamRequest,
)
from leveret.wire.stream.fields import CommandVersions
from leveret.wire.stream.frames import FrameTooLarge, StreamFrameError

UNSTORED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The most published octets that wait for the disk; beyond, the peer is not read from."""
HANDSHAKE_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_MS: Final = 2_000
TURN_COMMANDS: Final = 150
"""Commands that are served in a row, but for publishes: a read holds 13,000 of them, which take 0.2 s."""
_COMMAND_BYTES: Final = 128
"""One that is longer than this counts for more, for it names more."""

VERSIONS: Final = [
    CommandVersions(key, VERSION, 2 if key in (CommandKey.PUBLISH, CommandKey.DELIVER) else VERSION)
    for key in CommandKey
]
R = TypeVar("R", bound=StreamRequest)

TRANSITIONS: Final[dict[tuple[StreamConnectionState, type[StreamCommand]], StreamConnectionState]] = {
    (StreamConnectionState.START, wire.PeerProperties): StreamConnectionState.GREETED,
    (StreamConnectionState.GREETED, wire.SaslHandshake): StreamConnectionState.AUTHENTICATING,
    (StreamConnectionState.AUTHENTICATING, wire.SaslAuthenticate): StreamConnectionState.TUNING,
    (StreamConnectionState.TUNING, wire.Tune): StreamConnectionState.TUNED,
    (StreamConnectionState.TUNED, wire.Open): StreamConnectionState.OPEN,
}
"""The handshake. Close may come in any state, Heartbeat from TUNED on, all the rest in OPEN."""


@dataclass(slots=True)
class StreamClientConnection(StreamSession):
    """Decides; never sends, sleeps or reads a clock."""

    _confirmed: dict[StreamPublisher, list[int]] = field(default_factory=dict)
    _deadline_ms: int = 0
    _received_ms: int = 0
    _sent_ms: int = 0
    _deaf: bool = False

    def __post_init__(self) -> None:
        self._received_ms = self._sent_ms = self.started_ms
        self._deadline_ms = self.started_ms + HANDSHAKE_TIMEOUT_MS

    # --- What the runtime calls -------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> list[Effect]:
        """Take octets from the peer; return the effects to perform, in order.

        If `is_turn_over` afterwards, call it again without octets once other clients have been served.
        """
        self._received_ms = now_ms
        self.is_turn_over = False
        self._flush_confirms()
        if self._deaf or self.state is StreamConnectionState.CLOSED:
            return []
        left = TURN_COMMANDS
        try:
            with closing(self._decoder.feed(data)) as frames:
                for frame in frames:
                    self._take(frame, now_ms)
                    if frame[:2] != _PUBLISH:
                        left -= 1 + len(frame) // _COMMAND_BYTES
                        if left <= 0:
                            self.is_turn_over = True
                            break
        except (FrameTooLarge, StreamFrameError) as error:
            # The begin of the next frame is lost, and so is the peer's answer to our Close: its end of file, or the
            # deadline, ends the connection.
            code = Code.FRAME_TOO_LARGE if isinstance(error, FrameTooLarge) else Code.UNKNOWN_FRAME
            self.close(code, str(error), now_ms)
            self._deaf = True
        effects, self.effects = self.effects, []
        return effects

    def take_output(self, now_ms: int) -> list[bytes | memoryview]:
        """The octets to send now."""
        self._flush_confirms()
        output, self._output = self._output, []
        if output:
            self._sent_ms = now_ms
        return output

    def deliver(
        self, number: int, chunks: Sequence[bytes | memoryview], committed_chunk_id: int = -1
    ) -> None:
        """Send as many of these chunks (raw, trailer included) as the subscription has credit for."""
        reading.deliver(self, number, chunks, committed_chunk_id)

    def consumer_update(self, number: int, active: bool) -> None:
        """Tell the peer that a subscription became active in its group, or stopped."""
        reading.consumer_update(self, number, active)

    def stored(self, append: Append | StoreBatch) -> None:
        """Confirm the durable messages of an `Append` or `StoreBatch`, unless the publisher is gone."""
        self.unstored_bytes -= append.octets
        if self._listens(append.publisher):
            self._confirmed.setdefault(append.publisher, []).extend(append.ids)

    def _flush_confirms(self) -> None:
        confirmed, self._confirmed = self._confirmed, {}
        for publisher, ids in confirmed.items():
            if self._listens(publisher):
                # A client may have agreed on small frames, and have hundreds of thousands of messages on their way.
                for some in self.fitting(ids, CONFIRMED_BYTES):
                    self.send(wire.PublishConfirm(publisher.number, list(some)))

    def not_stored(self, append: Append | StoreBatch, error: LeveretError) -> None:
        """Report the refused messages of an `Append` or `StoreBatch`."""
        self.unstored_bytes -= append.octets
        if self._listens(append.publisher):
            self._flush_confirms()
            writing.fail(self, append.publisher.number, append.ids, code_of(error))

    def answer(self, response: Response) -> None:
        """Send a response that waited for the disk."""
        if self.state is StreamConnectionState.OPEN:
            self.send(response)

    def offset_found(self, ask: AskOffset, found: int | LeveretError | None) -> None:
        """Send a reader's offset that the leader of its stream was asked for."""
        if self.state is StreamConnectionState.OPEN:
            reading.offset_found(self, ask, found)

    def change(self, change: ChangeStreams) -> list[Effect]:
        """Make a change that waited for the definitions lock; return the effects to perform."""
        if self.state is StreamConnectionState.OPEN:
            change.apply()
        effects, self.effects = self.effects, []
        return effects

    def stream_gone(self, stream: str, error: LeveretError) -> None:
        """Tell the peer that a stream cannot be used (any more), and drop its subscriptions and publishers."""
        reading.gone(self, stream, error)

    @property
    def streams(self) -> set[str]:
        """The streams with subscriptions or publishers."""
        return {each.stream for each in self.subscriptions.values()} | {
            each.queue for each in self.publishers.values() if each.to_stream
        }

    def set_reading(self, reading: bool, now_ms: int) -> None:
        """Note whether the peer is read from; while it is not, its heartbeats are not timed."""
        self.reading = reading
        self._received_ms = now_ms

    @property
    def takes_more(self) -> bool:
        """Whether the peer may be read from; otherwise commands have to be served, or messages stored, first."""
        return self.unstored_bytes < UNSTORED_BYTES_MAX and not self.is_turn_over

    def close(self, code: Code, reason: str, now_ms: int) -> None:
        """End the connection from our side; the peer has `CLOSE_TIMEOUT_MS` to answer."""
        if self.state in (StreamConnectionState.CLOSING, StreamConnectionState.CLOSED):
            return
        self.send(wire.Close(0, code, reason[:1000]))
        self._end(StreamConnectionState.CLOSING, reason)
        self._deadline_ms = now_ms + CLOSE_TIMEOUT_MS

    def cut(self, reason: str) -> None:
        """End the connection without a Close, as RabbitMQ does for an operator.

        Clients reconnect after the loss of a connection, and take a Close for an error.
        """
        if self.state is not StreamConnectionState.CLOSED:
            self._end(StreamConnectionState.CLOSED, reason)

    def next_deadline_ms(self) -> int | None:
        """The time of the next `tick`, if no other event comes before."""
        if self.state is StreamConnectionState.CLOSED:
            return None
        if self.state is not StreamConnectionState.OPEN:
            return self._deadline_ms
        if self.heartbeat_s == 0:
            return None
        beat = self._sent_ms + self.heartbeat_s * 1000
        return min(beat, self._silent_ms) if self.reading else beat

    def tick(self, now_ms: int) -> None:
        """Send a due heartbeat, and end steps that take too long."""
        deadline = self.next_deadline_ms()
        if deadline is None or now_ms < deadline:
            return
        if self.state is not StreamConnectionState.OPEN:
            self._end(
                StreamConnectionState.CLOSED, self.close_reason or f"not open after {HANDSHAKE_TIMEOUT_MS} ms"
            )
        elif self.reading and now_ms >= self._silent_ms:
            self._end(
                StreamConnectionState.CLOSED, f"no frame came for twice the heartbeat of {self.heartbeat_s} s"
            )
        else:
            self.send(wire.Heartbeat())

    # --- Commands ---------------------------------------------------------------------------------

    @property
    def _silent_ms(self) -> int:
        return self._received_ms + 2 * self.heartbeat_s * 1000

    def _take(self, frame: bytes, now_ms: int) -> None:
        if self.state is StreamConnectionState.CLOSED:
            return
        if self.state is StreamConnectionState.CLOSING:
            # Only the Close or its answer matters now, and garbage does not change that.
            if frame[:2] in (_CLOSE_RESPONSE, _CLOSE):
                self._end(StreamConnectionState.CLOSED, self.close_reason)
            return
        try:
            if frame[:2] == _PUBLISH and self.state is StreamConnectionState.OPEN:
                writing.publish(self, frame)
            else:
                self._serve(wire.decode(frame))
        except PeerError as error:
            self.close(Code.UNKNOWN_FRAME, str(error), now_ms)

    def _serve(self, command: StreamCommand) -> None:
        if isinstance(command, wire.Close):
            self.send(wire.CloseResponse(command.correlation, Code.OK))
            self.has_answered_close = True
            self._end(StreamConnectionState.CLOSED, command.reason or "closed by the peer")
        elif isinstance(command, wire.Heartbeat) and self.state in (
            StreamConnectionState.TUNED,
            StreamConnectionState.OPEN,
        ):
            return
        elif self.state is StreamConnectionState.OPEN:
            self._serve_open(command)
        elif following := TRANSITIONS.get((self.state, type(command))):
            # Before the command is processed, so that an error in it can end the connection.
            self.state = following
            self._serve_handshake(command)
        else:
            raise _unexpected(command, self.state)

    def _serve_handshake(self, command: StreamCommand) -> None:
        match command:
            case wire.PeerProperties():
                self.peer_properties = command.properties
                ours = {"product": "Leveret", "version": RABBITMQ_VERSION, "platform": "Python"}
                if (site := self.authority.site) is not None:
                    ours |= {CLUSTER_PROPERTY: site.cluster_id, LABEL_PROPERTY: site.label}
                self.send(wire.PeerPropertiesResponse(command.correlation, Code.OK, ours))
            case wire.SaslHandshake():
                self.send(wire.SaslHandshakeResponse(command.correlation, Code.OK, login.offered(self)))
            case wire.SaslAuthenticate():
                self._authenticate(command)
            case wire.Tune():
                self._tune(command)
            case wire.Open():
                self._open(command)

    def _authenticate(self, command: wire.SaslAuthenticate) -> None:
        code, found = login.log_in(self, command)
        self.send(wire.SaslAuthenticateResponse(command.correlation, code))
        if code == Code.OK:
            self.user = found
            self.send(wire.Tune(self.frame_max_bytes, self.heartbeat_s))
        else:
            self._end(StreamConnectionState.CLOSED, found)

    def _tune(self, command: wire.Tune) -> None:
        """Take the peer's lower limits; a heartbeat of 0 turns both directions off."""
        if command.frame_max_bytes:
            self.frame_max_bytes = min(self.frame_max_bytes, command.frame_max_bytes)
        self.heartbeat_s = command.heartbeat_s

    def _open(self, command: wire.Open) -> None:
        try:
            self.authority.open_vhost(self.user, command.vhost)
        except Refusal as error:
            self.send(wire.OpenResponse(command.correlation, Code.VHOST_ACCESS_FAILURE, {}))
            self._end(StreamConnectionState.CLOSED, str(error))
            return
        self.vhost = command.vhost
        self._decoder.frame_max_bytes = self.frame_max_bytes
        host, port = login.place(self)
        where = {"advertised_host": host, "advertised_port": str(port)}
        self.send(wire.OpenResponse(command.correlation, Code.OK, where))

    def _serve_open(self, command: StreamCommand) -> None:
        if simple := _BY_CODE.get(type(command)):
            assert isinstance(command, StreamRequest)
            self._answer(command, *simple)
        elif serve := _SERVED.get(type(command)):
            serve(self, command)
        else:
            raise _unexpected(command, self.state)

    def _exchange_versions(self, command: wire.ExchangeCommandVersions) -> None:
        highest = {each.key: each.highest for each in command.commands}
        self.deliver_version = min(max(highest.get(CommandKey.DELIVER, 1), 1), 2)
        self.send(wire.ExchangeCommandVersionsResponse(command.correlation, Code.OK, VERSIONS))

    def _listens(self, publisher: StreamPublisher) -> bool:
        return self.publishers.get(publisher.number) is publisher and self.state is StreamConnectionState.OPEN

    # --- Sending ----------------------------------------------------------------------------------

    def _answer(
        self, request: R, answer: type[Response], serve: Callable[[StreamClientConnection, Any], Code]
    ) -> None:
        """Serve a request whose response is a code alone."""
        try:
            code = serve(self, request)
        except LeveretError as error:
            code = code_of(error)
        self.send(answer(request.correlation, code))

    def _end(self, state: StreamConnectionState, reason: str) -> None:
        """End the connection; no command is served any more."""
        self.state = state
        self.close_reason = reason
        self.subscriptions.clear()
        self.publishers.clear()
        self.attachments += 1


def _unexpected(command: StreamCommand, state: StreamConnectionState) -> PeerError:
    return PeerError(f"{type(command).__name__} is not served while the connection is {state.value}")


_CLOSE: Final = CommandKey.CLOSE.to_bytes(2, "big")
_CLOSE_RESPONSE: Final = (RESPONSE | CommandKey.CLOSE).to_bytes(2, "big")
_PUBLISH: Final = CommandKey.PUBLISH.to_bytes(2, "big")

_BY_CODE: Final[
    dict[type[StreamCommand], tuple[type[Response], Callable[[StreamClientConnection, Any], Code]]]
] = {
    wire.Subscribe: (wire.SubscribeResponse, reading.subscribe),
    wire.Unsubscribe: (wire.UnsubscribeResponse, reading.unsubscribe),
    wire.DeclarePublisher: (wire.DeclarePublisherResponse, writing.declare_publisher),
    wire.DeletePublisher: (wire.DeletePublisherResponse, writing.delete_publisher),
}
"""Requests whose response is a code alone."""

_SERVED: Final[dict[type[StreamCommand], Callable[[StreamClientConnection, Any], None]]] = {
    wire.Credit: reading.credit,
    wire.StoreOffset: reading.store_offset,
    wire.QueryOffset: reading.query_offset,
    wire.ConsumerUpdateResponse: reading.consumer_updated,
    wire.QueryPublisherSequence: writing.query_sequence,
    wire.Create: topology.create,
    wire.DeleteStream: topology.delete,
    wire.CreateSuperStream: topology.create_super_stream,
    wire.DeleteSuperStream: topology.delete_super_stream,
    wire.Metadata: topology.metadata,
    wire.StreamStats: topology.stream_stats,
    wire.Route: topology.route,
    wire.Partitions: topology.partitions,
    wire.ExchangeCommandVersions: StreamClientConnection._exchange_versions,
}
