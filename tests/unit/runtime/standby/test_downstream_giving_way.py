"""What is asked of a standby at the same time: a promotion goes first, and what is read is not deleted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import Config, load
from leveret.config.kinds import Address
from leveret.core.broker.broker import Broker
from leveret.core.replication.standby_site import EVERYTHING, RecoveryRequest
from leveret.core.schema.delta import STANDBY_UPSTREAM
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.definitions import (
    REHEARSAL_VHOSTS,
    Change,
    Definitions,
    Delete,
    GlobalParameter,
    Put,
    Queue,
    Vhost,
)
from leveret.model.errors import NotAllowed, PreconditionFailed, StorageError
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.sweep import RECOVERY_LOCK
from leveret.pipeline.files.files import locked
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.standby import node_promotion, recovery
from leveret.runtime.standby.decisions import StandbyDecided
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.runtime.standby.pipeline_process import PipelineFailed, PipelineProcess
from leveret.runtime.standby.recovery import RecoveryTarget
from leveret.storage.state_file import StateFile
from leveret.storage.tree import Tree
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


class FakeSchemaSync:
    mode = OperatingMode.UPSTREAM
    why_nothing_came = ""


@dataclass
class FakeNode:
    """A node as far as its standby knows it; with nothing to recover, nobody connects to it."""

    data_dir: Path
    config: Config = field(
        default_factory=lambda: load(None, {"standby.replication.operating_mode": "downstream"})
    )
    definitions: Definitions = field(default_factory=Definitions)
    streams: Any = field(
        default_factory=lambda: SimpleNamespace(addresses=[Address("127.0.0.1", 1)], tls_addresses=[])
    )
    amqp: Any = field(default_factory=lambda: SimpleNamespace(addresses=[], tls_addresses=[]))
    schema_sync: Any = field(default_factory=FakeSchemaSync)
    applied: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = Tree(self.data_dir)

    @property
    def broker(self) -> Broker:
        return cast(
            Broker, SimpleNamespace(definitions=self.definitions, apply=self.applied.append, queues={})
        )

    async def commit(self) -> None:
        """Nothing is kept."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    @contextmanager
    def internal_user(self, purpose: str) -> Iterator[tuple[str, str]]:
        yield "internal", "one-time"


@pytest.fixture
def standby(tmp_path: Path) -> StandbyDownstream:
    return StandbyDownstream(FakeNode(tmp_path), StateFile(tmp_path / "standby.json"))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "standby"


async def dry_run(standby: StandbyDownstream) -> dict[str, Any]:
    return await standby.recoveries.dry_run(EVERYTHING, None, lambda event: None)


async def begun(standby: StandbyDownstream) -> asyncio.Task[dict[str, Any]]:
    """A dry run that is under way; it waits for a lock that the test holds."""
    task = asyncio.create_task(dry_run(standby))
    await asyncio.sleep(0.1)
    assert standby.own_recoveries._task is not None
    return task


