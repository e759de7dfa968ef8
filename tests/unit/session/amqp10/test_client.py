"""The downstream's end of the link against the session it is made for, and against damage."""

from __future__ import annotations

from collections.abc import Callable

import cproton  # type: ignore[import-untyped]  # what proton has of C, which ships no types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Data

from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LeveretError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    Refusal,
    ResourceLocked,
)
from leveret.session.amqp10.client import SchemaLinkClient, SchemaLinkError
from leveret.session.amqp10.server import Amqp10Session

Damage = Callable[[bytes], bytes]


class Host:
    """A node that knows one user; `refusal` is what it says to a request."""

    container_id = "upstream"
    state = b"a"

    def __init__(self, refusal: Refusal | None = None, vhost: Refusal | None = None) -> None:
        self._refusal = refusal
        self._vhost = vhost

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        if password != "secret":
            raise AuthenticationFailed("invalid credentials")
        return username

    def open_vhost(self, user: str, vhost: str) -> None:
        if self._vhost is not None:
            raise self._vhost

    def schema_request(self, user: str, body: bytes) -> bytes:
        if self._refusal is not None:
            raise self._refusal
        return body[::-1]

    def schema_is_ready(self) -> bool:
        return True

    def schema_state(self) -> bytes:
        return self.state


class Link:
    """A client and a session, joined by function calls."""

    def __init__(self, host: Host | None = None, password: str = "secret") -> None:
        self.client = SchemaLinkClient(container_id="downstream", username="replicator", password=password)
        self.session = Amqp10Session(host or Host(), from_loopback=True)
        self.said: list[bytes] = []

    def start(self) -> None:
        self.pump(self.client.start(0))

    def ask(self, body: bytes) -> bytes | LeveretError | None:
        self.pump(self.client.request(body, 0))
        return self.client.outcome

    def pump(self, octets: bytes) -> None:
        """Pass octets to and fro until both are silent."""
        for _ in range(1_000):
            if not octets:
                return
            answer = self.session.receive(octets, 0)
            self.said.append(answer)
            octets = self.client.receive(answer, 0)
        raise AssertionError("client and session never fall silent")


def test_requests_get_their_replies_one_after_the_other() -> None:
    link = Link()
    link.start()
    for number in range(30):
        assert link.client.ready
        body = f"request {number}".encode()
        assert link.ask(body) == body[::-1]


@pytest.mark.parametrize(
    "refusal",
    [NotFound("a"), NotAllowed("b"), InvalidCommand("c"), PreconditionFailed("d"), ResourceLocked("e")],
    ids=lambda refusal: type(refusal).__name__,
)
def test_a_rejected_request_is_the_refusal_it_was_at_the_upstream(refusal: Refusal) -> None:
    link = Link(Host(refusal=refusal))
    link.start()
    outcome = link.ask(b"x")
    assert type(outcome) is type(refusal)
    assert str(outcome) == str(refusal)
    assert link.client.failure is None
    assert link.client.ready


def test_a_wrong_password_is_told_from_a_missing_permission() -> None:
    wrong = Link(password="guess")
    wrong.start()
    assert isinstance(wrong.client.failure, AuthenticationFailed)
    assert "guess" not in str(wrong.client.failure)

    refused = Link(Host(vhost=AccessRefused("access to vhost refused")))
    refused.start()
    assert isinstance(refused.client.failure, AccessRefused)
    assert str(refused.client.failure) == "access to vhost refused"


def test_a_request_before_the_link_is_open_is_answered_with_an_error() -> None:
    link = Link()
    assert link.client.request(b"x", 0) == b""
    assert isinstance(link.client.outcome, SchemaLinkError)


def test_an_upstream_that_closes_is_a_failure() -> None:
    link = Link()
    link.start()
    link.pump(link.client.close(0))
    assert link.session.closed
    assert isinstance(link.client.failure, SchemaLinkError)
    assert not link.client.ready


def test_an_upstream_that_falls_silent_is_a_failure_in_time() -> None:
    link = Link()
    link.start()
    now_ms = 0
    while link.client.failure is None:
        due = link.client.next_deadline_ms()
        assert due is not None
        assert now_ms < due <= 120_000
        now_ms = due
        link.client.tick(now_ms)
    assert not link.client.ready


def test_a_reply_that_is_nested_without_end_is_no_reply() -> None:
    link = Link()
    link.start()
    send = link.session._engine.send

    class Deep:
        def encode(self) -> bytes:
            inner = b"\x45"
            for _ in range(2_000):
                inner = b"\xd0" + (len(inner) + 4).to_bytes(4, "big") + (1).to_bytes(4, "big") + inner
            return b"\x00\x53\x77" + inner

    link.session._engine.send = lambda sender, _, *, settled: send(sender, Deep(), settled=settled)  # type: ignore[assignment, arg-type, method-assign]  # no message that proton makes
    outcome = link.ask(b"x")
    assert isinstance(outcome, SchemaLinkError)
    assert str(outcome).startswith("the reply is no AMQP 1.0 message: ")
    assert link.client.failure is None


def test_a_reason_that_cannot_be_read_is_a_failure() -> None:
    link = Link()
    link.start()
    connection = link.session._engine.connection._impl
    condition = cproton.pn_connection_condition(connection)
    cproton.pn_condition_set_name(condition, "amqp:internal-error")
    info = Data(cproton.pn_condition_info(condition))
    info.put_map()
    info.enter()
    info.put_list()
    cproton.pn_connection_close(connection)
    link.pump(link.client.receive(link.session._engine.output(0), 0))
    assert "the upstream does not speak AMQP 1.0: " in str(link.client.failure)


@given(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=5))
def test_garbage_from_an_upstream_is_a_failure_and_nothing_worse(pieces: list[bytes]) -> None:
    client = SchemaLinkClient(container_id="downstream", username="u", password="p")
    client.start(0)
    for piece in [*pieces, b"\xff" * 64]:
        client.receive(piece, 0)
    assert client.failure is not None


def test_a_port_of_another_protocol_is_told_as_one() -> None:
    client = SchemaLinkClient(container_id="downstream", username="u", password="p")
    client.start(0)
    client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", 0)
    assert "name an AMQP listener of the upstream" in str(client.failure)


@given(st.data())
def test_a_flipped_octet_from_an_upstream_is_never_worse_than_a_failure(drawn: st.DataObject) -> None:
    at = drawn.draw(st.integers(0, CONVERSATION - 1))
    flip = drawn.draw(st.integers(1, 255))
    link = Link()
    seen = 0
    receive = link.session.receive

    def damaged(data: bytes, now_ms: int) -> bytes:
        nonlocal seen
        answer = bytearray(receive(data, now_ms))
        if seen <= at < seen + len(answer):
            answer[at - seen] ^= flip
        seen += len(answer)
        return bytes(answer)

    link.session.receive = damaged  # type: ignore[method-assign]  # damages what the client hears
    link.start()
    if link.client.ready:
        link.ask(b"abcdef")
    assert isinstance(link.client.failure, LeveretError | None)
    assert isinstance(link.client.outcome, bytes | LeveretError | None)


def _conversation_bytes() -> int:
    link = Link()
    link.start()
    link.ask(b"abcdef")
    return sum(map(len, link.said))


CONVERSATION = _conversation_bytes()
