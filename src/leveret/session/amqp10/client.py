"""The downstream's end of a schema link: AMQP 1.0 requests and replies, octets in, octets out.

Order: `start` -> (login, open, begin, two attaches) -> `ready` -> `request` -> `outcome` -> `request` ... until
`failure` has the reason of the link's end. There is one request at a time; a reply to an earlier one is dropped. The
upstream may notify of a changed schema at any time: `has_notice`. `session.amqp10.server` is the other end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proton import (
    Condition,
    Connection,
    Delivery,
    Event,
    Message,
    Receiver,
    Sender,
    Session,
    Transport,
    ulong,
)

from leveret.core.schema.delta import SCHEMA_VHOST
from leveret.model.errors import AuthenticationFailed, LeveretError, PeerError, Refusal
from leveret.session.amqp10.engine import INCOMING_BYTES_MAX, UNREADABLE, Amqp10Transport, data_of
from leveret.session.amqp10.server import CONDITION, NOTICE, REQUEST_ADDRESS, VHOST_PREFIX
from leveret.wire.schema_sync import REPLY_BYTES_MAX

CREDIT: Final = 3
"""One for the awaited reply, one for a late one, one for a notice."""
MESSAGE_BYTES_MAX: Final = REPLY_BYTES_MAX + 4096
_NO_AMQP: Final = "amqp:connection:framing-error"
# Of several refusals with one condition, the first is the one raised on this side.
_REFUSAL: Final[dict[str, type[Refusal]]] = {name: kind for kind, name in reversed(CONDITION.items())}


class SchemaLinkError(PeerError):
    """The upstream ended the link, or its answer was no reply."""


class SchemaLinkClient:
    """One connection to an upstream."""

    def __init__(self, *, container_id: str, username: str, password: str) -> None:
        """Log in as `username` under the name `container_id`; `start` sends the first octets."""
        self.failure: LeveretError | None = None
        self.outcome: bytes | LeveretError | None = None
        self.has_notice = False
        self._username = username
        self._engine = engine = Amqp10Transport(server=False)
        engine.connection.container = container_id
        engine.connection.hostname = f"{VHOST_PREFIX}{SCHEMA_VHOST}"
        engine.connection.user = username
        engine.connection.password = password
        sasl = engine.transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs("PLAIN")
        engine.bind()
        self._next_tick_ms: int | None = None
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._reply_to = ""
        self._request_id = 0
        self._partial = bytearray()

    @property
    def ready(self) -> bool:
        """Whether a request can be sent."""
        return (
            self.failure is None
            and bool(self._reply_to)
            and self._sender is not None
            and self._sender.credit > 0
        )

    @property
    def finished(self) -> bool:
        """Whether the socket is to be closed once all returned octets are sent."""
        return self._engine.finished

    def start(self, now_ms: int) -> bytes:
        """Open connection, session and both links at once; return the octets to send."""
        connection = self._engine.connection
        connection.open()
        session = connection.session()
        session.incoming_capacity = INCOMING_BYTES_MAX
        session.open()
        self._sender = session.sender("requests")
        self._sender.target.address = REQUEST_ADDRESS
        self._sender.open()
        self._receiver = session.receiver("replies")
        self._receiver.source.dynamic = True
        self._receiver.max_message_size = ulong(MESSAGE_BYTES_MAX)
        self._receiver.open()
        self._receiver.flow(CREDIT)
        return self._output(now_ms)

    def receive(self, data: bytes, now_ms: int) -> bytes:
        """Take octets from the upstream; return the octets to send. Any attribute may change."""
        self._take_in(self._engine.feed(data))
        return self._output(now_ms)

    def request(self, body: bytes, now_ms: int) -> bytes:
        """Send a request; its `outcome` is the body of the reply, or an error."""
        if not self.ready or self._sender is None:
            self.outcome = SchemaLinkError("the upstream takes no more requests on this link")
            return b""
        self._request_id += 1
        self.outcome = None
        message = Message(body=body, inferred=True, reply_to=self._reply_to, id=ulong(self._request_id))
        self._engine.send(self._sender, message, settled=False)
        return self._output(now_ms)

    def close(self, now_ms: int) -> bytes:
        """Close the connection; return the octets to send. The upstream's own close need not be awaited."""
        self._engine.connection.close()
        return self._output(now_ms)

    def next_deadline_ms(self) -> int | None:
        """The latest time for the next `tick`; None for no limit."""
        return self._next_tick_ms

    def tick(self, now_ms: int) -> bytes:
        """Handle heartbeats, and an upstream that fell silent."""
        return self.receive(b"", now_ms)

    def _output(self, now_ms: int) -> bytes:
        out = self._engine.output(now_ms)
        self._take_in(self._engine.events())
        self._next_tick_ms = self._engine.next_tick_ms(now_ms)
        if self._engine.finished and self.failure is None:
            self.failure = SchemaLinkError("the upstream closed the connection")
        return out

    def _take_in(self, events: Iterable[Event]) -> None:
        try:
            for event in events:
                self._handle(event)
        except UNREADABLE as error:
            self.failure = self.failure or SchemaLinkError(f"the upstream does not speak AMQP 1.0: {error}")
            self._engine.connection.close()

    def _handle(self, event: Event) -> None:
        match event.type, event.context:
            case Event.TRANSPORT_ERROR, Transport() as transport:
                self._fail_transport(transport.condition)
            case Event.CONNECTION_REMOTE_CLOSE, Connection() as connection:
                self._fail(connection.remote_condition)
                connection.close()
            case Event.SESSION_REMOTE_CLOSE, Session() as session:
                self._fail(session.remote_condition)
            case ((Event.LINK_REMOTE_CLOSE | Event.LINK_REMOTE_DETACH), (Receiver() | Sender()) as link):
                self._fail(link.remote_condition)
            case Event.LINK_REMOTE_OPEN, Receiver() as link:
                self._reply_to = link.remote_source.address or ""
            case Event.DELIVERY, Delivery(link=Receiver() as link) as delivery:
                self._deliver(link, delivery)
            case Event.DELIVERY, Delivery(updated=True) as delivery:
                self._settle(delivery)

    def _fail(self, condition: Condition | None) -> None:
        if self.failure is None:
            self.failure = _error(condition, "the upstream closed the link")

    def _fail_transport(self, condition: Condition | None) -> None:
        # The transport's own "unauthorized" is the outcome of SASL, which has no text.
        if condition is not None and condition.name == CONDITION[AuthenticationFailed] and not self.failure:
            self.failure = AuthenticationFailed(
                f"the upstream refuses user '{self._username}' or its password"
            )
        if condition is not None and condition.name == _NO_AMQP and not self._reply_to and not self.failure:
            self.failure = SchemaLinkError(
                "no AMQP 1.0 is spoken there: name an AMQP listener of the upstream"
            )
        self._fail(condition)

    def _settle(self, delivery: Delivery) -> None:
        if delivery.remote_state == Delivery.REJECTED and delivery.link == self._sender:
            self.outcome = _error(delivery.remote.condition, "the upstream rejected the request")
        delivery.settle()

    def _deliver(self, link: Receiver, delivery: Delivery) -> None:
        if not delivery.readable:
            return
        self._partial += link.recv(delivery.pending) or b""
        if len(self._partial) > MESSAGE_BYTES_MAX:
            self.failure = SchemaLinkError(f"a reply of more than {MESSAGE_BYTES_MAX} octets")
            link.close()
            return
        if delivery.partial:
            return
        octets, self._partial = bytes(self._partial), bytearray()
        link.advance()
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        link.flow(1)
        self._take(octets)

    def _take(self, octets: bytes) -> None:
        message = Message()
        try:
            message.decode(octets)
        except UNREADABLE as error:
            self.outcome = SchemaLinkError(f"the reply is no AMQP 1.0 message: {error}")
            return
        if message.correlation_id is None and message.subject == NOTICE:
            self.has_notice = True
            return
        if message.correlation_id != self._request_id:
            return
        body = data_of(message)
        self.outcome = SchemaLinkError("the body of the reply is no data section") if body is None else body


def _error(condition: Condition | None, otherwise: str) -> LeveretError:
    """The error on this side for the upstream's condition."""
    if condition is None:
        return SchemaLinkError(otherwise)
    kind = _REFUSAL.get(condition.name, SchemaLinkError)
    return kind(condition.description or condition.name)
