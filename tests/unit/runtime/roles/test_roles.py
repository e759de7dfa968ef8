from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leveret.config import load
from leveret.runtime.roles.roles import Roles

OPTIONS = {"listeners.tcp": "none", "stream.listeners.tcp": "none"}


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
