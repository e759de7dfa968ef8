"""Host and port in one text. Pure."""

from __future__ import annotations

from typing import Final

from leveret.model.whole_number import whole_number

PORT_MAX: Final = 65_535


def host_and_port(text: str, *, least: int = 1) -> tuple[str, int] | None:
    """Return host and port of a text `host:port`; None if it lacks one of them, or the port is below `least`.

    An IPv6 address may be in brackets, which are not returned.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    number = whole_number(port, least=least, most=PORT_MAX)
    return (host, number) if host and number is not None else None
