"""Settings of TLS: the same for every listener with TLS, each under its own prefix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leveret.config.kinds import Choice, Flag, Integer, LocalPath, OptionalText, TextKind
from leveret.config.sections.collect import in_order
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """A server's certificate and its demands on peers; see `settings.branch` for the prefix."""

    certfile: Path | None = setting(
        "certfile", LocalPath(), "none", "The server's certificate, PEM, followed by its intermediates."
    )
    keyfile: Path | None = setting(
        "keyfile", LocalPath(), "none", "The private key of that certificate, PEM."
    )
    password: str | None = setting(
        "password", OptionalText(secret=True), "none", "Password of the private key."
    )
    cacertfile: Path | None = setting(
        "cacertfile",
        LocalPath(),
        "none",
        "Certificates of the authorities for the verification of peers' certificates, PEM.",
    )
    verify: str = setting(
        "verify",
        Choice(("verify_none", "verify_peer")),
        "verify_none",
        "`verify_peer` asks peers for a certificate and refuses one that no authority signed.",
    )
    fail_if_no_peer_cert: bool = setting(
        "fail_if_no_peer_cert",
        Flag(),
        "false",
        "With `verify_peer`: refuse a peer without a certificate.",
    )
    versions: tuple[str, ...] = family(
        "versions",
        Choice(("tlsv1.2", "tlsv1.3")),
        {"1": "tlsv1.3", "2": "tlsv1.2"},
        "Accepted versions of TLS.",
        collect=in_order,
    )
    ciphers: tuple[str, ...] = family(
        "ciphers",
        TextKind(),
        {},
        "Cipher suites of TLS 1.2 by their OpenSSL names, best first; by default OpenSSL's suites with forward "
        "secrecy (ECDHE and DHE with AES or ChaCha20). TLS 1.3 has suites of its own, all with forward secrecy.",
        collect=in_order,
    )
    honor_cipher_order: bool = setting(
        "honor_cipher_order", Flag(), "true", "Whether the server's order of cipher suites takes precedence."
    )
    client_renegotiation: bool = setting(
        "client_renegotiation", Flag(), "false", "Whether a peer may renegotiate TLS 1.2."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateLogin:
    """The way from a client's certificate to a user name (mechanism EXTERNAL)."""

    source: str = setting(
        "ssl_cert_login_from",
        Choice(("distinguished_name", "common_name", "subject_alternative_name", "subject_alt_name")),
        "distinguished_name",
        "Part of a client's certificate that is the user's name (mechanism EXTERNAL).",
    )
    san_type: str = setting(
        "ssl_cert_login_san_type",
        Choice(("dns", "ip", "email", "uri")),
        "dns",
        "Kind of the subject alternative name that is the user's name.",
    )
    san_index: int = setting(
        "ssl_cert_login_san_index",
        Integer(0, 1000),
        "0",
        "Index of that subject alternative name; the first is 0.",
    )
