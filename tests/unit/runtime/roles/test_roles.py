from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from leveret.config import load
from leveret.model.errors import StorageError
from leveret.runtime.coordination.elected import Elected
from leveret.runtime.roles.roles import Roles
from leveret.session.link_handshake import ProvenLeader

OPTIONS = {"listeners.tcp": "none", "stream.listeners.tcp": "none"}
ETCD = {
    "cluster_formation.peer_discovery_backend": "etcd",
    "cluster.etcd.endpoints": "http://127.0.0.1:1",
}


async def test_a_flush_that_fails_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that fails half-way leaves what nobody knows: only a start from the disk mends that."""

    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    await roles.start()
    broken = iter([RuntimeError("a bug")])

    def flush() -> None:
        for error in broken:
            raise error

    monkeypatch.setattr(roles.node.engine, "flush", flush)
    roles.node.engine.touch()
    async with asyncio.timeout(60):
        await roles.failed.wait()
    monkeypatch.undo()
    await roles.stop()


async def test_a_leader_that_cannot_step_down_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves nobody any more, and would neither follow nor show its data."""
    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    await roles.start()

    async def refuses(role: str) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(roles, "_show", refuses)
    roles._replaced(ProvenLeader(node_id="other", name="other", epoch=9, uri=""))
    async with asyncio.timeout(60):
        await roles.failed.wait()


async def test_an_elected_leader_that_cannot_step_down_ends_the_process() -> None:
    class Candidate:
        role = "leader"

        def __init__(self) -> None:
            self.failed = asyncio.Event()

        async def fence(self) -> None:
            raise StorageError("no room")

    settings = load(None, ETCD).etcd
    candidate: Any = Candidate()
    Elected(settings, candidate)._deposed("its lease is over")
    async with asyncio.timeout(60):
        await candidate.failed.wait()
