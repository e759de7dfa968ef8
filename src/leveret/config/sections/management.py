"""Settings of the HTTP API: its address, and the limits of requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leveret.config.kinds import (
    LOOPBACK,
    Bytes,
    Flag,
    Integer,
    Ip,
    Limit,
    LocalPath,
    OptionalPort,
    OptionalUrlPath,
    TextKind,
)
from leveret.config.sections.collect import in_order
from leveret.config.sections.tls import TlsOptions
from leveret.config.settings import branch, family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """The address of the HTTP API, and the limits of its requests."""

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
        "Path prefix of the HTTP API, for a proxy that serves other sites as well.",
    )
    ui_path: Path | None = setting(
        "management.ui.path",
        LocalPath(),
        "none",
        "Directory of the files of RabbitMQ's management page, which is then served at `/`: `priv/www` of the plugin "
        "`rabbitmq_management`. A `*` stands for any part of a name, such as the version in Debian's "
        "`/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www`.",
    )
    console: bool = setting(
        "management.console",
        Flag(),
        "false",
        "Whether the node starts a console (`leveret console`) beside itself. `/` of the HTTP API leads there.",
    )
    console_ip: str = setting(
        "management.console.ip",
        Ip(),
        LOOPBACK,
        "IP address of that console. On loopback it serves browsers of this machine. On any other address it serves "
        "HTTPS, with `management.ssl.certfile` and `management.ssl.keyfile`.",
    )
    console_port: int = setting(
        "management.console.port", Integer(1, 65535), "15680", "TCP port of that console."
    )
    console_names: tuple[str, ...] = family(
        "management.console.names",
        TextKind(),
        {},
        "Host names by which browsers of other machines reach that console, such as `mq1.example`; IP addresses need "
        "no entry. Requests for any other name are refused.",
        collect=in_order,
    )
    body_bytes_max: int = setting(
        "management.http.max_body_size",
        Bytes(1024, 2**31),
        "20MB",
        "Maximum size of a request's body, such as a definitions file.",
    )
    request_timeout_ms: int = setting(
        "management.tcp.request_timeout",
        Integer(100, 3_600_000),
        "10000",
        "Milliseconds within which a client of the HTTP API must send the headers of its next "
        "request. The same limit applies to the TLS handshake, the metrics' port and the "
        "control socket. A body has the same time, and more while it arrives: see "
        "`management.http.body_rate_min`.",
    )
    body_bytes_s_min: int = setting(
        "management.http.body_rate_min",
        Bytes(1),
        "8KiB",
        "Minimum rate at which the body of a request must arrive, in bytes a second, once "
        "`management.tcp.request_timeout` has passed, and at which a response must be read that takes longer "
        "than `management.tcp.idle_timeout`.",
    )
    idle_timeout_ms: int = setting(
        "management.tcp.idle_timeout",
        Integer(100, 3_600_000),
        "60000",
        "Milliseconds for which a client may pause while it sends a body or reads its response.",
    )
    connection_max: int | None = setting(
        "management.http.connection_max",
        Limit(1),
        "infinity",
        "Maximum number of connections to the HTTP API. Its share of the file descriptors is a limit, too.",
    )
    connection_max_per_address: int | None = setting(
        "management.http.connection_max_per_address",
        Limit(1),
        "infinity",
        "Maximum number of connections to the HTTP API from one IP address. Nine tenths of "
        "the share is a limit, too.",
    )
    allowed_origins: tuple[str, ...] = family(
        "management.cors.allow_origins",
        TextKind(),
        {},
        "Origins whose pages may use the HTTP API (CORS), such as `https://admin.example`.",
        collect=in_order,
    )
    cors_max_age_s: int = setting(
        "management.cors.max_age",
        Integer(0, 86_400),
        "1800",
        "Seconds for which a browser caches the permission of an origin.",
    )
