"""What all unit tests run with."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from leveret.runtime.node import node
from leveret.storage.kernel_syncs import KernelSyncs, open_kernel_syncs
from leveret.testing.network import waiting
from tests.unit.memory import scratch

# What tests here wait for comes from the same process, within a millisecond or so.
waiting._POLL_S = 0.001  # type: ignore[misc]


class ReusedSyncs(KernelSyncs):
    """A queue of the kernel that the next node of a test gets: to destroy one is a wait of 30 ms."""

    unused: ClassVar[list[tuple[int, ReusedSyncs]]] = []
    """Queues, each with the process that made it: a fork has none of them."""

    @classmethod
    def open(cls) -> KernelSyncs | None:
        """See open_kernel_syncs."""
        while cls.unused:
            process, syncs = cls.unused.pop()
            if process == os.getpid():
                return syncs
        try:
            return cls()
        except OSError:
            return open_kernel_syncs()

    def close(self) -> None:
        """Wait for the syncs that have begun; forget their results."""
        while self._running:
            select.select([self.readable_fd], [], [], 1.0)
            self.ended()
        self.unused.append((os.getpid(), self))


node.open_kernel_syncs = ReusedSyncs.open  # type: ignore[attr-defined]


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
