"""What a node reads from etcd, without an etcd."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import build, gather
from leveret.core.replication.cluster import ClusterKeys, ClusterState
from leveret.runtime.cluster.membership.store import ClusterStore, LeaseLost
from leveret.runtime.coordination.etcd import Snapshot


async def test_an_etcd_that_was_replaced_before_the_node_is_announced_ends_its_lease_and_not_the_node() -> (
    None
):
    """Found by the simulation of clusters, seed 9206: the second reading of all keys had an older revision."""
    config = build(
        gather(
            overrides={
                "nodename": "a@h",
                "cluster_formation.peer_discovery_backend": "etcd",
                "cluster.etcd.endpoints": "http://127.0.0.1:1",
            }
        )
    )
    state = ClusterState(ClusterKeys.under(config.etcd.prefix))
    store = ClusterStore(
        config, lambda events, revision: void(state.apply(events, revision)), lambda reason: None
    )
    read, lost = [Snapshot(88, {}), Snapshot(1, {})], list[str]()

    async def answer(prefix: str) -> Snapshot:
        return read.pop(0)

    store._etcd = cast(Any, SimpleNamespace(read=answer, endpoint="e"))
    store._lease = cast(Any, SimpleNamespace(lose=lost.append, is_held_now=lambda: not lost))
    await store._look()
    with pytest.raises(LeaseLost, match="etcd has revision 1, and had 88"):
        await store._look_surely()
    assert len(lost) == 1
    assert state.revision == 88


def void(value: object) -> None:
    """Forget a value."""
