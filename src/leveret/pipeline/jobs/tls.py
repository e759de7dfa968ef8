"""TLS for connections to the upstream, by the settings `standby.replication.downstream.ssl_options.*`.

`runtime.sockets.tls` does the same for the node's listeners and links; this process does not share that room.
"""

from __future__ import annotations

import ssl
from typing import Final

import msgspec

from leveret.model.errors import ConfigError
from leveret.wire.tls import limit

PREFIX: Final = "standby.replication.downstream.ssl_options"


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with that prefix; files are paths, empty for none.

    Attributes:
        verify: the server's certificate must be signed by an authority of `cacertfile` and name the host.
        password: the password of the private key.
    """

    verify: bool = False
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""
    password: str = ""
    versions: tuple[str, ...] = ("tlsv1.3", "tlsv1.2")
    ciphers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"TlsSettings(verify={self.verify}, cacertfile={self.cacertfile!r}, certfile={self.certfile!r})"
        )


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The TLS context for one connection; renewed files are used from the next one on.

    Raises:
        ConfigError: a file is missing or does not fit, or settings contradict each other.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.certfile or settings.keyfile:
        _load_own(context, settings)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _trust(context, settings.cacertfile)
    limit(context, settings.versions, settings.ciphers, PREFIX)
    return context


def reason_of(error: OSError) -> str:
    """The reason of a failed connection, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return str(error)


def _load_own(context: ssl.SSLContext, settings: TlsSettings) -> None:
    try:
        # A callable, because OpenSSL would ask on the terminal for a missing password.
        context.load_cert_chain(settings.certfile, settings.keyfile or None, lambda: settings.password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{PREFIX}: certificate {settings.certfile!r} and key {settings.keyfile!r} cannot be used: {error}"
        ) from error


def _trust(context: ssl.SSLContext, cacertfile: str) -> None:
    if not cacertfile:
        raise ConfigError(
            f"{PREFIX}.cacertfile is not set; {PREFIX}.verify = verify_peer needs it: a PEM file"
        )
    try:
        context.load_verify_locations(cacertfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{PREFIX}.cacertfile = {cacertfile} cannot be used: {error}") from error
