"""Where the HTTP API answers, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.collect import in_order
from leveret.config.kinds import LOOPBACK, Bytes, Integer, Ip, Limit, OptionalPort, OptionalUrlPath, TextKind
from leveret.config.settings import branch, family, setting
from leveret.config.tls import TlsOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """Where the HTTP API answers over TCP, and what it takes."""

    ip: str = setting("management.tcp.ip", Ip(), LOOPBACK, "IP address of the HTTP API.")
    port: int = setting("management.tcp.port", Integer(0, 65535), "15672", "TCP port of the HTTP API.")
    tls_ip: str = setting("management.ssl.ip", Ip(), LOOPBACK, "IP address of the HTTP API with TLS.")
    tls_port: int | None = setting(
        "management.ssl.port",
        OptionalPort(),
        "none",
        "TCP port of the HTTP API with TLS; RabbitMQ's is 15671.",
    )
    tls: TlsOptions = branch(TlsOptions, "management.ssl")
    path_prefix: str = setting(
        "management.path_prefix",
        OptionalUrlPath(),
        "none",
        "Path under which the HTTP API is found on its ports, for a proxy that serves others too.",
    )
    body_bytes_max: int = setting(
        "management.http.max_body_size",
        Bytes(1024, 2**31),
        "20MB",
        "Largest body of a request, a definitions file for instance.",
    )
    request_timeout_ms: int = setting(
        "management.tcp.request_timeout",
        Integer(100, 3_600_000),
        "10000",
        "Milliseconds within which a client of the HTTP API, with TLS as well, must have sent the headers of its "
        "next request; so long it may take to agree on TLS, too. The metrics' port and the control socket do the same.",
    )
    body_timeout_ms: int = setting(
        "management.http.body_timeout",
        Integer(100, 86_400_000),
        "60000",
        "Milliseconds within which the whole body of a request must have come.",
    )
    idle_timeout_ms: int = setting(
        "management.tcp.idle_timeout",
        Integer(100, 3_600_000),
        "60000",
        "Milliseconds for which a client may send nothing of a body that it has begun, or read nothing of its "
        "response.",
    )
    connection_max: int | None = setting(
        "management.http.connection_max",
        Limit(1),
        "infinity",
        "Most connections to the HTTP API. There are never more than its share of the file descriptors.",
    )
    connection_max_per_address: int | None = setting(
        "management.http.connection_max_per_address",
        Limit(1),
        "infinity",
        "Most of them from one IP address. One address never has more than nine tenths of the share.",
    )
    allowed_origins: tuple[str, ...] = family(
        "management.cors.allow_origins",
        TextKind(),
        {},
        "Sites whose pages may use the HTTP API, such as `https://admin.example`.",
        collect=in_order,
    )
    cors_max_age_s: int = setting(
        "management.cors.max_age",
        Integer(0, 86_400),
        "1800",
        "Seconds for which a browser remembers that a site may.",
    )
