"""Brokers that speak TLS, ask clients for certificates, and know EXTERNAL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from leveret.testing.network.ports import LOOPBACK, free_port
from leveret.testing.servers.certificates import CertificateAuthority
from tests.conformance.brokers import Broker, running
from tests.conformance.rawclient import Peer


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker with a TLS port, and the authority that it and its clients trust."""

    broker: Broker
    tls_port: int
    authority: CertificateAuthority

    def peer(self, subject: str | None = None) -> Peer:
        """Connect with TLS, with a certificate for `subject` or with none."""
        if subject is None:
            return Peer(self.tls_port, self.authority.client_context())
        name = f"client-{abs(hash(subject)):x}"
        return Peer(self.tls_port, self.authority.issue(name, subject=subject).client_context())


@contextmanager
def running_secured(kind: str) -> Iterator[Secured]:
    """Run a fresh broker of this kind with TLS as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="certificates-") as directory:
        authority = CertificateAuthority(Path(directory))
        server = authority.issue("server", names=f"DNS:localhost,IP:{LOOPBACK}")
        tls_port = free_port()
        config = {
            "listeners.ssl.1": f"{LOOPBACK}:{tls_port}",
            **server.settings(),
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "false",
            "auth_mechanisms.1": "PLAIN",
            "auth_mechanisms.2": "AMQPLAIN",
            "auth_mechanisms.3": "EXTERNAL",
            "max_message_size": "1000",
            "channel_max": "7",
            "heartbeat": "17",
        }
        with running(kind, config, plugins=("rabbitmq_auth_mechanism_ssl",)) as broker:
            yield Secured(broker, tls_port, authority)
