"""runtime.roles.clustered: the entry of a node into its cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import load
from leveret.runtime.roles import clustered
from leveret.runtime.roles.clustered import Clustered


class _Member:
    """Of a cluster whose etcd does not answer."""

    def __init__(self, *_: object, **__: object) -> None:
        self.has_left = False
        self.state = SimpleNamespace(alive={})

    async def enter(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def leave(self) -> None:
        self.has_left = True
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_an_entry_that_is_cancelled_leaves_the_cluster_and_one_that_is_closed_awaits_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """The simulation closes the coroutines of a killed process: one that awaits then stays in memory, with its node."""
    monkeypatch.setattr(clustered, "ClusterMember", _Member)
    entering = Clustered(load(None, {}), tmp_path, "id", cast(Any, None), cast(Any, None))
    attempt = entering._try()
    if is_closed:
        attempt.send(None)
        attempt.close()
        return
    task = asyncio.create_task(attempt)
    await asyncio.sleep(0)
    member = cast(_Member, entering._member)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert member.has_left
