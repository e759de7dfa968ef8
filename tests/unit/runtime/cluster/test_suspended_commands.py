"""A cluster's node without a lease shows operators its last known state, and refuses every command with a reason."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leveret.config.sources import load
from leveret.core.replication.cluster import ClusterKeys, ClusterState
from leveret.management.node import ClusterOperations
from leveret.model.errors import PreconditionFailed
from leveret.runtime.cluster.suspended_commands import SuspendedCommands

SETTINGS = {
    "cluster_formation.peer_discovery_backend": "etcd",
    "cluster.etcd.endpoints": "http://127.0.0.1:1",
}
WHY = "node rabbit@b has no lease in etcd"


def suspended() -> ClusterOperations:
    return SuspendedCommands("rabbit@b", load(None, SETTINGS).etcd, ClusterState(ClusterKeys.under("p")))


@pytest.mark.parametrize(
    "command",
    [
        lambda it: it.ask("rabbit@a", "rows", {}),
        lambda it: it.sync_queue("/", "q"),
        lambda it: it.cancel_sync_queue("/", "q"),
        lambda it: it.add_replica("/", "s", "rabbit@a"),
        lambda it: it.delete_replica("/", "s", "rabbit@a"),
        lambda it: it.restart_stream("/", "s", ""),
        lambda it: it.copies("/", "q"),
        lambda it: it.quarantine_copies("/", "q"),
        lambda it: it.forget_node("rabbit@a"),
        lambda it: it.join("rabbit@a"),
        lambda it: it.rebalance("all", ".*", queue_pattern=".*"),
    ],
)
async def test_a_node_without_a_lease_refuses_each_command(
    command: Callable[[ClusterOperations], Coroutine[Any, Any, object]],
) -> None:
    with pytest.raises(PreconditionFailed, match=WHY):
        await command(suspended())


async def test_a_node_without_a_lease_changes_no_definitions() -> None:
    with pytest.raises(PreconditionFailed, match=WHY):
        async with suspended().changing():
            pass
