"""The etcd that has the state of a cluster, or that elects the leader among several nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leveret.config.kinds import Duration, LocalPath, TextKind
from leveret.config.settings import contradiction, setting
from leveret.config.syntax import SettingText
from leveret.config.uris import Endpoints, EtcdEndpoint

_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """The addresses of etcd, and the prefix of the keys there."""

    endpoints: tuple[EtcdEndpoint, ...] = setting(
        "cluster.etcd.endpoints",
        Endpoints(),
        "none",
        "Endpoints of etcd. In a cluster it holds the cluster's state, see "
        "`cluster_formation.peer_discovery_backend`. Without a cluster it elects a leader "
        "among nodes that follow each other, for automatic failover. `none` for no etcd.",
    )
    prefix: str = setting(
        "cluster.etcd.prefix",
        TextKind(),
        "leveret",
        "Prefix of all keys in etcd. Nodes of one cluster, or of one replication, have the same.",
    )
    cacertfile: Path | None = setting(
        "cluster.etcd.ssl_options.cacertfile",
        LocalPath(),
        "none",
        "Certificates of the authorities that sign `https` endpoints of etcd, PEM; none for "
        "the system's authorities.",
    )
    lease_ttl_ms: int = setting(
        "cluster.etcd.lease_ttl",
        Duration(_SECOND_MS),
        "2s",
        "Duration of a node's lease in etcd, in whole seconds. A leader whose lease ends is replaced.",
    )


def check_together(etcd: EtcdOptions, given: Mapping[str, SettingText]) -> None:
    """Refuse settings that are allowed one by one and contradict each other.

    Raises:
        ConfigError: names the key, its place, and the remedy.
    """
    if etcd.lease_ttl_ms % _SECOND_MS:
        raise contradiction(
            given, "cluster.etcd.lease_ttl", "is not a whole number of seconds, as etcd requires"
        )
