"""Who a client is: PLAIN, AMQPLAIN, EXTERNAL by its certificate, and a secret that changes."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, encode

from leveret.testing.servers.certificates import available
from tests.conformance.brokers import Broker
from tests.conformance.rawclient import Peer
from tests.conformance.secured import Secured

needs_certificates = pytest.mark.skipif(available() is not None, reason=str(available()))


def refused(mechanism: str) -> str:
    return (
        f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile."
    )


def amqplain(**table: Any) -> str:
    """The response of AMQPLAIN: a table without its length."""
    return bytes(encode.field_table(table))[4:].decode("latin-1")


def expect_refusal(peer: Peer, mechanism: str) -> None:
    closed = peer.expect(0, commands.Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (403, refused(mechanism))
    peer.send(0, commands.Connection.CloseOk())
    peer.expect_end()


def test_the_socket_of_a_refused_login_stays_open_until_the_client_has_answered(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.authenticate(response="\0guest\0wrong")
        assert isinstance(peer.expect(0, commands.Connection.Close), commands.Connection.Close)
        with pytest.raises(TimeoutError):
            peer.receive(0.3)
        peer.send(0, commands.Connection.CloseOk())
        peer.expect_end()


def enter(peer: Peer) -> None:
    peer.tune(channel_max=7)
    peer.call(0, commands.Connection.Open("/"), commands.Connection.OpenOk)


def test_plain_and_amqplain_are_offered_in_this_order(broker: Broker) -> None:
    with broker.peer() as peer:
        assert peer.start().mechanisms == "PLAIN AMQPLAIN"


def test_amqplain_takes_name_and_password_from_a_table(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.authenticate(mechanism="AMQPLAIN", response=amqplain(LOGIN="guest", PASSWORD="guest"))
        enter(peer)


def test_amqplain_refuses_a_wrong_password_by_its_name(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.authenticate(mechanism="AMQPLAIN", response=amqplain(LOGIN="guest", PASSWORD="wrong"))
        expect_refusal(peer, "AMQPLAIN")


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("AMQPLAIN", amqplain(LOGIN="guest")), ("PLAIN", "guest\0guest\0guest"), ("EXTERNAL", "")],
)
def test_a_login_that_cannot_be_understood_ends_the_connection_without_a_word(
    broker: Broker, mechanism: str, response: str
) -> None:
    with broker.peer() as peer:
        peer.authenticate(mechanism=mechanism, response=response)
        peer.expect_end()


def test_a_new_secret_of_an_internal_user_is_taken_and_changes_nothing(peer: Peer) -> None:
    peer.call(0, commands.Connection.UpdateSecret("any", "it expires"), commands.Connection.UpdateSecretOk)
    peer.expect_silence(1)


@needs_certificates
def test_external_is_offered_to_tls_clients_only(secured: Secured) -> None:
    with secured.broker.peer() as peer:
        assert "EXTERNAL" not in peer.start().mechanisms.split()
    for subject in (None, "/CN=somebody"):
        with secured.peer(subject) as peer:
            assert peer.start().mechanisms == "PLAIN AMQPLAIN EXTERNAL"


@needs_certificates
def test_a_certificate_logs_its_user_in_without_a_password(secured: Secured, name: str) -> None:
    subject = f"CN={name},O=Example"
    secured.broker.add_user(subject, "nobody knows")
    secured.broker.set_permissions(subject, "/")
    with secured.peer(f"/O=Example/CN={name}") as peer:
        peer.authenticate(mechanism="EXTERNAL", response="")
        enter(peer)
        peer.open_channel(1)
        peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)


@needs_certificates
def test_a_certificate_whose_user_is_not_known_is_refused(secured: Secured, name: str) -> None:
    with secured.peer(f"/CN={name}") as peer:
        peer.authenticate(mechanism="EXTERNAL", response="guest")
        expect_refusal(peer, "EXTERNAL")


@needs_certificates
def test_external_without_a_certificate_is_refused(secured: Secured) -> None:
    with secured.peer() as peer:
        peer.authenticate(mechanism="EXTERNAL", response="guest")
        expect_refusal(peer, "EXTERNAL")
