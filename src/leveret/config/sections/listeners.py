"""Addresses of the listeners for clients."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import LOOPBACK, Address, Flag, Integer, Limit, Listener
from leveret.config.sections.collect import in_order
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Addresses of the listeners for clients; each setting is a tuple of addresses, empty for none."""

    amqp: tuple[Address, ...] = family(
        "listeners.tcp",
        Listener(),
        {"default": f"{LOOPBACK}:5672"},
        "Address of a listener for AMQP 0-9-1 and AMQP 1.0. `listeners.tcp = none` for no listener.",
        collect=in_order,
    )
    stream: tuple[Address, ...] = family(
        "stream.listeners.tcp",
        Listener(),
        {"default": f"{LOOPBACK}:5552"},
        "Address of a listener for stream clients and downstreams. `stream.listeners.tcp = "
        "none` for no listener.",
        collect=in_order,
    )
    amqp_tls: tuple[Address, ...] = family(
        "listeners.ssl",
        Listener(),
        {},
        "Address of a listener for AMQP with TLS, such as `listeners.ssl.default = 5671`; see `ssl_options`.",
        collect=in_order,
    )
    connection_max_per_address: int | None = setting(
        "connection_max_per_address",
        Limit(1),
        "infinity",
        "Maximum number of AMQP clients' connections from one IP address, and of stream clients' connections. One "
        "address never has more than nine tenths of a listener's share of the file descriptors. Neither limit applies "
        "to connections with a PROXY header.",
    )
    backlog: int = setting(
        "tcp_listen_options.backlog",
        Integer(1, 65535),
        "1024",
        "Number of AMQP connections that may wait to be accepted (the listen backlog).",
    )
    nodelay: bool = setting(
        "tcp_listen_options.nodelay",
        Flag(),
        "true",
        "Whether data for AMQP clients is sent at once (TCP_NODELAY).",
    )
    keepalive: bool = setting(
        "tcp_listen_options.keepalive",
        Flag(),
        "false",
        "Whether the system probes silent AMQP clients (SO_KEEPALIVE).",
    )
    proxy_protocol: bool = setting(
        "proxy_protocol",
        Flag(),
        "false",
        "Whether AMQP clients connect through a proxy that sends their addresses (PROXY "
        "protocol 1 or 2). Then every connection needs that header.",
    )
