"""AMQP over TLS, and what a broker's settings offer to clients."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.certificates import CertificateAuthority, available
from tests.conformance.rawclient import PATIENCE_S, Closed, Peer
from tests.conformance.secured import Secured

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

CUT_OFF = (Closed, ConnectionError, ssl.SSLError)
CHANNEL_MAX = 7
TLS_ALERT_BYTES = 7


def connect(secured: Secured, context: ssl.SSLContext) -> pika.BlockingConnection:
    """Connect with pika, over TLS."""
    options = pika.SSLOptions(context, "localhost")
    return pika.BlockingConnection(
        pika.ConnectionParameters(LOOPBACK, secured.tls_port, ssl_options=options, heartbeat=0)
    )


def test_messages_of_any_size_travel_over_tls(secured: Secured, name: str) -> None:
    connection = connect(secured, secured.authority.client_context())
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    bodies = [b"x" * size for size in (0, 1, 999)]
    for body in bodies:
        channel.basic_publish("", name, body)
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in bodies] == bodies
    connection.close()


def read_more_than_an_alert(peer: Peer) -> None:
    """Read what a TLS server may say to somebody who does not speak TLS, and an octet more."""
    peer.read_octets(TLS_ALERT_BYTES + 1)


def test_a_client_that_does_not_speak_tls_is_cut_off(secured: Secured) -> None:
    with Peer(secured.tls_port) as peer:
        peer.send_octets(b"AMQP\x00\x00\x09\x01" * 4)
        with pytest.raises(CUT_OFF):
            read_more_than_an_alert(peer)


def test_a_certificate_of_a_stranger_is_refused(secured: Secured, tmp_path: Path) -> None:
    stranger = CertificateAuthority(tmp_path).issue("client")
    context = secured.authority.client_context()
    context.load_cert_chain(stranger.certfile, stranger.keyfile)
    # With TLS 1.3 a client learns of it only when it reads.
    with pytest.raises(CUT_OFF), Peer(secured.tls_port, context) as peer:
        peer.start()


def test_a_server_s_certificate_is_one_that_clients_can_check(secured: Secured) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Peer(secured.tls_port, ssl.create_default_context())


def test_tls_1_2_is_spoken_too(secured: Secured) -> None:
    context = secured.authority.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Peer(secured.tls_port, context) as peer:
        peer.start()


def shown(secured: Secured, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The connection in the management API that `found` is true of, once it is there."""
    rows: list[dict[str, Any]] = []

    def is_there() -> bool:
        rows[:] = [row for row in secured.broker.api("connections") if found(row)]
        return bool(rows)

    wait_until(is_there, "the connection in the management API", PATIENCE_S, interval_s=0.2)
    return rows[0]


def test_the_management_api_shows_how_a_connection_is_encrypted_and_for_whom(
    secured: Secured, name: str
) -> None:
    with secured.peer(f"/C=DE/O=Ex, ample/CN={name}") as peer:
        peer.login(channel_max=CHANNEL_MAX)
        row = shown(secured, lambda row: name in str(row.get("peer_cert_subject")))
        assert (row["ssl"], row["ssl_protocol"], row["ssl_hash"]) == (True, "tlsv1.3", "aead")
        assert row["ssl_key_exchange"] == "any"
        assert row["ssl_cipher"] in ("aes_256_gcm", "aes_128_gcm", "chacha20_poly1305")
        assert row["peer_cert_subject"] == f"CN={name},O=Ex\\, ample,C=DE"
        assert row["peer_cert_issuer"] == "CN=Test authority"
        begin, _, end = row["peer_cert_validity"].partition(" - ")
        assert begin.endswith("Z")
        assert begin < end
        assert row["auth_mechanism"] == "PLAIN"


def test_settings_decide_what_is_offered(secured: Secured) -> None:
    with secured.broker.peer() as peer:
        peer.authenticate()
        assert dict(peer.tune()) == {"channel_max": CHANNEL_MAX, "frame_max": 131072, "heartbeat": 17}


def test_a_message_larger_than_the_setting_closes_its_channel(secured: Secured, name: str) -> None:
    with secured.broker.peer() as peer:
        peer.login(channel_max=CHANNEL_MAX)
        peer.open_channel(1)
        for size in (1000, 1001):
            peer.publish(1, b"x" * size, routing_key=name)
        text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
        assert peer.expect_channel_close(1) == (406, text)
