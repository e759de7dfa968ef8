"""A rejoin whose tries fail: no client is admitted before it is done, and it begins with the records of all leaders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.standby_site import KeptQueue, SiteDecisions, SiteReturn
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import PreconditionFailed, StorageError
from leveret.runtime.clients.maintenance import DrainCause
from leveret.runtime.standby import rejoin, site_rejoin
from leveret.runtime.standby.returning_node import LOOKS_MAX
from leveret.storage.state_file import StateFile
from leveret.wire.incarnation import INCARNATION_BITS

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


@pytest.mark.parametrize(
    ("running", "set_all_aside", "begun"),
    [(["a"], False, False), (["a", "b"], False, True), (["a"], True, True)],
    ids=["a node is away", "all nodes run", "all is to be set aside"],
)
async def test_a_return_begins_with_all_nodes_whose_logs_may_show_what_the_new_upstream_has(
    running: list[str], set_all_aside: bool, begun: bool
) -> None:
    """All of a queue that another node had led until shortly before was quarantined, though both sites had it."""
    site = SimpleNamespace(name="a", members=["a", "b"], running=running)

    async def work(nodes: list[str], name: str, report: object, **about: object) -> dict[str, Any]:
        raise InterruptedError(name)

    parts = SimpleNamespace(add=lambda answers, works: None, site=site, work=work)
    standby = SimpleNamespace(decided=SimpleNamespace(site=SiteDecisions()))
    found = site_rejoin.SiteRejoin(cast(Any, SimpleNamespace(standby=standby)), cast(Any, parts))
    found._here = cast(Any, SimpleNamespace(check=lambda: "upstream"))
    if begun:
        with pytest.raises(InterruptedError, match="return_logs"):
            await found.rejoin(set_all_aside=set_all_aside)
    else:
        with pytest.raises(PreconditionFailed, match="node b does not run, and may know"):
            await found.rejoin(set_all_aside=set_all_aside)


async def test_a_node_that_ends_before_it_showed_what_the_new_upstream_has_ends_the_command() -> None:
    asked: list[str] = []

    async def work(nodes: list[str], name: str, report: object, **about: object) -> dict[str, Any]:
        asked.append(name)
        return {"a": []}

    site = SimpleNamespace(name="a", running=["a", "b"])
    parts = SimpleNamespace(add=lambda answers, works: None, site=site, work=work)
    found = site_rejoin.SiteRejoin(cast(Any, SimpleNamespace()), cast(Any, parts))
    with pytest.raises(PreconditionFailed, match="node b does not run"):
        await found._begin({"a": {}, "b": {"v": [5, 1]}}, ())
    assert asked == ["return_close", "return_begins"]


@pytest.mark.parametrize(
    ("counts", "begin"),
    [((), 7), ((1,), 7), ((1, 2), 0)],
    ids=["never ended", "ended once", "of another life"],
)
async def test_a_leader_without_its_log_keeps_back_only_what_another_nodes_log_says(
    counts: tuple[int, ...], begin: int
) -> None:
    """All of a queue was quarantined if the disk had refused the log of its new leader (2026-11-30)."""
    queue = SimpleNamespace(key=("v", "q"), name_octets=b"q", epoch=5)
    shared = SimpleNamespace(counts=lambda epoch: counts)
    node = SimpleNamespace(collector=SimpleNamespace(logs={}, incarnations=shared))
    parts = SimpleNamespace(add=lambda answers, works: None)
    found = site_rejoin.SiteRejoin(cast(Any, node), cast(Any, parts))
    known = {("v", "q", 5 + (count << INCARNATION_BITS)): 7 for count in counts[:1] or (0,)}
    assert found._begin_of(cast(Any, queue), known, 0) == begin


async def test_a_node_has_emptied_its_queues_once_their_dead_letters_are_at_the_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that came later stayed in an emptied queue, and a promotion brought its original as well (2026-11-30)."""
    late = [("v", "dead"), ("v", "dead"), None]
    node = SimpleNamespace(
        broker=SimpleNamespace(led_queues=list),
        engine=SimpleNamespace(flush=lambda: None),
        amqp_host=SimpleNamespace(leaders=SimpleNamespace(first_unconfirmed=lambda keys: late.pop(0))),
        changing=nullcontext,
    )
    found = site_rejoin.SiteRejoin(
        cast(Any, node), cast(Any, SimpleNamespace(add=lambda answers, works: None))
    )

    async def empty(kept: object) -> list[object]:
        assert len(late) == 3
        return []

    found._here = cast(Any, SimpleNamespace(empty=empty))
    about = {"queues": [["v", "dead", 1, 3]]}
    assert await found._empty_own(about, lambda event: None) == []
    assert not late
    late[:] = [("v", "dead"), ("v", "dead"), ("v", "dead")]
    monkeypatch.setattr(site_rejoin, "_COLLECTED_S", -1.0)
    with pytest.raises(StorageError, match="'dead' of vhost 'v': its leader has not taken the dead letters"):
        await found._empty_own(about, lambda event: None)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_site_empties_its_queues_until_no_node_finds_a_message(ends: bool) -> None:
    """Nodes a, b and c lead a queue each; c's dead-letters into b's, and that one into a's (2026-11-30).

    Each node has looked at its queue when the message comes, in the last look as well. Other queues may dead-letter on
    for hours.
    """
    names, at = ["a", "b", "c"], 2
    queues = {("v", name): SimpleNamespace(key=("v", name), epoch=each) for each, name in enumerate(names, 1)}
    known = dict(queues)
    returning = SiteReturn(
        begun_ms=1, queues=[KeptQueue(*key, queue.epoch, 0) for key, queue in queues.items()]
    )
    decided, looks = [SiteDecisions(returning=returning)], 0

    async def work(nodes: list[str], name: str, report: object, **about: object) -> dict[str, Any]:
        nonlocal at, looks
        if name != "return_delete":
            return {}
        looks += 1
        for each, name in enumerate(names):
            if looks == 1 or each == at:
                queues["v", name] = SimpleNamespace(key=("v", name), epoch=10 * looks + each)
        at = at - 1 if ends else 0
        return {name: [] for name in names}

    @asynccontextmanager
    async def changing() -> AsyncIterator[None]:
        known.update(queues)
        yield

    async def decide(change: Callable[[SiteDecisions], SiteDecisions]) -> None:
        decided.append(change(decided[-1]))

    async def nothing(*about: object) -> None:
        known.update(queues)

    node = SimpleNamespace(
        broker=SimpleNamespace(queues=known),
        changing=changing,
        schema_sync=SimpleNamespace(mode=OperatingMode.DOWNSTREAM),
        standby=SimpleNamespace(decided=SimpleNamespace(decide=decide)),
    )
    site = SimpleNamespace(name="a", running=names, all_know=nothing, wait=nothing)
    parts = SimpleNamespace(add=lambda answers, works: None, site=site, work=work)
    found = site_rejoin.SiteRejoin(cast(Any, node), cast(Any, parts))
    await asyncio.wait_for(found._empty(returning), PATIENCE_S)
    assert looks == (4 if ends else LOOKS_MAX)
    after = decided[-1].returning
    assert after is not None
    assert after.is_emptied


async def test_a_disk_that_refuses_the_record_leaves_an_upstream_with_its_former_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[str]()

    async def keep_former_archive() -> None:
        kept.append("kept")

    async def quarantine(*about: object) -> tuple[rejoin.RejoinState, list[Any]]:
        return rejoin.RejoinState(queues=[KeptQueue("v", "q", 1, 2)]), []

    standby = SimpleNamespace(keep_former_archive=keep_former_archive)
    found = rejoin.Rejoin(
        cast(Any, SimpleNamespace(standby=standby)), StateFile(tmp_path / "none" / "rejoin.json")
    )
    monkeypatch.setattr(found, "_quarantine", quarantine)
    with pytest.raises(StorageError, match=r"rejoin\.json: cannot be written"):
        await found._come_back({}, ())
    assert not kept
    assert not found.is_under_way
