"""Versions and cipher suites of TLS: what the node's doors and links and the pipeline's have in common."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

from leveret.model.errors import ConfigError

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


def limit(context: ssl.SSLContext, versions: Iterable[str], ciphers: Iterable[str], prefix: str) -> None:
    """To these versions, and for TLS 1.2 these cipher suites, best first; to OpenSSL's own where there are none.

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
