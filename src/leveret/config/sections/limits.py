"""Limits of connections, virtual hosts and queues, and the alarms that stop publishers."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import Bytes, Choice, Integer, Limit, OptionalBytes, OptionalRatio
from leveret.config.sections.collect import in_order
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Amqp:
    """Limits of an AMQP 0-9-1 connection; None for no limit."""

    heartbeat_s: int = setting(
        "heartbeat", Integer(0, 65535), "60", "Heartbeat offered to clients in seconds; 0 for none."
    )
    frame_max_bytes: int = setting(
        "frame_max", Bytes(4096, 2**31 - 1), "131072", "Maximum size of an AMQP frame, as offered to clients."
    )
    initial_frame_max_bytes: int = setting(
        "initial_frame_max",
        Bytes(4096, 2**20),
        "4096",
        "Maximum size of an AMQP frame before the client has agreed on a size.",
    )
    channel_max: int = setting(
        "channel_max",
        Integer(1, 65535),
        "2047",
        "Maximum number of channels of a connection, as offered to clients.",
    )
    channel_max_per_node: int | None = setting(
        "channel_max_per_node",
        Limit(1),
        "infinity",
        "Maximum number of channels of all connections together.",
    )
    connection_max: int | None = setting(
        "connection_max", Limit(), "infinity", "Maximum number of the node's connections, over all protocols."
    )
    consumer_max_per_channel: int | None = setting(
        "consumer_max_per_channel", Limit(1), "infinity", "Maximum number of consumers of a channel."
    )
    message_bytes_max: int = setting(
        "max_message_size", Bytes(1, 2**29), "134217728", "Maximum size of a message."
    )
    consumer_timeout_ms: int = setting(
        "consumer_timeout",
        Integer(1, 2**53),
        "1800000",
        "Milliseconds within which a client must acknowledge a delivery; later its channel is "
        "closed. x-consumer-timeout, or consumer-timeout in a policy, sets it for one queue.",
    )
    handshake_timeout_ms: int = setting(
        "handshake_timeout",
        Integer(1, 3_600_000),
        "10000",
        "Milliseconds within which a client must authenticate and open a virtual host.",
    )
    auth_mechanisms: tuple[str, ...] = family(
        "auth_mechanisms",
        Choice(("PLAIN", "AMQPLAIN", "EXTERNAL")),
        {"1": "PLAIN", "2": "AMQPLAIN"},
        "SASL mechanisms offered to clients. EXTERNAL takes the user's name from the "
        "certificate of a TLS client.",
        collect=in_order,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLimits:
    """Defaults of new virtual hosts, and limits of the number of objects; None for no limit."""

    default_queue_type: str = setting(
        "default_queue_type",
        Choice(("classic", "quorum", "stream")),
        "classic",
        "Default queue type of virtual hosts that are made without one; existing ones keep theirs.",
    )
    queue_max: int | None = setting(
        "cluster_queue_limit",
        Limit(1),
        "infinity",
        "Maximum number of queues in all virtual hosts together, exclusive ones included. "
        "Existing queues stay.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """Thresholds of memory and disk at which publishers are stopped."""

    memory_relative: float | None = setting(
        "vm_memory_high_watermark.relative",
        OptionalRatio(),
        "0.4",
        "Publishers are blocked while the node uses more than this part of the available "
        "memory. With 0 they are always blocked, with none never.",
    )
    memory_absolute_bytes: int | None = setting(
        "vm_memory_high_watermark.absolute",
        OptionalBytes(Bytes(0)),
        "none",
        "The same limit as a size; it takes precedence over the part.",
    )
    memory_total_bytes: int | None = setting(
        "total_memory_available_override_value",
        OptionalBytes(Bytes(1)),
        "none",
        "Available memory; none for the limit of the system or the control group.",
    )
    disk_absolute_bytes: int = setting(
        "disk_free_limit.absolute",
        Bytes(0),
        "50MB",
        "Publishers are blocked while less than this is free on the data directory's disk.",
    )
    disk_relative: float | None = setting(
        "disk_free_limit.relative",
        OptionalRatio(),
        "none",
        "The same limit as a multiple of the available memory; it takes precedence over the size.",
    )
