"""The AMQP 1.0 session against proton's client: login, the link, requests, and every way to be declined."""

from __future__ import annotations

from typing import Any

import cproton  # type: ignore[import-untyped]  # what proton has of C, which ships no types
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import (
    Connection,
    Data,
    Delivery,
    Endpoint,
    Message,
    Receiver,
    Sender,
    Transport,
    char,
    symbol,
    ulong,
)

from leveret.core.schema.delta import SCHEMA_VHOST
from leveret.model import errors
from leveret.model.errors import AccessRefused, AuthenticationFailed, InvalidCommand, NotFound, Refusal
from leveret.session.amqp10.engine import TICK_MS_MIN, data_of
from leveret.session.amqp10.server import (
    CLIENT_CLOSED,
    CONDITION,
    CREDIT,
    LINKS_MAX,
    LOGIN_TIMEOUT_MS,
    MESSAGE_BYTES_MAX,
    REPLY_PREFIX,
    REQUEST_ADDRESS,
    Amqp10Session,
    Amqp10State,
)
from leveret.wire.amqp10 import AMQP_HEADER, SASL_HEADER, SaslOutcome, encode_mechanisms, encode_outcome

VHOST = f"vhost:{SCHEMA_VHOST}"
LARGE = 9_000_000


class Host:
    """A node that knows one user and turns a request round."""

    container_id = "upstream-node"
    state = b"a"
    is_ready = True

    def __init__(self) -> None:
        self.logins: list[tuple[str, bool]] = []
        self.requests: list[tuple[str, bytes]] = []

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        self.logins.append((username, from_loopback))
        if password != "secret":
            raise AuthenticationFailed(f"user '{username}' - invalid credentials")
        return username

    def open_vhost(self, user: str, vhost: str) -> None:
        if user == "stranger":
            raise AccessRefused(f"access to vhost '{vhost}' refused for user '{user}'")
        if user == "early":
            raise NotFound(f"vhost '{vhost}' does not exist")

    def schema_request(self, user: str, body: bytes) -> bytes:
        self.requests.append((user, body))
        if body == b"refuse":
            raise InvalidCommand("that is no request")
        return b"x" * LARGE if body == b"large" else body[::-1]

    def schema_is_ready(self) -> bool:
        return self.is_ready

    def schema_state(self) -> bytes:
        return self.state


class Client:
    """proton's transport as a client, joined to a session by function calls; piece by piece if asked."""

    def __init__(
        self,
        user: str = "replicator",
        password: str = "secret",
        hostname: str = VHOST,
        piece: int = 1 << 30,
        properties: Any = None,
    ) -> None:
        self.host = Host()
        self.session = Amqp10Session(self.host, from_loopback=True)
        self.transport = Transport(Transport.CLIENT)
        self.connection = Connection()
        self.connection.user, self.connection.password = user, password
        self.connection.hostname = hostname
        self.connection.container = "eu.2"
        self.connection.properties = properties
        sasl = self.transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs("PLAIN")
        self.transport.bind(self.connection)
        self.connection.open()
        self.amqp_session = self.connection.session()
        self.amqp_session.open()
        self.now_ms = 0
        self._piece = piece

    def pump(self) -> None:
        """Pass octets to and fro until both are silent."""
        for _ in range(10_000):
            octets = self._said()
            if not octets:
                return
            answer = b""
            for at in range(0, len(octets), self._piece):
                answer += self.session.receive(octets[at : at + self._piece], self.now_ms)
            self._hear(answer)
        raise AssertionError("client and session never fall silent")

    def requests(self, address: str = REQUEST_ADDRESS) -> Sender:
        sender = self.amqp_session.sender(f"to {address}")
        sender.target.address = address
        sender.open()
        self.pump()
        return sender

    def replies(self, address: str | None = None, credit: int = 1) -> Receiver:
        receiver = self.amqp_session.receiver(f"from {address}")
        if address is None:
            receiver.source.dynamic = True
        else:
            receiver.source.address = address
        receiver.open()
        receiver.flow(credit)
        self.pump()
        return receiver

    def send(self, sender: Sender, message: Message, *, settled: bool = False) -> Delivery:
        delivery = sender.delivery(sender.delivery_tag())
        sender.send(message.encode())
        sender.advance()
        if settled:
            delivery.settle()
        self.pump()
        return delivery

    def _said(self) -> bytes:
        octets = b""
        while (pending := self.transport.pending()) > 0:
            octets += self.transport.peek(pending) or b""
            self.transport.pop(pending)
        return octets

    def _hear(self, octets: bytes) -> None:
        while octets and (room := self.transport.capacity()) > 0:
            self.transport.push(octets[:room])
            octets = octets[room:]


