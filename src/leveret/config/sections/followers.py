"""Settings of followers: nodes with a copy of all data of this node, and the leader that this node follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leveret.config.kinds import (
    Bytes,
    Choice,
    Duration,
    Flag,
    Integer,
    OptionalBytes,
    OptionalDuration,
    OptionalIp,
)
from leveret.config.sections.tls import TlsOptions
from leveret.config.settings import branch, contradiction, setting
from leveret.config.syntax import SettingText
from leveret.config.uris import ANYWHERE, REPLICATION_PORT, NodeUri, OptionalNodeUri

_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Followers:
    """Replication of the whole data directory: the listener, the leader, and the condition of a confirm."""

    bind: str | None = setting(
        "replication.bind",
        OptionalIp(),
        "none",
        "IP address of the listener for followers; none for no listener. Like `leveret serve "
        "--replication-bind`.",
    )
    port: int = setting(
        "replication.port",
        Integer(0, 65535),
        str(REPLICATION_PORT),
        "TCP port of the listener for followers, if `replication.bind` is set; 0 lets the "
        "system choose. Like `leveret serve --replication-port`.",
    )
    follow: NodeUri | None = setting(
        "replication.follow",
        OptionalNodeUri(),
        "none",
        "The leader of this node. A node that follows serves no clients and stores a copy of "
        "its leader's data. Like `leveret serve --follow`.",
    )
    proxy: bool = setting(
        "replication.proxy",
        Flag(),
        "false",
        "Whether this node passes clients on to its leader while it does not lead. Its listeners for "
        "AMQP, streams and HTTP are then open, and whole connections go through the leader's replication "
        "port; TLS ends at the leader. The node's own HTTP API is then at `control.sock` only.",
    )
    advertised_uri: NodeUri | None = setting(
        "replication.advertised_uri",
        OptionalNodeUri(),
        "none",
        "Address that other nodes use for this node's replication listener; none for its own "
        "address and port.",
    )
    confirm: str = setting(
        "replication.confirm",
        Choice(("in_sync", "local")),
        "in_sync",
        "Condition of a confirm. With `in_sync` the disks of this node and of all followers "
        "in sync have the message, with `local` the disk of this node.",
    )
    min_in_sync: int = setting(
        "replication.min_in_sync",
        Integer(0, 100),
        "0",
        "Number of followers in sync that a publish needs. `replication.below_min_in_sync` applies below it.",
    )
    below_min_in_sync: str = setting(
        "replication.below_min_in_sync",
        Choice(("block", "nack")),
        "block",
        "Treatment of publishers while too few followers are in sync: they are blocked, or "
        "their messages are nacked.",
    )
    ack_timeout_ms: int = setting(
        "replication.ack_timeout",
        Duration(100),
        "3s",
        "A follower that acknowledges nothing for this long is no longer in sync, and "
        "confirms stop waiting for it.",
    )
    bandwidth_bytes_s: int | None = setting(
        "replication.bandwidth_limit",
        OptionalBytes(Bytes(1024)),
        "none",
        "Maximum rate at which a follower catches up, in bytes a second. New messages come on top.",
    )
    compression: str = setting(
        "replication.compression",
        Choice(("none", "zstd")),
        "none",
        "Compression of the link to followers.",
    )
    apply_delay_ms: int = setting(
        "replication.apply_delay",
        Duration(0),
        "0s",
        "Delay of a delayed follower: it keeps what its leader removes for this long, and can be "
        "promoted as of any time within it, which undoes a mistake. A delayed follower is never in "
        "sync.",
    )
    scrub_interval_ms: int | None = setting(
        "replication.scrub_interval",
        OptionalDuration(Duration(_SECOND_MS)),
        "7d",
        "Interval at which all data is read again and damaged chunks are repaired from the other side.",
    )
    max_lag_ms: int = setting(
        "replication.max_lag",
        Duration(1),
        "30s",
        "Lag at which a follower's health check fails, without its `replication.apply_delay`.",
    )
    tls: TlsOptions = branch(TlsOptions, "replication.ssl_options")


def check_together(followers: Followers, given: Mapping[str, SettingText], *, is_elected: bool) -> None:
    """Refuse settings that are allowed one by one and contradict each other.

    Args:
        followers: the settings of this section.
        given: the places of the given settings.
        is_elected: whether etcd elects the leader.

    Raises:
        ConfigError: names the keys, their places, and the remedy.
    """
    if followers.min_in_sync and followers.confirm == "local":
        raise contradiction(
            given,
            "replication.min_in_sync",
            "asks for followers that have a message before it is confirmed, and replication.confirm = local does not "
            "wait for them: remove one of the two",
        )
    if followers.apply_delay_ms and is_elected:
        raise contradiction(
            given,
            "replication.apply_delay",
            "lets this node go back in time, and cluster.etcd.endpoints makes it a candidate to lead: "
            "remove one of the two",
        )
    if followers.follow is not None and is_elected:
        raise contradiction(
            given,
            "replication.follow",
            "names a leader, and cluster.etcd.endpoints lets etcd choose the leader: remove one of the two",
        )
    if not is_elected:
        return
    if followers.confirm == "local":
        raise contradiction(
            given,
            "replication.confirm",
            "= local waits for no follower, and cluster.etcd.endpoints lets a follower lead that has every "
            "confirmed message: no follower would ever qualify. Remove one of the two",
        )
    if followers.bind is None:
        raise contradiction(
            given,
            "cluster.etcd.endpoints",
            "may make this node the leader: set replication.bind, the address for its followers",
        )
    if followers.bind in ANYWHERE and followers.advertised_uri is None:
        raise contradiction(
            given,
            "cluster.etcd.endpoints",
            f"announces this node's address, and replication.bind = {followers.bind} is none that other nodes reach: "
            "set replication.advertised_uri",
        )
