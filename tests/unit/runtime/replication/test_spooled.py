"""A data directory of an older delayed follower, with a spool: all of it is applied, each frame with its time."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from leveret.core.replication.receiver import Copied
from leveret.model.errors import PreconditionFailed
from leveret.runtime.process.clock import clock_ms, elapsed_ms
from leveret.runtime.replication.applier import Applier, WaitingChanges
from leveret.runtime.replication.delaying import Delaying, follower_data
from leveret.runtime.replication.point_in_time import refuse_to_lead
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.delayed.spool import JOINED, JOINING
from leveret.testing.network.waiting import until
from leveret.wire.link import FrameHead, LogChange, LogExtent
from tests.seeds import seeds
from tests.unit.runtime.replication.delayed_site import (
    DELAY_MS,
    AloneSite,
    assert_is,
    assert_was,
    has_received,
    moment,
)
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite, fail
from tests.unit.storage.delayed.old_spool import OldEntry, OldSpool


class _Spooling:
    """Applies a first join, and has everything after that wait in a spool, as an older delayed follower did."""

    apply_delay_ms = DELAY_MS

    def __init__(self, applier: Applier, directory: Path) -> None:
        self._applier = applier
        self._directory = directory
        self._spool: OldSpool | None = None

    def inventory(self) -> Iterable[LogExtent]:
        return self._applier.inventory()

    def copied(self, name: str) -> Copied | None:
        """What waits in the spool is in no log: nothing that comes can be compared with the logs."""
        return None if self._spool is not None else self._applier.copied(name)

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        return self._applier.headers(name, before, count)

    def joining(self, leader: ProvenLeader) -> None:
        self._leader = leader
        self._applier.joining(leader)

    def keeping(self, changes: Sequence[LogChange]) -> None:
        return None

    def take(self, head: FrameHead, changes: Iterable[LogChange]) -> None:
        if self._spool is None:
            self._applier.take(head, changes)
            return
        entries = [OldEntry(each.kind, each.name, each.offset, bytes(each.octets)) for each in changes]
        if entries:
            self._spool.append(entries, head.cut_at_ms)

    def joined(self) -> None:
        self._applier.joined()
        self._spool = OldSpool(self._directory)
        # A join that lacked nothing.
        leader = msgspec.msgpack.encode(self._leader)
        self._spool.append(
            [OldEntry(JOINING, "", octets=leader), OldEntry(JOINED, "", octets=leader)], clock_ms()
        )

    def drop_due(self) -> None:
        self._applier.drop_due()

    def delayed_changes(self) -> WaitingChanges | None:
        return None

    def close(self) -> None:
        assert self._spool is not None
        self._spool.close()


class _OldSite(FollowerSite):
    def follower_data(self) -> _Spooling:
        self.spooling = _Spooling(self.applier, self.directory)
        return self.spooling


async def old_data(tmp_path: Path, seed: int) -> list[tuple[int, Path]]:
    """Have the data of an older delayed follower in `follower`; what its leader was at some times."""
    leader = LeaderSite(tmp_path / "leader", random.Random(seed))
    leader.change_often(60)
    follower = _OldSite(tmp_path / "follower", await leader.start())
    moments = [(await moment(leader, tmp_path / "0"), tmp_path / "0")]
    for number in range(1, 4):
        for _ in range(60):
            leader.change()
            await asyncio.sleep(0)
        moments.append((await moment(leader, tmp_path / str(number)), tmp_path / str(number)))
    await until(lambda: has_received(leader), "received")
    await follower.stop()
    follower.spooling.close()
    await leader.stop()
    assert_is(follower.directory, moments[0][1])
    return moments


async def started(directory: Path, apply_delay_ms: int) -> None:
    """Start on that data, as a follower, and stop."""
    alone = AloneSite(directory)
    alone.applier.quarantine = alone.keeper()
    data = await follower_data(
        directory,
        alone.applier,
        alone.commits,
        apply_delay_ms=apply_delay_ms,
        has_joined=True,
        clock_ms=clock_ms,
        elapsed_ms=elapsed_ms,
        on_damage=fail,
    )
    if isinstance(data, Delaying):
        await data.stop()
    await alone.close()


@pytest.mark.parametrize("seed", seeds(2, each_time=1))
@pytest.mark.long
async def test_each_time_of_the_spool_can_be_gone_back_to(tmp_path: Path, seed: int) -> None:
    moments = await old_data(tmp_path, seed)
    directory = tmp_path / "follower"
    with pytest.raises(PreconditionFailed, match="--apply-delayed"):
        refuse_to_lead(directory, clock_ms() + 10 * DELAY_MS)
    await started(directory, DELAY_MS)
    assert not (directory / "delayed" / "applied.json").exists()
    await assert_was(directory, moments, tmp_path / "copy")


async def test_without_a_delay_all_of_it_is_applied(tmp_path: Path) -> None:
    moments = await old_data(tmp_path, 2)
    await started(tmp_path / "follower", 0)
    assert_is(tmp_path / "follower", moments[-1][1])
    assert not (tmp_path / "follower" / "delayed").exists()


@pytest.mark.long
async def test_killed_at_any_change_it_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = await old_data(tmp_path, 3)
    copies: list[Path] = []
    apply: Callable[[Applier, LogChange], None] = Applier.apply
    made = 0

    def watched(applier: Applier, change: LogChange) -> None:
        nonlocal made
        apply(applier, change)
        if made % 40 == 7:
            copies.append(tmp_path / f"killed-{len(copies)}")
            shutil.copytree(tmp_path / "follower", copies[-1])
        made += 1

    with monkeypatch.context() as patched:
        patched.setattr(Applier, "apply", watched)
        await started(tmp_path / "follower", DELAY_MS)
    assert len(copies) > 2
    for number, copy in enumerate(copies):
        await started(copy, DELAY_MS)
        await assert_was(copy, [moments[1 + number % 3]], tmp_path / "copy")
