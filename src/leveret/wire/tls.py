"""Versions and cipher suites of TLS: what the node's listeners and links and the pipeline's have in common."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

from leveret.model.errors import ConfigError

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
FORWARD_SECRET: Final = (
    "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:DHE+AESGCM:DHE+AES:!aNULL:!aDSS:!PSK:!SHA1:!AESCCM"
)
"""Cipher suites of TLS 1.2 where none are set. OpenSSL's own have some whose traffic can be read later with the
server's private key; which ones a Python takes depends on who built it."""


def be_forward_secret(context: ssl.SSLContext) -> ssl.SSLContext:
    """Take only suites whose traffic nobody reads who gets the private key later; return the context."""
    context.set_ciphers(FORWARD_SECRET)
    return context


def limit(context: ssl.SSLContext, versions: Iterable[str], ciphers: Iterable[str], prefix: str) -> None:
    """To these versions, and for TLS 1.2 these cipher suites, best first; to forward secret ones where there are none.

    Raises:
        ConfigError: there is no version, or OpenSSL knows none of the suites; it names the setting below `prefix`.
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
