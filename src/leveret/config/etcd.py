"""The etcd that a cluster keeps its state in, or that says which of several nodes leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leveret.config.kinds import Duration, LocalPath, TextKind
from leveret.config.settings import contradiction, setting
from leveret.config.syntax import Given
from leveret.config.uris import Endpoints, EtcdEndpoint

_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """Where etcd is, and what is kept there."""

    endpoints: tuple[EtcdEndpoint, ...] = setting(
        "cluster.etcd.endpoints",
        Endpoints(),
        "none",
        "The etcd that holds the state of the cluster, see `cluster_formation.peer_discovery_backend`; without a "
        "cluster, the one that says which of several nodes leads and which follow it, for fail-over without an "
        "operator. `none`: no etcd is used.",
    )
    prefix: str = setting(
        "cluster.etcd.prefix",
        TextKind(),
        "leveret",
        "What all keys in etcd begin with; nodes of one cluster, or of one replication, have the same.",
    )
    cacertfile: Path | None = setting(
        "cluster.etcd.ssl_options.cacertfile",
        LocalPath(),
        "none",
        "Authorities one of which has to have signed the certificates of `https` endpoints of etcd, PEM; none for "
        "those that the system trusts.",
    )
    lease_ttl_ms: int = setting(
        "cluster.etcd.lease_ttl",
        Duration(_SECOND_MS),
        "2s",
        "A node that etcd has not heard from for this long is replaced where it leads; whole seconds.",
    )


def check_together(etcd: EtcdOptions, given: Mapping[str, Given]) -> None:
    """Refuse what is allowed line by line and contradicts itself.

    Raises:
        ConfigError: names the key, where it was given, and what to do.
    """
    if etcd.lease_ttl_ms % _SECOND_MS:
        raise contradiction(
            given, "cluster.etcd.lease_ttl", "is not in whole seconds, which is all that etcd knows"
        )
