"""A delayed follower whose wall clock is set forward."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.runtime.replication import delaying as module
from leveret.testing.network.waiting import until
from tests.unit.runtime.replication.delayed_site import DELAY_MS, AloneSite, delaying_of

BEGIN_MS = 1_700_000_000_000


async def test_a_clock_that_is_set_forward_ends_no_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the leader had removed was removed here, and a mistake could not be undone."""
    monkeypatch.setattr(module, "_PAUSE_S", (0.001, 0.001))
    wall_ms, elapsed_ms = BEGIN_MS, 0
    alone = AloneSite(tmp_path)
    delaying = delaying_of(
        tmp_path, alone.applier, alone.commits, clock=lambda: wall_ms, elapsed=lambda: elapsed_ms
    )
    removed_before_ms: list[int] = []

    async def expire(before_ms: int) -> None:
        removed_before_ms.append(before_ms)

    monkeypatch.setattr(delaying, "expire", expire)
    delaying.open()
    delaying.start()
    await until(lambda: removed_before_ms)
    wall_ms += 6 * DELAY_MS + 1000
    elapsed_ms += 1000
    removed_before_ms.clear()
    await until(lambda: len(removed_before_ms) > 1)
    assert max(removed_before_ms) == BEGIN_MS + 1000 - DELAY_MS
    await delaying.stop()
    await alone.close()
