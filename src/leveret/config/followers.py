"""Followers: nodes that hold all of this one's data, and what this one follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leveret.config.kinds import (
    Bytes,
    Choice,
    Duration,
    Integer,
    LocalPath,
    OptionalBytes,
    OptionalDuration,
    OptionalIp,
    Text,
)
from leveret.config.settings import branch, setting
from leveret.config.syntax import Given
from leveret.config.tls import TlsOptions
from leveret.config.uris import REPLICATION_PORT, Endpoint, Endpoints, NodeUri, OptionalNodeUri
from leveret.model.errors import ConfigError

_ANYWHERE: Final = ("0.0.0.0", "::")
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
    etcd_endpoints: tuple[Endpoint, ...] = setting(
        "cluster.etcd.endpoints",
        Endpoints(),
        "none",
        "The etcd that says which of several nodes leads, for fail-over without an operator; none for none.",
    )
    etcd_prefix: str = setting(
        "cluster.etcd.prefix",
        Text(),
        "leveret",
        "What all keys in etcd begin with; nodes of one replication have the same.",
    )
    etcd_cacertfile: Path | None = setting(
        "cluster.etcd.ssl_options.cacertfile",
        LocalPath(),
        "none",
        "Authorities one of which has to have signed the certificates of `https` endpoints of etcd, PEM; none for "
        "those that the system trusts.",
    )
    etcd_lease_ttl_ms: int = setting(
        "cluster.etcd.lease_ttl",
        Duration(_SECOND_MS),
        "2s",
        "A leader that etcd has not heard from for this long is replaced; whole seconds.",
    )


def check_together(followers: Followers, given: Mapping[str, Given]) -> None:
    """Refuse what is allowed line by line and contradicts itself.

    Raises:
        ConfigError: names the keys, where they were given, and what to do.
    """
    if followers.min_in_sync and followers.confirm == "local":
        raise _contradiction(
            given,
            "replication.min_in_sync",
            "asks for followers that have a message before it is confirmed, and replication.confirm = local does not "
            "wait for them: take one of the two out",
        )
    if followers.apply_delay_ms and followers.etcd_endpoints:
        raise _contradiction(
            given,
            "replication.apply_delay",
            "keeps this node behind its leader, and cluster.etcd.endpoints has it ready to lead: take one of the two "
            "out",
        )
    if followers.follow is not None and followers.etcd_endpoints:
        raise _contradiction(
            given,
            "replication.follow",
            "names a leader, and cluster.etcd.endpoints has etcd name it: take one of the two out",
        )
    if followers.etcd_lease_ttl_ms % _SECOND_MS:
        raise _contradiction(
            given, "cluster.etcd.lease_ttl", "is not in whole seconds, which is all that etcd knows"
        )
    if not followers.etcd_endpoints:
        return
    if followers.confirm == "local":
        raise _contradiction(
            given,
            "replication.confirm",
            "= local waits for no follower, and cluster.etcd.endpoints lets one lead that has all that was "
            "confirmed: none would ever be known to have it. Take one of the two out",
        )
    if followers.bind is None:
        raise _contradiction(
            given,
            "cluster.etcd.endpoints",
            "may make this node the leader: set replication.bind, where others follow it",
        )
    if followers.bind in _ANYWHERE and followers.advertised_uri is None:
        raise _contradiction(
            given,
            "cluster.etcd.endpoints",
            f"tells other nodes where this one is, and replication.bind = {followers.bind} does not say: "
            "set replication.advertised_uri",
        )


def _contradiction(given: Mapping[str, Given], key: str, what: str) -> ConfigError:
    """The value is left out: that of `cluster.etcd.endpoints` may be a secret."""
    origin = given[key].origin if key in given else "default"
    return ConfigError(f"{origin}: {key} {what}")
