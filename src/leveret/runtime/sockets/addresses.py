"""IP addresses of peers: which are this machine's own."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether a peer's address is this machine's own; IPv4 in IPv6's clothes counts as what it is."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)
