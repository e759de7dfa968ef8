"""Runs with small logs: a few hundred messages reach segments, drops, relocations and summaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.runtime.logs import relocating
from leveret.storage.log import Log
from leveret.testing.simulation.nodes.small_logs import SEGMENT_BYTES, small_logs
from leveret.testing.simulation.worlds.single import SingleWorld


def test_a_run_with_small_logs_drops_segments_and_relocates_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real sizes no simulated log had a second segment, so no seed could fail for one."""
    monkeypatch.setattr(SingleWorld, "small_logs_share", 1.0)
    drops: list[int] = []
    began: list[bool] = []
    drop, begin = Log.drop_before, relocating.Relocating.begin

    def dropped(log: Log, offset: int) -> int:
        drops.append(drop(log, offset))
        return drops[-1]

    def relocated(self: relocating.Relocating, *given: object) -> bool:
        began.append(begin(self, *given))  # type: ignore[arg-type]
        return began[-1]

    monkeypatch.setattr(Log, "drop_before", dropped)
    monkeypatch.setattr(relocating.Relocating, "begin", relocated)
    world = SingleWorld(102, tmp_path, copies=100)
    world.run(20)
    assert sum(map(bool, drops)) > 5
    assert any(began)
    assert world.nodes[0].config.storage.segment_bytes_max == SEGMENT_BYTES


def test_the_sizes_are_the_products_again_after_a_run() -> None:
    before = relocating.RELOCATED_BYTES_MIN
    with small_logs():
        assert before > relocating.RELOCATED_BYTES_MIN
    assert before == relocating.RELOCATED_BYTES_MIN


def test_runs_that_are_directed_at_a_fault_have_real_sizes(tmp_path: Path) -> None:
    assert SingleWorld(2, tmp_path).has_small_logs
    assert not SingleWorld(2, tmp_path, often="kill").has_small_logs
