"""The expiry of the certificates of the node's listeners."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from typing import Any, Final

from leveret.config import Config
from leveret.config.sections.tls import TlsOptions
from leveret.management.views.listeners import ListenerView, listeners_of

_DAY_S: Final = 86_400


def expiring_before(config: Config, days: int) -> list[dict[str, Any]]:
    """The TLS listeners whose certificate ends within so many days, has ended, or cannot be read."""
    deadline_s = time.time() + days * _DAY_S
    return [
        {
            "node": config.node_name,
            "protocol": listener.protocol,
            "interface": listener.ip,
            "port": listener.port,
            "certfile": str(options.certfile),
            "certfile_expires_on": shown,
        }
        for listener, options in _tls_listeners(config)
        for shown in [_end_of(options)]
        if not shown or ssl.cert_time_to_seconds(shown) < deadline_s
    ]


def _tls_listeners(config: Config) -> Iterator[tuple[ListenerView, TlsOptions]]:
    options = {
        "amqp/ssl": config.tls,
        "stream/ssl": config.tls,
        "https": config.management.tls,
        "replication/ssl": config.followers.tls,
        "clustering/ssl": config.cluster.tls,
    }
    return (
        (listener, options[listener.protocol])
        for listener in listeners_of(config)
        if listener.protocol in options
    )


def _end_of(options: TlsOptions) -> str:
    """The end of a certificate as `Nov 21 08:00:00 2026 GMT`; empty if it cannot be read, or has passed.

    OpenSSL reports a certificate's content only for peers, so one end shows it to another, in memory.
    """
    if options.certfile is None:
        return ""
    password = options.password or ""
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(options.certfile, options.keyfile, lambda: password)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(options.certfile)
        return _shown_by(server, client)
    except (OSError, ValueError):
        return ""


def _shown_by(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshaking = client.wrap_bio(back, there)
    telling = server.wrap_bio(there, back, server_side=True)
    for end in (handshaking, telling, handshaking, telling):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    end_of: str = (handshaking.getpeercert() or {}).get("notAfter", "")  # type: ignore[assignment]  # a text, always
    return end_of
