"""Versions and cipher suites of TLS, for the listeners and links of the node and of the pipeline."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

from leveret.model.errors import ConfigError

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
FORWARD_SECRET: Final = (
    "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:DHE+AESGCM:DHE+AES:!aNULL:!aDSS:!PSK:!SHA1:!AESCCM"
)
"""Cipher suites of TLS 1.2 where none are set. OpenSSL's defaults include suites whose recorded traffic can be
decrypted with the server's private key later, and differ between builds of Python."""


def be_forward_secret(context: ssl.SSLContext) -> ssl.SSLContext:
    """Take only suites whose recorded traffic a later thief of the private key cannot read; return the context."""
    context.set_ciphers(FORWARD_SECRET)
    return context


def limit(context: ssl.SSLContext, versions: Iterable[str], ciphers: Iterable[str], prefix: str) -> None:
    """Limit a context to these versions and, for TLS 1.2, to these cipher suites, best first.

    None: forward secret ones.

    Raises:
        ConfigError: no version is given, or OpenSSL knows none of the suites; the text names the setting below
            `prefix`.
    """
    chosen = sorted(_VERSIONS[version] for version in versions)
    if not chosen:
        raise ConfigError(f"{prefix}.versions: at least one version of TLS is needed")
    context.minimum_version, context.maximum_version = chosen[0], chosen[-1]
    suites = tuple(ciphers)
    if suites:
        try:
            context.set_ciphers(":".join(suites))
        except ssl.SSLError as error:
            raise ConfigError(f"{prefix}.ciphers: OpenSSL knows none of {', '.join(suites)}") from error
    else:
        be_forward_secret(context)
