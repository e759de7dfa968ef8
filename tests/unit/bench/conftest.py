from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.rows import Settings
from leveret.testing.servers.broker import LeveretProcess


@pytest.fixture(scope="session")
def leveret() -> Iterator[LeveretProcess]:
    """One node for all tests of scenarios, each of which leaves it as it was."""
    with LeveretProcess() as node:
        yield node


@pytest.fixture
def tiny(tmp_path: Path) -> Settings:
    """What a scenario is run with to see that it works, not how fast."""
    return Settings(
        seconds=0.3, warmup_s=0.1, rounds=1, backlog=2500, folder=tmp_path, large_backlog=1500, quick=True
    )
