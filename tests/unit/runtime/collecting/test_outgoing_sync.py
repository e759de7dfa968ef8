"""How often the outgoing logs are synced: the pause between two syncs is a part of a downstream's lag."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.runtime.collecting import outgoing_sync as module
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.collecting.outgoing_sync import (
    BUSY_INTERVAL_S,
    BUSY_TIMES,
    FLUSH_INTERVAL_S,
    OutgoingSync,
)

ROUNDS = 3
WAIT_S = 5.0


class Rounds(Exception):
    """There were enough of them."""


def log_of(path: Path, *, is_followed: bool, has_news: bool) -> OutgoingLog:
    def begin_commit() -> tuple[list[int], int, int]:
        return [os.open(path, os.O_RDWR | os.O_CREAT)] if has_news else [], 1, 0

    return cast(
        OutgoingLog,
        SimpleNamespace(
            begin_commit=begin_commit,
            commit=lambda end, last: None,
            take_transferred=list,
            downstreams=SimpleNamespace(by_reference={"d": None} if is_followed else {}),
            log=SimpleNamespace(synced=lambda: None, take_sealed=list),
        ),
    )


@pytest.mark.parametrize(
    ("is_followed", "has_news", "takes_s", "expected_s"),
    [
        (True, True, 0.0, BUSY_INTERVAL_S),
        (True, True, 0.01, BUSY_TIMES * 0.01),
        (True, True, 1.0, FLUSH_INTERVAL_S),
        (True, False, 0.0, FLUSH_INTERVAL_S),
        (False, True, 0.0, FLUSH_INTERVAL_S),
    ],
)
async def test_while_records_come_for_a_downstream_the_pause_is_as_short_as_the_disk_permits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_followed: bool,
    has_news: bool,
    takes_s: float,
    expected_s: float,
) -> None:
    pauses: list[float] = []
    now_s = 0.0

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) > ROUNDS:
            raise Rounds

    async def shared() -> None:
        nonlocal now_s
        now_s += takes_s

    def loop() -> Any:
        running: Callable[..., Any] = asyncio.get_running_loop().run_in_executor
        return SimpleNamespace(time=lambda: now_s, run_in_executor=running)

    monkeypatch.setattr(
        module, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=loop, Event=asyncio.Event)
    )
    sync = OutgoingSync({"v": log_of(tmp_path / "log", is_followed=is_followed, has_news=has_news)}, shared)
    with pytest.raises(Rounds):
        await sync.run()
    sync.close()
    assert pauses[0] == FLUSH_INTERVAL_S
    assert pauses[1:] == pytest.approx([expected_s] * ROUNDS)


async def test_a_sync_does_not_wait_for_the_summary_of_a_sealed_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = [object()]
    begun, may_end = Event(), Event()
    was_synced = asyncio.Event()

    def summarise(segment: object) -> None:
        begun.set()
        may_end.wait(WAIT_S)

    def take_sealed() -> list[object]:
        return [sealed.pop()] if sealed else []

    monkeypatch.setattr(module, "summarise", summarise)
    log: Any = log_of(tmp_path / "log", is_followed=True, has_news=True)
    log.commit = lambda end, last: was_synced.set()
    log.log.take_sealed = take_sealed
    sync = OutgoingSync({"v": log}, nothing_is_shared)
    running = asyncio.create_task(sync.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(begun.wait)
            was_synced.clear()
            await was_synced.wait()
    finally:
        may_end.set()
        running.cancel()
        sync.close()


async def nothing_is_shared() -> None:
    """No follower is waited for."""