def take(receiver: Receiver) -> tuple[object, bytes]:
    """Correlation id and body of the reply that has arrived."""
    delivery = receiver.current
    assert delivery is not None
    assert not delivery.partial
    message = Message()
    message.decode(receiver.recv(delivery.pending) or b"")
    receiver.advance()
    return message.correlation_id, octets_of(message)


def octets_of(message: Message) -> bytes:
    octets = data_of(message)
    assert octets is not None
    return octets


def request(body: bytes | str, reply_to: str | None, number: int = 1) -> Message:
    return Message(body=body, inferred=True, id=ulong(number), reply_to=reply_to)


def condition_of(endpoint: Endpoint) -> tuple[str, str]:
    assert endpoint.remote_condition is not None
    return endpoint.remote_condition.name, endpoint.remote_condition.description or ""


# -- the way it goes ------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 7, 1 << 30])
def test_a_request_gets_its_reply_however_the_octets_are_cut(piece: int) -> None:
    client = Client(piece=piece)
    replies = client.replies()
    sender = client.requests()

    delivery = client.send(sender, request(b"abc", replies.remote_source.address, 7))

    assert delivery.remote_state == Delivery.ACCEPTED
    assert take(replies) == (7, b"cba")
    assert client.host.requests == [("replicator", b"abc")]
    assert client.host.logins == [("replicator", True)]
    assert client.connection.remote_container == "upstream-node"


def test_replies_go_to_an_address_that_the_client_chose() -> None:
    client = Client()
    replies = client.replies(f"{REPLY_PREFIX}mine")
    client.send(client.requests(), request(b"abc", f"{REPLY_PREFIX}mine"))
    assert take(replies) == (1, b"cba")


def test_many_requests_are_served_one_after_the_other() -> None:
    client = Client()
    replies, sender = client.replies(credit=50), client.requests()
    for number in range(50):
        body = str(number).encode()
        client.send(sender, request(body, replies.remote_source.address, number))
        assert take(replies) == (number, body[::-1])


def test_requests_wait_in_their_order_while_the_node_prepares_for_them() -> None:
    client = Client()
    client.host.is_ready = False
    replies, sender = client.replies(credit=2), client.requests()
    gone = client.amqp_session.sender("gone")
    gone.target.address = REQUEST_ADDRESS
    gone.open()
    client.pump()
    waiting = [client.send(sender, request(b"a%d" % n, replies.remote_source.address, n)) for n in (1, 2)]
    client.send(gone, request(b"of a link that ends", replies.remote_source.address, 3))
    gone.close()
    client._hear(client.session.tick(1))
    client.pump()
    assert (client.host.requests, [each.remote_state for each in waiting]) == ([], [0, 0])
    client.host.is_ready = True
    client._hear(client.session.tick(2))
    client.pump()
    assert [each.remote_state for each in waiting] == [Delivery.ACCEPTED] * 2
    assert [take(replies), take(replies)] == [(1, b"1a"), (2, b"2a")]
    assert len(client.host.requests) == 2


def test_a_large_reply_passes_through_a_small_window() -> None:
    client = Client()
    client.transport.max_frame_size = 65_536
    client.amqp_session.incoming_capacity = 1_000_000
    replies, sender = client.replies(), client.requests()
    client.send(sender, request(b"large", replies.remote_source.address))
    octets = b""
    while (delivery := replies.current) is not None:
        octets += replies.recv(delivery.pending) or b""
        client.pump()
        if not delivery.partial and not delivery.pending:
            replies.advance()
    message = Message()
    message.decode(octets)
    assert len(octets_of(message)) == LARGE


