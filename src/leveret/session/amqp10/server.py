"""An AMQP 1.0 client's session with the broker: octets in, octets out. Serves the schema sync.

    SASL PLAIN -> open, hostname `vhost:rabbitmq_schema_definition_sync` -> begin
      attach to target /schema_definition_sync/requests          the client sends requests
      attach to source, dynamic or /schema_definition_sync/replies/NAME   the client gets replies
      request: message-id, reply-to = the address of that source
      reply:   correlation-id = the request's message-id; the request is accepted
      refused: the request is rejected with a condition; the link stays
      notice:  subject `changed`, no correlation-id: a request would get another answer than the last one

A refusal has the smallest possible scope (message, link, connection), an AMQP 1.0 condition and a text. Octets that
are not AMQP 1.0 close this connection only. The host gets requests only from clients that have logged in and may use
the vhost.

Spec: AMQP 1.0 sections 2.4 to 2.7, 3.4, 5.3.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, StrEnum, auto
from typing import Final, Protocol

from proton import (
    Condition,
    Delivery,
    Endpoint,
    Event,
    Link,
    Message,
    Receiver,
    Sender,
    Session,
    ulong,
)

from leveret.core.schema.delta import SCHEMA_VHOST
from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LedElsewhere,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    Refusal,
    ResourceLocked,
    Unsupported,
)
from leveret.session.amqp10.engine import INCOMING_BYTES_MAX, UNREADABLE, Amqp10Transport, data_of
from leveret.wire.amqp10 import (
    HEADER_BYTES,
    SASL_HEADER,
    SaslError,
    SaslOutcome,
    decode_init,
    decode_plain,
    encode_mechanisms,
    encode_outcome,
    sasl_frame_bytes,
)
from leveret.wire.schema_sync import REQUEST_BYTES_MAX

REQUEST_ADDRESS: Final = "/schema_definition_sync/requests"
REPLY_PREFIX: Final = "/schema_definition_sync/replies/"
VHOST_PREFIX: Final = "vhost:"
"""The prefix with which RabbitMQ's AMQP 1.0 plugin names a vhost in the hostname of `open`."""
LOGIN_TIMEOUT_MS: Final = 10_000
"""The time from the first octet to an open connection, and from our `close` to the peer's."""
LINKS_MAX: Final = 16
NOTICE: Final = "changed"
CLIENT_CLOSED: Final = "client_closed"
CREDIT: Final = 4
"""The requests that a client may send ahead, and the replies that may wait for it."""
MESSAGE_BYTES_MAX: Final = REQUEST_BYTES_MAX + 4096
"""The largest request, with its header and properties."""

CONDITION: Final[dict[type[Refusal], str]] = {
    NotFound: "amqp:not-found",
    AccessRefused: "amqp:unauthorized-access",
    AuthenticationFailed: "amqp:unauthorized-access",
    ResourceLocked: "amqp:resource-locked",
    PreconditionFailed: "amqp:precondition-failed",
    NotAllowed: "amqp:not-allowed",
    InvalidCommand: "amqp:invalid-field",
    Unsupported: "amqp:not-implemented",
    LedElsewhere: "amqp:precondition-failed",
}
"""AMQP 1.0 section 2.8.15: the condition of each refusal."""


class Amqp10Host(Protocol):
    """The node, as a session uses it."""

    @property
    def container_id(self) -> str:
        """The node's name in `open`."""

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """The user's name. Raises `AuthenticationFailed`."""

    def open_vhost(self, user: str, vhost: str) -> None:
        """Admit the user to the vhost. Raises `NotFound`, `AccessRefused`, `NotAllowed`."""

    def schema_is_ready(self) -> bool:
        """Whether a request is answered in a short step; otherwise the node prepares, and a request waits."""

    def schema_request(self, user: str, body: bytes) -> bytes:
        """The reply to a request of the schema sync. Raises `Refusal`."""

    def schema_state(self) -> bytes:
        """A digest of the present answer to a request; empty while none is served."""


class _Declined(Exception):
    """Carries a condition from the place of a fault to the scope that ends by it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.condition = Condition(name, text)


class _Phase(Enum):
    HEADER = auto()
    SASL = auto()
    AMQP = auto()
    CLOSED = auto()


class Amqp10State(StrEnum):
    """The state of a connection; the values are RabbitMQ's."""

    STARTING = "starting"
    RUNNING = "running"
    CLOSED = "closed"


