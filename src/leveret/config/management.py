"""Where the HTTP API answers."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import LOOPBACK, Integer, Ip
from leveret.config.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """Where the HTTP API answers over TCP."""

    ip: str = setting("management.tcp.ip", Ip(), LOOPBACK, "IP address of the HTTP API.")
    port: int = setting("management.tcp.port", Integer(0, 65535), "15672", "TCP port of the HTTP API.")