def test_a_client_that_leaves_is_let_go() -> None:
    client = Client()
    client.replies()
    client.connection.close()
    client.pump()
    assert client.session.closed
    assert client.session.next_deadline_ms() is None


def test_what_a_connection_is_can_be_seen() -> None:
    client = Client(properties={"product": symbol("leveret"), symbol("half"): char("\ud800"), "version": 3})
    assert (client.session.state, client.session.user, client.session.vhost) == (Amqp10State.STARTING, "", "")
    client.pump()
    assert (client.session.state, client.session.user, client.session.vhost) == (
        Amqp10State.RUNNING,
        "replicator",
        SCHEMA_VHOST,
    )
    # As operators get them: JSON has neither symbols nor halves of characters.
    shown = msgspec.json.decode(msgspec.json.encode(client.session.peer_properties))
    assert shown == {"product": "leveret", "half": "?", "connection_name": "eu.2"}
    assert client.session.sessions == 1
    client.amqp_session.close()
    client.pump()
    assert client.session.sessions == 0


@pytest.mark.parametrize("properties", [["a", 1], "text", 5])
def test_properties_that_are_no_map_are_declined(properties: object) -> None:
    client = Client(properties=properties)
    client.pump()
    assert client.session.vhost == ""
    assert condition_of(client.connection) == ("amqp:invalid-field", "the properties of an open are a map")


def test_a_session_knows_why_it_ended() -> None:
    client = Client()
    client.pump()
    assert client.session.end_reason == ""
    client.connection.close()
    client.pump()
    assert client.session.end_reason == CLIENT_CLOSED
    idle = Client()
    idle.session.receive(SASL_HEADER, 0)
    idle.session.tick(LOGIN_TIMEOUT_MS)
    assert idle.session.end_reason == "handshake_timeout"


def test_a_connection_that_the_operator_ends_is_told_why() -> None:
    client = Client()
    client.pump()
    client._hear(client.session.force_close("maintenance", 0))
    assert client.session.state is Amqp10State.CLOSED
    assert client.session.end_reason == "maintenance"
    assert condition_of(client.connection) == ("amqp:connection:forced", "maintenance")
    assert client.session.force_close("too late", 0) == b""
    early = Amqp10Session(Host(), from_loopback=True)
    assert early.force_close("maintenance", 0) == b""
    assert early.state is Amqp10State.CLOSED


# -- declined -------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_and_the_connection_closed() -> None:
    client = Client(password="wrong")
    client.pump()
    assert client.session.closed
    assert client.transport.condition is not None
    assert client.transport.condition.name == "amqp:unauthorized-access"
    assert client.host.requests == []


@pytest.mark.parametrize("hostname", ["vhost:/", "localhost", "", "vhost:"])
def test_another_vhost_is_not_served_and_told_so(hostname: str) -> None:
    client = Client(hostname=hostname)
    client.pump()
    name, text = condition_of(client.connection)
    assert name == "amqp:not-implemented"
    assert f"hostname must be '{VHOST}', not '{hostname}'" in text


@pytest.mark.parametrize(
    ("user", "name", "text"),
    [
        (
            "stranger",
            "amqp:unauthorized-access",
            f"access to vhost '{SCHEMA_VHOST}' refused for user 'stranger'",
        ),
        ("early", "amqp:not-found", f"vhost '{SCHEMA_VHOST}' does not exist"),
    ],
)
def test_a_vhost_that_is_missing_or_forbidden_ends_the_connection(user: str, name: str, text: str) -> None:
    client = Client(user=user)
    client.pump()
    assert condition_of(client.connection) == (name, text)
    client.connection.close()
    client.pump()
    assert client.session.closed


def test_a_refused_request_is_rejected_and_the_link_stays() -> None:
    client = Client()
    replies, sender = client.replies(), client.requests()
    delivery = client.send(sender, request(b"refuse", replies.remote_source.address))
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition is not None
    assert delivery.remote.condition.name == "amqp:invalid-field"
    assert delivery.remote.condition.description == "that is no request"
    client.send(sender, request(b"abc", replies.remote_source.address, 2))
    assert take(replies) == (2, b"cba")


