"""Followers: nodes that hold all of this one's data, and what this one follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leveret.config.kinds import (
    Bytes,
    Choice,
    Duration,
    Integer,
    OptionalBytes,
    OptionalDuration,
    OptionalIp,
)
from leveret.config.settings import branch, contradiction, setting
from leveret.config.syntax import Given
from leveret.config.tls import TlsOptions
from leveret.config.uris import ANYWHERE, REPLICATION_PORT, NodeUri, OptionalNodeUri

_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Followers:
    """Replication of the whole data directory: the listener, the leader, and when a message is safe."""

    bind: str | None = setting(
        "replication.bind",
        OptionalIp(),
        "none",
        "IP address where followers connect; none for nowhere. As `leveret serve --replication-bind`.",
    )
    port: int = setting(
        "replication.port",
        Integer(0, 65535),
        str(REPLICATION_PORT),
        "TCP port where followers connect, once `replication.bind` is set; 0 lets the system choose. As "
        "`leveret serve --replication-port`.",
    )
    follow: NodeUri | None = setting(
        "replication.follow",
        OptionalNodeUri(),
        "none",
        "The leader that this node follows: it serves no clients and keeps a copy of all that the leader has. As "
        "`leveret serve --follow`.",
    )
    advertised_uri: NodeUri | None = setting(
        "replication.advertised_uri",
        OptionalNodeUri(),
        "none",
        "Where other nodes are told to find this one's listener; none for its address and port.",
    )
    confirm: str = setting(
        "replication.confirm",
        Choice(("in_sync", "local")),
        "in_sync",
        "When a publish is confirmed: with `in_sync` once this node and all followers that are in sync have it on "
        "disk, with `local` once this node has.",
    )
    min_in_sync: int = setting(
        "replication.min_in_sync",
        Integer(0, 100),
        "0",
        "How many followers must be in sync for a publish to be taken; below it, see "
        "`replication.below_min_in_sync`.",
    )
    below_min_in_sync: str = setting(
        "replication.below_min_in_sync",
        Choice(("block", "nack")),
        "block",
        "What becomes of publishers while too few followers are in sync: they are blocked, or their publishes "
        "are nacked.",
    )
    ack_timeout_ms: int = setting(
        "replication.ack_timeout",
        Duration(100),
        "3s",
        "A follower that acknowledges nothing of what it was sent for this long is no longer in sync, and "
        "nobody waits for it.",
    )
    bandwidth_bytes_s: int | None = setting(
        "replication.bandwidth_limit",
        OptionalBytes(Bytes(1024)),
        "none",
        "Most bytes a second that followers are sent to catch up; what is published meanwhile comes on top.",
    )
    compression: str = setting(
        "replication.compression",
        Choice(("none", "zstd")),
        "none",
        "How what a follower is sent is compressed.",
    )
    apply_delay_ms: int = setting(
        "replication.apply_delay",
        Duration(0),
        "0s",
        "A follower stays this far behind its leader: it has what the leader does on its own disk at once, and "
        "applies it this much later, so that a mistake can be undone by promoting it before. It is never in sync.",
    )
    scrub_interval_ms: int | None = setting(
        "replication.scrub_interval",
        OptionalDuration(Duration(_SECOND_MS)),
        "7d",
        "All data is read again this often, and what is damaged is repaired from the other side.",
    )
    max_lag_ms: int = setting(
        "replication.max_lag",
        Duration(1),
        "30s",
        "The health check of a follower fails when it is further behind than this, its `replication.apply_delay` "
        "aside.",
    )
    tls: TlsOptions = branch(TlsOptions, "replication.ssl_options")


def check_together(followers: Followers, given: Mapping[str, Given], *, is_elected: bool) -> None:
    """Refuse what is allowed line by line and contradicts itself.

    Args:
        followers: what was read.
        given: where it was given.
        is_elected: whether etcd says if this node leads.

    Raises:
        ConfigError: names the keys, where they were given, and what to do.
    """
    if followers.min_in_sync and followers.confirm == "local":
        raise contradiction(
            given,
            "replication.min_in_sync",
            "asks for followers that have a message before it is confirmed, and replication.confirm = local does not "
            "wait for them: take one of the two out",
        )
    if followers.apply_delay_ms and is_elected:
        raise contradiction(
            given,
            "replication.apply_delay",
            "keeps this node behind its leader, and cluster.etcd.endpoints has it ready to lead: take one of the two "
            "out",
        )
    if followers.follow is not None and is_elected:
        raise contradiction(
            given,
            "replication.follow",
            "names a leader, and cluster.etcd.endpoints has etcd name it: take one of the two out",
        )
    if not is_elected:
        return
    if followers.confirm == "local":
        raise contradiction(
            given,
            "replication.confirm",
            "= local waits for no follower, and cluster.etcd.endpoints lets one lead that has all that was "
            "confirmed: none would ever be known to have it. Take one of the two out",
        )
    if followers.bind is None:
        raise contradiction(
            given,
            "cluster.etcd.endpoints",
            "may make this node the leader: set replication.bind, where others follow it",
        )
    if followers.bind in ANYWHERE and followers.advertised_uri is None:
        raise contradiction(
            given,
            "cluster.etcd.endpoints",
            f"tells other nodes where this one is, and replication.bind = {followers.bind} does not say: "
            "set replication.advertised_uri",
        )
