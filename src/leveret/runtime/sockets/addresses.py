"""IP addresses of peers: recognises this machine's own."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether a peer's address is this machine's own; an IPv4-mapped IPv6 address counts as its IPv4 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)