class Amqp10Session:
    """One client, from its first protocol header on.

    Attributes:
        user: the logged-in user; empty before login.
        vhost: the vhost that it may use; empty before admission.
        peer_properties: the client's properties.
        sessions: the number of its AMQP 1.0 sessions.
        end_reason: the reason of its end, `client_closed` for the client's close; empty without one.
    """

    def __init__(self, host: Amqp10Host, *, from_loopback: bool) -> None:
        """Wait for the protocol header."""
        self.user = ""
        self.vhost = ""
        self.peer_properties: dict[str, str] = {}
        self.sessions = 0
        self.end_reason = ""
        self._host = host
        self._from_loopback = from_loopback
        self._phase = _Phase.HEADER
        self._buffer = bytearray()
        self._deadline_ms: int | None = None
        self._next_tick_ms: int | None = None
        self._engine = Amqp10Transport(server=True)
        self._links: list[Link] = []
        self._attached = 0
        self._partial: dict[str, bytearray] = {}
        self._waiting: deque[tuple[Receiver, Delivery, bytes]] = deque()
        self._replies: dict[str, Sender] = {}
        self._reported: dict[str, bytes] = {}

    @property
    def closed(self) -> bool:
        """Whether the socket is to be closed once all returned octets are sent."""
        return self._phase is _Phase.CLOSED

    @property
    def state(self) -> Amqp10State:
        """The state by RabbitMQ's name."""
        if self.closed:
            return Amqp10State.CLOSED
        return Amqp10State.RUNNING if self.vhost else Amqp10State.STARTING

    def receive(self, data: bytes, now_ms: int) -> bytes:
        """Take octets from the client; return the octets to send."""
        if self._deadline_ms is None and self._phase is _Phase.HEADER:
            self._deadline_ms = now_ms + LOGIN_TIMEOUT_MS
        self._buffer += data
        out = b""
        if self._phase is _Phase.HEADER:
            out += self._header()
        if self._phase is _Phase.SASL:
            out += self._login()
        if self._phase is _Phase.AMQP:
            octets, self._buffer = bytes(self._buffer), bytearray()
            self._feed(octets, now_ms)
            out += self._output(now_ms)
        return out

    def next_deadline_ms(self) -> int | None:
        """The latest time for the next `tick`; None for no limit."""
        due = [at for at in (self._deadline_ms, self._next_tick_ms) if at is not None]
        return min(due) if due and not self.closed else None

    def tick(self, now_ms: int) -> bytes:
        """Handle heartbeats, silent peers, late logins and closes, requests that wait, and due notices."""
        if self._deadline_ms is not None and now_ms >= self._deadline_ms:
            self.end_reason = self.end_reason or "handshake_timeout"
            self._phase = _Phase.CLOSED
        if self._phase is not _Phase.AMQP:
            return b""
        self._answer_waiting()
        self._notify()
        return self._output(now_ms)

    def force_close(self, reason: str, now_ms: int) -> bytes:
        """Close for a reason of the operator or the node; return the octets to send."""
        if self._phase is not _Phase.AMQP:
            self._phase = _Phase.CLOSED
            return b""
        self._end_connection(_Declined("amqp:connection:forced", reason), now_ms)
        return self._output(now_ms)

    # -- login --------------------------------------------------------------------------------

    def _header(self) -> bytes:
        if len(self._buffer) < HEADER_BYTES:
            return b""
        header = bytes(self._buffer[:HEADER_BYTES])
        del self._buffer[:HEADER_BYTES]
        if header != SASL_HEADER:
            # Section 2.2: answer with the header that is served, then close.
            self._phase = _Phase.CLOSED
            return SASL_HEADER
        self._phase = _Phase.SASL
        return SASL_HEADER + encode_mechanisms("PLAIN")

    def _login(self) -> bytes:
        try:
            size = sasl_frame_bytes(self._buffer)
            if size == 0 or len(self._buffer) < size:
                return b""
            init = decode_init(bytes(self._buffer[:size]))
            username, password = (
                decode_plain(init.initial_response) if init.mechanism == "PLAIN" else ("", "")
            )
        except SaslError:
            self._phase = _Phase.CLOSED
            return encode_outcome(SaslOutcome.SYS_PERM)
        del self._buffer[:size]
        try:
            if not username:
                raise AuthenticationFailed(f"SASL mechanism {init.mechanism} is not offered")
            self.user = self._host.authenticate(username, password, self._from_loopback)
        except AuthenticationFailed:
            self._phase = _Phase.CLOSED
            return encode_outcome(SaslOutcome.AUTH)
        self._engine.bind()
        self._phase = _Phase.AMQP
        return encode_outcome(SaslOutcome.OK)

    # -- connection, sessions, links ----------------------------------------------------------

    def _output(self, now_ms: int) -> bytes:
        out = self._engine.output(now_ms)
        self._next_tick_ms = self._engine.next_tick_ms(now_ms)
        if self._engine.finished:
            condition = self._engine.condition
            self.end_reason = self.end_reason or (
                f"{condition.name} - {condition.description}" if condition else ""
            )
            self._phase = _Phase.CLOSED
        return out

    def _feed(self, octets: bytes, now_ms: int) -> None:
        try:
            for event in self._engine.feed(octets):
                self._handle(event, now_ms)
        except UNREADABLE as error:
            self._end_connection(_Declined("amqp:decode-error", f"not AMQP 1.0: {error}"), now_ms)

    def _end_connection(self, declined: _Declined, now_ms: int) -> None:
        connection = self._engine.connection
        connection.open()
        connection.condition = declined.condition
        connection.close()
        self.end_reason = self.end_reason or declined.condition.description or ""
        self._deadline_ms = now_ms + LOGIN_TIMEOUT_MS

    def _handle(self, event: Event, now_ms: int) -> None:
        if self._engine.connection.state & Endpoint.LOCAL_CLOSED:
            return
        match event.type, event.context:
            case Event.CONNECTION_REMOTE_OPEN, _:
                self._open(now_ms)
            case Event.CONNECTION_REMOTE_CLOSE, _:
                self.end_reason = self.end_reason or CLIENT_CLOSED
                self._engine.connection.close()
            case Event.SESSION_REMOTE_OPEN, Session() as session:
                self._begin(session)
            case Event.SESSION_REMOTE_CLOSE, Session() as session:
                self._end_session(session)
            case Event.LINK_REMOTE_OPEN, (Receiver() | Sender()) as link:
                self._attach(link, now_ms)
            case ((Event.LINK_REMOTE_CLOSE | Event.LINK_REMOTE_DETACH), (Receiver() | Sender()) as link):
                self._detach(link)
            case Event.DELIVERY, Delivery(link=Receiver() as link) as delivery:
                self._deliver(link, delivery)

    def _open(self, now_ms: int) -> None:
        connection = self._engine.connection
        connection.container = self._host.container_id
        try:
            self._note_peer()
            self._admit(connection.remote_hostname or "")
        except _Declined as declined:
            self._end_connection(declined, now_ms)
        else:
            connection.open()
            self._deadline_ms = None

    def _admit(self, hostname: str) -> None:
        vhost = hostname.removeprefix(VHOST_PREFIX)
        if vhost == hostname or vhost != SCHEMA_VHOST:
            text = f"AMQP 1.0 serves the schema sync only: hostname must be '{VHOST_PREFIX}{SCHEMA_VHOST}'"
            raise _Declined("amqp:not-implemented", f"{text}, not '{hostname}'")
        try:
            self._host.open_vhost(self.user, vhost)
        except Refusal as refusal:
            raise _Declined(CONDITION[type(refusal)], str(refusal)) from None
        self.vhost = vhost

    def _note_peer(self) -> None:
        """Section 2.7.1: keep the texts in the map `properties`."""
        said = self._engine.connection.remote_properties
        if said is not None and not isinstance(said, dict):
            raise _Declined("amqp:invalid-field", "the properties of an open are a map")
        found = {_text(key): _text(value) for key, value in (said or {}).items() if isinstance(value, str)}
        self.peer_properties = found
        self.peer_properties["connection_name"] = self._engine.connection.remote_container or ""

    def _begin(self, session: Session) -> None:
        self.sessions += 1
        session.incoming_capacity = INCOMING_BYTES_MAX
        session.open()

    def _end_session(self, session: Session) -> None:
        """Section 2.5.8: a session's links end with it."""
        for link in [each for each in self._links if each.session == session]:
            self._forget(link)
        self.sessions -= 1
        session.close()
        session.free()

    def _attach(self, link: Receiver | Sender, now_ms: int) -> None:
        too_many = _Declined("amqp:resource-limit-exceeded", f"more than {LINKS_MAX} links in a connection")
        try:
            self._attached += 1
            self._links.append(link)
            if len(self._links) > 2 * LINKS_MAX:
                # It attaches ever more, and detaches none of those that were refused.
                self._end_connection(too_many, now_ms)
                return
            if len(self._links) > LINKS_MAX:
                raise too_many
            if isinstance(link, Receiver):
                self._attach_requests(link)
            else:
                self._attach_replies(link)
        except _Declined as declined:
            # Section 2.6.3: attach without a terminus, then detach with the reason.
            link.open()
            self._end_link(link, declined)

    def _attach_requests(self, link: Receiver) -> None:
        address = link.remote_target.address
        if address != REQUEST_ADDRESS:
            raise _Declined("amqp:not-found", f"no node '{address}': requests go to '{REQUEST_ADDRESS}'")
        link.source.copy(link.remote_source)
        link.target.address = address
        link.max_message_size = ulong(MESSAGE_BYTES_MAX)
        link.open()
        link.flow(CREDIT)

    def _attach_replies(self, link: Sender) -> None:
        source = link.remote_source
        address = (
            f"{REPLY_PREFIX}{self.user}/{self._attached}/{link.name}"
            if source.dynamic
            else source.address or ""
        )
        if not address.startswith(REPLY_PREFIX):
            text = f"no node '{address}': replies come from a dynamic source or one below '{REPLY_PREFIX}'"
            raise _Declined("amqp:not-found", text)
        if address in self._replies:
            raise _Declined("amqp:resource-locked", f"'{address}' is the source of another link")
        link.source.address = address
        link.source.dynamic = source.dynamic
        link.target.copy(link.remote_target)
        self._replies[address] = link
        link.open()

    def _end_link(self, link: Link, declined: _Declined) -> None:
        link.condition = declined.condition
        link.close()

    def _detach(self, link: Link) -> None:
        self._forget(link)
        link.close()
        link.free()

    def _forget(self, link: Link) -> None:
        self._links = [each for each in self._links if each != link]
        self._partial.pop(link.name, None)
        self._waiting = deque(each for each in self._waiting if each[0] != link)
        for address in [a for a, sender in self._replies.items() if sender == link]:
            del self._replies[address]
            self._reported.pop(address, None)
        self._engine.forget(link)

    # -- requests -----------------------------------------------------------------------------

    def _deliver(self, link: Receiver, delivery: Delivery) -> None:
        if link.state & Endpoint.LOCAL_CLOSED or not delivery.readable:
            return
        if delivery.aborted:
            self._partial.pop(link.name, None)
            delivery.settle()
            link.flow(1)
            return
        octets = self._partial.setdefault(link.name, bytearray())
        octets += link.recv(delivery.pending) or b""
        if len(octets) > MESSAGE_BYTES_MAX:
            text = f"a request has at most {MESSAGE_BYTES_MAX} octets"
            self._end_link(link, _Declined("amqp:link:message-size-exceeded", text))
            return
        if delivery.partial:
            return
        del self._partial[link.name]
        link.advance()
        if sum(each[0] == link for each in self._waiting) >= CREDIT:
            # proton does not count a peer's messages; they would fill the memory while the node prepares.
            text = f"more than the {CREDIT} requests for which there was credit"
            self._end_link(link, _Declined("amqp:link:transfer-limit-exceeded", text))
            return
        self._waiting.append((link, delivery, bytes(octets)))
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answer the requests that came, in their order, unless the node prepares for them."""
        while self._waiting and self._host.schema_is_ready():
            self._answer(*self._waiting.popleft())

    def _answer(self, link: Receiver, delivery: Delivery, octets: bytes) -> None:
        try:
            self._reply(octets)
        except _Declined as declined:
            if delivery.settled:
                # The client wants no outcome for its messages: only the link can carry the refusal.
                self._end_link(link, declined)
                return
            delivery.local.condition = declined.condition
            delivery.update(Delivery.REJECTED)
        else:
            delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        link.flow(1)

    def _reply(self, octets: bytes) -> None:
        request = _message(octets)
        sender = self._replies.get(request.reply_to or "")
        if request.reply_to is None:
            raise _Declined("amqp:invalid-field", "a request needs a reply-to")
        if sender is None:
            text = f"reply-to '{request.reply_to}' is not the source of a link of this connection"
            raise _Declined("amqp:not-found", text)
        if sender.credit <= 0 or self._engine.sending >= CREDIT:
            text = f"the link from '{request.reply_to}' has no credit, or replies wait for its window"
            raise _Declined("amqp:resource-limit-exceeded", text)
        asked = data_of(request)
        if asked is None:
            raise _Declined("amqp:invalid-field", "the body of a request is one data section")
        try:
            body = self._host.schema_request(self.user, asked)
        except Refusal as refusal:
            # The client is also notified of the next change, such as the end of a refusal.
            self._reported[request.reply_to] = self._host.schema_state()
            raise _Declined(CONDITION[type(refusal)], str(refusal)) from None
        reply = Message(body=body, inferred=True, correlation_id=request.id, address=request.reply_to)
        self._engine.send(sender, reply, settled=True)
        self._reported[request.reply_to] = self._host.schema_state()

    def _notify(self) -> None:
        """Notify each earlier client once that a request would get another answer now."""
        if not self._reported:
            return
        state = self._host.schema_state()
        for address, reported in self._reported.items():
            sender = self._replies[address]
            if state and reported != state and sender.credit > 0 and not self._engine.sending:
                notice = Message(body=b"", inferred=True, subject=NOTICE, address=address)
                self._engine.send(sender, notice, settled=True)
                self._reported[address] = state


def _text(value: object) -> str:
    """A plain text of a key or value: of a symbol, or with a half of a surrogate pair, JSON cannot be written."""
    return str(value).encode("utf-8", "replace").decode()


def _message(octets: bytes) -> Message:
    message = Message()
    try:
        message.decode(octets)
    except UNREADABLE as error:
        raise _Declined("amqp:decode-error", f"not an AMQP 1.0 message: {error}") from None
    return message
