from __future__ import annotations

import pytest

from leveret.session.certificate import TlsPeer
from leveret.session.stream.types import StreamConnectionState
from leveret.testing.sites.stream_host import FakeStream, FakeStreamHost
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from tests.unit.session.stream.stream_peer import HANDSHAKE, Peer

ALL = ("PLAIN", "AMQPLAIN", "EXTERNAL")
AMQPLAIN = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"


def tls(name: str) -> TlsPeer:
    certificate = {"subject": ((("commonName", name),),)}
    return TlsPeer(protocol="tlsv1.3", key_exchange="any", cipher="aes", hash="aead", certificate=certificate)


def log_in(peer: Peer, mechanism: str, data: bytes) -> tuple[list[str], int]:
    """The mechanisms on offer, and the code of the login."""
    _, offered, answer, *_ = peer.send(*HANDSHAKE[:2], wire.SaslAuthenticate(3, mechanism, data))
    assert isinstance(offered, wire.SaslHandshakeResponse)
    assert isinstance(answer, wire.SaslAuthenticateResponse)
    return offered.mechanisms, answer.code


def test_amqplain_is_a_table_of_name_and_password() -> None:
    peer = Peer(FakeStreamHost(mechanisms=ALL))
    assert log_in(peer, "AMQPLAIN", AMQPLAIN) == (["PLAIN", "AMQPLAIN"], Code.OK)
    assert (peer.session.user, peer.session.state) == ("guest", StreamConnectionState.TUNING)


@pytest.mark.parametrize("data", [b"root\0guest\0guest", b"\0guest\0guest\0", b"\0guest", b"guest"])
def test_plain_has_no_other_identity_and_nothing_behind_the_password(data: bytes) -> None:
    """As over AMQP 0-9-1, and as RabbitMQ 3.10.8 answers."""
    assert log_in(Peer(FakeStreamHost(mechanisms=ALL)), "PLAIN", data)[1] == Code.SASL_ERROR


@pytest.mark.parametrize("data", [b"", b"\x05LOGINS\0\0\0\x05guest", AMQPLAIN[:-1]])
def test_a_malformed_table_is_an_error_of_the_exchange(data: bytes) -> None:
    assert log_in(Peer(FakeStreamHost(mechanisms=ALL)), "AMQPLAIN", data)[1] == Code.SASL_ERROR


@pytest.mark.parametrize(("name", "code"), [("guest", Code.OK), ("nobody", Code.AUTHENTICATION_FAILURE)])
def test_external_is_for_tls_clients_whose_certificate_names_a_user(name: str, code: Code) -> None:
    peer = Peer(FakeStreamHost(mechanisms=ALL, passwords={"CN=guest": ""}), tls=tls(name))
    assert log_in(peer, "EXTERNAL", b"") == (list(ALL), code)
    assert peer.session.user == ("CN=guest" if code is Code.OK else "")


def test_without_tls_there_is_no_external() -> None:
    assert log_in(Peer(FakeStreamHost(mechanisms=ALL)), "EXTERNAL", b"")[1] == (
        Code.SASL_MECHANISM_UNSUPPORTED
    )


def test_a_tls_client_is_told_where_tls_is_spoken() -> None:
    streams = {("/", "s"): FakeStream()}
    host = FakeStreamHost(advertised_host="plain.example", advertised_tls_port=5551, streams=streams)
    peer = Peer(host, tls=tls("guest")).opened()
    answer = peer.ask(wire.Metadata(1, ["s"]), wire.MetadataResponse)
    assert answer.brokers == [(0, "tls.example", 5551)]
