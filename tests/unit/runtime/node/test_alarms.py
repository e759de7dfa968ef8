"""The node's own look at its memory and disk."""

from __future__ import annotations

import asyncio
import errno
import mmap
from dataclasses import replace
from pathlib import Path

import pytest

from leveret.config.sections.limits import Watermarks
from leveret.core.broker.alarms import Watermark
from leveret.runtime.node import alarms
from leveret.runtime.node.alarms import AlarmWatch, total_memory_bytes
from leveret.runtime.process.proc import used_memory_bytes
from leveret.storage.disk import free_disk_bytes
from leveret.storage.reserve import FILE
from leveret.testing.network.waiting import until

EVER_LOW = Watermarks(memory_absolute_bytes=0)


def test_memory_and_disk_are_those_of_this_process_and_directory(tmp_path: Path) -> None:
    before = used_memory_bytes()
    # Of its own, not of what the process has from before.
    filled = mmap.mmap(-1, 50_000_000)
    filled.write(b"x" * len(filled))
    assert used_memory_bytes() - before > len(filled) // 2
    assert before < total_memory_bytes()
    assert (free_disk_bytes(tmp_path) or 0) > 0
    assert free_disk_bytes(tmp_path / "nowhere") is None


def test_who_must_know_is_told_of_every_change_and_of_nothing_else(tmp_path: Path) -> None:
    watch = AlarmWatch(Watermarks(), tmp_path)
    seen: list[tuple[str, ...]] = []
    watch.on_change.append(lambda: seen.append(watch.active))
    watch.probe()
    watch.set_memory(Watermark(bytes_=0))
    watch.set_disk(Watermark(bytes_=1 << 62))
    watch.probe()
    watch.set_memory(Watermark(ratio=1.0))
    watch.set_disk(Watermark())
    watch.probe()
    assert seen == [("memory",), ("disk", "memory"), ("disk",), ()]


def test_a_disk_alarm_does_not_keep_the_reserve_away(tmp_path: Path) -> None:
    """The limit may be the machine's memory; the node that is below it may have to start on a full disk."""
    watch = AlarmWatch(Watermarks(disk_absolute_bytes=1 << 62), tmp_path, reserve_bytes=4096)
    watch.probe()
    assert watch.active == ("disk",)
    asyncio.run(watch.hold_reserve())
    assert (tmp_path / FILE).exists()


def test_publishers_wait_while_a_reserve_that_is_given_up_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their limit of free disk is: with 1 byte they used the reserve up, and the node did not start again."""
    watch = AlarmWatch(Watermarks(disk_absolute_bytes=1), tmp_path, reserve_bytes=4096)
    asyncio.run(watch.hold_reserve())
    seen = []
    for free in (5000, 4000, 4100, 8191, 8192):
        monkeypatch.setattr(alarms, "free_disk_bytes", lambda _, free=free: free)
        watch.probe()
        seen.append((watch.active, watch.disk_free_bytes))
    assert seen == [((), 5000), *[(("disk",), 0)] * 3, ((), 4096)]


def test_limits_come_from_the_settings(tmp_path: Path) -> None:
    settings = Watermarks(memory_total_bytes=1000)
    watch = AlarmWatch(settings, tmp_path)
    assert (watch.memory_limit_bytes, watch.disk_limit_bytes) == (400, 50_000_000)
    watch = AlarmWatch(replace(settings, memory_absolute_bytes=7, disk_relative=1.5), tmp_path)
    assert (watch.memory_limit_bytes, watch.disk_limit_bytes) == (7, 1500)
    watch = AlarmWatch(replace(settings, memory_relative=None), tmp_path)
    assert watch.memory_limit_bytes is None


def test_while_memory_is_low_free_memory_is_given_back_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(alarms, "give_back_memory", lambda *, collect: given.append(collect))
    watch = AlarmWatch(EVER_LOW, tmp_path)
    watch.probe()
    assert not given, "nothing was low yet"
    watch.probe()
    watch.probe()
    assert len(given) == 1
    monkeypatch.setattr(alarms, "GIVE_BACK_EVERY_S", 0.0)
    watch.probe()
    assert given == [True, False], "all objects are visited once in an alarm"
    watch.set_memory(Watermark(None, 1 << 50))
    watch.probe()
    watch.set_memory(Watermark(None, 0))
    watch.probe()
    assert given == [True, False, True]


async def test_a_measurement_that_fails_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without a free descriptor cannot read each figure, and must go on."""
    measured: list[int] = []

    def measure() -> int:
        measured.append(1)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(alarms, "used_memory_bytes", measure)
    monkeypatch.setattr(alarms, "PROBE_EVERY_S", 0.001)
    watching = asyncio.create_task(AlarmWatch(Watermarks(), tmp_path).run())
    await until(lambda: len(measured) > 1 or watching.done(), "another measurement")
    assert not watching.done()
    watching.cancel()
