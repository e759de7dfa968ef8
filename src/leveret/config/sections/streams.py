"""Settings of the stream protocol: the advertised address, and the limits of a connection."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import Address, Bytes, Integer, Listener, OptionalPort, OptionalText
from leveret.config.sections.collect import in_order
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Settings of the stream protocol besides its plain listeners."""

    listeners_tls: tuple[Address, ...] = family(
        "stream.listeners.ssl",
        Listener(),
        {},
        "Address of a listener for stream clients with TLS, such as "
        "`stream.listeners.ssl.default = 5551`; see `ssl_options`.",
        collect=in_order,
    )
    advertised_host: str | None = setting(
        "stream.advertised_host",
        OptionalText(),
        "none",
        "Host name that stream clients receive as this node's address; none for the listener's address, "
        "or the machine's name if that is 0.0.0.0 or ::.",
    )
    advertised_port: int | None = setting(
        "stream.advertised_port",
        OptionalPort(),
        "none",
        "Port that stream clients receive as this node's port; none for the listener's.",
    )
    advertised_tls_host: str | None = setting(
        "stream.advertised_tls_host",
        OptionalText(),
        "none",
        "Host name that stream clients with TLS receive as this node's address; none for the listener's address, "
        "or the machine's name if that is 0.0.0.0 or ::.",
    )
    advertised_tls_port: int | None = setting(
        "stream.advertised_tls_port",
        OptionalPort(),
        "none",
        "Port that stream clients with TLS receive as this node's port; none for the listener's.",
    )
    frame_max_bytes: int = setting(
        "stream.frame_max",
        Bytes(8192, 2**31 - 1),
        "1048576",
        "Maximum size of a frame, as offered to stream clients.",
    )
    heartbeat_s: int = setting(
        "stream.heartbeat",
        Integer(0, 65535),
        "60",
        "Heartbeat offered to stream clients in seconds; 0 for none.",
    )