def test_a_refused_request_that_was_settled_ends_its_link() -> None:
    client = Client()
    replies, sender = client.replies(), client.requests()
    client.send(sender, request(b"refuse", replies.remote_source.address), settled=True)
    assert condition_of(sender) == ("amqp:invalid-field", "that is no request")


@pytest.mark.parametrize(
    ("message", "name", "text"),
    [
        (request(b"abc", "/nowhere"), "amqp:not-found", "reply-to '/nowhere'"),
        (Message(body=b"abc", inferred=True), "amqp:invalid-field", "needs a reply-to"),
        (request("text", f"{REPLY_PREFIX}r"), "amqp:invalid-field", "one data section"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(message: Message, name: str, text: str) -> None:
    client = Client()
    client.replies(f"{REPLY_PREFIX}r")
    delivery = client.send(client.requests(), message)
    assert delivery.remote.condition is not None
    assert delivery.remote.condition.name == name
    assert text in (delivery.remote.condition.description or "")


def test_a_client_that_grants_no_credit_for_replies_is_rejected() -> None:
    client = Client()
    client.replies(f"{REPLY_PREFIX}r", credit=0)
    delivery = client.send(client.requests(), request(b"abc", f"{REPLY_PREFIX}r"))
    assert delivery.remote.condition is not None
    assert delivery.remote.condition.name == "amqp:resource-limit-exceeded"
    assert client.host.requests == []


@pytest.mark.parametrize(
    ("octets", "name"),
    [
        (b"\xff\xfe\xfd", "amqp:invalid-field"),
        (b"\x00\x53\x74\xc1\x05\x02\xa1\x01\xff\x40", "amqp:decode-error"),
    ],
)
def test_octets_that_are_no_message_are_rejected(octets: bytes, name: str) -> None:
    client = Client()
    sender = client.requests()
    delivery = sender.delivery("1")
    sender.send(octets)
    sender.advance()
    client.pump()
    assert delivery.remote.condition is not None
    assert delivery.remote.condition.name == name


def nested(depth: int) -> bytes:
    """A message whose body is a list in a list, and so on."""
    inner = b"\x45"
    for _ in range(depth):
        inner = b"\xd0" + (len(inner) + 4).to_bytes(4, "big") + (1).to_bytes(4, "big") + inner
    return b"\x00\x53\x77" + inner


def test_a_message_that_is_nested_without_end_is_rejected() -> None:
    client = Client()
    sender = client.requests()
    delivery = sender.delivery("1")
    sender.send(nested(2_000))
    sender.advance()
    client.pump()
    assert delivery.remote.condition is not None
    assert delivery.remote.condition.name == "amqp:decode-error"
    client.send(sender, request(b"abc", client.replies().remote_source.address))
    assert client.host.requests == [("replicator", b"abc")]


@pytest.mark.parametrize("number", [0x110000, 0xFFFFFFFF])
def test_characters_beyond_unicode_end_the_connection_or_reject_the_message(number: int) -> None:
    octets = b"\x73" + number.to_bytes(4, "big")
    client = Client()
    sender = client.requests()
    sender.delivery("1")
    sender.send(b"\x00\x53\x77" + octets)
    sender.advance()
    client.pump()
    assert client.session.state is Amqp10State.RUNNING
    properties = Data(cproton.pn_connection_properties((client := Client()).connection._impl))
    properties.put_map()
    properties.enter()
    properties.put_symbol("a")
    cproton.pn_data_put_char(properties._data, number)
    client.pump()
    assert condition_of(client.connection)[0] == "amqp:decode-error"


@pytest.mark.parametrize("is_deep", [False, True])
def test_properties_that_cannot_be_read_end_the_connection(is_deep: bool) -> None:
    client = Client()
    properties = Data(cproton.pn_connection_properties(client.connection._impl))
    properties.put_map()
    properties.enter()
    if is_deep:
        properties.put_symbol("a")
    for _ in range(600 if is_deep else 1):
        properties.put_list()
        properties.enter()
    client.pump()
    assert condition_of(client.connection)[0] == "amqp:decode-error"
    assert client.session.vhost == ""


def transfer(number: int, message: Message) -> bytes:
    """The frame of a whole message on the second link of a session, whatever the credit."""
    fields = b"\x52\x01\x52%c\xa0\x01%c" % (number, number)
    octets = b"\x00\x53\x14\xc0" + bytes([len(fields) + 1, 3]) + fields + message.encode()
    return (8 + len(octets)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + octets


def test_requests_without_credit_end_their_link_and_do_not_fill_the_memory_while_the_node_prepares() -> None:
    client = Client()
    replies, sender = client.replies(), client.requests()
    client.host.is_ready = False
    message = request(b"x" * 1000, replies.remote_source.address)
    for number in range(20):
        client._hear(client.session.receive(transfer(number, message), 0))
    assert condition_of(sender)[0] == "amqp:link:transfer-limit-exceeded"
    assert len(client.session._waiting) == CREDIT


def test_an_aborted_message_is_dropped_alone() -> None:
    client = Client()
    replies, sender = client.replies(), client.requests()
    for _ in range(2 * CREDIT):
        delivery = sender.delivery(sender.delivery_tag())
        sender.stream(b"x" * 100)
        client.pump()
        delivery.abort()
        client.pump()
    client.send(sender, request(b"abc", replies.remote_source.address))
    assert client.host.requests == [("replicator", b"abc")]


def test_the_links_of_a_session_end_with_it() -> None:
    client = Client()
    for _ in range(LINKS_MAX):
        replies, sender = client.replies(f"{REPLY_PREFIX}mine"), client.requests()
        client.send(sender, request(b"abc", f"{REPLY_PREFIX}mine"))
        assert take(replies) == (1, b"cba")
        client.amqp_session.close()
        client.amqp_session = client.connection.session()
        client.amqp_session.open()
        client.pump()


def test_a_client_cannot_ask_for_a_heartbeat_in_each_pass_of_the_loop() -> None:
    client = Client()
    client.transport.idle_timeout = 0.002
    client.pump()
    for now_ms in (1000, 1001):
        client.session.tick(now_ms)
    assert client.session.next_deadline_ms() == 1001 + TICK_MS_MIN


def test_a_request_that_is_too_large_ends_its_link() -> None:
    client = Client()
    replies, sender = client.replies(), client.requests()
    client.send(sender, request(b"x" * (MESSAGE_BYTES_MAX + 1), replies.remote_source.address))
    assert condition_of(sender)[0] == "amqp:link:message-size-exceeded"
    assert client.host.requests == []


@pytest.mark.parametrize("address", ["/schema_definition_sync", "/queues/q", ""])
def test_an_unknown_node_is_not_found(address: str) -> None:
    client = Client()
    sender = client.requests(address)
    name, text = condition_of(sender)
    assert name == "amqp:not-found"
    assert REQUEST_ADDRESS in text
    assert condition_of(client.replies(f"/elsewhere{address}"))[0] == "amqp:not-found"


def test_an_address_for_replies_belongs_to_one_link() -> None:
    client = Client()
    client.replies(f"{REPLY_PREFIX}r")
    other = client.amqp_session.receiver("another")
    other.source.address = f"{REPLY_PREFIX}r"
    other.open()
    client.pump()
    assert condition_of(other)[0] == "amqp:resource-locked"


def test_links_beyond_the_limit_are_declined_until_one_ends() -> None:
    client = Client()
    links = [client.replies(f"{REPLY_PREFIX}{number}") for number in range(LINKS_MAX + 1)]
    assert condition_of(links[-1])[0] == "amqp:resource-limit-exceeded"
    links[0].close()
    links[-1].close()
    client.pump()
    assert client.replies(f"{REPLY_PREFIX}0").remote_condition is None


def test_a_client_that_attaches_ever_more_links_is_disconnected() -> None:
    client = Client()
    for number in range(2 * LINKS_MAX + 1):
        client.replies(f"{REPLY_PREFIX}{number}")
    assert condition_of(client.connection)[0] == "amqp:resource-limit-exceeded"


def test_every_refusal_has_a_condition() -> None:
    refusals = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Refusal)
    }
    assert set(CONDITION) == refusals - {Refusal}


# -- garbage and silence --------------------------------------------------------------------------


def login() -> bytes:
    """What a client says up to the end of its login."""
    client = Client()
    said = client._said()
    client._hear(SASL_HEADER + encode_mechanisms("PLAIN"))
    return said + client._said()


@pytest.mark.parametrize(
    "header", [AMQP_HEADER, b"AMQP\x02\x01\x00\x00", b"GET / HT", b"AMQP\x00\x00\x09\x01"]
)
def test_another_protocol_is_answered_with_the_header_that_is_served(header: bytes) -> None:
    session = Amqp10Session(Host(), from_loopback=True)
    assert session.receive(header, 0) == SASL_HEADER
    assert session.closed


def test_a_sasl_frame_that_is_none_ends_the_connection() -> None:
    session = Amqp10Session(Host(), from_loopback=True)
    session.receive(SASL_HEADER, 0)
    assert session.receive(b"\xff" * 20, 0) == encode_outcome(SaslOutcome.SYS_PERM)
    assert session.closed


def test_another_mechanism_is_refused() -> None:
    session = Amqp10Session(Host(), from_loopback=True)
    session.receive(SASL_HEADER, 0)
    init = b"\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
    octets = (8 + len(init)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + init
    assert session.receive(octets, 0) == encode_outcome(SaslOutcome.AUTH)
    assert session.closed


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans(), st.booleans())
def test_garbage_after_any_beginning_never_does_more_than_close(
    pieces: list[bytes], logged_in: bool, header: bool
) -> None:
    host = Host()
    session = Amqp10Session(host, from_loopback=True)
    session.receive(b"", 0)
    if logged_in:
        session.receive(login(), 0)
    if header:
        session.receive(AMQP_HEADER, 0)
    for piece in pieces:
        session.receive(piece, 0)
    session.tick(LOGIN_TIMEOUT_MS)
    assert session.closed
    assert host.requests == []


@given(st.data())
def test_a_flipped_octet_in_a_conversation_never_does_more_than_close(data: st.DataObject) -> None:
    octets = bytearray(conversation())
    begin = len(login())
    at = data.draw(st.integers(begin, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    session = Amqp10Session(Host(), from_loopback=True)
    answer = session.receive(bytes(octets), 0)
    assert answer
    assert session.closed or session.next_deadline_ms() is not None


def conversation() -> bytes:
    """All that a client says that logs in, opens its links and asks once."""
    client = Client()
    heard: list[bytes] = []
    receive = client.session.receive

    def record(data: bytes, now_ms: int) -> bytes:
        heard.append(data)
        return receive(data, now_ms)

    client.session.receive = record  # type: ignore[method-assign]  # listens in
    replies = client.replies()
    client.send(client.requests(), request(b"abc", replies.remote_source.address))
    return b"".join(heard)


def test_a_client_that_never_logs_in_is_dropped() -> None:
    session = Amqp10Session(Host(), from_loopback=True)
    session.receive(SASL_HEADER, 1_000)
    assert session.next_deadline_ms() == 1_000 + LOGIN_TIMEOUT_MS
    session.tick(1_000 + LOGIN_TIMEOUT_MS - 1)
    assert not session.closed
    session.tick(1_000 + LOGIN_TIMEOUT_MS)
    assert session.closed


def test_a_client_that_never_opens_is_dropped() -> None:
    session = Amqp10Session(Host(), from_loopback=True)
    session.receive(login() + AMQP_HEADER, 0)
    session.tick(LOGIN_TIMEOUT_MS)
    assert session.closed


def test_an_idle_client_gets_heartbeats_and_one_that_is_silent_too_long_is_dropped() -> None:
    client = Client()
    client.transport.idle_timeout = 40
    client.replies()
    now_ms, heartbeats = 0, 0
    while not client.session.closed:
        due = client.session.next_deadline_ms()
        assert due is not None
        assert due > now_ms
        now_ms = due
        heartbeats += client.session.tick(now_ms) == b"\x00\x00\x00\x08\x02\x00\x00\x00"
    assert heartbeats >= 2
    assert now_ms <= 120_000
