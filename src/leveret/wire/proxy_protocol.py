"""The PROXY protocol, versions 1 and 2: a header with the client's address before the client's own octets.

Version 1 is a line of at most 107 octets that ends in CR LF:

    PROXY TCP4 192.0.2.7 192.0.2.1 56324 5672

Version 2 is binary:

    0           12        13        14       16
    +-----------+---------+---------+--------+------------------------------+
    | signature | version | family  | length | addresses, then what may be  |
    |           | command | protocol|        | skipped (length octets)      |
    +-----------+---------+---------+--------+------------------------------+
     12 octets    octet     octet     short

`missing` is a number of octets that can be read without reading past the header, so that the octets behind the header
stay in the socket.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from leveret.model.errors import PeerError

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
LINE_BYTES_MAX: Final = 107
REST_BYTES_MAX: Final = 4096
"""The most octets of addresses and additions in version 2; proxies send some hundred."""
_BEGIN: Final = b"PROXY "
_FIXED_BYTES: Final = 16
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21


class ProxyError(PeerError):
    """The octets are no PROXY header."""


class Proxied(NamedTuple):
    """The address of a client behind a proxy, and the address that it connected to."""

    client: tuple[str, int]
    server: tuple[str, int]


def header(proxied: Proxied) -> bytes:
    """The header of version 2 that names a client and the address that it connected to.

    Raises:
        ValueError: the two are not IP addresses of one family.
    """
    client, server = (ipaddress.ip_address(host) for host, _ in proxied)
    if client.version != server.version:
        raise ValueError(f"{client} and {server} are addresses of two families")
    ports = b"".join(port.to_bytes(2) for _, port in proxied)
    addresses = client.packed + server.packed + ports
    family = _TCP4 if client.version == 4 else _TCP6
    return SIGNATURE + bytes((_PROXY, family)) + len(addresses).to_bytes(2) + addresses


def missing(octets: bytes) -> int:
    """The number of octets of the header that must still come, at least; 0 when it is whole.

    Raises:
        ProxyError: the octets are not the begin of a header.
    """
    if len(octets) < len(SIGNATURE):
        if not (SIGNATURE.startswith(octets[:12]) or _BEGIN.startswith(octets[:6])):
            raise ProxyError("the connection does not begin with a PROXY header")
        return len(SIGNATURE) - len(octets)
    if octets.startswith(SIGNATURE):
        if len(octets) < _FIXED_BYTES:
            return _FIXED_BYTES - len(octets)
        rest = int.from_bytes(octets[14:16], "big")
        if rest > REST_BYTES_MAX:
            raise ProxyError(f"a PROXY header of {rest} octets is longer than {REST_BYTES_MAX}")
        return _FIXED_BYTES + rest - len(octets)
    if not octets.startswith(_BEGIN):
        raise ProxyError("the connection does not begin with a PROXY header")
    if octets.endswith(b"\r\n"):
        return 0
    if len(octets) >= LINE_BYTES_MAX:
        raise ProxyError(f"a PROXY line is longer than {LINE_BYTES_MAX} octets")
    return 1 if octets.endswith(b"\r") else 2


def parse(octets: bytes) -> Proxied | None:
    """The client named by a whole header; None if the proxy connects for itself or names no client.

    Raises:
        ProxyError: the header is malformed.
    """
    return _parse_binary(octets) if octets.startswith(SIGNATURE) else _parse_line(octets)


def _parse_line(octets: bytes) -> Proxied | None:
    words = octets.removesuffix(b"\r\n").split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return None
    try:
        if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
            raise ValueError
        kind = ipaddress.IPv4Address if words[1] == b"TCP4" else ipaddress.IPv6Address
        client, server = (str(kind(word.decode("ascii"))) for word in words[2:4])
        ports = [_port(word) for word in words[4:]]
    except ValueError:
        raise ProxyError(f"a malformed PROXY line: {octets[:LINE_BYTES_MAX]!r}") from None
    return Proxied((client, ports[0]), (server, ports[1]))


def _port(word: bytes) -> int:
    if not word.isdigit() or int(word) > 65535:
        raise ValueError
    return int(word)


def _parse_binary(octets: bytes) -> Proxied | None:
    command, family, rest = octets[12], octets[13], octets[_FIXED_BYTES:]
    if command not in (_LOCAL, _PROXY):
        raise ProxyError(f"a PROXY header of unknown version and command {command:#04x}")
    if command == _LOCAL or family not in (_TCP4, _TCP6):
        return None
    size = 4 if family == _TCP4 else 16
    if len(rest) < 2 * size + 4:
        raise ProxyError("a PROXY header ends inside its addresses")
    client, server = (str(ipaddress.ip_address(rest[at : at + size])) for at in (0, size))
    ports = rest[2 * size : 2 * size + 4]
    return Proxied((client, int.from_bytes(ports[:2], "big")), (server, int.from_bytes(ports[2:], "big")))
