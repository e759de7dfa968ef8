"""Queues that are deleted and declared anew while this node changes its role in the former one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.cluster import Placement
from leveret.model import definitions as d
from tests.unit.runtime.cluster.placement.test_queue_roles import KEY, NAME, kept_at


@pytest.mark.parametrize("is_declared_anew", [True, False])
async def test_a_queue_that_is_deleted_while_its_next_leader_prepares_leaves_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_declared_anew: bool
) -> None:
    """The node took it for one that it had served, whose log the engine removes (2026-12-01)."""
    node, keeping = kept_at(tmp_path / "a")
    node.append(NAME, count=1)
    await node.commits.all_durable()
    keeping.known[KEY] = before = RemoteQueue(d.Queue(name="q", vhost="/", epoch=8), "b")
    keeping.declared(before.definition, Placement(8, "b", "b1", 1, ("a",), ("a",)))
    released, anew = node.copies.release, RemoteQueue(d.Queue(name="q", vhost="/", epoch=9), "b")

    async def release(name: str) -> None:
        await released(name)
        del keeping.known[KEY]
        if is_declared_anew:
            keeping.known[KEY] = anew
            keeping.declared(anew.definition, Placement(9, "b", "b1", 1, ("c",), ("c",)))

    patched: Any = release
    monkeypatch.setattr(node.copies, "release", patched)
    await keeping.follow(KEY, Placement(8, "a", "a1", 2, ("b",), ("b",)))
    assert node.tree.path_of(NAME).exists(), "the deletion may fail"
    await keeping.follow(KEY, keeping.placements[KEY] if is_declared_anew else None)
    assert not node.tree.path_of(NAME).exists()