async def test_a_promotion_ends_what_goes_on_and_nothing_begins_while_it_drains(
    standby: StandbyDownstream, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drains, is_drained = asyncio.Event(), asyncio.Event()

    async def drain(timeout_s: float) -> PipelineProcess | None:
        drains.set()
        await is_drained.wait()
        return None

    monkeypatch.setattr(standby.transfer, "drain", drain)
    with locked(work / RECOVERY_LOCK, 1, "recovering"):
        before = await begun(standby)
        promotion = asyncio.create_task(standby.promote())
        await drains.wait()
        with pytest.raises(PipelineFailed, match="a promotion has begun, which goes first"):
            await before
    target = RecoveryTarget(host="localhost", port=1, username="", password="")
    for refused in (
        dry_run(standby),
        standby.recoveries.rehearse(EVERYTHING, lambda event: None),
        standby.recoveries.into(EVERYTHING, target, lambda event: None),
    ):
        with pytest.raises(NotAllowed, match="a promotion is under way, which goes first"):
            await refused
    assert standby.status()["state"] == "promoting"
    is_drained.set()
    assert await promotion == []
    assert standby.mode == "upstream"
    assert (await dry_run(standby))["queues"] == [], "afterwards it may be asked for"


def test_a_full_disk_stops_no_promotion_for_the_count_of_what_it_leaves_out(
    standby: StandbyDownstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"virtual_host": "tmp", "queues": 1, "messages": 2, "unreadable_records": 0}
    save, saved = standby.decided.save, 0

    async def recover(task: str, job: Any, report: Any, process: Any) -> dict[str, Any]:
        report({"event": "left_out", "vhosts": [row]})
        return {"summary": [], "transferred": {}, "marks": {}, "missing": {}, "unfollowed": []}

    async def is_there(wanted: RecoveryRequest) -> None:
        """What is named was not transferred, nor is it defined."""

    def save_with_a_full_disk() -> None:
        nonlocal saved
        saved += 1
        if saved == 2:
            raise StorageError("no space left on device")
        save()

    monkeypatch.setattr(node_promotion, "ask", recover)
    monkeypatch.setattr(standby.recoveries, "check_wanted", is_there)
    monkeypatch.setattr(standby.decided, "save", save_with_a_full_disk)
    asyncio.run(standby.promote(RecoveryRequest(exclude=["tmp"])))
    assert "standby_promotion_left_out_not_kept error=no space left" in caplog.text
    kept = StandbyDecided(standby.decided._state_file, OperatingMode.DOWNSTREAM)
    left_out = kept.left_out()
    assert left_out is not None
    assert (left_out["exclude"], left_out["vhosts"]) == (["tmp"], [row])


async def test_that_nothing_is_orphaned_is_said_only_when_the_upstream_was_heard(
    standby: StandbyDownstream, work: Path
) -> None:
    """A script that sets new endpoints and deletes at once was told that there is nothing to delete."""
    upstream = StandbyUpstream(["orders"])
    upstream.publish("orders", "q", [stored_message(b"x")])
    transfer(upstream, work)
    vhost = Vhost(name="orders", tags=("standby_replication",))
    cast(FakeNode, standby._node).definitions.apply(Put(vhost))

    assert await standby.delete_orphaned_data() == [], "it follows nobody"
    standby.transfer._task = asyncio.create_task(asyncio.sleep(60))
    standby.transfer._take(
        {"event": "archived", "log": "orders", "vhost": "orders", "next": 1, "newest_ms": 1}
    )
    with pytest.raises(PreconditionFailed, match="vhost 'orders': the upstream has not reported yet"):
        await standby.delete_orphaned_data()
    heard = {"event": "link", "log": "orders", "vhost": "orders", "state": "connected", "endpoint": "b:1"}
    standby.transfer._take(heard | {"committed": 1, "committed_ms": 1})
    assert await standby.delete_orphaned_data() == []
    await standby.transfer.stop()


async def test_data_is_not_deleted_under_the_hands_of_a_dry_run_and_all_of_it_only_when_that_has_ended(
    standby: StandbyDownstream, work: Path
) -> None:
    upstream = StandbyUpstream(["orphan"])
    upstream.publish("orphan", "q", [stored_message(b"x")])
    upstream_end = transfer(upstream, work).next_by_log

    with locked(work / RECOVERY_LOCK, 1, "recovering"):
        reading = await begun(standby)
        with pytest.raises(NotAllowed, match="recovery into another broker is under way already"):
            await standby.delete_orphaned_data()
        assert Manifest(work).next_by_log == upstream_end
        deletion = asyncio.create_task(standby.delete_all_data())
        with pytest.raises(PipelineFailed, match="the deletion of all data has begun"):
            await reading
        assert Manifest(work).next_by_log == upstream_end
    await deletion
    assert Manifest(work).next_by_log == {}


@pytest.mark.parametrize("why", ["", "the upstream refuses user 'replicator'"])
def test_where_nothing_is_tagged_it_is_told_that_no_definitions_came(tmp_path: Path, why: str) -> None:
    node = FakeNode(tmp_path)
    node.schema_sync.why_nothing_came = why
    endpoints = {"endpoints": ["localhost:5552"], "username": "replicator", "password": "secret"}
    upstream = GlobalParameter(name=STANDBY_UPSTREAM, value=endpoints)
    node.definitions.by_kind["global_parameters"][upstream.name,] = upstream
    _, reason = StandbyDownstream(node, StateFile(tmp_path / "standby.json"))._job()
    cause = f": none of the upstream's definitions have come yet ({why})" if why else ""
    assert reason == f"no vhost is tagged standby_replication{cause}"


async def test_a_mode_that_is_set_does_not_take_away_what_a_rehearsal_works_with(
    tmp_path: Path, work: Path
) -> None:
    node = FakeNode(tmp_path)
    scratch = Vhost(name="leveret.rehearsal.0123.0")
    node.definitions.apply(Put(scratch))
    standby = StandbyDownstream(node, StateFile(tmp_path / "standby.json"))

    with locked(work / RECOVERY_LOCK, 1, "recovering"):
        rehearsal = await begun(standby)
        await standby.set_mode("upstream")
        assert node.applied == []
    await rehearsal
    await standby.start()
    assert node.applied == [Delete("vhosts", scratch.key)], "nobody works with it any more"


@pytest.mark.parametrize("refused", ["mode", "deletion"])
async def test_a_refused_command_leaves_the_transfer_as_it_was(
    standby: StandbyDownstream, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(octets: bytes) -> None:
        raise StorageError("no space left")

    async def fail() -> None:
        raise PipelineFailed("the store does not answer")

    await standby.follow()
    monkeypatch.setattr(standby.decided._state_file, "replace", refuse)
    monkeypatch.setattr(standby.own_archive, "delete_all", fail)
    with pytest.raises((StorageError, PipelineFailed)):
        await (standby.set_mode("upstream") if refused == "mode" else standby.delete_all_data())
    assert standby.transfer.runs
    assert standby.mode is OperatingMode.DOWNSTREAM
    await standby.transfer.stop()


async def test_others_go_on_while_the_queues_of_a_rehearsal_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand queues held the event loop up for 0.4 s; a cluster's node has a lease to keep (2026-11-29)."""
    monkeypatch.setattr(recovery, "in_slices", partial(in_slices, slice_s=0.0), raising=False)
    node = FakeNode(tmp_path)
    for number in range(3):
        node.definitions.apply(Put(Queue(name=f"q{number}", vhost="/")))
    recoveries = StandbyDownstream(node, StateFile(tmp_path / "standby.json")).own_recoveries
    scratch = recoveries._scratch_vhosts("x", ["/"])
    making = asyncio.create_task(scratch.__aenter__())
    await asyncio.sleep(0)
    assert 0 < len(node.applied) < 4
    assert await making == {"/": f"{REHEARSAL_VHOSTS}x.0"}
    assert len(node.applied) == 4
