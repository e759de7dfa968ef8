"""TLS from settings: a server's for every listener with TLS, and a client's for nodes that connect to one.

Certificates are read when a listener opens: an error then stops the start and names the setting, the file and the
reason. Renewed files are used without a restart; an error in them goes to the log, and the earlier ones stay in use.

A resumed session is not verified again: it has the certificate of the handshake that began it, and with TLS 1.3 each
resumption may bring a new ticket. So tickets are bound to the files in use, and a listener that verifies gives none.
"""

from __future__ import annotations

import logging
import ssl
import time
from asyncio import BaseTransport
from pathlib import Path
from typing import Any, Final

from leveret.config.sections.tls import TlsOptions
from leveret.model.errors import ConfigError
from leveret.session.certificate import TlsPeer
from leveret.wire.tls import limit

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 30.0
"""Renewed files are used within this time, by the first client after it."""
_SHOWN: Final = {"TLSv1.2": "tlsv1.2", "TLSv1.3": "tlsv1.3"}


def client_context(options: TlsOptions, prefix: str) -> ssl.SSLContext:
    """A context for connecting to one TLS server; `prefix` names the settings in errors.

    With `verify_peer` the server's certificate must be signed by one of the authorities and name the host of the
    connection. The client sends its own certificate if one is set. The context does not follow changes of its files:
    make a new one for each connection.

    Raises:
        ConfigError: a file is missing, cannot be read or does not fit, or settings contradict each other.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.certfile is not None:
        _load_own(context, options, prefix, "a TLS client with a certificate")
    if options.verify == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _trust(context, options, prefix)
    limit(context, options.versions, options.ciphers, prefix)
    return context


class ListenerTls:
    """The TLS of a listener, which follows changes of its files.

    A change makes a new context, and with it new keys for tickets: no session of a former context can be resumed. A
    context that were exchanged within the handshake would go on with the tickets of the first one, and so let in a peer
    whose authority is no longer trusted.
    """

    def __init__(self, options: TlsOptions, prefix: str) -> None:
        """Read the files; `prefix` names the settings in errors.

        Raises:
            ConfigError: a file is missing, cannot be read or does not fit, or settings contradict each other.
        """
        self._options = options
        self._prefix = prefix
        self._stamps = _stamps(options)
        self._newest = _read(options, prefix)
        self._looked_at_s = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection, with the newest certificate and authorities."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = now_s
            self._look()
        return self._newest

    def _look(self) -> None:
        stamps = _stamps(self._options)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._newest = _read(self._options, self._prefix)
        except ConfigError as error:
            logger.error("certificates_not_renewed setting=%s reason=%s", self._prefix, error)
        else:
            logger.info("certificates_renewed setting=%s", self._prefix)


def _stamps(options: TlsOptions) -> list[tuple[int, int, int] | None]:
    """Values that change when a file is written or replaced; None for a missing file."""
    found: list[tuple[int, int, int] | None] = []
    for path in (options.certfile, options.keyfile, options.cacertfile):
        try:
            status = path.stat() if path else None
        except OSError:
            status = None
        found.append((status.st_mtime_ns, status.st_size, status.st_ino) if status else None)
    return found


def _read(options: TlsOptions, prefix: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_own(context, options, prefix, "a TLS listener")
    _ask_peers(context, options, prefix)
    limit(context, options.versions, options.ciphers, prefix)
    if not options.honor_cipher_order:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if not options.client_renegotiation:
        context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load_own(context: ssl.SSLContext, options: TlsOptions, prefix: str, who: str) -> None:
    certificate = _readable(options.certfile, f"{prefix}.certfile", f"{who} needs its certificate:")
    key = _readable(options.keyfile, f"{prefix}.keyfile", f"{who} needs its private key:")
    password = options.password or ""
    try:
        # A callable, because OpenSSL would ask on the terminal for a missing password.
        context.load_cert_chain(certificate, key, lambda: password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{prefix}: certificate {certificate} and key {key} cannot be used: {_cause(error)}"
        ) from error


def _ask_peers(context: ssl.SSLContext, options: TlsOptions, prefix: str) -> None:
    if options.verify == "verify_none":
        if options.fail_if_no_peer_cert:
            raise ConfigError(f"{prefix}.fail_if_no_peer_cert = true needs {prefix}.verify = verify_peer")
        context.verify_mode = ssl.CERT_NONE
        return
    _trust(context, options, prefix)
    context.verify_mode = ssl.CERT_REQUIRED if options.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    # An expired certificate would last for as long as its peer comes back. Without tickets TLS 1.3 resumes nothing,
    # and TLS 1.2 only sessions that this process has kept, two hours from their begin at most.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


def _trust(context: ssl.SSLContext, options: TlsOptions, prefix: str) -> None:
    authorities = _readable(
        options.cacertfile, f"{prefix}.cacertfile", f"{prefix}.verify = verify_peer needs it:"
    )
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{prefix}.cacertfile = {authorities} holds no certificates: {_cause(error)}"
        ) from error


def _readable(path: Path | None, key: str, what: str) -> Path:
    if path is None:
        raise ConfigError(f"{key} is not set; {what} a PEM file")
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{key} = {path} cannot be read: {error.strerror}") from error
    return path


def _cause(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words."""
    reasons = {
        "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
        "BAD_DECRYPT": "the password of the key is wrong",
        "BAD_PASSWORD_READ": "the key needs a password",
        "EMPTY": "there is none in it",
    }
    reason = error.reason or ""
    if not reason:
        return "it is no PEM, or its password is wrong"
    return reasons.get(reason, reason.replace("_", " ").lower())


def handshake_failure(error: OSError) -> str:
    """The reason of a failed TLS handshake, in OpenSSL's words if it has any."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "the other side speaks no TLS there"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return error.strerror or str(error) or "the peer hung up"


def tls_peer(transport: BaseTransport) -> TlsPeer | None:
    """The TLS parameters and certificate of a transport, None without TLS."""
    found: Any = transport.get_extra_info("ssl_object")
    if found is None:
        return None
    suite = found.cipher()
    kept = {each["name"]: each for each in found.context.get_ciphers()}
    details = kept.get(suite[0] if suite else "", {})
    exchange = [
        word.partition("-")[2]
        for word in (details.get("kea") or "", details.get("auth") or "")
        if word.partition("-")[2] not in ("", "any")
    ]
    version = found.version() or ""
    return TlsPeer(
        protocol=_SHOWN.get(version, version.lower()),
        key_exchange="_".join(exchange) or "any",
        cipher=(details.get("symmetric") or "").replace("-", "_"),
        hash="aead" if details.get("aead") else details.get("digest") or "",
        certificate=found.getpeercert() or None,
    )
