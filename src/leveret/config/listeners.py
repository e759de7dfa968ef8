"""Where clients connect."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.collect import in_order
from leveret.config.kinds import LOOPBACK, Address, Flag, Integer, Listener
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where clients connect; each is a tuple of addresses, empty for none."""

    amqp: tuple[Address, ...] = family(
        "listeners.tcp",
        Listener(),
        {"default": f"{LOOPBACK}:5672"},
        "Where AMQP 0-9-1 and AMQP 1.0 clients connect. `listeners.tcp = none` for nowhere.",
        collect=in_order,
    )
    stream: tuple[Address, ...] = family(
        "stream.listeners.tcp",
        Listener(),
        {"default": f"{LOOPBACK}:5552"},
        "Where stream clients and downstreams connect. `stream.listeners.tcp = none` for nowhere.",
        collect=in_order,
    )
    amqp_tls: tuple[Address, ...] = family(
        "listeners.ssl",
        Listener(),
        {},
        "Where AMQP clients connect with TLS, such as `listeners.ssl.default = 5671`; see `ssl_options`.",
        collect=in_order,
    )
    backlog: int = setting(
        "tcp_listen_options.backlog",
        Integer(1, 65535),
        "1024",
        "How many AMQP clients the system lets wait until they are accepted.",
    )
    nodelay: bool = setting(
        "tcp_listen_options.nodelay",
        Flag(),
        "true",
        "Whether what AMQP clients are sent goes out at once (TCP_NODELAY).",
    )
    keepalive: bool = setting(
        "tcp_listen_options.keepalive",
        Flag(),
        "false",
        "Whether the system asks silent AMQP clients if they are there (SO_KEEPALIVE).",
    )
    proxy_protocol: bool = setting(
        "proxy_protocol",
        Flag(),
        "false",
        "Whether AMQP clients come through a proxy that tells their addresses (PROXY protocol 1 or 2). Then "
        "nobody can connect without.",
    )
