"""Runs of many seeds, and the smallest set of faults with which a failing run still fails."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from leveret.runtime.process.allocator import keep_freed_memory
from leveret.testing.simulation.applications.publishers import FAST_COPIES
from leveret.testing.simulation.worlds.churn import ChurnWorld
from leveret.testing.simulation.worlds.cluster import ClusterWorld
from leveret.testing.simulation.worlds.delayed import DelayedWorld
from leveret.testing.simulation.worlds.followers import FollowerWorld
from leveret.testing.simulation.worlds.letters import LettersWorld
from leveret.testing.simulation.worlds.single import SingleWorld
from leveret.testing.simulation.worlds.world import RunFailure, RunReport, SimulatedWorld


def _of_sites(module: str, name: str) -> Callable[..., SimulatedWorld]:
    """Return what makes a world that needs the pipeline's packages, and greenlet."""

    def make(*given: Any, **named: Any) -> SimulatedWorld:
        worlds = import_module(f"leveret.testing.simulation.worlds.sites.{module}")
        world: SimulatedWorld = getattr(worlds, name)(*given, **named)
        return world

    return make


WORLDS: Final[dict[str, Callable[..., SimulatedWorld]]] = {
    "single": SingleWorld,
    "cluster": ClusterWorld,
    "churn": ChurnWorld,
    "letters": LettersWorld,
    "followers": FollowerWorld,
    "delayed": DelayedWorld,
    "sites": _of_sites("two_sites", "SitesWorld"),
    "shared": _of_sites("two_sites", "SharedArchiveWorld"),
    "returns": _of_sites("returns", "ReturningWorld"),
}
_TRIES_MAX: Final = 60


class RunOutcome(NamedTuple):
    """A run: its report or its failure, and its CPU time."""

    seed: int
    report: RunReport | None
    failure: RunFailure | None
    cpu_s: float


def play(
    world: str,
    seed: int,
    seconds: float,
    skip: frozenset[int] = frozenset(),
    often: str = "",
    copies: int = FAST_COPIES,
) -> RunOutcome:
    """Run one seed; see SimulatedWorld for `skip`, `often` and `copies`."""
    began_s = time.process_time()
    keep_freed_memory()
    # Prefer a file system in memory: a run makes and copies many small files.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="leveret-simulated-", dir=memory if memory.is_dir() else None))
    report: RunReport | None = None
    failure: RunFailure | None = None
    # The collection at the end of each run looks at the objects since the last freezing: most others are modules.
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    try:
        report = WORLDS[world](seed, folder, skip=skip, often=often, copies=copies).run(seconds)
    except RunFailure as found:
        failure = found
    return RunOutcome(seed, report, failure, time.process_time() - began_s)


def shrink(
    world: str, failed: RunOutcome, seconds: float, often: str = "", copies: int = FAST_COPIES
) -> tuple[frozenset[int], RunFailure]:
    """Leave out faults while the run fails for the same kind of reason; return the left-out ones and the failure."""
    assert failed.failure is not None
    smallest, skip = failed.failure, frozenset[int]()
    for number in reversed(range(failed.failure.count)[-_TRIES_MAX:]):
        found = play(world, failed.seed, seconds, skip | {number}, often, copies).failure
        if found is not None and type(found.fault) is type(smallest.fault):
            smallest, skip = found, skip | {number}
    return skip, smallest
