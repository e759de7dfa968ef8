"""What all unit tests run with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from leveret.testing.network import waiting
from tests.unit.memory import scratch

# What tests here wait for comes from the same process, within a millisecond or so.
waiting._POLL_S = 0.001  # type: ignore[misc]


@pytest.fixture
def disk_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """An empty directory on a disk, for a test of the disk itself; it stays for a while."""
    return tmp_path_factory.mktemp(request.node.name[:30])


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory, which goes with the test: in memory, where half of the time of all tests is not a wait.

    A test that starts processes has it on a disk.
    """
    if request.node.get_closest_marker("process") is not None:
        yield request.getfixturevalue("disk_path")
        return
    with scratch() as directory:
        # A test may put something beside it.
        place = directory / "test"
        place.mkdir()
        yield place


@pytest.fixture(scope="module")
def new_path() -> Iterator[Callable[[], Path]]:
    """Makes empty directories in memory, one for each example of a property test; they go with the module."""
    with scratch() as directory:
        numbers = count()

        def made() -> Path:
            place = directory / str(next(numbers))
            place.mkdir()
            return place

        yield made
