"""A rejoin whose tries fail: no client is admitted before it is done, and it begins with the records of all leaders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.standby_site import SiteDecisions, SiteReturn
from leveret.model.errors import PreconditionFailed, StorageError
from leveret.runtime.clients.maintenance import DrainCause
from leveret.runtime.standby import rejoin, site_rejoin
from leveret.storage.state_file import StateFile

PATIENCE_S = 60.0


async def test_a_bug_in_one_try_of_a_node_ends_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted, tries = asyncio.Event(), 0

    async def revive(cause: DrainCause) -> None:
        assert cause is DrainCause.REJOIN
        admitted.set()

    async def go_on() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise KeyError("queue")

    node = SimpleNamespace(maintenance=SimpleNamespace(revive=revive))
    found = rejoin.Rejoin(cast(Any, node), StateFile(tmp_path / "rejoin.json"))
    monkeypatch.setattr(rejoin, "RETRY_S", 0.0)
    monkeypatch.setattr(found, "_go_on", go_on)
    found._retry_later()
    await asyncio.wait_for(admitted.wait(), PATIENCE_S)
    await found.stop()


async def test_a_bug_in_one_try_of_a_cluster_ends_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = SimpleNamespace(site=SiteDecisions(returning=SiteReturn(begun_ms=1)))
    node = SimpleNamespace(standby=SimpleNamespace(decided=decided))
    parts = SimpleNamespace(add=lambda answers, works: None)
    found = site_rejoin.SiteRejoin(cast(Any, node), cast(Any, parts))
    tries = 0

    async def finish(returning: SiteReturn) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise KeyError("queue")
        decided.site = SiteDecisions()

    monkeypatch.setattr(site_rejoin, "RETRY_S", 0.0)
    monkeypatch.setattr(found, "_finish", finish)
    await asyncio.wait_for(found._finish_later(), PATIENCE_S)
    assert tries == 2


async def test_a_leader_that_ends_after_the_first_look_ends_the_command_before_anything_is_recorded() -> None:
    """Its queues kept their messages, unlisted, and had them still when the site was promoted again (2026-11-28)."""
    recorded: list[object] = []
    running = SimpleNamespace(name="a", running=["a"])

    async def work(nodes: list[str], name: str, report: object, **about: object) -> dict[str, Any]:
        return {
            node: {"kept": [], "reports": [], "led": []} if name.endswith("quarantine") else []
            for node in nodes
        }

    async def decide(change: object) -> None:
        recorded.append(change)

    queue = SimpleNamespace(replicated=True, key=("v", "q"))
    node = SimpleNamespace(
        broker=SimpleNamespace(queues={queue.key: queue}),
        standby=SimpleNamespace(decided=SimpleNamespace(decide=decide)),
    )
    parts = SimpleNamespace(add=lambda answers, works: None, site=running, work=work)
    found = site_rejoin.SiteRejoin(cast(Any, node), cast(Any, parts))
    with pytest.raises(PreconditionFailed, match="'q' of vhost 'v': no running node leads it"):
        await found._begin({}, ())
    assert not recorded


async def test_a_command_ends_with_the_failure_of_another_node_that_finishes_the_return() -> None:
    """It waited for ever, and only the log of that node had the reason (2026-11-29)."""
    decided = SimpleNamespace(site=SiteDecisions(returning=SiteReturn(begun_ms=1)))
    site = SimpleNamespace(name="b", running=["a", "b"], wait=asyncio.sleep)

    async def of(node: str, name: str) -> str:
        return f"queue 'q' is led by no running node, says {node}" if name == "return_error" else ""

    parts = SimpleNamespace(add=lambda answers, works: None, site=site, of=of)
    node = SimpleNamespace(standby=SimpleNamespace(decided=decided))
    found = site_rejoin.SiteRejoin(cast(Any, node), cast(Any, parts))
    with pytest.raises(StorageError, match="led by no running node, says a; it is tried again"):
        await asyncio.wait_for(found._wait_finished(), PATIENCE_S)
