from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from leveret.management.views import node_stats

if TYPE_CHECKING:
    from tests.unit.management.conftest import FakeNode


def sampled(node: FakeNode) -> dict[str, int]:
    return dict(zip(node_stats.NAMES, node_stats.sample(node), strict=True))


def test_the_process_is_measured(node: FakeNode) -> None:
    found = sampled(node)
    assert found["mem_used"] > 1_000_000
    assert found["disk_free"] > 0
    assert found["proc_used"] >= 1
    assert found["context_switches"] > 0


def test_writes_are_counted(node: FakeNode, tmp_path: Path) -> None:
    before = sampled(node)["io_write_count"]
    with (tmp_path / "a").open("wb", buffering=0) as file:
        for _ in range(3):
            file.write(b"x")
    assert sampled(node)["io_write_count"] >= before + 3


def test_limits_and_alarms_are_told(node: FakeNode) -> None:
    found = node_stats.limits(node)
    assert found["os_pid"] == str(os.getpid())
    assert found["mem_limit"] == node.alarms.memory_limit_bytes
    assert found["disk_free_limit"] == 50_000_000
    assert found["fd_total"] > found["sockets_total"] > 0
    assert found["file_descriptor_alarm"] is False
    assert found["proc_total"] > 0
    assert (found["mem_alarm"], found["disk_free_alarm"]) == (False, False)
